# SPDX-License-Identifier: Apache-2.0
"""``rlrun nightly``: runs the plan, decides its assertions, and writes what was found."""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun import __version__
from rlrun.atomic import storage_error, write_file
from rlrun.console.console import Console
from rlrun.console.counted import counted
from rlrun.errors import RESTORE, CheckFailed, ConfigError, Problem, StorageError
from rlrun.metrics.logs import read_metrics
from rlrun.nightly.decide import compare, decide
from rlrun.nightly.evidence import Evidence, SeedRun, Verdict, step_seconds
from rlrun.nightly.execute import Ending, Places, execute
from rlrun.nightly.plan import Case, Plan, check_hardware, make_plan
from rlrun.nightly.reports import CaseResult, junit, markdown
from rlrun.nightly.trend import append_trend, baseline_step_s, machine, read_trend
from rlrun.process.signals import StopSignal
from rlrun.run_dir.json_line import parse_object
from rlrun.run_dir.lock import RunLock


@dataclass
class Nightly:
    """A nightly and its folder, which one that was killed leaves such that another goes on.

    Attributes:
        plan: What is run.
        places: Where.
        trend: The trend file.
        console: Is told what happens.
        number: Tells this nightly from others in the trend file.
        machine: What it runs on.
    """

    plan: Plan
    places: Places
    trend: Path
    console: Console
    number: str = ""
    machine: str = field(default_factory=machine)

    def run(self) -> str:
        """Runs what is not finished yet; writes junit.xml, summary.md and the trend.

        Returns:
            The summary.

        Raises:
            ConfigError: The folder is that of a nightly of other runs.
            CheckFailed: An assertion does not hold.
            Interrupted: By a signal; the same command goes on.
            StorageError: The folder cannot be used.
        """
        root = self.places.root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(root, "make the folder", error) from error
        lock = RunLock(root / "nightly.lock")
        try:
            self.number = self._open()
            results = self._all()
        finally:
            lock.release()
        text = self._write(results)
        failed = [result.name for result in results if not result.passed]
        if failed:
            self.console.say(text.splitlines())
            raise CheckFailed(
                f"nightly of {len(results)}",
                f"{len(failed)} failed: {', '.join(failed)}",
                f"See {root / 'summary.md'} and the logs beside it",
            )
        return text

    def _open(self) -> str:
        """The nightly's number, from its folder if it was begun before."""
        path = self.places.root / "nightly.json"
        cases = [case.to_json() for case in self.plan.cases]
        if path.is_file():
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
                same, number = before["runs"] == cases, str(before["nightly"])
                version = before["rlrun"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise StorageError(str(path), f"is damaged ({error})", "Choose another") from error
            if not same or version != __version__:
                what = f"holds a nightly of other runs, or of another version (rlrun {version})"
                remedy = "Choose another folder, or call it as it was called then"
                raise ConfigError([Problem("--out", f"{self.places.root} {what}", remedy)])
            return number
        number = uuid.uuid4().hex[:12]
        content = {"nightly": number, "rlrun": __version__, "runs": cases}
        write_file(path, json.dumps(content, indent=2) + "\n")
        return number

    def _all(self) -> list[CaseResult]:
        endings = self._finished()
        results: dict[str, CaseResult] = {}
        evidence: dict[str, Evidence] = {}
        for case in self.plan.cases:
            name = case.spec.full_name
            for seed in case.seeds:
                if (name, seed) not in endings:
                    endings[name, seed] = self._seed(case, seed)
            own = [endings[name, seed] for seed in case.seeds]
            if all(ending.done for ending in own):
                evidence[case.spec.name] = self._evidence(case)
            results[name] = self._decide(case, own, evidence.get(case.spec.name))
            self._write(list(results.values()))
        parities = [compare(parity, evidence) for parity in self.plan.parities]
        return [*results.values(), *parities]

    def _seed(self, case: Case, seed: int) -> Ending:
        name, minutes = case.spec.full_name, counted(case.spec.minutes, "minute", form="g")
        self.console.say([f"{name}, seed {seed}: at most {minutes}"])
        with StopSignal() as stop:
            ending = execute(case, seed, self.places, stop)
        path = self.places.root / "finished.jsonl"
        lines = path.read_bytes() if path.is_file() else b""
        write_file(path, lines + json.dumps(ending.to_json()).encode() + b"\n")
        self.console.say([f"{name}, seed {seed}: {ending.reason or 'done'}"])
        return ending

    def _finished(self) -> dict[tuple[str, int], Ending]:
        """What an earlier call with this folder has finished."""
        path = self.places.root / "finished.jsonl"
        if not path.is_file():
            return {}
        found: dict[tuple[str, int], Ending] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            values = parse_object(f"{path}:{number}", line)
            try:
                ending = Ending(**values)
                found[ending.name, ending.seed] = ending
            except TypeError as error:
                what = f"is no ending of a run: {error}"
                raise StorageError(f"{path}:{number}", what, RESTORE) from error
        return found

    def _evidence(self, case: Case) -> Evidence:
        name = case.spec.full_name
        runs = [
            SeedRun(seed, folder, read_metrics(folder / "metrics.jsonl"))
            for seed in case.seeds
            for folder in [self.places.run_dir(name, seed)]
        ]
        expected = baseline_step_s(read_trend(self.trend), name, self.machine, self.number)
        return Evidence(runs, case.config, expected)

    def _decide(self, case: Case, own: list[Ending], evidence: Evidence | None) -> CaseResult:
        name, assertions = case.spec.full_name, case.spec.assertions
        if evidence is None:
            return CaseResult(name, own, dict.fromkeys(assertions))
        verdicts = {key: decide(one, evidence) for key, one in assertions.items()}
        result = CaseResult(name, own, dict(verdicts), step_seconds(evidence.runs))
        append_trend(self.trend, self._entry(case, result, verdicts))
        if result.passed:
            for run in evidence.runs:
                # The largest part of a run by far, and nothing is asserted about it.
                shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)
        return result

    def _entry(
        self, case: Case, result: CaseResult, verdicts: Mapping[str, Verdict]
    ) -> dict[str, Any]:
        return {
            "time": round(time.time(), 3),
            "nightly": self.number,
            "name": result.name,
            "rlrun": __version__,
            "machine": self.machine,
            "seeds": list(case.seeds),
            "passed": result.passed,
            "seconds": round(result.seconds, 3),
            "step_s": result.step_s,
            "values": {key: verdict.value for key, verdict in verdicts.items()},
        }

    def _write(self, results: list[CaseResult]) -> str:
        planned = len(self.plan.cases) + len(self.plan.parities)
        text = markdown(results, planned, self.machine)
        write_file(self.places.root / "junit.xml", junit(results))
        write_file(self.places.root / "summary.md", text)
        return text


def nightly_command(
    tier: str,
    recipes: Sequence[str] | None,
    out: Path,
    trend: Path | None,
    config_dir: Path | None,
    *,
    dry_run: bool,
) -> str:
    """What ``rlrun nightly`` prints on standard output.

    Args:
        tier: One of spec.TIERS.
        recipes: Their names; None for all.
        out: The folder of the nightly.
        trend: The trend file; None for the one beside the folder.
        config_dir: A folder of further recipes.
        dry_run: Whether to check and list the runs only.

    Raises:
        RlrunError: See ``make_plan``, ``check_hardware`` and ``Nightly.run``.
    """
    plan = make_plan(tier, recipes, config_dir)
    root = out.absolute()
    trend = root.parent / "trend.jsonl" if trend is None else trend.absolute()
    read_trend(trend)  # A damaged one is to be known of before hours of runs.
    if dry_run:
        return plan.text()
    check_hardware(plan)
    with Console(sys.stderr) as console:
        console.say([*plan.text().splitlines(), f"folder: {root}"])
        return Nightly(plan, Places(root, config_dir), trend, console).run()


def default_out() -> Path:
    """A folder by the time of day."""
    return Path("nightly") / time.strftime("%Y%m%d-%H%M%S")
