# SPDX-License-Identifier: Apache-2.0
"""Measures the scheduler: events per second at 1,000,000 groups and 10,000 in flight, on one core.

A run is recorded first; then its events are applied to new schedulers, so that only the scheduler
is measured, in CPU time and with the garbage collector as a run has it. Prints one JSON line per
policy and age limit and exits with 1 if one is below --require.

Example:
    python scripts/bench_scheduler.py --groups 1000000 --in-flight 10000
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from rlrun.batching.fifo import Fifo
from rlrun.batching.freshest import Freshest
from rlrun.batching.in_order import InOrder
from rlrun.interfaces import Batching
from rlrun.process.heap import long_lived_heap
from rlrun.scheduler import (
    Admit,
    Cancel,
    Event,
    GroupCancelled,
    GroupFinished,
    OnAgeLimit,
    Outcome,
    Scheduler,
    SchedulerSettings,
    StepTrained,
    TokenCategory,
    Train,
    VersionPublished,
)

BATCHES_IN_FLIGHT = 8
MAX_AGE = 10
TOKENS = 100


def settings(groups: int, in_flight: int, limit: OnAgeLimit) -> SchedulerSettings:
    """A run over one epoch of ``groups`` prompts."""
    return SchedulerSettings(
        prompts_per_step=in_flight // BATCHES_IN_FLIGHT,
        max_age=MAX_AGE,
        in_flight_batches=BATCHES_IN_FLIGHT,
        on_age_limit=limit,
        max_expiries=2,
        max_generation_failures=2,
        max_attempts=2,
        max_gen_batches=None,
        rows_per_epoch=groups,
        total_positions=groups,
        max_steps=None,
    )


def record(setup: SchedulerSettings, batching: Batching) -> list[Event]:
    """Drives a whole run whose groups finish in random order; the events in order."""
    rng = random.Random(0)
    scheduler = Scheduler(setup, batching)
    running: dict[int, tuple[int, int]] = {}
    order: list[int] = []
    training: Train | None = None
    cancelled: list[Event] = []
    events: list[Event] = []
    event: Event = scheduler.started_event()
    while True:
        events.append(event)
        for decision in scheduler.apply(event):
            if isinstance(decision, Admit):
                if decision.position not in running:
                    order.append(decision.position)
                running[decision.position] = decision.attempt, scheduler.version
            elif isinstance(decision, Train):
                training = decision
            elif isinstance(decision, Cancel):
                cancelled.append(GroupCancelled(decision.position, decision.attempt, TOKENS // 2))
        if scheduler.ended:
            return events
        if cancelled:
            event = cancelled.pop()
        elif isinstance(event, StepTrained):
            event = VersionPublished(event.step)
        elif training is not None:
            outcomes = dict.fromkeys(training.positions, Outcome.TRAINED)
            tokens = {TokenCategory.TRAINED: TOKENS * len(outcomes)}
            event, training = StepTrained(training.step, outcomes, tokens), None
        else:
            index = rng.randrange(len(order))
            order[index], order[-1] = order[-1], order[index]
            position = order.pop()
            attempt, version = running.pop(position)
            event = GroupFinished(position, attempt, version, TOKENS)


def measure(setup: SchedulerSettings, batching: Batching, events: list[Event]) -> float:
    """CPU seconds that a new scheduler takes for recorded events."""
    apply = Scheduler(setup, batching).apply
    with long_lived_heap():
        begun = time.process_time()
        for event in events:
            apply(event)
        return time.process_time() - begun


def main() -> int:
    """Measures every policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3, help="the fastest one counts")
    parser.add_argument("--require", type=float, default=100_000, help="events per second")
    args = parser.parse_args()
    cases: list[tuple[str, Batching, OnAgeLimit]] = [
        ("fifo", Fifo(), OnAgeLimit.HOLD),
        ("fifo", Fifo(), OnAgeLimit.EXPIRE),
        ("fifo", Fifo(), OnAgeLimit.MASK),
        ("freshest", Freshest(), OnAgeLimit.HOLD),
        ("in_order", InOrder(), OnAgeLimit.HOLD),
    ]
    slow = False
    for name, batching, limit in cases:
        setup = settings(args.groups, args.in_flight, limit)
        events = record(setup, batching)
        seconds = min(measure(setup, batching, events) for _ in range(args.repeats))
        rate = round(len(events) / seconds)
        slow |= rate < args.require
        found = {"batching": name, "on_age_limit": limit, "events": len(events)}
        sys.stdout.write(json.dumps({**found, "events_per_s": rate}) + "\n")
        sys.stdout.flush()
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
