// An image file as the pixels that the model takes: the rules of preprocess.py on what the browser decodes.
const { height, width, channels } = content.image;
const MOST_PIXELS = 100_000_000;

async function features(file) {
  const pixels = await decoded(file);
  return { [content.inputs[0].feature]: resized(inChannels(pixels), height, width) };
}

// Returns the red, green, blue and opaque pixels of an image file, upright and on white.
async function decoded(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const kind = kindOf(bytes);
  let bitmap;
  try {
    bitmap = await createImageBitmap(new Blob([bytes]), { colorSpaceConversion: "none", imageOrientation: "from-image" });
  } catch {
    throw new InputError("the browser cannot read this image. Save it as JPEG or PNG again.");
  }
  if (bitmap.width * bitmap.height > MOST_PIXELS) {
    throw new InputError(`the image has ${bitmap.width} × ${bitmap.height} pixels. Make it smaller.`);
  }
  return { ...pixelsOf(bitmap, bitmap.width, bitmap.height), isPng: kind === "PNG" };
}

// Refuses what browsers decode otherwise than training: 16 bits a channel, CMYK, and formats that not all of them have.
function kindOf(bytes) {
  const text = String.fromCharCode(...bytes.subarray(0, 16));
  if (text.startsWith("\x89PNG\r\n\x1a\n")) {
    if (bytes[24] > 8) throw new InputError("the image has 16 bits a channel, which browsers cut. Save it with 8 bits.");
    return "PNG";
  }
  if (text.startsWith("\xff\xd8")) {
    if (jpegComponents(bytes) > 3) throw new InputError("the image is in CMYK colors. Save it as RGB.");
    return "JPEG";
  }
  if (/^(GIF8|BM|RIFF....WEBP)/s.test(text)) return "other";
  throw new InputError("the file is no JPEG, PNG, WebP, GIF or BMP image. Save it as JPEG or PNG.");
}

function jpegComponents(bytes) {
  let at = 2;
  while (at + 9 < bytes.length) {
    const marker = bytes[at + 1];
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) return bytes[at + 9];
    at += marker === 0xff ? 1 : 2 + (bytes[at + 2] << 8) + bytes[at + 3];
  }
  return 0;
}

function pixelsOf(source, wide, high) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, wide, high);
  context.drawImage(source, 0, 0, wide, high);
  const { data } = context.getImageData(0, 0, wide, high);
  if (data.at(-1) !== 255) throw new InputError("the image is too large for this browser. Make it smaller.");
  return { data, wide, high, canvas };
}

// Source: on_device/images.py for PNG; for others, Pillow's conversion to gray.
function inChannels({ data, wide, high, isPng }) {
  const values = new Uint8Array(wide * high * channels);
  for (let from = 0, to = 0; from < data.length; from += 4) {
    const [red, green, blue] = [data[from], data[from + 1], data[from + 2]];
    if (channels === 3) {
      values[to++] = red;
      values[to++] = green;
      values[to++] = blue;
    } else if (red === green && green === blue) {
      values[to++] = red;
    } else {
      values[to++] = isPng
        ? (9797 * red + 19234 * green + 3737 * blue) >> 15
        : (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16;
    }
  }
  return { values, wide, high };
}

// Bilinear, antialiased if it shrinks.
function resized({ values, wide, high }, toHigh, toWide) {
  if (wide === toWide && high === toHigh) return Float32Array.from(values);
  const [rows, columns] = [weights(high, toHigh), weights(wide, toWide)];
  const made = new Float32Array(toHigh * toWide * channels);
  rows.forEach((row, y) => {
    const line = new Float64Array(wide * channels);
    row.forEach(([place, weight]) => {
      const start = place * line.length;
      for (let index = 0; index < line.length; index++) line[index] += weight * values[start + index];
    });
    columns.forEach((column, x) => {
      for (let channel = 0; channel < channels; channel++) {
        const sum = column.reduce((total, [place, weight]) => total + weight * line[place * channels + channel], 0);
        made[(y * toWide + x) * channels + channel] = sum;
      }
    });
  });
  return made;
}

// Returns the [pixel, weight] pairs of each wanted pixel. Source: TensorFlow's ScaleAndTranslate, as in images.py.
function weights(size, wanted) {
  const single = Math.fround;
  const step = single(1 / single(single(wanted) / single(size)));
  const reach = Math.max(step, 1);
  return Array.from({ length: wanted }, (_, index) => {
    const middle = single(single(index + 0.5) * step);
    const found = [];
    const first = Math.max(0, Math.floor(middle - reach - 1));
    for (let place = first; place < Math.min(size, middle + reach + 1); place++) {
      const distance = Math.abs(single(single(place + 0.5) - middle));
      const weight = single(1 - single(distance * single(1 / reach)));
      if (weight > 0) found.push([place, weight]);
    }
    const total = found.reduce((sum, [, weight]) => single(sum + weight), 0);
    return found.map(([place, weight]) => [place, single(weight * single(1 / total))]);
  });
}
