# SPDX-License-Identifier: Apache-2.0
"""A lenient reward: the last number of a response, whatever the words around it.

``env=python env.reward_function=rlrun.env.last_number:reward``. For pretrained models that are too
small to keep to a form of answer: ``env=math`` accepts no number out of a sentence, and where
nearly all rewards are 0 there is nothing to learn from. In return it cannot tell an answer from a
number that happens to come last.
"""

from __future__ import annotations

import re
from decimal import Decimal

NUMBER = re.compile(r"(?<![\d.])[-\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def reward(response: str, answer: str) -> float:
    """1.0 if the last number of ``response`` has the value of ``answer``, else 0.0.

    Raises:
        ValueError: The answer is not a number.
    """
    wanted = number(answer.strip())
    if wanted is None:
        raise ValueError(f"the answer {answer!r} is not a number")
    found = NUMBER.findall(response)
    return float(bool(found) and number(found[-1]) == wanted)


def number(text: str) -> Decimal | None:
    """The value of a text that is a number and nothing else, such as "-1,234.50"."""
    return Decimal(text.replace(",", "").replace("\u2212", "-")) if NUMBER.fullmatch(text) else None
