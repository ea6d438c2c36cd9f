# SPDX-License-Identifier: Apache-2.0
"""Forms the batch of the next step, or says why it cannot begin."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import attrgetter

from rlrun.errors import ConfigError, Problem
from rlrun.interfaces import Batching, ReadyGroup
from rlrun.scheduler.books import Books
from rlrun.scheduler.decisions import Cancel, CancelReason, Decision, Hold, Train
from rlrun.scheduler.events import TokenCategory
from rlrun.scheduler.feasibility import first_violation, needs, select, to_expire


def form_batch(books: Books, batching: Batching, decisions: list[Decision]) -> None:
    """Begins the next step if its batch can be formed; appends what is to be done.

    The trainer must be free: no batch trains and the last step's weights are published. Called
    after nearly every event, so nothing is ranked before it is clear that the step can begin.
    """
    if batching.assigns_targets:
        chosen = _batch_of_target(books, batching)
    else:
        chosen = _batch_by_rank(books, batching, decisions)
    if chosen:
        decisions.append(_begin(books, chosen))


def ready_for_next(books: Books, batching: Batching) -> int:
    """Groups that are ready for the next step that is to be formed."""
    if batching.assigns_targets:
        return books.pool.ready_by_target.get(books.next_step, 0)
    return len(books.pool.ready)


def _batch_of_target(books: Books, batching: Batching) -> list[ReadyGroup]:
    """Exactly the groups of the step's target.

    A target is at most A + 1 steps after the version its groups are admitted at, so the age bound
    needs no further test.
    """
    size, step, pool = books.settings.prompts_per_step, books.next_step, books.pool
    if pool.assigned.get(step, 0) < size:
        exhausted = books.frontier.exhausted
        if exhausted or max(pool.assigned, default=0) > books.last_step:
            # No prompt will be admitted to fill the hole, so a later group does: younger than
            # planned when it trains.
            pool.pull_forward(step, size)
        if exhausted:
            size = min(size, pool.assigned.get(step, 0))
    if size == 0 or pool.ready_by_target.get(step, 0) < size:
        return []
    groups = [group for group in pool.ready.values() if group.target_step == step]
    return _rank(books, batching, groups, size)


def _batch_by_rank(books: Books, batching: Batching, decisions: list[Decision]) -> list[ReadyGroup]:
    settings, pool = books.settings, books.pool
    size, max_age, version = settings.prompts_per_step, settings.max_age, books.at.version
    if len(pool.ready) < size and not (pool.ready and books.all_arrived):
        return []
    if not books.masks:
        violation = first_violation(pool.firm_by_version, size, max_age, version)
        if violation is not None:
            limit, excess = violation
            pool.require_end(limit, excess)
            if books.at.held_step != version + 1:
                decisions.append(_hold(books, limit))
            return []
        # Only possible if the bound was lowered on resume.
        overdue = pool.overdue(version - max_age)
        if overdue:
            decisions += [_expire_ready(books, position) for position in overdue]
            return _batch_by_rank(books, batching, decisions)
        if pool.expirable_by_version:
            _expire_running(books, decisions)
    count = min(size, len(pool.ready))
    required = needs(pool.running_by_version, pool.ready_by_version, count, size, max_age, version)
    groups = list(pool.ready.values())
    return select(groups, _rank(books, batching, groups, count), required, count)


def _hold(books: Books, limit: int) -> Hold:
    """The step waits for running groups of version ``limit`` or older that may not expire."""
    books.at.held_step = books.next_step
    # In order of admission, hence of versions.
    oldest = itertools.takewhile(lambda item: item[1].version <= limit, books.pool.running.items())
    waiting = tuple(position for position, running in oldest if not running.may_expire)
    return Hold(books.next_step, waiting)


def _expire_running(books: Books, decisions: list[Decision]) -> None:
    """Expires the running groups that would pass the bound."""
    settings, pool = books.settings, books.pool
    chosen = to_expire(
        pool.running_by_version,
        ((position, r.may_expire) for position, r in pool.running.items()),
        settings.prompts_per_step,
        settings.max_age,
        books.at.version,
    )
    for position in chosen:
        decisions.append(Cancel(position, pool.running[position].attempt, CancelReason.EXPIRED))
        books.stop_running(position, None, TokenCategory.CANCELLED)
        books.frontier.redo(position, expiries=1)
        books.at.expired_groups += 1


def _expire_ready(books: Books, position: int) -> Cancel:
    group = books.pool.ready[position]
    books.pool.take([group])
    books.ledger.take_buffered({TokenCategory.STALE: group.tokens})
    books.frontier.redo(position, expiries=1)
    books.at.expired_groups += 1
    return Cancel(position, group.attempt, CancelReason.EXPIRED)


def _rank(
    books: Books, batching: Batching, groups: list[ReadyGroup], size: int
) -> list[ReadyGroup]:
    """The policy's ranking, checked: it may be a user's own.

    Raises:
        ConfigError: It is not an ordering of exactly the groups that were given.
    """
    ranked = batching.rank(groups)
    positions = set(map(attrgetter("position"), ranked[:size]))
    if (
        len(ranked) != len(groups)
        or len(positions) < size
        or not positions <= books.pool.ready.keys()
    ):
        raise ConfigError(
            [
                Problem(
                    f"batching={type(batching).__qualname__}",
                    f"rank() was given {len(groups)} groups and returned {len(ranked)}, "
                    "not each of them once",
                    "Return the same groups in another order",
                )
            ]
        )
    return ranked


def _begin(books: Books, chosen: Sequence[ReadyGroup]) -> Train:
    settings, at = books.settings, books.at
    step = books.next_step
    batch = sorted(chosen, key=attrgetter("position"))
    positions = tuple(map(attrgetter("position"), batch))
    versions = tuple(map(attrgetter("oldest_version"), batch))
    oldest = min(versions)
    floor = at.version - settings.max_age
    mask_before = None
    if oldest < floor:
        assert books.masks, (step, oldest, floor)
        mask_before = floor
    assert step == at.version + 1, (step, at.version)
    books.pool.take(batch)
    books.training = dict(zip(positions, batch, strict=True))
    at.dropped = 0
    return Train(step, positions, versions, mask_before)
