// SPDX-License-Identifier: Apache-2.0
// How it went, where the time and the tokens went, and what to change first.
"use strict";
const PART_COLOURS = {
  "waiting for groups": "k-wait", "waiting at the age limit": "k-bad", "waiting for running groups before a refit": "k-other",
  "log-probs": "k-logprobs", update: "k-update", refit: "k-refit", checkpoints: "k-save", validation: "k-validation", other: "k-other",
};
const LEDGER_COLOURS = { trained: "c2", zero_signal: "c4", buffered: "c0", in_flight: "c5", stale: "c1", cancelled: "c1", errored: "k-bad", filtered: "c3", surplus: "c3", lost: "k-bad" };
const LEDGER_NOTES = {
  generated: "all tokens sampled in training rollouts", trained: "gave a gradient", zero_signal: "all samples of the group had the same reward",
  buffered: "wait to be trained", in_flight: "still running", stale: "too old", cancelled: "called off", errored: "of failed rollouts",
  filtered: "taken out by a filter", surplus: "not needed", lost: "made after the last checkpoint before a crash",
};
function stack(parts, total) {
  return el("div", { class: "stack", "aria-hidden": "true" }, parts.filter((p) => p[1] > 0).map(([name, value, colour]) =>
    el("span", { style: `width:${value / total * 100}%;background:${css(colour)}`, title: `${name} ${percent(value / total)}` })));
}
function timeCard(run) {
  const total = run.time.total;
  if (!total) return null;
  const parts = run.time.parts.map(([name, value]) => [name, value, PART_COLOURS[name] || "k-other"]);
  const rows = parts.map(([name, value, colour]) => [[swatch(css(colour)), name], seconds(value), percent(value / total)]);
  const waits = [["generators without a training rollout", run.time.generator_idle], ["environment alone at work while the trainer waits", run.time.environment_alone]];
  return el("div", { class: "card" }, el("h3", null, "Where the trainer's time went"), stack(parts, total),
    table(["", "time", "share"], [{ sum: true, cells: ["all steps", seconds(total), "100 %"] }, ...rows], [1, 2]),
    el("h3", { style: "margin-top:.9rem" }, "Beside it"),
    table(["", "time", "share"], waits.map(([name, value]) => [name, seconds(value), percent(value / total)]), [1, 2]));
}
function ledgerCard(run) {
  if (!run.ledger.length) return null;
  const [first, ...rest] = run.ledger, total = first[1] || 1;
  const parts = rest.map(([name, value]) => [name, value, LEDGER_COLOURS[name] || "k-other"]);
  const rows = parts.map(([name, value, colour]) => [[swatch(css(colour)), name.replace("_", " ")], whole(value), percent(value / total), LEDGER_NOTES[name] || ""]);
  return el("div", { class: "card" }, el("h3", null, "Token ledger"), stack(parts, total),
    table(["", "tokens", "share", "what they are"], [{ sum: true, cells: ["generated", whole(first[1]), "100 %", LEDGER_NOTES.generated] }, ...rows], [1, 2]));
}
function leverCard(run) {
  if (!run.time.total) return null;
  if (!run.levers.length) return el("div", { class: "card lever" }, el("h3", null, "First lever"), el("p", null, "Nothing stands out: no single change would save more than 5 % of the time."));
  const [first, ...rest] = run.levers;
  return el("div", { class: "card lever" }, el("h3", null, `First lever: ${first.title}`), el("p", null, first.text),
    first.command ? el("p", null, el("code", null, first.command)) : null,
    el("p", { class: "hint" }, `Could save up to ${percent(first.share)} of the time.`),
    rest.length ? el("details", null, el("summary", null, `${rest.length} more`), rest.map((l) =>
      el("div", null, el("p", null, el("strong", null, l.title), ` (up to ${percent(l.share)}): ${l.text}`), l.command ? el("p", null, el("code", null, l.command)) : null))) : null);
}
function lastOf(run, name) {
  const values = (run.metrics[name] || []).filter((v) => v !== null);
  return values.length ? number(values[values.length - 1]) : "none";
}
function compareCard() {
  const rows = [["state", ...RUNS.map((run) => run.state)]];
  const labels = [...new Set(RUNS.flatMap((run) => run.facts.map((f) => f[0])))];
  for (const label of labels) rows.push([label, ...RUNS.map((run) => (run.facts.find((f) => f[0] === label) || ["", ""])[1])]);
  for (const name of ["train/response_tokens_mean", "train/entropy", "correction/ess", "correction/mismatch_kl", "perf/generated_tokens_per_s", "perf/peak_memory_gib"]) rows.push([`${name}, last`, ...RUNS.map((run) => lastOf(run, name))]);
  rows.push(["tokens generated", ...RUNS.map((run) => (run.ledger.length ? whole(run.ledger[0][1]) : "none"))]);
  rows.push(["time of all steps", ...RUNS.map((run) => (run.time.total ? seconds(run.time.total) : "none"))]);
  return el("div", { class: "card", style: "margin-top:1rem" }, el("h3", null, "Side by side"), table(["", ...RUNS.map((run, i) => [swatch(css(COLOURS[i % COLOURS.length])), run.name])], rows, []));
}
onRun.push((run) => {
  const several = RUNS.length > 1;
  put("overview-body",
    several ? compareCard() : [el("p", { class: "note" }, run.state), el("dl", { class: "facts" }, run.facts.map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))))],
    several ? el("p", { class: "note", style: "margin-top:1rem" }, `Below: ${run.name}; another run can be chosen at the top.`) : null,
    leverCard(run), el("div", { class: "two" }, timeCard(run), ledgerCard(run)));
});
