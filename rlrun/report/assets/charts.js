// SPDX-License-Identifier: Apache-2.0
// Curves over the steps, with one cursor for all of them.
"use strict";
const CHART = { width: 440, height: 210, left: 48, right: 16, top: 8, bottom: 24 };
const COLOURS = ["c0", "c1", "c2", "c3", "c4", "c5"];
const DASHES = ["", "5 3", "2 3", "8 3 2 3"];
const charts = [];

function ticks(low, high, most) {
  const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toPrecision(3).replace(/\.?0+$/, "") + "M";
  if (size >= 1e4) return value / 1000 + "k";
  return String(Number(value.toPrecision(4)));
}
// The names of a run's metrics that a chart shows.
function namesOf(chart) {
  const names = new Set();
  for (const run of RUNS) for (const name of Object.keys(run.metrics)) {
    const shown = chart.metrics.some((m) => m === name || (m.endsWith("/") && name.startsWith(m)));
    if (shown && run.metrics[name].some((v) => v !== null)) names.add(name);
  }
  const rank = (name) => { const i = chart.metrics.indexOf(name); return i < 0 ? 99 : i; };
  return [...names].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}
function curvesOf(chart) {
  const names = namesOf(chart), many = RUNS.length > 1, curves = [];
  names.forEach((name, n) => RUNS.forEach((run, r) => {
    const points = [];
    (run.metrics[name] || []).forEach((value, i) => { if (value !== null) points.push([run.steps[i], value]); });
    // A curve that lies under another one is named with it instead of drawn.
    const same = curves.find((c) => c.run === run && c.points.length === points.length && c.points.every((p, i) => p[0] === points[i][0] && p[1] === points[i][1]));
    if (same) same.label += ` and ${name}`;
    else if (points.length) curves.push({
      name, run, points, colour: COLOURS[(many ? r : n) % COLOURS.length], dash: many ? DASHES[n % DASHES.length] : "",
      label: many ? `${run.name} ${name}` : name,
    });
  }));
  return curves;
}
// Exponential moving average: makes the course of a noisy curve visible.
function smooth(points) {
  const weight = 1 - 1 / Math.max(2, Math.min(12, points.length / 12));
  let mean = points[0][1];
  return points.map(([step, value]) => { mean = weight * mean + (1 - weight) * value; return [step, mean]; });
}
function path(points, x, y) { return points.map(([s, v], i) => (i ? "L" : "M") + x(s).toFixed(1) + " " + y(v).toFixed(1)).join(""); }

function frame(chart, curves) {
  const steps = curves.flatMap((c) => c.points.map((p) => p[0])), values = curves.flatMap((c) => c.points.map((p) => p[1]));
  const first = Math.min(...steps), last = Math.max(...steps, first + 1);
  let low = Math.min(...values), high = Math.max(...values);
  if (chart.zero) low = Math.min(0, low);
  if (high - low < 1e-12) { high += Math.abs(high) * 0.1 || 1; if (!chart.zero) low -= Math.abs(low) * 0.1 || 1; }
  const pad = (high - low) * 0.06;
  high += pad;
  if (!(chart.zero && low >= 0)) low -= pad;
  const x = (s) => CHART.left + (s - first) / (last - first) * (CHART.width - CHART.left - CHART.right);
  const y = (v) => CHART.height - CHART.bottom - (v - low) / (high - low) * (CHART.height - CHART.top - CHART.bottom);
  return { first, last, low, high, x, y };
}
function drawChart(chart) {
  const curves = curvesOf(chart);
  if (!curves.length) return null;
  const f = frame(chart, curves), legend = el("div", { class: "chart-legend" });
  const picture = svg("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, tabindex: 0, role: "img", "aria-label": `${chart.title}: ${describe(curves)}` });
  for (const value of ticks(f.low, f.high, 4)) picture.append(
    svg("line", { class: "axis", x1: CHART.left, x2: CHART.width - CHART.right, y1: f.y(value), y2: f.y(value) }),
    svg("text", { x: CHART.left - 6, y: f.y(value) + 4, "text-anchor": "end" }, short(value)));
  for (const step of ticks(f.first, f.last, 6).filter((s) => Number.isInteger(s))) picture.append(
    svg("text", { x: f.x(step), y: CHART.height - 6, "text-anchor": "middle" }, short(step)));
  for (const c of curves) {
    const noisy = c.points.length > 40, stroke = css(c.colour);
    picture.append(svg("path", { d: path(c.points, f.x, f.y), fill: "none", stroke, "stroke-width": noisy ? 1 : 1.8, "stroke-opacity": noisy ? 0.35 : 1, "stroke-dasharray": c.dash }));
    if (noisy) picture.append(svg("path", { d: path(smooth(c.points), f.x, f.y), fill: "none", stroke, "stroke-width": 2, "stroke-dasharray": c.dash }));
    if (c.points.length < 14) for (const [s, v] of c.points) picture.append(svg("circle", { cx: f.x(s), cy: f.y(v), r: 2.4, fill: stroke }));
  }
  const cursor = svg("line", { class: "cursor", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  const dots = curves.map((c) => svg("circle", { r: 3.5, fill: css(c.colour), visibility: "hidden" }));
  picture.append(cursor, ...dots);
  const one = { curves, f, cursor, dots, legend };
  charts.push(one);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * CHART.width;
    moveCursor(Math.round(f.first + (at - CHART.left) / (CHART.width - CHART.left - CHART.right) * (f.last - f.first)));
  });
  picture.addEventListener("pointerleave", () => moveCursor(null));
  picture.addEventListener("blur", () => moveCursor(null));
  picture.addEventListener("keydown", (event) => keyCursor(event, f));
  showLegend(one, null);
  return el("div", { class: "card" }, el("h3", null, chart.title), legend, picture, el("p", { class: "hint" }, chart.hint));
}
function describe(curves) {
  return curves.map((c) => `${c.label} from ${number(c.points[0][1])} to ${number(c.points[c.points.length - 1][1])}`).join("; ");
}
let cursorStep = null;
function keyCursor(event, f) {
  const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
  if (event.key === "Home") moveCursor(f.first);
  else if (event.key === "End") moveCursor(f.last);
  else if (event.key === "Escape") moveCursor(null);
  else if (by) moveCursor(Math.min(f.last, Math.max(f.first, (cursorStep === null ? (by > 0 ? f.first - by : f.last - by) : cursorStep) + by)));
  else return;
  event.preventDefault();
}
function nearest(points, step) {
  return points.reduce((best, p) => (Math.abs(p[0] - step) < Math.abs(best[0] - step) ? p : best));
}
function moveCursor(step) {
  cursorStep = step;
  for (const one of charts) {
    const inside = step !== null && step >= one.f.first && step <= one.f.last;
    one.cursor.setAttribute("visibility", inside ? "visible" : "hidden");
    if (inside) { one.cursor.setAttribute("x1", one.f.x(step)); one.cursor.setAttribute("x2", one.f.x(step)); }
    one.curves.forEach((c, i) => {
      const p = inside ? nearest(c.points, step) : null;
      one.dots[i].setAttribute("visibility", p ? "visible" : "hidden");
      if (p) { one.dots[i].setAttribute("cx", one.f.x(p[0])); one.dots[i].setAttribute("cy", one.f.y(p[1])); }
    });
    showLegend(one, inside ? step : null);
  }
}
function showLegend(one, step) {
  one.legend.replaceChildren(...one.curves.map((c) => {
    const p = step === null ? c.points[c.points.length - 1] : nearest(c.points, step);
    const unit = c.run.units[c.name];
    return el("span", { title: unit ? `${unit[1]} (${unit[0]})` : null }, swatch(css(c.colour)), c.label, " ",
      el("b", null, number(p[1])), step === null ? "" : ` at ${p[0]}`);
  }));
}
put("curves-body", DATA.charts.map(drawChart).filter((c) => c));
if (!charts.length) put("curves-body", el("p", { class: "note" }, "No step has ended yet."));
