"use strict";
const byId = (id) => document.getElementById(id);
const json = (id) => { const element = byId(id); return element ? JSON.parse(element.textContent) : null; };
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const failed = (error) => { console.error(error); document.querySelectorAll(".chart").forEach((element) => { element.textContent = "The chart could not be drawn: this browser is too old."; }); };

/* Charts. Colours are the page's own; they change with light, dark and paper. */
const figures = json("charts") || {};
const CLASS_COLOURS = { /* told apart at a glance, and none of them the orange of "unknown" */
  light: ["#1f5fd6", "#1a9641", "#d01c1c", "#7b2fbe", "#7a4a21", "#e75fb5", "#17b3c4", "#8f9400", "#14233c", "#8a8f98"],
  dark: ["#6ea2ff", "#3fce6f", "#ff6b63", "#b98cff", "#b98a5e", "#ff9bd8", "#4fdcea", "#d6d64a", "#f2f4f8", "#8f98a6"],
};
function colour(name) {
  const style = getComputedStyle(document.documentElement);
  const own = name.match(/^@class(\d+)$/);
  if (own) {
    const all = CLASS_COLOURS[isDark() ? "dark" : "light"];
    return all[Number(own[1]) % all.length];
  }
  if (name === "@scale") { return [[0, style.getPropertyValue("--paper").trim()], [1, style.getPropertyValue("--known").trim()]]; }
  return style.getPropertyValue(`--${name.slice(1)}`).trim();
}
let onPaper = false;
const darkMedia = matchMedia("(prefers-color-scheme: dark)");
const narrowMedia = matchMedia("(max-width: 640px)");
function isDark() { return darkMedia.matches && !onPaper; }
function coloured(value) {
  if (typeof value === "string") { return value.startsWith("@") && /^@(known|unknown|ink|scale|class\d+)$/.test(value) ? colour(value) : value; }
  if (Array.isArray(value)) { return value.map(coloured); }
  return value;
}
function themed(figure) {
  const ink = colour("@ink"), line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
  const data = figure.data.map((trace) => {
    const marker = trace.marker ? { marker: { ...trace.marker, color: coloured(trace.marker.color) } } : {};
    const scale = trace.colorscale ? { colorscale: coloured(trace.colorscale) } : {};
    return { ...trace, ...marker, ...scale };
  });
  const axis = (given) => ({ gridcolor: line, zerolinecolor: line, linecolor: line, ...given });
  const shapes = (figure.layout.shapes || []).map((shape) => ({ ...shape, line: { ...shape.line, color: coloured(shape.line.color) } }));
  const layout = {
    ...figure.layout, shapes, xaxis: axis(figure.layout.xaxis), yaxis: axis(figure.layout.yaxis),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 24, t: 16, b: 48 },
    font: { color: ink, family: "system-ui, Segoe UI, Roboto, sans-serif", size: 12 },
    legend: { orientation: "v", font: { size: 11 } }, hoverlabel: { align: "left" },
    colorway: CLASS_COLOURS[isDark() ? "dark" : "light"],
  };
  if (narrowMedia.matches && layout.showlegend) { /* beside the chart, it would leave a strip of it */
    const entries = data.filter((trace) => trace.showlegend !== false).length;
    layout.legend = { orientation: "h", font: { size: 11 }, yref: "container", y: 0, yanchor: "bottom" };
    layout.height += 20 * Math.ceil(entries / 2);
  }
  return { data, layout };
}
function drawAll() {
  return Promise.all(Object.entries(figures).map(([name, figure]) => {
    const element = byId(`chart-${name}`);
    if (!element) { return null; }
    const { data, layout } = themed(figure);
    return Plotly.react(element, data, layout, { displayModeBar: false, responsive: true });
  }));
}
async function start() {
  const packed = new Blob([bytes(byId("plotly").textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(packed).text();
  document.head.append(script);
  await drawAll();
  showTiles();
  darkMedia.addEventListener("change", drawAll);
  narrowMedia.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { onPaper = true; document.querySelectorAll("details").forEach((one) => { one.open = true; }); drawAll(); });
  addEventListener("afterprint", () => { onPaper = false; drawAll(); });
  document.documentElement.dataset.ready = "yes";
}

/* The map: the picture of a point, by mouse or by keys. */
const DIRECTIONS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const STEPS = { PageDown: 1, PageUp: -1 };
function showTiles() {
  const sheet = json("tiles"), chart = byId("chart-map"), tip = byId("tip"), ring = byId("map-ring");
  if (!sheet || !chart) { return; }
  const tile = tip.querySelector(".tile");
  tile.style.backgroundImage = `url(${sheet.uri})`;
  tile.style.backgroundSize = `${100 * sheet.columns}% ${100 * sheet.rows}%`;
  const share = (place, count) => (count > 1 ? (100 * place) / (count - 1) : 0);
  function show([number, title], x, y) {
    tile.style.backgroundPosition = `${share(number % sheet.columns, sheet.columns)}% ${share(Math.floor(number / sheet.columns), sheet.rows)}%`;
    const text = new DOMParser().parseFromString(title, "text/html").documentElement.textContent;
    tip.querySelector("p").textContent = text;
    tip.hidden = false;
    tip.style.left = `${Math.min(x + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(y + 14, innerHeight - tip.offsetHeight - 8)}px`;
    return text;
  }
  const hide = () => { tip.hidden = ring.hidden = true; };
  chart.on("plotly_hover", ({ points, event }) => { hide(); show(points[0].customdata, event.clientX, event.clientY); });
  chart.on("plotly_unhover", hide);

  let current = -1; /* the tile of the point that the keys are at */
  function shownPoints() { /* those that are not hidden by the legend or by zooming, in pixels of the chart */
    const { xaxis, yaxis } = chart._fullLayout;
    const all = chart.data.filter((trace) => trace.visible !== "legendonly").flatMap((trace) =>
      trace.customdata.map((told, i) => ({ told, x: xaxis.d2p(trace.x[i]), y: yaxis.d2p(trace.y[i]) })));
    const inside = all.filter(({ x, y }) => x >= 0 && x <= xaxis._length && y >= 0 && y <= yaxis._length);
    return inside.map(({ told, x, y }) => ({ told, x: x + xaxis._offset, y: y + yaxis._offset }));
  }
  function nearest(points, from, [right, down]) {
    const far = (point) => {
      const x = point.x - from.x, y = point.y - from.y;
      const along = x * right + y * down, aside = Math.abs(x * down) + Math.abs(y * right);
      return along > 0 && aside <= along ? along + aside : Infinity;
    };
    const best = points.reduce((a, b) => (far(b) < far(a) ? b : a), from);
    return far(best) < Infinity ? best : from;
  }
  function go(key) {
    const points = shownPoints();
    if (!points.length) { return; }
    const place = points.findIndex(({ told }) => told[0] === current);
    let to = points[Math.max(place, 0)];
    if (key === "Home") { to = points[0]; }
    if (key === "End") { to = points[points.length - 1]; }
    if (place >= 0 && STEPS[key]) { to = points[(place + STEPS[key] + points.length) % points.length]; }
    if (place >= 0 && DIRECTIONS[key]) { to = nearest(points, to, DIRECTIONS[key]); }
    current = to.told[0];
    Object.assign(ring.style, { left: `${to.x}px`, top: `${to.y}px` });
    ring.hidden = false;
    ring.scrollIntoView({ block: "nearest" });
    const { left, top } = chart.getBoundingClientRect();
    byId("map-said").textContent = show(to.told, left + to.x, top + to.y);
  }
  chart.addEventListener("focus", () => { if (chart.matches(":focus-visible")) { go(); } });
  chart.addEventListener("blur", hide);
  addEventListener("resize", hide);
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) { return; }
    if (event.key === "Escape") { hide(); }
    if (["Home", "End"].includes(event.key) || event.key in STEPS || event.key in DIRECTIONS) { event.preventDefault(); go(event.key); }
  });
}

/* The threshold: counts again what the run counted, with another one. */
function thresholds() {
  const given = json("slider-data"), slider = byId("slider");
  if (!given || !slider) { return; }
  const scores = new Float64Array(bytes(given.scores).buffer);
  const best = given.best ? new Int16Array(bytes(given.best).buffer) : null;
  const truths = given.truths ? new Int16Array(bytes(given.truths).buffer) : null;
  const percent = (value) => (value === null ? "–" : (100 * value).toFixed(1));
  function count(threshold) {
    let unknown = 0, found = 0, hidden = 0;
    const right = new Float64Array(given.classes), total = new Float64Array(given.classes);
    for (let i = 0; i < scores.length; i += 1) {
      const refused = scores[i] > threshold;
      unknown += refused;
      if (!truths || truths[i] < 0) { continue; }
      if (truths[i] >= given.classes) { hidden += 1; found += refused; } else {
        total[truths[i]] += 1;
        right[truths[i]] += !refused && best[i] === truths[i];
      }
    }
    const recalls = Array.from(total.keys()).filter((c) => total[c]).map((c) => right[c] / total[c]);
    const known = recalls.length ? recalls.reduce((a, b) => a + b, 0) / recalls.length : null;
    const kept = hidden ? found / hidden : null;
    const hos = known === null || kept === null ? null : known && kept ? (2 * known * kept) / (known + kept) : 0;
    return { unknown, known, kept, hos };
  }
  function show(threshold) {
    const { unknown, known, kept, hos } = count(threshold);
    byId("slider-value").textContent = threshold.toFixed(3);
    byId("count-unknown").textContent = unknown.toLocaleString("en");
    byId("count-known").textContent = (scores.length - unknown).toLocaleString("en");
    if (best) {
      byId("accuracy-known").textContent = percent(known);
      byId("accuracy-unknown").textContent = percent(kept);
      byId("hos").textContent = percent(hos);
    }
    const chart = byId("chart-scores");
    figures.scores.layout.shapes[0].x0 = figures.scores.layout.shapes[0].x1 = threshold;
    if (chart.layout) { Plotly.relayout(chart, { "shapes[0].x0": threshold, "shapes[0].x1": threshold }); }
  }
  slider.addEventListener("input", () => show(Number(slider.value)));
  byId("slider-reset").addEventListener("click", () => { slider.value = given.threshold; show(given.threshold); });
  show(given.threshold);
}

/* Pictures: enlarge, move on, close. */
function viewer() {
  const dialog = byId("viewer"), picture = dialog.querySelector("img");
  const [name, caption] = dialog.querySelectorAll("figcaption > *");
  let row = [], place = 0;
  function show(to) {
    place = (to + row.length) % row.length;
    const button = row[place], image = button.querySelector("img");
    picture.src = image.src;
    picture.alt = image.alt;
    name.textContent = button.dataset.path;
    caption.textContent = `${button.dataset.caption} (${place + 1} of ${row.length})`;
  }
  document.querySelectorAll(".picture").forEach((button) => button.addEventListener("click", () => {
    row = Array.from(button.closest("section").querySelectorAll(".picture"));
    show(row.indexOf(button));
    dialog.showModal();
  }));
  dialog.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (move) { event.preventDefault(); show(place + move); }
  });
  dialog.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && button.dataset.move) { show(place + Number(button.dataset.move)); }
    if ((button && "close" in button.dataset) || event.target === dialog) { dialog.close(); }
  });
  dialog.addEventListener("close", () => { row[place].focus(); });
}

/* Tables: a click on a heading sorts, a second one turns the order round. */
function sortable(table) {
  const heads = Array.from(table.querySelectorAll("thead th"));
  const value = (line, column) => {
    const cell = line.cells[column], text = (cell.dataset.value || cell.textContent).trim();
    const number = parseFloat(text.replace(/[,+]/g, "").replace("−", "-"));
    return { text, number: Number.isNaN(number) ? -Infinity : number };
  };
  heads.forEach((head, column) => {
    const button = head.querySelector(".sort");
    if (!button) { return; }
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const falls = before ? before === "ascending" : isNumber;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const lines = Array.from(table.tBodies[0].rows).map((line) => [value(line, column), line]);
      lines.sort(([a], [b]) => (isNumber ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true })) || 0);
      if (falls) { lines.reverse(); }
      table.tBodies[0].append(...lines.map(([, line]) => line));
    });
  });
}

thresholds();
viewer();
document.querySelectorAll("table.sortable").forEach(sortable);
start().catch(failed);
