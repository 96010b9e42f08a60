// An image from a file, the camera or a drawing, and what the model sees of it.
const drawing = byId("drawing");
const pen = drawing.getContext("2d", { willReadFrequently: true });
const video = byId("video");
let last = null;

function exampleOf(encoded) {
  return new Blob([Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0))]);
}

async function start() {
  for (const input of document.querySelectorAll("input[type=file]")) {
    input.addEventListener("change", () => input.files.length && askImage(input.files[0], input.files[0].name));
  }
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) askImage(event.dataTransfer.files[0], event.dataTransfer.files[0].name);
  });
  byId("camera").hidden = !navigator.mediaDevices;
  byId("camera").addEventListener("click", toggleCamera);
  byId("capture").addEventListener("click", () => askCanvas(pixelsOf(video, video.videoWidth, video.videoHeight).canvas, "the camera"));
  byId("clear").addEventListener("click", clear);
  byId("dark").addEventListener("change", clear);
  drawing.addEventListener("pointerdown", (event) => {
    drawing.setPointerCapture(event.pointerId);
    line(pointOf(event), pointOf(event));
  });
  const draws = (event) => drawing.hasPointerCapture(event.pointerId); // not what began beside the drawing
  drawing.addEventListener("pointermove", (event) => draws(event) && line(last, pointOf(event)));
  drawing.addEventListener("pointerup", (event) => draws(event) && askCanvas(drawing, "the drawing"));
  clear();
}

async function askImage(file, name) {
  byId("source").textContent = name;
  await preview(file);
  await ask(file);
}

// As PNG, so that every source of an image takes the same way.
function askCanvas(canvas, name) {
  canvas.toBlob((blob) => askImage(blob, name), "image/png");
}

async function preview(file) {
  const [seen, shown] = [byId("seen"), byId("seen").getContext("2d")];
  shown.clearRect(0, 0, width, height);
  try {
    const [pixels] = Object.values(await features(file));
    const image = shown.createImageData(width, height);
    for (let place = 0; place < width * height; place++) {
      for (let channel = 0; channel < 3; channel++) {
        image.data[4 * place + channel] = Math.round(pixels[place * channels + (channel % channels)]);
      }
      image.data[4 * place + 3] = 255;
    }
    shown.putImageData(image, 0, 0);
    seen.parentElement.hidden = false;
  } catch {
    seen.parentElement.hidden = true; // `ask` says why
  }
}

function clear() {
  pen.fillStyle = byId("dark").checked ? "black" : "white";
  pen.fillRect(0, 0, drawing.width, drawing.height);
}

function pointOf({ offsetX, offsetY }) {
  return [(offsetX * drawing.width) / drawing.clientWidth, (offsetY * drawing.height) / drawing.clientHeight];
}

function line(from, to) {
  pen.strokeStyle = byId("dark").checked ? "white" : "black";
  pen.lineWidth = Math.min(drawing.width, drawing.height) / 10;
  pen.lineCap = "round";
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
  last = to;
}

async function toggleCamera() {
  if (video.srcObject) {
    for (const track of video.srcObject.getTracks()) track.stop();
    video.srcObject = null;
  } else {
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
      await video.play();
    } catch (error) {
      complain(`The camera does not start (${error.message}). Allow it, or use an image file.`);
    }
  }
  byId("live").hidden = !video.srcObject;
  byId("camera").textContent = video.srcObject ? "Stop the camera" : "Start the camera";
}
