# SPDX-License-Identifier: Apache-2.0
"""How the answers to one prompt changed from step to step, word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from rich.text import Text

from rlrun.console.terminal import SteadyConsole, visible
from rlrun.run_dir.records import TrainedLine
from rlrun.view.texts import number

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_WORDS = 4000
"""Words of a text that are compared: the effort grows with their square at worst."""

_STYLES = {"-": "red strike", "+": "green"}


def print_differences(console: SteadyConsole, lines: Sequence[TrainedLine]) -> None:
    """Prints, for each two steps that follow each other, what the best answer lost and gained.

    The best answer of a step is the one of the highest reward, the first of equals. On a terminal
    colours show the difference; elsewhere it is in [-brackets-] {+and braces+}.

    Args:
        console: Where to.
        lines: All trajectories of one prompt.
    """
    best: dict[int, TrainedLine] = {}
    for line in lines:
        old = best.get(line["step"])
        if old is None or _reward(line) > _reward(old):
            best[line["step"]] = line
    steps = sorted(best)
    if len(steps) == 1:
        console.tell(f"only step {steps[0]} trained this prompt: there is nothing to compare")
    for before, after in zip(steps, steps[1:], strict=False):
        old, new = best[before], best[after]
        rewards = f"reward {number(old['reward'])} to {number(new['reward'])}"
        console.tell(f"step {before} to {after}: {rewards}", "bold")
        text = Text()
        for sign, part in differences(old["response"], new["response"]):
            if not console.is_terminal:
                part = {"-": f"[-{part}-]", "+": f"{{+{part}+}}"}.get(sign, part)
            text.append(visible(part), style=_STYLES.get(sign, ""))
        console.print(text, soft_wrap=not console.is_terminal)
        console.print()


def differences(old: str, new: str) -> Iterator[tuple[str, str]]:
    """(sign, text): "-" for what only the old text has, "+" for the new one, "" for both."""
    left, right = _WORD.findall(old)[:_MOST_WORDS], _WORD.findall(new)[:_MOST_WORDS]
    for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            yield "", "".join(left[a:b])
            continue
        if b > a:
            yield "-", "".join(left[a:b])
        if d > c:
            yield "+", "".join(right[c:d])


def _reward(line: TrainedLine) -> float:
    return float("-inf") if line["reward"] is None else line["reward"]
