// SPDX-License-Identifier: Apache-2.0
// The rollout browser: a list at the left, the chosen rollout token by token at the right.
"use strict";
const CALL = /<(calc|tool_call|function_call|tool|search|python|code)\b[^<>]*>[\s\S]*?(?:<\/\1>|$)/g;
const SORTS = {
  "as in the run": () => 0,
  "lowest reward": (a, b) => low(a) - low(b),
  "highest reward": (a, b) => low(b) - low(a),
  "largest advantage": (a, b) => Math.abs(b.advantage || 0) - Math.abs(a.advantage || 0),
  longest: (a, b) => (b.tokens || b.response.length) - (a.tokens || a.response.length),
};
let tokenMode = "ratio";
function low(r) { return r.reward === null ? -Infinity : r.reward; }

function drawRollouts(run) {
  const kinds = [["trained", run.rollouts.trained], ["validation", run.rollouts.validation]].filter((k) => k[1].length);
  if (!kinds.length) { put("rollouts-body", el("p", { class: "note" }, "This run has no recorded rollouts.")); return; }
  const option = (value, text) => el("option", { value }, text || value);
  const kind = el("select", { "aria-label": "Kind of rollouts" }, kinds.map(([name]) => option(name, name === "trained" ? "training" : "last validation")));
  const step = el("select", { "aria-label": "Step" }), sort = el("select", { "aria-label": "Order" }, Object.keys(SORTS).map((s) => option(s)));
  const filter = el("input", { type: "search", placeholder: "text or prompt id", "aria-label": "Filter rollouts" });
  const list = el("ul", { class: "list", "aria-label": "Rollouts" }), detail = el("div", { "aria-live": "polite" });
  const all = () => kinds.find((k) => k[0] === kind.value)[1];
  const fillSteps = () => step.replaceChildren(option("", "all steps"), ...[...new Set(all().map((r) => r.step))].map((s) => option(s, `step ${s}`)));
  const redraw = () => {
    const wanted = filter.value.toLowerCase();
    const shown = all().filter((r) => (!step.value || r.step === Number(step.value)) && (!wanted || haystack(r).includes(wanted))).sort(SORTS[sort.value]);
    list.replaceChildren(...shown.map((r) => el("li", null, entry(r, detail, list))));
    if (shown.length) list.querySelector("button").click();
    else detail.replaceChildren(el("p", { class: "note" }, "Nothing matches."));
  };
  kind.addEventListener("change", () => { fillSteps(); redraw(); });
  for (const one of [step, sort]) one.addEventListener("change", redraw);
  filter.addEventListener("input", redraw);
  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")], at = buttons.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || next === undefined || !buttons[next]) return;
    event.preventDefault();
    buttons[next].focus();
    buttons[next].click();
  });
  fillSteps();
  put("rollouts-body", el("p", { class: "note" }, "A selection: the worst, best, longest and most influential samples and the most telling group of some steps. rlrun view shows all."),
    el("div", { class: "controls" }, kind, step, sort, filter), el("div", { class: "browser" }, list, detail));
  redraw();
}
function haystack(r) {
  const turns = (r.turns || []).map((t) => (t.sampled ? t.tokens.join("") : t.text)).join(" ");
  return `${r.prompt_id} ${r.prompt} ${r.response} ${turns} ${r.why || ""}`.toLowerCase();
}
function entry(r, detail, list) {
  const button = el("button", { type: "button", "aria-pressed": "false" },
    `step ${r.step}, reward ${number(r.reward)}${r.advantage === undefined ? "" : `, advantage ${number(r.advantage)}`}`,
    el("small", null, `${r.prompt_id}, sample ${r.sample}`), r.why ? el("small", null, r.why) : null);
  button.addEventListener("click", () => {
    for (const other of list.querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    detail.replaceChildren(...(r.turns ? trainedDetail(r) : validationDetail(r)));
  });
  return button;
}
function rewardTable(r) {
  const parts = Object.entries(r.rewards).map(([name, value]) => [name, number(value)]);
  return table(["reward", ""], [{ sum: true, cells: ["reward", number(r.reward)] }, ...(r.unfiltered !== undefined && r.unfiltered !== r.reward ? [["as the environment gave it", number(r.unfiltered)]] : []), ...parts], [1]);
}
function pill(text, bad) { return el("span", { class: bad ? "pill bad" : "pill" }, text); }
function box(kind, title, ...content) { return el("div", { class: `turn ${kind}` }, el("h4", null, title), ...content); }

function trainedDetail(r) {
  const text = el("div", null);
  const redraw = () => text.replaceChildren(...turnsOf(r));
  const modes = { ratio: "probability ratio", version: "weight version", none: "plain" };
  const radio = Object.entries(modes).map(([mode, label]) => {
    const input = el("input", { type: "radio", name: "token-mode", value: mode, checked: mode === tokenMode });
    input.addEventListener("change", () => { tokenMode = mode; redraw(); });
    return el("label", null, input, " ", label);
  });
  redraw();
  return [
    el("h3", null, `Step ${r.step}, prompt ${r.prompt_id}, sample ${r.sample}`),
    el("p", null, pill(`advantage ${number(r.advantage)}`), pill(`stop: ${r.stop}`, r.stop === "error"), pill(`${r.tokens} sampled of ${r.total} tokens`),
      r.truncated ? pill("truncated", true) : null, r.in_loss ? null : pill("not in the loss", true), r.agent ? pill(`agent ${r.agent}`) : null, pill(versionsOf(r))),
    el("div", { style: "max-width:26rem" }, rewardTable(r)),
    el("div", { class: "controls" }, el("fieldset", null, el("legend", null, "Colour tokens by"), radio)),
    box("prompt", "prompt", el("pre", { class: "text", tabindex: 0 }, r.prompt)), text,
    r.response ? box("policy", "response", el("pre", { class: "text", tabindex: 0 }, r.response)) : null,
    el("p", { class: "hint" }, "Ratio: probability of the token under the weights before the update, over that of the weights that sampled it. 1 is exact agreement; orange is more likely now, blue less."),
  ].filter((c) => c);
}
function versionsOf(r) {
  const versions = [...new Set(r.turns.filter((t) => t.sampled).flatMap((t) => t.versions.map((v) => v[0])))].sort((a, b) => a - b);
  return versions.length ? `weights of version ${versions.join(", ")}, age ${versions.map((v) => r.step - 1 - v).join(", ")}` : "no weights";
}
function turnsOf(r) {
  let number_ = 0;
  return r.turns.map((turn) => {
    const left = turn.left_out ? el("p", { class: "note", style: "padding:0 .7rem" }, `${turn.left_out} more tokens are left out`) : null;
    if (!turn.sampled) return box("env", "environment", el("pre", { class: "text", tabindex: 0 }, turn.text), left);
    return box("policy", `policy, turn ${++number_}`, el("pre", { class: "text", tabindex: 0 }, tokensOf(r, turn)), left);
  });
}
// Which characters of a text are in a tool call.
function callsIn(text) { return [...text.matchAll(CALL)].map((m) => [m.index, m.index + m[0].length]); }
function versionAt(turn, index) { const span = turn.versions.find(([, a, b]) => index >= a && index < b); return span ? span[0] : null; }
function tokensOf(r, turn) {
  const calls = callsIn(turn.tokens.join(""));
  let at = 0;
  return turn.tokens.map((text, index) => {
    const ratio = turn.ratios[index], version = versionAt(turn, index), begin = at;
    at += text.length;
    if (!text) return null;
    const inCall = calls.some(([a, b]) => begin < b && at > a);
    const title = `ratio ${number(ratio)}, weights of version ${version === null ? "unknown" : version}${version === null ? "" : ` (age ${r.step - 1 - version})`}`;
    return el("span", { class: inCall ? "tok call" : "tok", style: tokenStyle(ratio, version, r.step), title }, text);
  });
}
function tokenStyle(ratio, version, step) {
  if (tokenMode === "ratio" && ratio !== null) {
    const distance = Math.log(Math.max(ratio, 1e-9)), strength = Math.min(0.75, Math.abs(distance) * 0.9);
    return strength < 0.02 ? null : `background:rgba(var(--heat-${distance > 0 ? "high" : "low"}),${strength.toFixed(2)})`;
  }
  if (tokenMode === "version" && version !== null) {
    const age = step - 1 - version;
    return age <= 0 ? null : `background:rgba(var(--heat-high),${Math.min(0.7, 0.14 * age).toFixed(2)})`;
  }
  return null;
}
function validationDetail(r) {
  return [
    el("h3", null, `Validation after step ${r.step}, prompt ${r.prompt_id}, sample ${r.sample}`),
    el("p", null, pill(`stop: ${r.stop}`, r.stop === "error"), r.truncated ? pill("truncated", true) : null, pill(`read as: ${r.extracted === null ? "nothing" : r.extracted}`), pill(`reference: ${r.answer}`)),
    el("div", { style: "max-width:26rem" }, rewardTable(r)),
    box("prompt", "prompt", el("pre", { class: "text", tabindex: 0 }, r.prompt)), box("policy", "response", el("pre", { class: "text", tabindex: 0 }, r.response)),
  ];
}
onRun.push(drawRollouts);
