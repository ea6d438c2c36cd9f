// SPDX-License-Identifier: Apache-2.0
// Every key with its value and the place that it comes from; of several runs the differences first.
"use strict";
function configRows(onlyChanged) {
  const keys = [...new Set(RUNS.flatMap((run) => run.config.map((row) => row[0])))].sort();
  const maps = RUNS.map((run) => new Map(run.config.map((row) => [row[0], row])));
  return keys.map((key) => {
    const rows = maps.map((map) => map.get(key) || [key, "", "", ""]);
    const differs = RUNS.length > 1 ? new Set(rows.map((r) => r[1])).size > 1 : ["recipe", "flag", "scale"].includes(rows[0][2]);
    return { key, rows, differs };
  }).filter((row) => row.differs || !onlyChanged);
}
function drawConfig() {
  const several = RUNS.length > 1, hasChanged = configRows(true).length > 0;
  const filter = el("input", { type: "search", placeholder: "key, value or place", "aria-label": "Filter the configuration" });
  const only = el("input", { type: "checkbox", id: "only-changed" });
  only.checked = hasChanged;
  const body = el("div", null);
  const redraw = () => {
    const wanted = filter.value.toLowerCase();
    const found = configRows(only.checked).filter((row) => !wanted || JSON.stringify(row.rows).toLowerCase().includes(wanted));
    const mono = (text) => el("span", { class: "mono" }, text);
    body.replaceChildren(found.length
      ? several
        ? table(["key", ...RUNS.map((run) => run.name)], found.map((row) => [mono(row.key), ...row.rows.map((r) => mono(r[1]))]), [], { class: "diff" })
        : table(["key", "value", "from", "where"], found.map((row) => [mono(row.key), mono(row.rows[0][1]), row.rows[0][2], mono(row.rows[0][3])]), [])
      : el("p", { class: "note" }, several && only.checked && !wanted ? "The runs have the same configuration." : "Nothing matches."));
  };
  filter.addEventListener("input", redraw);
  only.addEventListener("change", redraw);
  put("config-body", el("div", { class: "controls" }, filter, el("label", { for: "only-changed" }, only, several ? " only what differs" : " only what is not a default")), body);
  redraw();
}
drawConfig();
start();
