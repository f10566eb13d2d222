"use strict";

// Copy buttons, if the browser allows pages to copy.
for (const button of document.querySelectorAll("button.copy")) {
  if (!navigator.clipboard) break;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// Charts. plotly is in the page as base64 of gzip, and runs as a script with the page's nonce.
async function loadPlotly() {
  const packed = atob(document.getElementById("plotly").textContent.trim());
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.nonce = document.currentScript?.nonce || document.querySelector("script[nonce]").nonce;
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  script.remove();
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Returns a copy of a figure in which names of colours are replaced by the style sheet's colours.
function coloured(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map(coloured);
  if (value === null || typeof value !== "object") return value;
  const copy = {};
  for (const [key, each] of Object.entries(value)) {
    if (key.endsWith("color") && typeof each === "string" && each.startsWith("--")) copy[key] = css(each);
    else if (key === "colorscale") copy[key] = each.map(([place, name]) => [place, css(name)]);
    else copy[key] = coloured(each);
  }
  return copy;
}

function dressed(layout) {
  const ink = css("--ink"), muted = css("--muted"), line = css("--line"), narrow = innerWidth < 600;
  const axis = (own) => ({
    gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true, fixedrange: touch,
    tickfont: { color: muted, size: 11 }, ...own,
    title: { font: { color: muted, size: 12 }, standoff: 8, ...(own?.title ?? {}) },
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
    margin: { l: 8, r: narrow ? 4 : 12, t: 8, b: 8 },
    legend: { orientation: "h", yref: "container", yanchor: "bottom", y: 0, x: 0, xanchor: "left", maxheight: 0.6, font: { color: ink, size: 12 } },
    hoverlabel: { bgcolor: css("--surface"), bordercolor: line, font: { color: ink, size: 12 }, align: "left", namelength: 40 },
    dragmode: touch ? false : "zoom",
    ...layout, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
  };
}

const touch = matchMedia("(pointer: coarse)").matches;

async function draw(element, figure) {
  const layout = coloured(dressed(figure.layout));
  if (innerWidth < 600 && layout.showlegend) {  // the legend has one column
    layout.height += 10 * figure.data.filter((trace) => trace.showlegend !== false).length;
  }
  await Plotly.react(element, coloured(figure.data), layout, { displayModeBar: false, responsive: true });
}

async function drawAll() {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll("[data-figure]")];
  const show = async (element) => {
    try {
      await draw(element, figures[Number(element.dataset.figure)]);
    } catch (error) {
      element.classList.add("failed");
      element.textContent = `This chart could not be drawn: ${error.message}`;
    }
  };
  // A chart in a folded part has no width yet.
  const visible = (element) => !element.closest("details:not([open])");
  for (const element of places) if (visible(element)) await show(element);
  for (const details of document.querySelectorAll("details.section")) {
    details.addEventListener("toggle", () => details.querySelectorAll("[data-figure]").forEach((element) => {
      if (details.open) show(element);
    }));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => places.filter(visible).forEach(show));
}

(async () => {
  if (!document.getElementById("figures")) return "none";
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old (it has no DecompressionStream)");
  await loadPlotly();
  await drawAll();
  return "drawn";
})().then(
  (done) => { document.documentElement.dataset.charts = done; },
  (error) => {
    document.documentElement.dataset.charts = "failed";
    for (const element of document.querySelectorAll("[data-figure]")) {
      element.classList.add("failed");
      element.textContent = `The charts could not be drawn: ${error.message}`;
    }
  },
);
