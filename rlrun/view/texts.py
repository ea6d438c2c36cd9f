# SPDX-License-Identifier: Apache-2.0
"""Numbers, rewards and long texts as `rlrun view` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.rule import Rule

from rlrun.console.terminal import SteadyConsole, visible


def number(value: float | None) -> str:
    """A reward or the like."""
    return "none" if value is None else f"{value:.4g}"


def parts(rewards: Mapping[str, Any]) -> str:
    """The named parts of a reward, in brackets; "" without any."""
    if not rewards:
        return ""
    return f" ({', '.join(f'{name} {number(value)}' for name, value in rewards.items())})"


def rule(console: SteadyConsole, title: str) -> Rule:
    """A line across with a title."""
    utf8 = console.encoding.lower().startswith("utf")
    return Rule(visible(title), characters="─" if utf8 else "-")


def print_text(console: SteadyConsole, title: str, text: str, characters: int) -> None:
    """Prints a text under its title; of one with more characters the middle is left out.

    Args:
        console: Where to.
        title: What it is.
        text: Whatever somebody wrote.
        characters: 0 for all.
    """
    if characters and len(text) > characters:
        half = characters // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n[... {left_out} characters ...]\n{text[len(text) - half :]}"
    console.tell(f"{title}:", "cyan")
    console.tell(text)
