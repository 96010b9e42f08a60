// The form of a row: a field for each raw column, by its place.
const fields = [...document.querySelectorAll("[data-column]")];

function exampleOf(row) {
  return row;
}

function rowOf() {
  return Object.fromEntries(fields.map((field, place) => [page.columns[place].name, field.value]));
}

// Values stay as they are, while the page's HTML shows invisible characters as escapes.
function fill(field, { kind, choices, example }) {
  const options = choices.map((value) => new Option(value, value, value === example, value === example));
  if (kind === "choice") {
    field.append(new Option("(missing)", ""), ...options);
  } else {
    field.list?.append(...options);
    field.defaultValue = example;
  }
}

async function start() {
  fields.forEach((field, place) => fill(field, page.columns[place]));
  const form = byId("form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(rowOf()).then(() => byId("answer").scrollIntoView({ block: "nearest" }));
  });
  form.addEventListener("change", () => ask(rowOf()));
  form.addEventListener("reset", () => setTimeout(() => ask(rowOf())));
  await ask(rowOf());
}
