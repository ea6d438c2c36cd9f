# SPDX-License-Identifier: Apache-2.0
"""The findings of a check: pass, fail or unverified, each with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TextIO

from rich.table import Table
from rich.text import Text

from rlrun.console.terminal import SteadyConsole, plain_console, visible
from rlrun.errors import ConfigError, NotHere, NotInstalled, RlrunError


class Verdict(StrEnum):
    """What a finding says."""

    PASS = "pass"
    FAIL = "fail"
    UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a sample's text; ``trained`` where its tokens carry loss."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One finding.

    Attributes:
        name: What was looked at.
        verdict: What came out.
        detail: The values found, or why nothing can be said.
        remedy: What to do; "" where there is nothing to do.
        exit_code: Of the command, if this is the first that it ends with an error for.
        sample: A rendered sample, in pieces; () of other findings.
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""
    exit_code: int = 0
    sample: tuple[Piece, ...] = ()

    def refused(self, strict: bool) -> bool:
        """Whether the command ends with an error for this."""
        return self.verdict is Verdict.FAIL or (strict and self.verdict is Verdict.UNVERIFIED)


STRICT_EXIT_CODE = 2
"""Of --strict, for what could not be verified."""

_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.UNVERIFIED: "yellow"}
_INDENT = 11


def exit_code(lines: Sequence[CheckLine], strict: bool) -> int:
    """Of the command: that of the first failure, or else, if strict, of what is unverified."""
    refused = [line for line in lines if line.refused(strict)]
    failed = [line for line in refused if line.verdict is Verdict.FAIL]
    return next((line.exit_code for line in failed or refused), 0)


def problem_lines(error: ConfigError) -> list[CheckLine]:
    """Of a configuration that cannot be read, a failure for each mistake."""
    return [
        CheckLine(
            "configuration", Verdict.FAIL, f"{one.where}: {one.what}", one.remedy, error.exit_code
        )
        for one in error.problems
    ]


def to_json(lines: Sequence[CheckLine]) -> str:
    """The findings for programs: a list of objects."""
    return json.dumps([asdict(line) for line in lines], indent=2, ensure_ascii=False)


def render(lines: Sequence[CheckLine], file: TextIO) -> None:
    """Writes the findings for people, a block each; a terminal gets colours and indented lines.

    Trained tokens of a sample are green and others dim, or, without colour, in between >>> and <<<.
    What rows, models and environments say cannot move the cursor.
    """
    console = plain_console(file)
    coloured = console.color_system is not None and not console.no_color
    for line in lines:
        verdict = Text(f"{line.verdict.value:<{_INDENT}}", style=_STYLES[line.verdict])
        text = Text(visible(f"{line.name}: {line.detail}"))
        _print(console, verdict, text)
        if line.sample:
            pieces = [_shown(piece, coloured) for piece in line.sample]
            console.print(Text.assemble(*pieces), soft_wrap=True)
        if line.remedy:
            _print(console, Text(" " * _INDENT), Text(visible(f"-> {line.remedy}")))


def _print(console: SteadyConsole, margin: Text, text: Text) -> None:
    if not console.is_terminal:
        console.print(margin + text, soft_wrap=True)
        return
    table = Table.grid()
    table.add_column(width=_INDENT)
    table.add_column(overflow="fold")
    table.add_row(margin, text)
    console.print(table)


def _shown(piece: Piece, coloured: bool) -> Text:
    text = visible(piece.text)
    if coloured:
        return Text(text, style="green" if piece.trained else "dim")
    return Text(f">>>{text}<<<" if piece.trained else text)


class Findings:
    """Collects findings; an error ends a part, not the whole."""

    def __init__(self) -> None:
        """None yet."""
        self.lines: list[CheckLine] = []

    def add(self, name: str, detail: str) -> None:
        """Something that is as it should be."""
        self.lines.append(CheckLine(name, Verdict.PASS, detail))

    def fail(self, name: str, detail: str, remedy: str, exit_code: int = 2) -> None:
        """Something that would end the run."""
        self.lines.append(CheckLine(name, Verdict.FAIL, detail, remedy, exit_code))

    def unverified(self, name: str, detail: str, remedy: str = "") -> None:
        """Something that cannot be told here."""
        line = CheckLine(name, Verdict.UNVERIFIED, detail, remedy, STRICT_EXIT_CODE)
        self.lines.append(line)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """An error within becomes a finding: unverified where something is merely not here."""
        try:
            yield
        except (NotHere, NotInstalled) as error:
            self.unverified(name, f"{error.where}: {error.what}", error.remedy)
        except ConfigError as error:
            for one in error.problems:
                self.fail(name, f"{one.where}: {one.what}", one.remedy, error.exit_code)
        except RlrunError as error:
            self.fail(name, f"{error.where}: {error.what}", error.remedy, error.exit_code)
