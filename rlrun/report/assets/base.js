// SPDX-License-Identifier: Apache-2.0
// Data, elements and numbers. Texts of a run become text nodes only, never markup.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const SVG = "http://www.w3.org/2000/svg";
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
let current = 0;
const onRun = [];

// What is invisible or turns the direction of text is shown as an escape.
function visible(text) {
  return String(text).replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, visible(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}
function el(name, attributes, ...children) { return fill(document.createElement(name), attributes, children); }
function svg(name, attributes, ...children) { return fill(document.createElementNS(SVG, name), attributes, children); }
function byId(id) { return document.getElementById(id); }
function put(id, ...children) { byId(id).replaceChildren(...children.flat(Infinity).filter((c) => c)); }
function css(name) { return `var(--${name})`; }

function number(value) {
  if (value === null || value === undefined) return "none";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}
function whole(value) { return Math.round(value).toLocaleString("en"); }
function percent(share) { return share >= 0.0995 ? Math.round(share * 100) + " %" : (share * 100).toFixed(1) + " %"; }
function seconds(value) {
  if (value < 1) return Math.round(value * 1000) + " ms";
  if (value < 100) return value.toFixed(value < 10 ? 2 : 1) + " s";
  const minutes = Math.floor(value / 60), hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${Math.round(value % 60)} s`;
}
function table(head, rows, numeric, attributes) {
  const cell = (kind, value, column) => el(kind, { class: numeric.includes(column) ? "num" : null, scope: kind === "th" ? "col" : null }, value);
  return el("div", { class: "scroll" }, el("table", attributes,
    el("thead", null, el("tr", null, head.map((h, i) => cell("th", h, i)))),
    el("tbody", null, rows.map((row) => el("tr", { class: row.sum ? "sum" : null }, (row.cells || row).map((c, i) => cell("td", c, i)))))));
}
function swatch(colour) { return el("span", { class: "swatch", style: `background:${colour}`, "aria-hidden": "true" }); }
function choose(run) { current = run; for (const draw of onRun) draw(RUNS[current]); }
function start() {
  const select = byId("run-select");
  RUNS.forEach((run, index) => select.append(el("option", { value: index }, run.name)));
  select.addEventListener("change", () => choose(Number(select.value)));
  byId("run-choice").hidden = RUNS.length < 2;
  byId("h-overview").textContent = visible(RUNS.map((run) => run.name).join(" and "));
  byId("footer").textContent = visible(`Written by rlrun report on ${DATA.generated} from ` + RUNS.map((run) => run.root).join(", "));
  choose(0);
}
