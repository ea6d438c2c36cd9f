# SPDX-License-Identifier: Apache-2.0
"""Collects everything that is wrong with a configuration, in the order in which it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlrun.errors import ConfigError, Problem

_FILE_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")


class Report:
    """The problems of one configuration.

    Args:
        flags: The overrides as typed; their problems come first, in this order.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        self._flags = {flag: index for index, flag in reversed(list(enumerate(flags)))}
        self._problems: list[Problem] = []

    def add(self, where: str, what: str, remedy: str, *keys: str) -> None:
        """Notes a problem about keys; the same one twice counts once."""
        problem = Problem(where, what, remedy, keys)
        if problem not in self._problems:
            self._problems.append(problem)

    def blames(self, key: str) -> bool:
        """Whether there is a problem about a key."""
        return key in self.blamed()

    def blamed(self) -> set[str]:
        """The keys that there are problems about."""
        return {key for problem in self._problems for key in problem.keys}

    def raise_problems(self) -> None:
        """Does nothing if there are none.

        Raises:
            ConfigError: With all problems: flags as typed, then files by line.
        """
        if self._problems:
            raise ConfigError(sorted(self._problems, key=self._order))

    def _order(self, problem: Problem) -> tuple[int, str, int]:
        if problem.where in self._flags:
            return 0, "", self._flags[problem.where]
        match = _FILE_LINE.fullmatch(problem.where)
        return (1, match["file"], int(match["line"])) if match else (1, problem.where, 0)
