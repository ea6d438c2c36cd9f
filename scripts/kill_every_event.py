# SPDX-License-Identifier: Apache-2.0
"""Kills an asynchronous run with SIGKILL at every event of its scheduler, and resumes it each time.

Trial n dies when the n-th event is about to be written to events.jsonl (or, with --after, right
after it), is resumed, and must have trained every prompt of both epochs exactly as often as the run
that was left in peace; ``rlrun audit`` must find nothing. How many events there are depends on
timing, so the trials go on until a run ends before its kill. The exit code is 1 if one fails.

Example:
    python scripts/kill_every_event.py
    python scripts/kill_every_event.py --after --every 3
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from _runs import UNVALIDATED, Before, Command, trained

from rlrun.run_dir.event_log import EventLog
from rlrun.scheduler.decisions import Decision
from rlrun.scheduler.events import Event

RUN = (
    "+recipe=quickstart",
    "grpo=async",
    "grpo.num_prompts_per_step=3",
    "grpo.num_generations_per_prompt=2",
    "grpo.max_num_steps=null",
    "grpo.max_num_epochs=2",
    "checkpointing.save_period=1",
    "data.train.limit=12",
    *UNVALIDATED,
)
TIME_LIMIT_S = 600.0

log = logging.getLogger("kill_every_event")


def die(kill_at: int, after: bool) -> None:
    """Lets this process die at an event; they count from 1."""
    append, seen = EventLog.append, Counter[str]()

    def dying(self: EventLog, seq: int, event: Event, decisions: Sequence[Decision]) -> None:
        seen["events"] += 1
        if after:
            append(self, seq, event, decisions)
        if seen["events"] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if not after:
            append(self, seq, event, decisions)

    EventLog.append = dying  # type: ignore[method-assign]  # the fault that is provoked


def command(*arguments: str, folder: Path, before: Before | None = None) -> int:
    """The exit code of a command in a process of its own; negative if a signal ended it."""
    return Command(*arguments, output=folder / "output.txt", before=before).wait(TIME_LIMIT_S)


def trial(run_dir: Path, reference: Counter[str], kill_at: int, after: bool) -> str | None:
    """What is wrong after a kill and a resume; "" if nothing is, None if no kill came."""
    folder, before = run_dir.parent, functools.partial(die, kill_at, after)
    code = command("train", *RUN, f"run_dir={run_dir}", folder=folder, before=before)
    if code == 0:
        return None
    if code != -signal.SIGKILL:
        return f"the run ended with {code}"
    # Before the first checkpoint there is nothing to go on from: the same run begins anew.
    code = command("resume", str(run_dir), folder=folder)
    if code != 0:
        return f"the resume ended with {code}"
    if trained(run_dir) != reference:
        return "other groups were trained"
    audited = command("audit", str(run_dir), folder=folder)
    return "" if audited == 0 else "the audit found something"


def main() -> None:
    """Kills at the first event, the second, and so on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--after", action="store_true", help="die after the event is written")
    parser.add_argument("--every", type=int, default=1, help="of the events, kill at every n-th")
    parser.add_argument("--first", type=int, default=1, help="event to begin with")
    options = parser.parse_args()
    failed = passed = 0
    with tempfile.TemporaryDirectory() as folder:
        left_alone = Path(folder) / "reference"
        if command("train", *RUN, f"run_dir={left_alone}", folder=Path(folder)) != 0:
            sys.exit("the run that is left alone does not end well")
        reference = trained(left_alone)
        kill_at = options.first
        while True:
            wrong = trial(Path(folder) / f"at-{kill_at}", reference, kill_at, options.after)
            if wrong is None:
                break
            failed, passed = failed + bool(wrong), passed + (not wrong)
            log.info("killed at event %d: %s", kill_at, wrong or "everything is as it should be")
            kill_at += options.every
    log.info("%d kills, %d failed", failed + passed, failed)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
