// Asks the model for what the visitor gives, and shows its answer.
const MOST_BARS = 10;
const MOST_DIFFERENCE = 1e-4; // as the export allows a file after preprocess.py

class Model {
  static async load() {
    ort.env.wasm.numThreads = 1; // more need headers of a server
    ort.env.wasm.wasmBinary = await inflated("runtime");
    return new Model(await ort.InferenceSession.create(new Uint8Array(await inflated("model"))));
  }

  constructor(session) {
    this.session = session;
    this.turn = Promise.resolve();
  }

  // Returns the label and probabilities by class, or the predictions by target; one example after the other.
  answer(example) {
    const asked = this.turn.then(async () => answerOf(await this.session.run(inputsOf(await features(example)))));
    this.turn = asked.catch(() => {});
    return asked;
  }
}

async function inflated(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

function inputsOf(made) {
  const tensors = content.files["model.onnx"].inputs;
  const used = content.inputs.filter(({ name }) => entry(tensors, name));
  return Object.fromEntries(
    used.map(({ name, feature, dtype, shape }) => {
      const values = made[feature] instanceof Float32Array ? made[feature] : [].concat(made[feature]);
      const typed = dtype === "int64" ? BigInt64Array.from(values, BigInt) : Float32Array.from(values);
      return [name, new ort.Tensor(dtype, typed, shape)];
    }),
  );
}

function answerOf(outputs) {
  if (!content.outputs.every(({ name }) => outputs[name].data.every(Number.isFinite))) {
    throw new InputError("the model gives NaN or infinity");
  }
  if (!page.labels) {
    const targets = content.outputs.map(({ target, name }) => [target, outputs[name].data[0]]);
    return { prediction: Object.fromEntries(targets) };
  }
  const probabilities = [...outputs.probabilities.data];
  return { label: labelOf(probabilities), probabilities };
}

// Source: contract/statistics/decision.py.
function labelOf(probabilities) {
  const thresholds = page.labels.map((label) => entry(content.thresholds, label));
  if (content.label_separator !== null) {
    const chosen = page.labels.filter((_, id) => probabilities[id] > Math.fround(thresholds[id] ?? 0.5));
    return chosen.join(content.label_separator);
  }
  const own = thresholds.findIndex((threshold) => threshold !== undefined);
  if (own !== -1 && probabilities[own] > Math.fround(thresholds[own])) return page.labels[own];
  const others = probabilities.map((probability, id) => (id === own ? -1 : probability));
  return page.labels[others.indexOf(Math.max(...others))];
}

function show(answer) {
  const bars = byId("bars");
  bars.replaceChildren();
  if (answer.prediction) {
    const targets = content.outputs.map(({ target }) => [target, answer.prediction[target]]); // objects sort numbers
    byId("label").textContent = targets.length === 1 ? inDigits(targets[0][1]) : "";
    for (const [target, value] of targets) bars.append(row(target, inDigits(value)));
  } else {
    byId("label").textContent = answer.label || "no class";
    const ranked = page.labels.map((label, id) => [label, answer.probabilities[id]]).sort((one, other) => other[1] - one[1]);
    for (const [label, share] of ranked.slice(0, MOST_BARS)) bars.append(row(label, `${(100 * share).toFixed(1)} %`, share));
    const rest = ranked.length - MOST_BARS;
    byId("rest").textContent = rest > 0 ? `${rest} less probable classes are not listed.` : "";
  }
  byId("fault").hidden = true;
  byId("answer").hidden = false;
}

function inDigits(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 6 });
}

// Text content alone, so that no name of a class or column is HTML.
function row(name, text, share) {
  const line = document.createElement("tr");
  const cells = [document.createElement("th"), document.createElement("td")];
  cells[0].scope = "row";
  cells[0].textContent = name;
  cells[1].textContent = text;
  cells[1].className = "n";
  if (share !== undefined) {
    const [cell, bar, fill] = ["td", "span", "i"].map((tag) => document.createElement(tag));
    bar.className = "bar";
    fill.style.width = `${100 * share}%`;
    bar.append(fill);
    cell.append(bar);
    cells.splice(1, 0, cell);
  }
  line.append(...cells);
  return line;
}

function complain(message) {
  byId("fault").textContent = message;
  byId("fault").hidden = false;
  byId("answer").hidden = true;
}

async function ask(example) {
  try {
    show(await (await model).answer(example));
  } catch (error) {
    complain(error instanceof InputError ? error.message : `The model failed: ${error.message ?? error}`);
  }
}

// Compares the answer to an example with the one that export computed, because browsers differ.
async function check() {
  const { probabilities, prediction } = await (await model).answer(exampleOf(page.check.example));
  const ours = probabilities ?? content.outputs.map(({ target }) => prediction[target]);
  const theirs = page.check.answer;
  const scale = Math.max(1, ...theirs.map(Math.abs));
  const furthest = Math.max(...theirs.map((value, place) => Math.abs(value - ours[place]))) / scale;
  const isSame = furthest <= MOST_DIFFERENCE;
  byId("check").className = isSame ? "note" : "alert warn";
  byId("check").textContent = isSame
    ? `This browser answers a test example as the exported model does (largest difference ${furthest && furthest.toExponential(0)}).`
    : `This browser answers a test example otherwise than the exported model (difference ${furthest.toExponential(1)}). ` +
      "Do not rely on its answers; try another browser.";
  document.documentElement.dataset.checked = String(isSame);
}

const model = Model.load();
globalThis.trainyard = { answer: async (example) => (await model).answer(example), features };
try {
  await model;
  byId("loading").hidden = true;
  byId("inputs").disabled = false;
  await check();
  await start();
} catch (error) {
  complain(`This page does not work here: ${error.message ?? error}. Use Chrome 97, Firefox 113, Safari 16.4 or a newer browser.`);
}
