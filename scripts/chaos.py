# SPDX-License-Identifier: Apache-2.0
"""Small real runs under faults, each drawn from a seed; asserts what must hold after every one.

A plan is a setting (schedule, environment, generation, cluster), a fault, and the moment at which
it comes. After it there must be: an end in bounded time, with the exit code of that fault; one line
that names its cause and no traceback; no process left behind; a resume that comes to the end of the
run where it did not; an audit that finds nothing lost or used twice; and, for faults that cost no
sample, every group trained exactly once per epoch. Which plan a seed gives depends on nothing but
the seed and the options. A line per plan; the exit code is 1 if one fails.

Example:
    python scripts/chaos.py --plans 24
    python scripts/chaos.py --seed 7 --plans 1 --keep /tmp/look
    python scripts/chaos.py --with-engines --kinds "kill generator" "kill learner"
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import _faults as faults
from _proxy import Mode
from _runs import (
    UNVALIDATED,
    Before,
    Command,
    descendants,
    left_after,
    saved_folders,
    trained,
)
from _settings import ENGINES, EPOCHS, LOCAL, ROWS, SAMPLES, flags_of, write_files

from rlrun.audit import audit
from rlrun.errors import RlrunError
from rlrun.run_dir.directory import RunDir

LEFT_S = 60.0
"""Within which processes of a run that was killed must have ended."""

WIDE_DISK = 256 * 2**20

TOO_LATE = "the run ended before the fault"

FOLDER = "FOLDER"
"""Stands in flags for the folder of the trial."""

log = logging.getLogger("chaos")


@dataclass(frozen=True)
class Plan:
    """What is done to a run.

    Attributes:
        seed: That it was drawn from.
        setting: Of the run.
        kind: Of the fault.
        step: After which it comes.
        delay_s: How long after it.
        strength: From 0 to 1, uniform: what it means is the fault's business.
    """

    seed: int
    setting: str
    kind: str
    step: int
    delay_s: float
    strength: float

    def __str__(self) -> str:
        """As a part of a line."""
        moment = f"step {self.step} + {self.delay_s:.2f} s, {self.strength:.2f}"
        return f"seed {self.seed:<5d} {self.setting:17s} {self.kind:22s} {moment:24s}"


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        settings: In which it can come.
        inject: Waits for the moment and does it; says what it did, "" if the run ended before.
        codes: Exit codes that the run may end with.
        cause: What its one error line must contain, if it ends with an error.
        flags: That the run needs for it.
        costs: Groups may end without being trained.
        says: What the output of the resume must contain.
    """

    settings: tuple[str, ...]
    inject: Callable[[Trial], str]
    codes: tuple[int, ...] = (0,)
    cause: str = ""
    flags: tuple[str, ...] = ()
    costs: bool = False
    says: str = ""


@dataclass
class Trial:
    """A plan that is carried out.

    Attributes:
        folder: Of all its files.
        limit_s: For each command.
        wrong: What is not as it must be.
        did: What the fault did, in words.
        code: Exit code of the run that had the fault.
    """

    plan: Plan
    folder: Path
    limit_s: float
    wrong: list[str] = field(default_factory=list)
    did: str = ""
    code: int | None = None

    def __post_init__(self) -> None:
        self.kind = KINDS[self.plan.kind]
        self.rng = random.Random(f"{self.plan.seed} in the trial")
        self.run_dir = self.folder / "disk" / "run"
        self.mounted, self.commands = False, 0
        self.arguments: tuple[str, ...] = ()
        self.before: Before | None = None
        self.variables: dict[str, str] = {}
        self.victim: faults.Victim
        self.agent: faults.Agent | None = None
        self.seen: set[int] = set()

    def run(self) -> None:
        """Runs, breaks, resumes and checks."""
        self.folder.mkdir(parents=True)
        write_files(self.folder)
        with contextlib.ExitStack() as stack:
            size = round((6 + 8 * self.plan.strength) * 2**20)
            if self.plan.kind == "full disk" and "ray" not in self.plan.setting:
                disk = faults.small_disk(self.folder / "disk", size)
                self.mounted = stack.enter_context(disk)
            if "gym" in self.plan.setting and "servers" not in self.plan.setting:
                self.agent = faults.Agent(self.run_dir, self.folder / "agent.txt")
                stack.callback(self.agent.close)
            self._begin()
            try:
                self._carry_out()
            except TimeoutError as error:
                self.wrong.append(str(error))
            finally:
                if self.victim.runs:
                    self.victim.command.kill()
            self._check_processes()

    def _begin(self) -> None:
        prepare = PREPARED.get(self.plan.kind)
        if prepare is not None:
            prepare(self)
        own = self.agent.flags() if self.agent is not None else ()
        needed = [flag.replace(FOLDER, str(self.folder)) for flag in self.kind.flags]
        flags = (*flags_of(self.plan.setting, self.folder), *UNVALIDATED, *own, *needed)
        self.arguments = ("train", *flags, f"run_dir={self.run_dir}")
        command = self._command(*self.arguments)
        self.victim = faults.Victim(command, self.run_dir, self.agent, self.limit_s)

    def _carry_out(self) -> None:
        command = self.victim.command
        self.did = self.kind.inject(self)
        self.look()
        self.code = command.wait(self.limit_s)
        if not self.did and self.code == 0:
            self.wrong.append(TOO_LATE)
        elif self.code not in self.kind.codes:
            self.wrong.append(f"it ended with {self.code}, not {self.kind.codes}")
        self._check_text(command, self.code)
        if self.code > 0:
            self._check_status(self.code)
        if self.code != 0:
            self._resume()
        self._check_run()

    def _resume(self) -> None:
        if self.mounted:
            faults.enlarge_disk(self.folder / "disk", WIDE_DISK)
        if self.agent is not None:
            self.agent.start()
        self.before, self.variables = None, {}
        # Killed before there was a run, there is nothing to resume: the user starts again.
        begun = (self.run_dir / "config.yaml").exists()
        command = self._command(*(("resume", str(self.run_dir)) if begun else self.arguments))
        self.victim.command = command
        code = command.wait(self.limit_s)
        self._check_text(command, code)
        if code != 0:
            self.wrong.append(f"the resume ended with {code}")
        if self.kind.says and self.kind.says not in command.text():
            self.wrong.append(f"the resume does not say {self.kind.says!r}")

    def _command(self, *arguments: str) -> Command:
        self.commands += 1
        output = self.folder / f"{self.commands}-{arguments[0]}.txt"
        return Command(*arguments, output=output, variables=self.variables, before=self.before)

    def look(self) -> None:
        """Remembers which processes there are, so that none is left at the end."""
        self.seen |= {self.victim.command.pid, *descendants(self.victim.command.pid)}

    # --- what must hold -----------------------------------------------------------------------

    def _check_text(self, command: Command, code: int) -> None:
        text = command.text()
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        if "Traceback" in text:
            self.wrong.append(f"{command.output.name} has a traceback")
        if len(lines) != (code > 0):
            self.wrong.append(f"{command.output.name} has {len(lines)} errors: {lines}")
        if code > 0 and lines and not re.search(self.kind.cause, lines[0]):
            self.wrong.append(f"the cause is not {self.kind.cause!r}: {lines[0]}")

    def _check_status(self, code: int) -> None:
        status = RunDir(self.run_dir).read_status()
        told = None if status is None else (str(status.state), status.exit_code)
        if told != ("failed", code):
            self.wrong.append(f"status.json says {told}")

    def _check_run(self) -> None:
        try:
            report = audit(self.run_dir)
        except RlrunError as error:
            self.wrong.append(f"audit: {error}")
            return
        if not report.ok:
            self.wrong.append(f"audit: {report.violations[0]}")
        if not all(epoch.finished for epoch in report.epochs) or len(report.epochs) != EPOCHS:
            self.wrong.append("not all epochs were finished")
        groups = trained(self.run_dir)
        if not self.kind.costs and (
            len(groups) != EPOCHS * ROWS or set(groups.values()) != {SAMPLES}
        ):
            self.wrong.append(f"{len(groups)} groups were trained, of {EPOCHS * ROWS}")

    def _check_processes(self) -> None:
        own = {self.agent.pid} if self.agent is not None else set()
        left = left_after(self.seen - own, LEFT_S)
        for pid in left:
            self.wrong.append(f"process {faults.name_of(pid)} is left behind")
            faults.kill(pid)


# --- the faults -------------------------------------------------------------------------------


def _at_the_moment(trial: Trial, checkpoints: int = 0) -> bool:
    return trial.victim.wait_for(trial.plan.step, trial.plan.delay_s, checkpoints)


def _kill(role: str, trial: Trial) -> str:
    pid = trial.victim.find(role, trial.rng) if _at_the_moment(trial) else None
    if pid is None:
        return ""
    told = f"killed {faults.name_of(pid)}"
    trial.look()
    faults.kill(pid)
    if role == "environment" and trial.agent is not None:
        time.sleep(2 * trial.plan.strength)
        trial.agent.start()
    return "" if _came_too_late(trial) else told


def _came_too_late(trial: Trial) -> bool:
    """Whether a run needed no more of what a fault took from it: it had its rollouts already."""
    if 0 in trial.kind.codes:
        return False
    return trial.victim.command.wait(trial.limit_s) == 0


def _lose_environment(trial: Trial) -> str:
    if trial.agent is None or not _at_the_moment(trial):
        return ""
    trial.look()
    trial.agent.end()
    return "" if _came_too_late(trial) else "ended the agent for good"


def _stop(role: str, trial: Trial) -> str:
    pid = trial.victim.find(role, trial.rng) if _at_the_moment(trial) else None
    if pid is None:
        return ""
    seconds = 0.5 + 4 * trial.plan.strength
    told = f"stopped {faults.name_of(pid)} for {seconds:.1f} s"
    faults.stop(pid, seconds)
    return told


def _fill_disk(trial: Trial) -> str:
    if trial.mounted:
        return "ran on a small disk"
    if not _at_the_moment(trial):
        return ""
    # What the driver starts has its limit, too: a Ray that cannot write does not even start.
    if "ray" in trial.plan.setting and trial.victim.find("learner", trial.rng) is None:
        return ""
    most = round(2**16 + trial.plan.strength * 2**19)
    for role in ("driver", "learner"):
        for pid in trial.victim.processes(role):
            faults.limit(pid, resource.RLIMIT_FSIZE, most)
    return f"no file above {most} bytes"


def _damage(trial: Trial) -> str:
    if not _at_the_moment(trial, checkpoints=2):
        return ""
    trial.look()
    trial.victim.command.kill()
    if _came_too_late(trial):
        return ""
    return f"killed; {faults.damage(saved_folders(trial.run_dir)[-1], trial.rng)}"


def _prepare_clock(trial: Trial) -> None:
    jumps = [
        (trial.rng.uniform(0.2, 3), trial.rng.choice([-86400, -3600, -30, 30, 3600, 400 * 86400]))
        for _ in range(3)
    ]
    trial.variables, trial.before = faults.clock_variables(jumps), faults.jump_clock
    trial.did = ", ".join(f"{by:+g} s after {after:.1f} s" for after, by in sorted(jumps))


def _already(trial: Trial) -> str:
    """For faults that were prepared before the run began."""
    trial.victim.wait_for(trial.plan.step, 0)
    return trial.did


def _disturb(mode: Mode, trial: Trial) -> str:
    if trial.agent is None or not _at_the_moment(trial):
        return ""
    seconds = 1 + 4 * trial.plan.strength
    trial.agent.disturb(mode, seconds)
    return f"{mode.value} for {seconds:.1f} s"


def _starve_verifier(trial: Trial) -> str:
    pid = trial.victim.find("verifier", trial.rng) if _at_the_moment(trial) else None
    if pid is None:
        return ""
    faults.limit(pid, resource.RLIMIT_AS, 2**20)
    return f"no more memory for {faults.name_of(pid)}"


def _prepare_gradient(trial: Trial) -> None:
    trial.before = functools.partial(faults.poison_gradient, trial.plan.step)
    trial.did = f"a NaN in a gradient from step {trial.plan.step} on"


def _prepare_reward(trial: Trial) -> None:
    trial.did = "NaN rewards for some answers"


def _prepare_weights(trial: Trial) -> None:
    trial.before = functools.partial(faults.poison_weights, trial.plan.step)
    trial.did = f"a NaN in the weights from step {trial.plan.step} on"


MATH = ("sync", "async")
GYM = ("sync gym", "async gym")
VLLM = ("sync vllm", "async vllm")
RAY = ("sync ray", "async ray", "async ray vllm")
SERVERS = ("async gym servers",)
REWARDS = (
    "env=python",
    f"env.reward_function={FOLDER}/rewards.py:fragile",
    "grpo.max_group_attempts=20",
)
PATIENT = ("env.max_retries=7", "env.retry_wait_s=0.25")
SHORT = ("grpo.rollout_timeout_s=8", "env.max_agent_failures=1000")

KINDS: dict[str, Kind] = {
    "kill driver": Kind(
        MATH + GYM + VLLM + RAY + SERVERS,
        functools.partial(_kill, "driver"),
        (-signal.SIGKILL,),
    ),
    # An engine that is killed as it starts for the first time ends the run, as wrong settings do.
    "kill generator": Kind(
        ("async", "async gym") + VLLM + RAY,
        functools.partial(_kill, "generator"),
        (0, 5),
        "does not start|its process died",
    ),
    "kill learner": Kind(RAY, functools.partial(_kill, "learner"), (6,), "learner rank"),
    "kill verifier": Kind(MATH, functools.partial(_kill, "verifier")),
    "kill environment": Kind(GYM, functools.partial(_kill, "environment"), flags=PATIENT),
    "kill server": Kind(
        SERVERS,
        functools.partial(_kill, "environment"),
        (4, 5),
        "server .* ended with -9",
        ("env.max_retries=1", "env.max_agent_failures=4"),
        costs=True,
    ),
    "lose environment": Kind(
        GYM,
        _lose_environment,
        (4,),
        # Before the run has seen it, or after.
        "is not ready within|no agent works any more",
        (
            "env.start_timeout_s=60",
            "env.max_retries=1",
            "env.retry_wait_s=0.1",
            "env.max_agent_failures=4",
        ),
        costs=True,
    ),
    "stop driver": Kind(MATH + GYM + VLLM + RAY, functools.partial(_stop, "driver")),
    "stop generator": Kind(
        ("async", "async gym") + VLLM + RAY, functools.partial(_stop, "generator")
    ),
    "stop learner": Kind(RAY, functools.partial(_stop, "learner")),
    "stop verifier": Kind(MATH, functools.partial(_stop, "verifier")),
    "stop environment": Kind(GYM + SERVERS, functools.partial(_stop, "environment")),
    "full disk": Kind(MATH + GYM + RAY, _fill_disk, (7,), "space|too large|size|written|save"),
    "damaged checkpoint": Kind(MATH, _damage, (-signal.SIGKILL,), says="is damaged"),
    "clock": Kind(MATH + GYM + VLLM, _already),
    "slow socket": Kind(GYM, functools.partial(_disturb, Mode.SLOW), flags=PATIENT),
    "half-open socket": Kind(
        GYM, functools.partial(_disturb, Mode.HALF_OPEN), flags=SHORT, costs=True
    ),
    "reset socket": Kind(GYM, functools.partial(_disturb, Mode.RESET), flags=PATIENT),
    "verifier memory": Kind(MATH, _starve_verifier),
    "NaN gradient": Kind(MATH, _already, (6,), "not finite"),
    "NaN reward": Kind(MATH, _already, flags=REWARDS, costs=True),
    "NaN weights": Kind(MATH, _already, (6,), "not finite"),
}
"""By name."""

PREPARED: dict[str, Callable[[Trial], None]] = {
    "clock": _prepare_clock,
    "NaN gradient": _prepare_gradient,
    "NaN reward": _prepare_reward,
    "NaN weights": _prepare_weights,
}
"""What is done before the run begins."""


# --- plans ------------------------------------------------------------------------------------


def draw(seed: int, cases: Sequence[tuple[str, str]]) -> Plan:
    """The plan of a seed; seeds that follow each other go through all cases."""
    rng = random.Random(seed)
    setting, kind = cases[seed % len(cases)]
    return Plan(seed, setting, kind, rng.randint(0, 5), rng.uniform(0, 0.4), rng.random())


def cases_of(kinds: Sequence[str], settings: Sequence[str]) -> list[tuple[str, str]]:
    """Every setting with every kind of fault that it can have, in a shuffled but fixed order."""
    cases = [
        (setting, kind) for kind in kinds for setting in KINDS[kind].settings if setting in settings
    ]
    random.Random("order").shuffle(cases)
    return cases


def carry_out(plan: Plan, folder: Path, limit_s: float) -> Trial:
    """Carries out a plan; says how it went."""
    started = time.monotonic()
    trial = Trial(plan, folder, limit_s)
    trial.run()
    if trial.wrong == [TOO_LATE] and plan.step + plan.delay_s > 0:
        # On a fast machine the steps that were to come passed in less time than the fault took.
        earlier = replace(plan, step=plan.step // 2, delay_s=0.0)
        log.info("%s was too late", plan)
        return carry_out(earlier, folder.with_name(f"{folder.name}-earlier"), limit_s)
    seconds = time.monotonic() - started
    verdict = "FAILED: " + "; ".join(trial.wrong) if trial.wrong else "ok"
    log.info("%s %5.1f s  ended %s, %s: %s", plan, seconds, trial.code, trial.did, verdict)
    return trial


def main() -> int:
    """Draws and carries out plans; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    # Whatever ends this, disks are unmounted and processes ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = _arguments()
    settings = LOCAL + ENGINES if arguments.with_engines else LOCAL
    settings = arguments.settings or settings
    cases = cases_of(arguments.kinds or list(KINDS), settings)
    if not cases:
        sys.exit("none of these kinds can come in these settings")
    seeds = arguments.seeds or range(arguments.seed, arguments.seed + arguments.plans)
    plans = [draw(seed, cases) for seed in seeds]
    if arguments.dry_run:
        for plan in plans:
            log.info("%s", plan)
        return 0
    began, failed, done = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        for plan in plans:
            if arguments.minutes and time.monotonic() - began > 60 * arguments.minutes:
                break
            folder = (arguments.keep or Path(temporary)) / f"seed-{plan.seed}"
            trial = carry_out(plan, folder, arguments.limit)
            done += 1
            failed += [plan.seed] * bool(trial.wrong)
    log.info("%d plans, %d passed; failed: %s", done, done - len(failed), failed or "none")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0, help="of the first plan; then one more each")
    parser.add_argument("--seeds", type=int, nargs="+", help="these instead")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), metavar="KIND")
    parser.add_argument("--settings", nargs="+", choices=LOCAL + ENGINES, metavar="SETTING")
    parser.add_argument("--with-engines", action="store_true", help="vLLM, Ray and Gym as well")
    parser.add_argument("--minutes", type=float, help="begin no plan after so many")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for each command")
    parser.add_argument("--keep", type=Path, help="leave all files in this folder")
    parser.add_argument("--dry-run", action="store_true", help="print the plans")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
