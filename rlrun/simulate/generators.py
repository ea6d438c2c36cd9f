# SPDX-License-Identifier: Apache-2.0
"""A pool of generators on a virtual clock: sequences that decode side by side at one speed.

The speed depends on how many there are. Since all have the same, one counter is enough: ``decoded``
is the number of tokens that a sequence which was always there would have by now, and a sequence of
n tokens that began at ``decoded`` = x ends at x + n, whatever the speed was in between.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from rlrun.simulate.workload import Costs


class Group:
    """A trajectory group that is generated, ready or in training.

    Attributes:
        position: Place in the prompt stream.
        attempt: Which attempt of its prompt.
        admitted_at: Time of its admission in seconds.
        lengths: Tokens of each sample.
        begun: Value of ``decoded`` when each sample began; None while it waits for a place.
        decoding: Samples that are being decoded.
        left: Samples that have not ended.
        cancelled: Whether it was given up.
    """

    __slots__ = (
        "admitted_at",
        "attempt",
        "begun",
        "cancelled",
        "decoding",
        "left",
        "lengths",
        "position",
    )

    def __init__(
        self, position: int, attempt: int, admitted_at: float, lengths: tuple[int, ...]
    ) -> None:
        """A group of which nothing is sampled yet."""
        self.position = position
        self.attempt = attempt
        self.admitted_at = admitted_at
        self.lengths = lengths
        self.begun: list[float | None] = [None] * len(lengths)
        self.decoding = 0
        self.left = len(lengths)
        self.cancelled = False


class Generators:
    """Decodes the samples of the groups that were started.

    Args:
        costs: Speeds, for one GPU.
        gpus: Among how many of them the sequences are spread evenly.
    """

    def __init__(self, costs: Costs, gpus: int) -> None:
        """An idle pool."""
        self.decoded = 0.0
        self._alone_s = costs.sequence_s
        self._shared_s = costs.saturated_s / gpus
        places = costs.max_sequences
        self._places = math.inf if places is None else places * gpus
        self._active = 0
        self._serial = 0
        self._ends: list[tuple[float, int, Group]] = []
        self._queue: deque[tuple[Group, int]] = deque()
        self._standing = False

    @property
    def idle(self) -> bool:
        """Whether there is nothing to decode."""
        return not self._active

    def stand(self, standing: bool) -> None:
        """Stops decoding, or goes on: a refit."""
        self._standing = standing

    def start(self, group: Group) -> None:
        """Begins a group, as far as there are places; the rest of it waits."""
        for sample in range(len(group.lengths)):
            if self._active < self._places:
                self._begin(group, sample)
            else:
                self._queue.append((group, sample))

    def seconds_to_next_end(self) -> float:
        """Seconds until the next sample ends; infinite if none does."""
        while self._ends and self._ends[0][2].cancelled:
            heapq.heappop(self._ends)
        if self._standing or not self._ends:
            return math.inf
        return (self._ends[0][0] - self.decoded) * self._token_s

    def advance(self, seconds: float) -> None:
        """Decodes for so many seconds, in which no sample ends."""
        if self._active and not self._standing:
            self.decoded += seconds / self._token_s

    def end_next(self) -> Group | None:
        """Advances to the end that ``seconds_to_next_end`` names.

        Returns:
            The sample's group if no other sample of it is left.
        """
        end, _, group = heapq.heappop(self._ends)
        self.decoded = end
        self._active -= 1
        group.decoding -= 1
        group.left -= 1
        self._fill()
        return None if group.left else group

    def cancel(self, group: Group) -> int:
        """Gives up a group; the tokens that it had sampled."""
        tokens = sum(
            min(length, int(self.decoded - begun))
            for begun, length in zip(group.begun, group.lengths, strict=True)
            if begun is not None
        )
        self._active -= group.decoding
        group.cancelled = True
        self._fill()
        return tokens

    @property
    def _token_s(self) -> float:
        return self._alone_s + self._shared_s * self._active

    def _begin(self, group: Group, sample: int) -> None:
        group.begun[sample] = self.decoded
        group.decoding += 1
        self._active += 1
        self._serial += 1
        heapq.heappush(self._ends, (self.decoded + group.lengths[sample], self._serial, group))

    def _fill(self) -> None:
        while self._queue and self._active < self._places:
            group, sample = self._queue.popleft()
            if not group.cancelled:
                self._begin(group, sample)
