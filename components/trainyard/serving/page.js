"use strict";
const form = document.getElementById("form");
const answer = document.getElementById("answer");

function base64(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

async function record() {
  const image = form.dataset.image;
  if (image) return { [image]: { b64: await base64(form.querySelector("input").files[0]) } };
  return Object.fromEntries([...new FormData(form)].map(([name, text]) => [name, text === "" ? null : text]));
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  answer.replaceChildren();
  const text = document.createElement("pre");
  try {
    const body = JSON.stringify({ instances: [await record()] });
    const response = await fetch(form.dataset.url, { method: "POST", body });
    const content = await response.json();
    text.textContent = content.error ?? JSON.stringify(content.predictions[0], null, 1);
    text.className = response.ok ? "" : "fail";
  } catch (error) {
    text.textContent = `The server did not answer: ${error.message}`;
    text.className = "fail";
  }
  answer.append(text);
});
