// SPDX-License-Identifier: Apache-2.0
// Lanes of trainer, generators, environment and groups over a window of steps.
"use strict";
const SPAN_COLOURS = {
  logprobs: "k-logprobs", update: "k-update", refit: "k-refit", validation: "k-validation", save: "k-save", rollouts: "k-rollouts", requests: "k-rollouts",
};
const SPAN_WORDS = {
  logprobs: "log-probs", update: "update", refit: "refit", validation: "validation", save: "checkpoint", other: "makes the batch, records, logs", rollouts: "rollouts",
  "wait/waiting_groups": "waits for groups", "wait/age_limit": "waits at the age limit", "wait/pause": "waits for running groups before a refit",
  "wait/refit": "waits for a refit", "wait/nothing": "nothing to do", "wait/generation": "waits for generation", "wait/update": "waits for the update",
  "wait/logprobs": "waits for log-probs", "wait/validation": "waits for validation", "wait/save": "waits for a checkpoint",
  requests: "answers requests", "wait/engines": "has no request, others do", "wait/other": "waits for the trainer",
  "wait/wait/waiting_groups": "waits for the environment", "wait/wait/age_limit": "waits for the environment", "wait/wait/pause": "waits for the environment",
};
const OUTCOME_COLOURS = { finished: "k-rollouts", no_signal: "c4", failed: "k-bad", cancelled: "c5" };
const CAUSES = {
  long_answer: "long answer", more_turns: "more turns", environment: "environment", retry: "tried again", admitted_late: "admitted late",
  slow_generation: "slow generation", none: "none stands out",
};
const TL = { width: 1200, left: 96, lane: 22, gap: 8, row: 7, rows: 26, named: 8, engines: 150 };

function spanColour(what) { return css(SPAN_COLOURS[what] || (what.startsWith("wait/") ? "k-wait" : "k-other")); }
function spanWords(lane, what) { return what === "rollouts" && lane === "environment" ? "answers and scores" : SPAN_WORDS[what] || what; }

// The lanes of a window: [key, name, top, height]. Several engines have one each; more than fit under names become thin rows.
function lanesOf(lines) {
  const engines = [...new Set(lines.flatMap((line) => Object.keys(line.lanes).filter((key) => key.startsWith("engine/"))))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const lanes = [];
  let top = 20;
  const add = (key, name, height, gap) => { lanes.push([key, name, top, height]); top += height + gap; };
  add("trainer", "trainer", TL.lane, TL.gap);
  add("generator", "generators", TL.lane, engines.length ? 3 : TL.gap);
  const named = engines.length <= TL.named, room = TL.engines / Math.max(1, engines.length);
  engines.forEach((key, i) => add(key, key.slice(7), named ? 13 : Math.max(2, room - 1), i === engines.length - 1 ? TL.gap : named ? 3 : 1));
  add("environment", "environment", TL.lane, TL.gap);
  return { lanes, named, engines: engines.length, bottom: top };
}
// Bars of groups in as few rows as fit beside each other.
function pack(groups) {
  const ends = [];
  return [...groups].sort((a, b) => a.start - b.start).map((g) => {
    let row = ends.findIndex((end) => end <= g.start + 1e-6);
    if (row < 0) { row = ends.length; ends.push(0); }
    ends[row] = g.end;
    return { ...g, row };
  });
}
function groupsOf(lines, late) {
  return lines.flatMap((line) => line.groups.map(([prompt, start, end, outcome, tokens, longest, env]) => {
    const g = { prompt, start: line.start + start, end: line.start + end, outcome, tokens, longest, env };
    g.straggler = late.find((s) => s.prompt_id === prompt && Math.abs(s.at - g.end) < 0.002);
    return g;
  }));
}
function drawTimeline(run) {
  const lines = run.timeline;
  if (!lines.length) { put("timeline-body", el("p", { class: "note" }, "This run has no timeline.jsonl.")); return; }
  const first = lines[0].step, last = lines[lines.length - 1].step;
  const from = el("input", { type: "number", min: first, max: last, id: "tl-from" }), to = el("input", { type: "number", min: first, max: last, id: "tl-to" });
  const canvas = el("div", null), readout = el("div", { class: "readout", role: "status", "aria-live": "polite" }), late = el("div", null);
  const redraw = () => {
    const a = Math.max(first, Number(from.value) || first), b = Math.min(last, Math.max(a, Number(to.value) || last));
    const window = lines.filter((line) => line.step >= a && line.step <= b);
    if (!window.length) { canvas.replaceChildren(el("p", { class: "note" }, "These steps are not kept here; timeline.jsonl has them.")); late.replaceChildren(); return; }
    canvas.replaceChildren(picture(window, readout));
    late.replaceChildren(stragglerTable(window));
  };
  const set = (a, b) => { from.value = Math.max(first, a); to.value = Math.min(last, b); redraw(); };
  const move = (by) => { const size = to.value - from.value + 1; const a = Math.min(Math.max(first, Number(from.value) + by * size), Math.max(first, last - size + 1)); set(a, a + size - 1); };
  const slowest = () => { const line = lines.reduce((s, l) => (l.seconds > s.seconds ? l : s)); set(line.step - 1, line.step + 1); };
  from.addEventListener("change", redraw); to.addEventListener("change", redraw);
  const button = (text, click) => el("button", { type: "button", onclick: click }, text);
  put("timeline-body",
    el("div", { class: "controls" }, el("label", null, "steps ", from), el("label", null, "to ", to),
      button("earlier", () => move(-1)), button("later", () => move(1)), button("last 5", () => set(last - 4, last)), button("slowest", slowest), button("all", () => set(first, last))),
    lines.length < last - first + 1 ? el("p", { class: "note" }, `Of ${whole(last - first + 1)} steps ${whole(lines.length)} are kept here: the last ones, the slowest, and others in even distances. timeline.jsonl has all.`) : "",
    timelineLegend(), canvas, readout, el("h3", { style: "margin-top:1.2rem" }, "What the steps waited for"),
    el("p", { class: "note" }, "The groups of each batch that ended last. Held: how long the trainer had waited when the group ended."), late);
  set(last - 4, last);
}
function timelineLegend() {
  const entries = [["k-wait", "waits or idle"], ["k-logprobs", "log-probs"], ["k-update", "update"], ["k-refit", "refit"], ["k-validation", "validation"], ["k-save", "checkpoint"], ["k-rollouts", "rollouts"], ["c4", "group without signal"], ["k-other", "records and the like"], ["k-bad", "failed group"], ["c5", "cancelled group"]];
  return el("div", { class: "legend" }, entries.map(([colour, text]) => el("span", null, swatch(css(colour)), text)), el("span", null, "outlined: a group that its step waited for"));
}
function picture(lines, readout) {
  const start = lines[0].start, end = Math.max(...lines.map((l) => l.start + l.seconds)), length = Math.max(end - start, 1e-3);
  const late = lines.flatMap((line) => line.stragglers.map((s) => ({ ...s, step: line.step, at: line.start + s.end })));
  const packed = pack(groupsOf(lines, late).filter((g) => g.end > start));
  const rows = Math.max(0, ...packed.map((g) => g.row + 1)), height = rows > TL.rows ? Math.max(1.5, TL.row * TL.rows / rows) : TL.row;
  const plan = lanesOf(lines), groupsTop = plan.bottom + 6, bottom = groupsTop + rows * height + 6;
  const x = (t) => TL.left + Math.min(1, Math.max(0, (t - start) / length)) * (TL.width - TL.left - 8);
  const root = svg("svg", { viewBox: `0 0 ${TL.width} ${bottom + 22}`, role: "group", "aria-label": `Timeline of steps ${lines[0].step} to ${lines[lines.length - 1].step}` });
  const tell = (text) => ({ onpointerenter: () => { readout.textContent = visible(text); }, onfocus: () => { readout.textContent = visible(text); } });
  for (const line of lines) root.append(
    svg("line", { class: "axis", x1: x(line.start), x2: x(line.start), y1: 14, y2: bottom }),
    x(line.start + line.seconds) - x(line.start) > 34 ? svg("text", { x: x(line.start) + 3, y: 11 }, `step ${line.step}`) : "");
  const all = Math.max(0, ...lines.map((line) => line.engines));
  plan.lanes.forEach(([lane, name, top, height], index) => {
    const engine = lane.startsWith("engine/");
    if (!engine || plan.named) root.append(svg("text", { class: "lane-name", x: engine ? 10 : 0, y: top + height / 2 + 4 }, visible(name)));
    else if (index === 2) root.append(svg("text", { class: "lane-name", x: 10, y: top + 9 }, plan.engines < all ? `${plan.engines} of ${all},` : `${all} engines`), plan.engines < all ? svg("text", { class: "lane-name", x: 10, y: top + 23 }, "the idlest") : "");
    for (const line of lines) for (const [what, a, b] of line.lanes[lane] || []) {
      const wait = what.startsWith("wait/") || what === "other", at = line.start + a;
      const text = `step ${line.step}, ${name}: ${spanWords(lane, what)}, ${seconds(b - a)}`;
      root.append(svg("rect", { x: x(at), width: Math.max(0.6, x(line.start + b) - x(at)), y: top + (wait ? height / 3 : 0), height: wait ? height / 3 : height, fill: spanColour(what), tabindex: lane === "trainer" && b - a > length / 150 ? 0 : null, role: "img", "aria-label": text, ...tell(text) }));
    }
  });
  if (packed.length) root.append(svg("text", { class: "lane-name", x: 0, y: groupsTop + 10 }, "groups"));
  for (const g of packed) {
    const why = g.straggler ? `, late because: ${CAUSES[g.straggler.cause] || g.straggler.cause}` : "";
    const text = `prompt ${g.prompt}: ${g.outcome}, ${seconds(g.end - g.start)}, of it environment ${seconds(g.env)}, longest ${g.longest} tokens, ${g.tokens} in all${why}`;
    root.append(svg("rect", { x: x(g.start), width: Math.max(0.6, x(g.end) - x(g.start)), y: groupsTop + g.row * height, height: Math.max(1, height - 1), fill: css(OUTCOME_COLOURS[g.outcome] || "k-other"), "fill-opacity": g.straggler ? 1 : 0.6, stroke: g.straggler ? css("text") : null, tabindex: g.straggler ? 0 : null, role: "img", "aria-label": text, ...tell(text) }));
  }
  for (const t of ticks(0, length, 8)) root.append(svg("text", { x: x(start + t), y: bottom + 16, "text-anchor": t > 0.97 * length ? "end" : "middle" }, length < 5 ? `${Number(t.toFixed(2))} s` : seconds(t)));
  if (!packed.length) readout.textContent = "Bars of groups are kept for the last steps only; timeline.jsonl has all.";
  return root;
}
function stragglerTable(lines) {
  const rows = lines.slice(-40).reverse().flatMap((line) => line.stragglers.map((s, i) => [
    i ? "" : line.step, el("span", { class: "mono" }, s.prompt_id), s.environment, CAUSES[s.cause] || s.cause, whole(s.longest), seconds(s.end - s.start), seconds(s.env_s), s.held_trainer_s > 0 ? seconds(s.held_trainer_s) : "no"]));
  return rows.length ? table(["step", "prompt", "environment", "cause", "longest answer, tokens", "took", "of it environment", "held"], rows, [4, 5, 6, 7]) : el("p", { class: "note" }, "None is recorded.");
}
onRun.push(drawTimeline);
