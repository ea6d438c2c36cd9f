# SPDX-License-Identifier: Apache-2.0
"""The results of a nightly as JUnit XML, for CI servers, and as Markdown, for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from rlrun.console.counted import counted
from rlrun.nightly.evidence import Verdict
from rlrun.nightly.execute import Ending

COMPLETES = "completes"
"""The assertion that every run has: it trains to its end within its time."""

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of a run of the plan, or of a comparison of two.

    Attributes:
        name: With its version.
        endings: One per seed; none for a comparison.
        verdicts: By assertion; None where the runs it is about did not complete.
        step_s: Seconds per step.
    """

    name: str
    endings: Sequence[Ending]
    verdicts: dict[str, Verdict | None]
    step_s: float | None = None

    @property
    def completed(self) -> bool:
        """Whether every seed is done."""
        return all(ending.done for ending in self.endings)

    @property
    def passed(self) -> bool:
        """Whether everything that was asked of it holds."""
        return self.completed and all(v is not None and v.passed for v in self.verdicts.values())

    @property
    def seconds(self) -> float:
        """Of all its seeds."""
        return sum(ending.seconds for ending in self.endings)


def junit(results: Sequence[CaseResult]) -> str:
    """JUnit XML: a suite per run, a test per assertion."""
    root = ElementTree.Element("testsuites", name="rlrun nightly")
    for result in results:
        tests = list(_tests(result))
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=result.name,
            tests=str(len(tests)),
            failures=str(sum(verdict is not None and not verdict.passed for _, verdict in tests)),
            skipped=str(sum(verdict is None for _, verdict in tests)),
            errors="0",
            time=f"{result.seconds:.3f}",
        )
        for name, verdict in tests:
            case = ElementTree.SubElement(suite, "testcase", classname=result.name, name=name)
            case.set("time", f"{result.seconds:.3f}" if name == COMPLETES else "0")
            if verdict is None:
                ElementTree.SubElement(case, "skipped", message="the run did not complete")
                continue
            text = _NOT_XML.sub("?", verdict.text)
            if verdict.passed:
                ElementTree.SubElement(case, "system-out").text = text
            else:
                ElementTree.SubElement(case, "failure", message=text.partition("\n")[0]).text = text
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def markdown(results: Sequence[CaseResult], planned: int, machine: str) -> str:
    """A table of the runs, then one of the assertions."""
    failed = sum(not result.passed for result in results)
    head = f"{len(results)} of {planned} done, {failed} failed" if failed else "all passed"
    if len(results) < planned and not failed:
        head = f"{len(results)} of {planned} done, none failed"
    lines = [f"# Nightly: {head}", "", f"On {machine}.", ""]
    lines += [
        "| run | result | seeds | minutes | s per step | resumed |",
        "|---|---|---|---|---|---|",
    ]
    for result in (result for result in results if result.endings):
        step = "-" if result.step_s is None else f"{result.step_s:.4g}"
        seeds = ", ".join(str(ending.seed) for ending in result.endings)
        resumed = sum(ending.resumed for ending in result.endings)
        row = [result.name, _word(result.passed), seeds, f"{result.seconds / 60:.1f}", step]
        lines.append(f"| {' | '.join([*row, str(resumed)])} |")
    lines += ["", "| run | assertion | result | found |", "|---|---|---|---|"]
    for result in results:
        for name, verdict in _tests(result):
            word = "skipped" if verdict is None else _word(verdict.passed)
            text = "the run did not complete" if verdict is None else verdict.text
            cells = [result.name, name, word, text.replace("|", "\\|").replace("\n", " ")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _tests(result: CaseResult) -> list[tuple[str, Verdict | None]]:
    found: list[tuple[str, Verdict | None]] = []
    if result.endings:
        bad = [f"seed {e.seed}: {e.reason}" for e in result.endings if not e.done]
        text = "; ".join(bad) or f"{counted(len(result.endings), 'run')} done"
        found.append((COMPLETES, Verdict(not bad, text)))
    return [*found, *result.verdicts.items()]


def _word(passed: bool) -> str:
    return "passed" if passed else "FAILED"
