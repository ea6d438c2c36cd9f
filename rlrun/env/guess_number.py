# SPDX-License-Identifier: Apache-2.0
"""A text game of several turns: find a number by "higher" and "lower".

``env=python env.environment=rlrun.env.guess_number:GuessNumber data=guess_number`` plays it. The
reward is 1 for the number within the turns, less ``cost`` for every turn before the last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlrun.env.dialogue import Dialogue, Done

NUMBER = re.compile(r"\d+")


class GuessNumber(Dialogue):
    """One game.

    Args:
        max_guesses: After which it is lost.
        cost: Of a guess that is not the last.
    """

    def __init__(self, max_guesses: int = 5, cost: float = 0.1) -> None:
        self._left, self._max, self._cost = max_guesses, max_guesses, cost
        self._number = 0

    def start(self, row: Mapping[str, Any], answer: str) -> None:
        """The reference answer is the number."""
        self._number = int(answer)

    def act(self, said: str) -> str | Done:
        """The last number in the text is the guess."""
        self._left -= 1
        found = NUMBER.findall(said)
        # Longer numbers than any game has need not be converted.
        guess = int(found[-1][:9]) if found else None
        if guess == self._number:
            reward = 1.0 - self._cost * (self._max - self._left - 1)
            return Done(reward, {"correct": 1.0})
        if self._left == 0:
            return Done(0.0, {"correct": 0.0})
        if guess is None:
            return "Say a number."
        return "higher" if guess < self._number else "lower"
