# SPDX-License-Identifier: Apache-2.0
"""What keys of different sections must say together.

A check takes the values of its keys and says what is wrong with them, or returns None;
``@rule`` names the keys and the remedy. The modules hold the rules by subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun.config.rules import model, places, schedule, training  # noqa: F401 (they fill RULES)
from rlrun.config.rules.rule import RULES, Rule


def broken_rules(values: Mapping[str, Any]) -> list[tuple[Rule, str]]:
    """The rules that the values of a run break, each with what is wrong."""
    broken = []
    for candidate in RULES:
        if all(key in values for key in candidate.keys):
            what = candidate.check(*(values[key] for key in candidate.keys))
            if what is not None:
                broken.append((candidate, what))
    return broken
