# SPDX-License-Identifier: Apache-2.0
"""Text on a terminal or in a pipe, whatever the text is and whatever the terminal can show."""

from __future__ import annotations

import io
import math
import os
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*#@"
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


class SteadyConsole(Console):
    """A console whose reader may go away without ending the program."""

    def on_broken_pipe(self) -> None:
        """Goes silent; rich would exit, and a run is worth more than its output."""
        self.silence()

    def tell(self, text: str, style: str = "") -> None:
        """Prints text that may come from anywhere. Only a terminal wraps it."""
        self.print(Text(visible(text), style=style), soft_wrap=not self.is_terminal)

    def silence(self) -> None:
        """Drops all further output."""
        self.quiet = True
        with suppress(OSError, ValueError):  # Not every file has a descriptor.
            # Else Python fails at exit, as it cannot flush what is left.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


def plain_console(file: TextIO, width: int | None = None) -> SteadyConsole:
    """A rich console that takes text literally: no markup, no emoji codes, no highlighting.

    It is a terminal exactly if ``file`` is one, and uses colours then unless NO_COLOR is set. What
    the encoding of the file lacks is written as an escape.
    """
    if not is_utf8(file) and isinstance(file, io.TextIOWrapper):
        file.reconfigure(errors="backslashreplace")
    return SteadyConsole(
        file=file,
        width=width,
        force_terminal=file.isatty(),
        markup=False,
        emoji=False,
        highlight=False,
    )


def visible(text: str) -> str:
    r"""The text with everything that is not a visible character, line break or tab as an escape.

    That is control characters (so no text can move the cursor or set colours), marks that turn the
    direction of text, zero-width characters, unassigned ones and half surrogate pairs. Every such
    character is shown as \\x1b, \\u202e or the like; a tab becomes four spaces.
    """
    return "".join(_shown(character) for character in text)


def sparkline(values: Sequence[float], file: TextIO, width: int = 40) -> str:
    """A row of at most ``width`` characters whose heights show the values from first to last.

    Longer series are averaged in even parts; values that are not finite are left out.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    # So that no sum or difference of them is beyond a float.
    largest = max(map(abs, finite))
    finite = [value / largest / 4 for value in finite] if largest > 1e100 else finite
    count = min(width, len(finite))
    edges = [len(finite) * place // count for place in range(count + 1)]
    parts = [finite[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    means = [math.fsum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    blocks = _BLOCKS if is_utf8(file) else _ASCII_BLOCKS
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((mean - low) * scale)] for mean in means)


def _shown(character: str) -> str:
    if character == "\n":
        return character
    if character == "\t":
        return "    "
    if unicodedata.category(character) in _HIDDEN:
        return character.encode("unicode_escape").decode("ascii")
    return character


def columns(text: str) -> int:
    """Columns that a line takes on a terminal: wide characters take two."""
    return cell_len(text)


def cut(text: str, width: int) -> str:
    """The beginning of a line that fits into so many columns."""
    return text if columns(text) <= width else set_cell_size(text, max(0, width))


def is_utf8(file: TextIO) -> bool:
    """Whether any character can be written to the file."""
    return (file.encoding or "").lower().replace("-", "") == "utf8"
