# SPDX-License-Identifier: Apache-2.0
"""Trains the same recipe synchronously and at several ages, and compares what was learned.

Every arm runs with as many batches in flight as its age allows, so that its tokens are as old as
the bound lets them be; a default run (2 in flight) is younger. A finished run is kept in the
output folder and not repeated, so the script can be interrupted and called again.

Writes runs.jsonl (a line per run), table.md and curves.svg into the output folder.

Example:
    python scripts/parity.py /tmp/parity --lr 1e-4 --steps 100
    python scripts/parity.py /tmp/long --lr 3e-4 --steps 300 --seeds 42 --arms sync 8 8-off
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlrun.metrics.logs import read_metrics

ROOT = Path(__file__).resolve().parent.parent
ARMS = ("sync", "1", "2", "4", "8", "16")
NEVER = 1_000_000_000
"""Steps after which the guards stop a run: the harm is to be seen to the end."""
LAST = 10
"""Steps whose rewards are averaged at the end."""
SMOOTH = 7
"""Steps of the moving mean in the plot."""
COLOURS = ("#333333", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#56b4e9", "#999933")

log = logging.getLogger("parity")


@dataclass(frozen=True, slots=True)
class Run:
    """What a run learned.

    Attributes:
        arm: "sync", an age, or an age followed by "-off" for no correction.
        seed: Of the run.
        rewards: Mean reward of each step's samples.
        tokens: Trained up to each step.
        age_mean: Over the second half of the steps.
        age_max: Over all steps.
        ess_least: Least effective sample size of a step; 1 where nothing is corrected.
    """

    arm: str
    seed: int
    rewards: list[float]
    tokens: list[float]
    age_mean: float
    age_max: float
    ess_least: float

    @property
    def last(self) -> float:
        """Mean reward of the last steps."""
        return statistics.fmean(self.rewards[-LAST:])

    def last_at(self, tokens: float) -> float:
        """Likewise, of the steps up to the one in which so many tokens were trained."""
        steps = next((n for n, count in enumerate(self.tokens, 1) if count >= tokens), None)
        return statistics.fmean(self.rewards[:steps][-LAST:])


def flags(arm: str) -> list[str]:
    """What an arm changes."""
    if arm == "sync":
        return ["grpo=sync"]
    age, _, off = arm.partition("-")
    changed = [
        "grpo=async",
        f"grpo.max_trajectory_age_steps={age}",
        f"grpo.max_num_in_flight_batches_in_generation={max(1, int(age))}",
    ]
    if off:
        changed += ["correction.enabled=false", "correction.allow_stale_without=true"]
    return [*changed, f"correction.stop_after_steps={NEVER}"]


def train(arm: str, seed: int, options: argparse.Namespace) -> Run:
    """Runs an arm once, or reads what it did."""
    run_dir = Path(options.folder) / f"{arm}-{seed}"
    if not (run_dir / "finished").exists():
        if run_dir.exists():
            command = ["resume", str(run_dir)]
        else:
            command = [
                "train",
                f"+recipe={options.recipe}",
                *flags(arm),
                f"grpo.seed={seed}",
                f"grpo.max_num_steps={options.steps}",
                "grpo.max_num_epochs=null",
                "grpo.val_period=0",
                "checkpointing.metric=null",
                "checkpointing.keep_top_k=1",
                *options.override,
                *([f"policy.optimizer.lr={options.lr}"] if options.lr else []),
                f"run_dir={run_dir}",
            ]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        subprocess.run(
            [sys.executable, "-m", "rlrun", *command],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (run_dir / "finished").touch()
    lines = [line for line in read_metrics(run_dir / "metrics.jsonl") if line["step"] > 0]
    return Run(
        arm,
        seed,
        [line["train/reward_mean"] for line in lines],
        [line["tokens/trained"] for line in lines],
        statistics.fmean(line["age/mean"] for line in lines[len(lines) // 2 :]),
        max(line["age/max"] for line in lines),
        min(line.get("correction/ess", 1.0) for line in lines),
    )


def table(runs: Sequence[Run], seeds: Sequence[int]) -> str:
    """A row per arm: rewards at the end by seed, and the largest distance to sync's.

    The distance is taken at the end, and where as many tokens were trained as sync trained in all.
    """
    head = ["arm", *(f"seed {seed}" for seed in seeds), "worst against sync", "at equal tokens"]
    head += ["age mean", "age max", "least ESS", "trained tokens"]
    rows = [head, ["---"] * len(head)]
    of = {(run.arm, run.seed): run for run in runs}
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [of[arm, seed] for seed in seeds if (arm, seed) in of]
        pairs = [(run, of["sync", run.seed]) for run in own if ("sync", run.seed) in of]
        against = [run.last - sync.last for run, sync in pairs if arm != "sync"]
        equal = [run.last_at(sync.tokens[-1]) - sync.last for run, sync in pairs if arm != "sync"]
        rows.append(
            [
                arm,
                *(f"{run.last:.3f}" for run in own),
                f"{min(against):+.3f}" if against else "",
                f"{min(equal):+.3f}" if equal else "",
                f"{statistics.fmean(run.age_mean for run in own):.1f}",
                f"{max(run.age_max for run in own):.0f}",
                f"{min(run.ess_least for run in own):.2f}",
                f"{statistics.fmean(run.tokens[-1] for run in own):,.0f}",
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def curves(runs: Sequence[Run]) -> str:
    """Reward over trained tokens, smoothed; a line per run, a colour per arm."""
    width, height, left, top, right, bottom = 800, 420, 50, 20, 640, 370
    most = max(run.tokens[-1] for run in runs)
    arms = list(dict.fromkeys(run.arm for run in runs))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for tick in range(6):
        y = bottom - tick / 5 * (bottom - top)
        parts.append(f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{tick / 5:g}</text>')
    for tick in range(5):
        x = left + tick / 4 * (right - left)
        label = f"{tick / 4 * most / 1000:,.0f}k"
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    middle = (left + right) / 2
    parts.append(f'<text x="{middle}" y="{height - 12}" text-anchor="middle">trained tokens</text>')
    for run in runs:
        colour = COLOURS[arms.index(run.arm) % len(COLOURS)]
        points = " ".join(
            f"{left + tokens / most * (right - left):.1f},{bottom - reward * (bottom - top):.1f}"
            for tokens, reward in zip(run.tokens, _smooth(run.rewards), strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    for index, arm in enumerate(arms):
        y, colour = top + 12 + 18 * index, COLOURS[index % len(COLOURS)]
        name = "sync" if arm == "sync" else f"age {arm.replace('-off', ', uncorrected')}"
        parts.append(f'<text x="{right + 8}" y="{y}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _smooth(values: Sequence[float]) -> Iterable[float]:
    for end in range(1, len(values) + 1):
        yield statistics.fmean(values[max(0, end - SMOOTH) : end])


def main() -> None:
    """Runs what is missing and writes the comparison after every run."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--arms", nargs="+", default=ARMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", help="policy.optimizer.lr; the recipe's own if not given")
    parser.add_argument("--override", nargs="*", default=[], help="further flags of rlrun train")
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    for seed in options.seeds:
        for arm in options.arms:
            runs.append(run := train(arm, seed, options))
            log.info("%s, seed %d: last %d steps %.3f", arm, seed, LAST, run.last)
            lines = [json.dumps(asdict(run)) for run in runs]
            (folder / "runs.jsonl").write_text("\n".join(lines) + "\n")
            (folder / "table.md").write_text(table(runs, options.seeds))
            (folder / "curves.svg").write_text(curves(runs))
    sys.stdout.write(table(runs, options.seeds))


if __name__ == "__main__":
    main()
