# SPDX-License-Identifier: Apache-2.0
"""Runs the quickstart with several seeds and prints what each of them learned.

Example:
    python scripts/quickstart_seeds.py 42 43 44 45 46
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rlrun.metrics.logs import read_metrics

ROOT = Path(__file__).resolve().parent.parent
ENDS = 5
"""Steps at either end whose rewards are averaged."""
HEAD = ("seed", f"reward first {ENDS}", f"last {ENDS}", "accuracy before", "after", "tokens", "s")

log = logging.getLogger("quickstart_seeds")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run learned.

    Attributes:
        reward: Mean over the first and over the last steps.
        accuracy: On the held-out pairs, before and after.
        tokens: Mean length of a response in the first and in the last step.
        seconds: Wall time of the command.
    """

    seed: int
    reward: tuple[float, float]
    accuracy: tuple[float, float]
    tokens: tuple[float, float]
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        return (
            str(self.seed),
            *(f"{value:.3f}" for value in (*self.reward, *self.accuracy)),
            f"{self.tokens[0]:.1f} -> {self.tokens[1]:.1f}",
            f"{self.seconds:.0f}",
        )


def run(seed: int, run_dir: Path) -> Outcome:
    """Trains the quickstart with a seed."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    overrides = ("+recipe=quickstart", f"grpo.seed={seed}", f"run_dir={run_dir}")
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "rlrun", "train", *overrides],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    seconds = time.monotonic() - started
    lines = list(read_metrics(run_dir / "metrics.jsonl"))
    steps = [line for line in lines if line["step"] > 0]
    rewards = [line["train/reward_mean"] for line in steps]
    accuracy = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    lengths = [line["train/response_tokens_mean"] for line in steps]
    return Outcome(
        seed,
        (sum(rewards[:ENDS]) / ENDS, sum(rewards[-ENDS:]) / ENDS),
        (accuracy[0], accuracy[-1]),
        (lengths[0], lengths[-1]),
        seconds,
    )


def main() -> int:
    """Reads the command line; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", nargs="*", type=int, default=[42, 43, 44, 45, 46])
    seeds: list[int] = parser.parse_args().seeds
    widths = [max(len(name), 12) for name in HEAD]
    log.info("  ".join(name.rjust(width) for name, width in zip(HEAD, widths, strict=True)))
    with tempfile.TemporaryDirectory() as temporary:
        for seed in seeds:
            cells = run(seed, Path(temporary) / str(seed)).cells()
            log.info("  ".join(c.rjust(width) for c, width in zip(cells, widths, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
