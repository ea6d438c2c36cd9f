# SPDX-License-Identifier: Apache-2.0
"""Commands that pages show: found in blocks of code and in code within sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from rlrun.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
DOCS = ROOT / "docs"
STARTS = ("rlrun ", "make ", "python scripts/", "python -m rlrun.", "pip install ", "ray start ")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Command:
    """A command as a page has it.

    Attributes:
        where: ``PAGE:LINE``.
        words: As a shell would split them, comment left out.
        mention: It stands in a sentence, which may leave out what a command line needs.
    """

    where: str
    words: tuple[str, ...]
    mention: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.words)}"


def blocks(page: Path, *languages: str) -> list[tuple[int, str]]:
    """The blocks of a page in these languages, each with the line where its content starts."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in _FENCE.finditer(text)
        if found[1] in languages
    ]


def prose(page: Path) -> str:
    """A page without its blocks, whose lines are left empty."""
    text = page.read_text(encoding="utf-8")
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def code_in_sentences(page: Path) -> Iterator[tuple[int, str]]:
    """Text between backticks, with its line; a line break within counts as a space."""
    text = prose(page)
    for found in _INLINE.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[1].split())


def commands(page: Path) -> Iterator[Command]:
    """Every command of a page that begins with one of STARTS."""
    name = str(page.relative_to(ROOT))
    for first, content in blocks(page, "", "bash", "sh"):
        joined = re.sub(r"\\\n\s*", " ", content)
        while (folded := re.sub(r"(entrypoint: .*)\n\s+(?=\w+[.=])", r"\1 ", joined)) != joined:
            joined = folded
        for number, line in enumerate(joined.splitlines(), first):
            for part in re.split(r"\s&&\s", line):
                yield from _command(f"{name}:{number}", part)
    for number, code in code_in_sentences(page):
        if "|" not in code:
            yield from _command(f"{name}:{number}", code, mention=True)


def _command(where: str, text: str, mention: bool = False) -> Iterator[Command]:
    text = re.sub(r"^(\.venv/bin/|srun .*? (?=rlrun |ray )|\s*entrypoint: )", "", text)
    if text.startswith(STARTS):
        words = shlex.split(text, comments=True)
        # A "&" sends a job of a shell into the background.
        yield Command(where, tuple(word for word in words if word != "&"), mention)


def python_block(has: str) -> str:
    found = [text for _, text in blocks(DOCS / "extend.md", "python") if has in text]
    assert len(found) == 1, has
    return found[0]


def parsed(words: tuple[str, ...], mention: bool = False) -> tuple[str, dict[str, Any]]:
    """The command's full name and its parameters; typer refuses what it does not know."""
    command: Any = typer.main.get_command(app)
    name, rest = "rlrun", list(words[1:])
    while hasattr(command, "get_command"):
        assert rest[0] in command.commands, f"rlrun has no command {rest[0]}"
        command, name = command.commands[rest[0]], f"{name} {rest[0]}"
        rest = rest[1:]
    if mention:
        options = {option for param in command.params for option in param.opts}
        assert {word for word in rest if word.startswith("-")} <= options | {"--help"}
        whole = any(word.startswith("+recipe=") for word in rest)
        return name, {"overrides": [word for word in rest if "=" in word]} if whole else {}
    with command.make_context(name, rest) as context:
        return name, dict(context.params)
