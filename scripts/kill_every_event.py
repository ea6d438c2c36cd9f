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
import contextlib
import io
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rlrun.cli import main as rlrun
from rlrun.event_log import EventLog
from rlrun.records import read_trained
from rlrun.scheduler.decisions import Decision
from rlrun.scheduler.events import Event

RUN = (
    "+recipe=quickstart",
    "grpo=async",
    "grpo.num_prompts_per_step=3",
    "grpo.num_generations_per_prompt=2",
    "grpo.max_num_steps=null",
    "grpo.max_num_epochs=2",
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "checkpointing.metric=null",
    "checkpointing.save_period=1",
    "data.train.limit=12",
    "num_threads=1",
)
TIME_LIMIT_S = 600.0
PRELOAD = ["rlrun.assemble", "rlrun.preflight", "transformers.models.qwen3.modeling_qwen3"]

log = logging.getLogger("kill_every_event")


def child(arguments: Sequence[str], kill_at: int | None, after: bool) -> None:
    """Runs a command; ``kill_at`` counts the events of this process from 1."""
    if kill_at is not None:
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
    sys.argv = ["rlrun", *arguments]
    with contextlib.redirect_stdout(io.StringIO()):
        rlrun()


def command(*arguments: str, kill_at: int | None = None, after: bool = False) -> int:
    """The exit code of a command in a process of its own; negative if a signal ended it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=child, args=(arguments, kill_at, after))
    process.start()
    process.join(TIME_LIMIT_S)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"rlrun {' '.join(arguments)} did not end")
    return process.exitcode


def trained(run_dir: Path) -> Counter[str]:
    """How many samples of each group were trained."""
    files = sorted((run_dir / "trained").glob("*.jsonl"))
    return Counter(line["group_id"] for path in files for line in read_trained(path))


def trial(run_dir: Path, reference: Counter[str], kill_at: int, after: bool) -> str | None:
    """What is wrong after a kill and a resume; "" if nothing is, None if no kill came."""
    code = command("train", *RUN, f"run_dir={run_dir}", kill_at=kill_at, after=after)
    if code == 0:
        return None
    if code != -signal.SIGKILL:
        return f"the run ended with {code}"
    # Before the first checkpoint there is nothing to go on from: the same run begins anew.
    code = command("resume", str(run_dir))
    if code != 0:
        return f"the resume ended with {code}"
    if trained(run_dir) != reference:
        return "other groups were trained"
    return "" if command("audit", str(run_dir)) == 0 else "the audit found something"


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
        if command("train", *RUN, f"run_dir={left_alone}") != 0:
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
