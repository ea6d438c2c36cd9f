# SPDX-License-Identifier: Apache-2.0
"""A long asynchronous run under random faults, watched for what grows: memory, step times, files.

Every second the memory (VmRSS) of its driver, and of all its processes together, is noted, and
after it how long the steps took; every quarter of a minute on average something is killed, stopped
or disturbed, and a killed run is resumed. At the end a straight line is fitted to each series, over
means of blocks, as neighbouring values depend on each other, with a level of its own for every life
(of the driver; of the driver and its generators): the slope per hour and its 95 % interval. It
fails if an interval lies wholly above the limit, if files are left that nothing accounts for, or
if ``rlrun audit`` finds anything. Short runs have wide intervals.

Example:
    python scripts/soak.py --minutes 60
    python scripts/soak.py --minutes 480 --setting "async gym vllm" --mean-fault-s 120
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import _faults as faults
from _proxy import Mode
from _runs import (
    UNVALIDATED,
    Command,
    descendants,
    left_after,
    logged_steps,
    resident_bytes,
    saved_folders,
)
from _settings import ENGINES, LOCAL, flags_of, write_files

from rlrun.audit import audit
from rlrun.metrics.logs import read_metrics
from rlrun.run_dir.directory import RunDir

SAMPLE_S = 1.0
BLOCKS = 24
"""Means that a line is fitted to, of all lives together."""

WARM_UP_S = 60.0
"""Of each life, from its first step on: memory grows while caches fill."""

SETTINGS = (*LOCAL, *ENGINES, "async gym vllm")
RARELY = "kill driver"
"""Comes a quarter as often as each other fault: what leaks in a driver shows in long lives only."""

KEEP_TOP_K = 2
COMMAND_S = 300.0
T_QUANTILES = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 10: 2.23, 15: 2.13, 20: 2.09}
"""97.5 % quantiles of Student's t by degrees of freedom; in between the larger one is taken."""

log = logging.getLogger("soak")


@dataclass(frozen=True)
class Point:
    """A value at a time.

    Attributes:
        life: Of the run: each resume begins one.
        seconds: Since the beginning of everything.
        value: What was measured.
    """

    life: int
    seconds: float
    value: float


@dataclass(frozen=True)
class Slope:
    """A slope per hour, and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """With the interval in brackets."""
        return f"{self.value:+.3g} per hour [{self.low:+.3g}, {self.high:+.3g}]"


def slope(points: Sequence[Point]) -> Slope | None:
    """The common slope of all lives, by least squares over means of blocks; None from too little.

    Subtracting its mean from each life leaves what happens within it (the fixed effects estimate).
    """
    size = max(1, len(points) // BLOCKS)
    times: list[float] = []
    values: list[float] = []
    lives = 0
    for life in sorted({point.life for point in points}):
        own = [point for point in points if point.life == life]
        blocks = [own[i : i + size] for i in range(0, len(own) - size + 1, size)]
        if len(blocks) < 2:
            continue
        lives += 1
        at = [statistics.fmean(p.seconds for p in block) / 3600 for block in blocks]
        what = [statistics.fmean(p.value for p in block) for block in blocks]
        times += [t - statistics.fmean(at) for t in at]
        values += [v - statistics.fmean(what) for v in what]
    freedom = len(times) - lives - 1
    spread = math.fsum(t * t for t in times)
    if freedom < 1 or spread == 0:
        return None
    found = math.fsum(t * v for t, v in zip(times, values, strict=True)) / spread
    rest = math.fsum((v - found * t) ** 2 for t, v in zip(times, values, strict=True))
    quantile = T_QUANTILES[max(known for known in T_QUANTILES if known <= freedom)]
    half = quantile * math.sqrt(rest / freedom / spread)
    return Slope(found, found - half, found + half)


@dataclass
class Soak:
    """The run and what is known of it.

    Attributes:
        folder: Of all files.
        setting: What the run consists of.
        rng: Draws the faults.
    """

    folder: Path
    setting: str
    rng: random.Random
    memory: list[Point] = field(default_factory=list)
    steps: list[Point] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    driver_memory: list[Point] = field(default_factory=list)
    driver_life: int = 0
    driver_began: int = 0
    life: int = 0
    step_of_kill: int | None = 0

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.run_dir, self.failed = self.folder / "run", False
        write_files(self.folder)
        self.agent = None
        if "gym" in self.setting and "servers" not in self.setting:
            self.agent = faults.Agent(self.run_dir, self.folder / "agent.txt")
        own = self.agent.flags() if self.agent is not None else ()
        patient = ("env.max_retries=7", "env.retry_wait_s=0.25") if "gym" in self.setting else ()
        self.flags = (
            *flags_of(self.setting, self.folder),
            *UNVALIDATED,
            "grpo.max_num_epochs=null",
            "grpo.max_num_steps=1000000",
            "grpo.max_generation_failures=1000",
            # A policy that hardly changes: its answers stay as long, its rewards as mixed.
            "policy.optimizer.lr=1e-7",
            f"checkpointing.keep_top_k={KEEP_TOP_K}",
            *own,
            *patient,
        )
        self.victim = faults.Victim(self._command("train"), self.run_dir, self.agent, COMMAND_S)
        self.settled = math.inf

    def run(self, minutes: float, mean_fault_s: float) -> None:
        """Lets it run for so long, breaks it now and then, and ends it by a signal."""
        end = self.began + 60 * minutes
        fault_at = self.began + self.rng.expovariate(1 / mean_fault_s)
        while time.monotonic() < end:
            self._sample()
            if not self.victim.runs:
                self._went_by_itself()
                return
            # What does not start in a new process is taken for a wrong setting, and ends the run.
            if time.monotonic() > fault_at and self._step() > self.driver_began:
                self._break()
                fault_at = time.monotonic() + self.rng.expovariate(1 / mean_fault_s)
            time.sleep(SAMPLE_S)
        below = [self.victim.command.pid, *descendants(self.victim.command.pid)]
        self._end()
        if left := left_after(below, 60):
            self.wrong.append(f"processes are left behind: {left}")

    def close(self) -> None:
        """Ends what still runs."""
        self.victim.command.kill()
        if self.agent is not None:
            self.agent.close()

    def _command(self, verb: str) -> Command:
        arguments = ["train", *self.flags, f"run_dir={self.run_dir}"]
        if verb == "resume":
            arguments = ["resume", str(self.run_dir)]
        return Command(*arguments, output=self.folder / "output.txt")

    def _sample(self) -> None:
        now, driver = time.monotonic(), self.victim.command.pid
        if self.step_of_kill is not None and self._step() > self.step_of_kill:
            self.step_of_kill, self.settled = None, now + WARM_UP_S
        if now > self.settled:
            own = resident_bytes(driver) / 2**20
            whole = own + sum(map(resident_bytes, descendants(driver))) / 2**20
            self.driver_memory.append(Point(self.driver_life, now - self.began, own))
            self.memory.append(Point(self.life, now - self.began, whole))
        if len(saved := saved_folders(self.run_dir)) > KEEP_TOP_K + 2:
            self.wrong.append(f"{len(saved)} checkpoints at once")

    def _break(self) -> None:
        kinds = self._kinds()
        weights = [1 if kind == RARELY else 4 for kind in kinds]
        (kind,) = self.rng.choices(list(kinds), weights)
        log.info("%6.0f s  %s, step %d", time.monotonic() - self.began, kind, self._step())
        kinds[kind]()
        self.done.append(kind)

    def _kinds(self) -> dict[str, Callable[[], None]]:
        kinds: dict[str, Callable[[], None]] = {
            RARELY: self._kill_driver,
            "kill generator": self._kill_generator,
            "stop generator": lambda: self._to("generator", self._stop),
            "stop driver": lambda: self._to("driver", self._stop),
        }
        if "gym" not in self.setting:
            kinds["kill verifier"] = lambda: self._to("verifier", faults.kill)
            kinds["stop verifier"] = lambda: self._to("verifier", self._stop)
            return kinds
        kinds["stop environment"] = lambda: self._to("environment", self._stop)
        if self.agent is not None:
            kinds["kill environment"] = self.agent.start
            kinds["slow socket"] = lambda: self._disturb(Mode.SLOW)
            kinds["reset socket"] = lambda: self._disturb(Mode.RESET)
        return kinds

    def _to(self, role: str, what: Callable[[int], None]) -> None:
        pid = self.victim.find(role, self.rng)
        if pid is not None:
            what(pid)

    def _stop(self, pid: int) -> None:
        faults.stop(pid, self.rng.uniform(0.5, 4))

    def _disturb(self, mode: Mode) -> None:
        assert self.agent is not None, "asked for where there is one"
        self.agent.disturb(mode, self.rng.uniform(0.5, 4))

    def _kill_generator(self) -> None:
        self._to("generator", faults.kill)
        self._begin_life()

    def _kill_driver(self) -> None:
        self.victim.command.kill()
        self._begin_life()
        self.driver_life += 1
        self.driver_began = self._step()
        self.victim.command = self._command("resume")

    def _begin_life(self) -> None:
        self.life += 1
        self.step_of_kill, self.settled = self._step(), math.inf

    def _end(self) -> None:
        faults.terminate(self.victim.command.pid)
        code = self.victim.command.wait(COMMAND_S)
        if code != 128 + signal.SIGTERM:
            self.wrong.append(f"after SIGTERM it ended with {code}")

    def _went_by_itself(self) -> None:
        self.failed = True
        last = self.victim.command.text().strip().splitlines()[-3:]
        self.wrong.append(f"it ended with {self.victim.command.exit_code}: {' | '.join(last)}")

    def _step(self) -> int:
        return logged_steps(self.run_dir)

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """Looks at the files and the history; notes how long the steps took."""
        if self.failed and self._step() == 0:
            return  # there is nothing to look at
        run_dir, lines = RunDir.read(self.run_dir), read_metrics(self.run_dir / "metrics.jsonl")
        first = lines[0]["time"] if lines else 0.0
        # Not told apart by lives: a resume's first step is one of many.
        self.steps = [Point(0, ln["time"] - first, ln["perf/step_s"]) for ln in lines[1:]]
        steps = int(lines[-1]["step"]) if lines else 0
        # A step that failed has written its file, and no line of metrics.
        if not self.failed and run_dir.trained_steps() != list(range(1, steps + 1)):
            self.wrong.append("trained/ has not one file per step")
        kept = len(saved_folders(self.run_dir))
        if not 1 <= kept <= KEEP_TOP_K + 1:
            self.wrong.append(f"{kept} checkpoints are kept, keep_top_k={KEEP_TOP_K}")
        if left := [str(path) for path in self.run_dir.rglob(".*.tmp")]:
            self.wrong.append(f"temporary files are left: {left[:3]}")
        report = audit(self.run_dir)
        if not report.ok:
            self.wrong.append(f"audit: {report.violations[0]}")

    def tell_files(self) -> None:
        """Files and bytes by what is at the top of the run directory."""
        for path in sorted(self.run_dir.iterdir()):
            files = [p for p in (path.rglob("*") if path.is_dir() else [path]) if p.is_file()]
            size = sum(p.stat().st_size for p in files)
            log.info("  %-16s %6d files %12d bytes", path.name, len(files), size)


def main() -> int:
    """Soaks; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--setting", default="async", choices=SETTINGS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mean-fault-s", type=float, default=15.0, help="between two faults")
    parser.add_argument("--max-memory-slope", type=float, default=200.0, help="MiB per hour")
    parser.add_argument("--max-step-slope", type=float, default=1.0, help="seconds per hour")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        soak = Soak(Path(folder), arguments.setting, random.Random(arguments.seed))
        try:
            soak.run(arguments.minutes, arguments.mean_fault_s)
        finally:
            soak.close()
        soak.check()
        lives = f"{soak.driver_life + 1} lives of the driver, {soak.life + 1} of the generator"
        log.info("%d steps, %s, %d faults", len(soak.steps), lives, len(soak.done))
        for name, points, most in (
            ("driver in MiB", soak.driver_memory, arguments.max_memory_slope),
            ("memory in MiB", soak.memory, arguments.max_memory_slope),
            ("seconds per step", soak.steps, arguments.max_step_slope),
        ):
            found = slope(points)
            mean = statistics.fmean(p.value for p in points) if points else math.nan
            log.info("%-16s mean %.4g, slope %s", name, mean, found or "unknown")
            if found is not None and found.low > most:
                soak.wrong.append(f"{name} grows by more than {most:g} per hour")
        soak.tell_files()
    for text in dict.fromkeys(soak.wrong):
        log.info("FAILED: %s", text)
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
