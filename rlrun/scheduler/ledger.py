# SPDX-License-Identifier: Apache-2.0
"""The token ledger: every token of a training rollout is in exactly one category, always."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from rlrun.scheduler.events import TokenCategory

AFTER_TRAINING = frozenset(
    {
        TokenCategory.ERRORED,
        TokenCategory.SURPLUS,
        TokenCategory.STALE,
        TokenCategory.FILTERED,
        TokenCategory.ZERO_SIGNAL,
        TokenCategory.TRAINED,
    }
)
"""Where a step can put the tokens of its batch."""


# Reading a member of an enumeration costs as much as the addition that it is needed for.
_IN_FLIGHT, _BUFFERED = TokenCategory.IN_FLIGHT, TokenCategory.BUFFERED


class Ledger:
    """Cumulative token counts: generated equals the sum of the categories at every event.

    It also remembers, for attempts that ended without a result, what was counted of them, so that
    a late report of the same attempt counts only what is new: until the report that a cancelled
    attempt still owes, and for other attempts until their epoch ends.
    """

    __slots__ = ("_counted", "_owed", "_tokens", "generated")

    def __init__(self) -> None:
        """Starts at zero."""
        self.generated = 0
        self._tokens = dict.fromkeys(TokenCategory, 0)
        self._counted: dict[tuple[int, int], int] = {}
        self._owed: set[tuple[int, int]] = set()

    def add(self, category: TokenCategory, tokens: int) -> None:
        """Counts newly generated tokens in a category."""
        self.generated += tokens
        self._tokens[category] += tokens

    def end_running(self, reported: int, tokens: int, category: TokenCategory) -> None:
        """A running attempt ended with ``tokens``, of which ``reported`` count as in flight."""
        counts = self._tokens
        self.generated += tokens - reported
        counts[_IN_FLIGHT] -= reported
        counts[category] += tokens

    def finish(self, reported: int, tokens: int) -> None:
        """A running attempt finished with ``tokens``, which are buffered now."""
        counts = self._tokens
        self.generated += tokens - reported
        if reported:
            counts[_IN_FLIGHT] -= reported
        counts[_BUFFERED] += tokens

    def take_buffered(self, tokens: Mapping[TokenCategory, int]) -> None:
        """Buffered tokens found their final categories."""
        for category, count in tokens.items():
            self._tokens[category] += count
            self._tokens[TokenCategory.BUFFERED] -= count

    def remember(self, position: int, attempt: int, tokens: int, *, owed: bool) -> None:
        """An attempt ended without a result, with ``tokens`` of it counted.

        Args:
            position: Its place in the stream.
            attempt: Which attempt.
            tokens: What was counted.
            owed: Whether a last report of it is still to come.
        """
        self._counted[position, attempt] = tokens
        if owed:
            self._owed.add((position, attempt))

    def late(self, position: int, attempt: int, tokens: int, *, last: bool) -> None:
        """A report of an attempt that had ended: what is new in it counts as cancelled.

        Args:
            position: Its place in the stream.
            attempt: Which attempt.
            tokens: All that it sampled so far.
            last: Whether this is the report that a cancelled attempt owes.
        """
        key = position, attempt
        counted = self._counted.get(key, 0)
        if tokens > counted:
            self.add(TokenCategory.CANCELLED, tokens - counted)
        if last and key in self._owed:
            self._owed.remove(key)
            del self._counted[key]
        else:
            self._counted[key] = max(tokens, counted)

    def forget(self, start: int, end: int) -> None:
        """Drops what is remembered of positions start .. end - 1, except what owes a report."""
        if self._counted:
            self._counted = {
                key: tokens
                for key, tokens in self._counted.items()
                if key in self._owed or not start <= key[0] < end
            }

    def forget_all(self) -> None:
        """Drops what is remembered: no report crosses a restart."""
        self._counted.clear()
        self._owed.clear()

    def lose_in_flight(self) -> None:
        """Tokens of running attempts were not saved."""
        self._tokens[TokenCategory.LOST] += self._tokens[TokenCategory.IN_FLIGHT]
        self._tokens[TokenCategory.IN_FLIGHT] = 0

    def counts(self) -> dict[str, int]:
        """``generated`` and every category by name."""
        named = {category.value: count for category, count in self._tokens.items()}
        return {"generated": self.generated, **named}

    def state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "counts": self.counts(),
            "ended": [[*key, key in self._owed, tokens] for key, tokens in self._counted.items()],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """Inverse of ``state``."""
        ledger = cls()
        counts = dict(state["counts"])
        ledger.generated = counts.pop("generated")
        ledger._tokens = {category: counts[category.value] for category in TokenCategory}
        ledger._counted = {(p, attempt): tokens for p, attempt, _, tokens in state["ended"]}
        ledger._owed = {(p, attempt) for p, attempt, owed, _ in state["ended"] if owed}
        return ledger
