# SPDX-License-Identifier: Apache-2.0
"""Text on terminals and in pipes."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import tempfile
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.console.terminal import plain_console, sparkline, visible


def utf8() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def test_escapes_and_direction_marks_are_shown_and_tabs_are_spaces() -> None:
    assert visible("a\x1b[31mb\u202ec\r\n\td\u200be\x00\ud800") == (
        "a\\x1b[31mb\\u202ec\\r\n    d\\u200be\\x00\\ud800"
    )
    assert visible("漢字 [bold]ü[/] 🙂") == "漢字 [bold]ü[/] 🙂"


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_nothing_but_visible_characters_and_line_breaks_is_left(text: str) -> None:
    shown = visible(text)
    assert all(unicodedata.category(c)[0] != "C" for c in shown if c != "\n")
    assert shown.count("\n") == text.count("\n")


@given(st.lists(st.floats(), max_size=100), st.integers(1, 50))
def test_a_sparkline_fits_and_stands_for_every_finite_value(
    values: list[float], width: int
) -> None:
    finite = [value for value in values if math.isfinite(value) and abs(value) < 1e100]
    line = sparkline(finite, utf8(), width)
    assert len(line) == min(width, len(finite))


def test_a_rising_series_rises() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7, math.nan], utf8()) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 1], utf8()) == "▁▁"
    assert sparkline(range(80), utf8(), 8) == "▁▂▃▄▅▆▇█"
    ascii_file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert sparkline([0, 7], ascii_file) == "_@"


def test_a_file_without_the_characters_gets_escapes() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    plain_console(file).print("漢 [bold]:smile:")
    file.flush()
    assert raw.getvalue() == b"\\u6f22 [bold]:smile:\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_away_does_not_end_the_program(stream: str) -> None:
    program = f"""
import sys
from rlrun.console.terminal import plain_console
console = plain_console(sys.{stream})
for number in range(3000):
    console.print("x" * 70)
open(sys.argv[1], "w").write("survived")
"""
    with tempfile.NamedTemporaryFile() as result:
        child = subprocess.Popen(
            [sys.executable, "-c", program, result.name], **{stream: subprocess.PIPE}
        )
        pipe = getattr(child, stream)
        pipe.readline()
        pipe.close()
        assert child.wait() == 0
        assert result.read() == b"survived"
