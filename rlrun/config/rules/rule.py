# SPDX-License-Identifier: Apache-2.0
"""What a rule is: an id, the keys, a check of their values, a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Check = Callable[..., str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: Its name, for tests and documentation.
        keys: The keys it is about. It holds where the chosen variants lack one of them.
        check: Takes the keys' values in order; says what is wrong, or None.
        remedy: What to write instead.
    """

    id: str
    keys: tuple[str, ...]
    check: Check
    remedy: str


RULES: list[Rule] = []
"""All rules, filled by ``rule``."""


def rule(*keys: str, remedy: str) -> Callable[[Check], Check]:
    """Makes a check of the values of ``keys`` a rule that has the check's name."""

    def add(check: Check) -> Check:
        RULES.append(Rule(check.__name__.removeprefix("_"), keys, check, remedy))
        return check

    return add
