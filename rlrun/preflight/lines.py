# SPDX-License-Identifier: Apache-2.0
"""The findings of a check: pass, fail or unverified, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

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
        exit_code: Of the command, if this is the first failure.
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

    def to_json(self) -> dict[str, Any]:
        """JSON-able fields."""
        return asdict(self)


STRICT_EXIT_CODE = 2
"""Of --strict, for what could not be verified."""
DIM, GREEN, RESET = "\x1b[2m", "\x1b[32m", "\x1b[0m"


def render(lines: list[CheckLine], *, color: bool = False) -> str:
    """The findings for people, a block each.

    Trained tokens of a sample are green and others dim, or, without colour, in between >>> and <<<.
    """
    blocks = []
    for line in lines:
        text = f"{line.verdict.value:<10} {line.name}: {line.detail}"
        if line.sample:
            text += "\n" + "".join(_shown(piece, color) for piece in line.sample)
        blocks.append(text + (f"\n{'':<10} -> {line.remedy}" if line.remedy else ""))
    return "\n".join(blocks)


def _shown(piece: Piece, color: bool) -> str:
    if color:
        return f"{GREEN if piece.trained else DIM}{piece.text}{RESET}"
    return f">>>{piece.text}<<<" if piece.trained else piece.text


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
