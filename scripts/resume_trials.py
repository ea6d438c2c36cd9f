# SPDX-License-Identifier: Apache-2.0
"""Kills runs with SIGKILL at random moments, resumes them, and compares with one left in peace.

Half of the kills come at any moment of a step, half while a checkpoint is being written; a third of
the resumed runs are killed once more. A trial is passed if metrics (but for the clock), trained
rows, validation rows and everything in the last checkpoint equal those of the reference bit for
bit, and if ``rlrun audit`` finds nothing. The exit code is 1 if a trial is not passed.

Example:
    python scripts/resume_trials.py 50 --seed 0
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from _runs import Command, finish, logged_steps, saving

from rlrun.metrics.logs import read_metrics
from rlrun.metrics.registry import find

STEPS, SAVE_PERIOD = 8, 2
RUN = (
    "+recipe=quickstart",
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=4",
    f"grpo.max_num_steps={STEPS}",
    "grpo.val_period=4",
    "grpo.max_val_samples=8",
    f"checkpointing.save_period={SAVE_PERIOD}",
    "num_threads=1",
)
MOMENT_S = 0.5
"""About a step; a kill comes at a random moment of this time after what it waits for."""
CHECKPOINT_S = 0.04
"""About a checkpoint."""
DEADLINE_S = 300.0

log = logging.getLogger("resume_trials")


@dataclass(slots=True)
class Kill:
    """One kill: what was on disk when the process was gone."""

    logged: int
    saved: int
    unfinished: bool

    def __str__(self) -> str:
        """Steps logged, last checkpoint, and whether one was half written."""
        return f"{self.logged}/{self.saved}{'+' if self.unfinished else ''}"


@dataclass(slots=True)
class Trial:
    """One run with its kills.

    Attributes:
        kills: In order; one that came after the end of the run is not among them.
        different: What is not as in the reference.
        seconds: Of the whole trial.
    """

    number: int
    aim: str
    kills: list[Kill] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    seconds: float = 0.0


def kill(command: Command, run_dir: Path, aim: str, rng: random.Random) -> None:
    """Kills a command at a random moment, or lets it end if the moment comes too late."""
    base = logged_steps(run_dir)
    if aim == "checkpoint":
        # The checkpoints of the last steps as well as of the first ones.
        # There may be no later one, where the kill before came after the last.
        first = min(base // SAVE_PERIOD + 1, STEPS // SAVE_PERIOD)
        after = SAVE_PERIOD * rng.randint(first, STEPS // SAVE_PERIOD)
        delay = rng.uniform(0.0, CHECKPOINT_S)
    else:
        after, delay = rng.randint(base, STEPS), rng.uniform(0.0, MOMENT_S)
    deadline = time.monotonic() + DEADLINE_S
    while command.exit_code is None and time.monotonic() < deadline:
        if logged_steps(run_dir) >= after and (aim != "checkpoint" or saving(run_dir)):
            break
        time.sleep(0.001)
    time.sleep(delay)
    command.kill()


def state_after_kill(run_dir: Path) -> Kill:
    """What the next process will find."""
    checkpoints = [int(p.name[5:]) for p in (run_dir / "checkpoints").glob("step_*")]
    return Kill(logged_steps(run_dir), max(checkpoints, default=0), saving(run_dir))


def run_trial(number: int, run_dir: Path, reference: Path, rng: random.Random) -> Trial:
    """Starts a run, kills it, resumes it (killing it once more in a third of the trials)."""
    started = time.monotonic()
    trial = Trial(number, "checkpoint" if number % 2 else "any")
    output = run_dir.with_suffix(".txt")
    command = Command("train", *RUN, f"run_dir={run_dir}", output=output)
    for _ in range(1 + (rng.random() < 1 / 3)):
        kill(command, run_dir, trial.aim, rng)
        if command.exit_code != -signal.SIGKILL:
            break
        trial.kills.append(state_after_kill(run_dir))
        if not (run_dir / "config.yaml").exists():
            # Killed before there was a run: nothing to resume, the user starts again.
            command = Command("train", *RUN, f"run_dir={run_dir}", output=output)
        else:
            command = Command("resume", str(run_dir), output=output)
    if (code := command.wait(DEADLINE_S)) != 0:
        raise RuntimeError(f"rlrun ended with {code}:\n{command.text()}")
    trial.different = compare(run_dir, reference)
    audit = Command("audit", str(run_dir), output=run_dir.with_suffix(".audit.txt"))
    if audit.wait(DEADLINE_S) != 0:
        trial.different.append(f"audit: {audit.text().strip()}")
    trial.seconds = time.monotonic() - started
    return trial


def compare(run_dir: Path, reference: Path) -> list[str]:
    """What is not the same; empty if everything is."""
    different = []
    if untimed(run_dir) != untimed(reference):
        different.append("metrics.jsonl")
    names = [f"trained/step_{step:06d}.jsonl" for step in range(1, STEPS + 1)]
    names += [str(p.relative_to(reference)) for p in sorted((reference / "validation").iterdir())]
    last = reference / "checkpoints" / f"step_{STEPS:06d}"
    names += [
        str(path.relative_to(reference))
        for path in sorted(last.rglob("*"))
        # state.json and the manifest over it count what a killed process had generated in vain.
        if path.is_file() and path.name not in ("state.json", "manifest.json")
    ]
    for name in names:
        ours = run_dir / name
        if not ours.exists() or ours.read_bytes() != (reference / name).read_bytes():
            different.append(name)
    return different


def untimed(run_dir: Path) -> list[dict[str, float]]:
    """metrics.jsonl without what depends on the clock or on interruptions."""
    return [
        {
            name: value
            for name, value in line.items()
            if name == "step" or (name != "time" and not find(name).timing)
        }
        for line in read_metrics(run_dir / "metrics.jsonl")
    ]


def main() -> int:
    """Reads the command line; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trials", nargs="?", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        reference = Path(temporary) / "reference"
        output = Path(temporary) / "reference.txt"
        finish("train", *RUN, f"run_dir={reference}", output=output, timeout_s=DEADLINE_S)
        log.info("trial  aim         killed at (logged/saved, + half written)  seconds  result")
        trials = []
        for number in range(1, arguments.trials + 1):
            run_dir = Path(temporary) / f"trial_{number}"
            trial = run_trial(number, run_dir, reference, rng)
            trials.append(trial)
            kills = ", ".join(map(str, trial.kills)) or "not killed: it had ended"
            result = "differs: " + ", ".join(trial.different) if trial.different else "equal"
            log.info(
                "%5d  %-10s  %-40s  %7.1f  %s", number, trial.aim, kills, trial.seconds, result
            )
    kills_made = [one for trial in trials for one in trial.kills]
    failed = sum(bool(trial.different) for trial in trials)
    log.info(
        "%d of %d trials equal the uninterrupted run bit for bit; %d kills, %d of them with a "
        "checkpoint half written",
        len(trials) - failed,
        len(trials),
        len(kills_made),
        sum(one.unfinished for one in kills_made),
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
