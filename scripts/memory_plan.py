# SPDX-License-Identifier: Apache-2.0
"""Compares the memory plan with the measured peak of real steps, as a Markdown table.

``python scripts/memory_plan.py`` takes about ten minutes on one core. Every case is two updates
of one full microbatch in a process of its own (tests/planning/step_peak.py), whose peak is set
against what ``rlrun check`` says of the same run. docs/planning.md has the table.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rlrun.learner.scan import SEGMENT_TOKENS

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20

log = logging.getLogger("memory_plan")


@dataclass(frozen=True, slots=True)
class Case:
    """A microbatch of one model.

    Attributes:
        model: As policy.model.
        rows: Sequences.
        length: Tokens of each.
        checkpointing: Activations are computed again in the backward pass.
    """

    model: str
    rows: int
    length: int
    checkpointing: bool

    def command(self) -> list[str]:
        """What measures it."""
        switch = f"policy.activation_checkpointing={str(self.checkpointing).lower()}"
        numbers = [str(self.rows), str(self.length), str(SEGMENT_TOKENS)]
        return [sys.executable, "-m", "tests.planning.step_peak", self.model, *numbers, switch]


CASES = [
    Case(model, rows, length, checkpointing)
    for model, sizes in (
        ("rlrun:tiny", ((8, 512), (8, 1024), (8, 2048), (2, 8192))),
        ("rlrun:tiny-hybrid", ((8, 512), (8, 1024), (8, 2048), (2, 8192), (1, 16384))),
    )
    for rows, length in sizes
    for checkpointing in (False, True)
]
"""Beyond 4,096 tokens the scan of the hybrid goes by segments."""


def measure(case: Case, *, as_it_is: bool) -> tuple[float, float]:
    """Peak and plan of a case in MiB; ``as_it_is`` with what glibc keeps when freed."""
    # As in tests/planning/step_peak.py, which says why.
    malloc = {} if as_it_is else {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        case.command(),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **malloc},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{case}: {done.stderr}")
    found = json.loads(done.stdout)
    return found["measured"] / MIB, found["estimated"] / MIB


def main() -> int:
    """Reads the command line; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="only cases of this model")
    parser.add_argument(
        "--as-it-is", action="store_true", help="count what glibc keeps of freed memory too"
    )
    arguments = parser.parse_args()
    log.info("| model | rows x tokens | computed again | measured MiB | planned MiB | ratio |")
    log.info("|---|---|---|---|---|---|")
    for case in CASES:
        if arguments.model in (None, case.model):
            peak, plan = measure(case, as_it_is=arguments.as_it_is)
            again = "yes" if case.checkpointing else "no"
            log.info(
                f"| {case.model} | {case.rows} x {case.length:,} | {again} | {peak:.0f} | "
                f"{plan:.0f} | {peak / plan:.2f} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
