"use strict";
(async () => {
  const byId = (id) => document.getElementById(id);
  const figures = JSON.parse(byId("figures").textContent);
  const plots = [...document.querySelectorAll("[data-figure]")].filter((plot) => figures[plot.dataset.figure]);
  if (plots.length === 0) return;

  async function loadPlotly() {
    const bytes = Uint8Array.from(atob(byId("plotly").textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  // Colours alone are names; a class called "@accent" stays what it is.
  function resolve(value, key = "") {
    if (typeof value === "string" && value[0] === "@" && /color(scale)?$/.test(key)) {
      return getComputedStyle(document.documentElement).getPropertyValue("--" + value.slice(1)).trim();
    }
    if (Array.isArray(value)) return value.map((inner) => resolve(inner, key));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, resolve(inner, name)]));
  }

  const axis = { gridcolor: "@line", zerolinecolor: "@line", linecolor: "@line", automargin: true };
  const look = {
    font: { family: "inherit", size: 12, color: "@muted" },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 24, b: 44 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: 11 } },
    hoverlabel: { bgcolor: "@surface", bordercolor: "@line", font: { color: "@ink" } },
    bargap: 0.25,
  };

  function layoutOf(figure) {
    const layout = { ...look, ...figure.layout };
    for (const name of ["xaxis", "yaxis", "yaxis2"]) {
      const given = figure.layout[name];
      // Without a standoff, a title keeps its place and six digits reach it.
      if (given) layout[name] = { ...axis, ...given, title: { standoff: 12, ...given.title } };
    }
    layout.font = { ...layout.font, family: getComputedStyle(document.body).fontFamily };
    return resolve(layout);
  }

  async function draw() {
    for (const plot of plots) {
      const figure = figures[plot.dataset.figure];
      const config = { displaylogo: false, responsive: true, displayModeBar: false };
      await Plotly.react(plot, resolve(figure.data), layoutOf(figure), config);
    }
    document.documentElement.dataset.drawn = String(plots.length);
  }

  try {
    await loadPlotly();
    await draw();
  } catch (error) {
    document.documentElement.dataset.error = String(error);
    byId("no-figures").hidden = false;
    return;
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", draw);
})();
