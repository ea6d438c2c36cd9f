# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML file of settings with the line and the comment of every key."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rlrun.config.paths import display
from rlrun.config.yaml_limits import Refused, check_size
from rlrun.config.yaml_loader import Loader

_MERGE = "tag:yaml.org,2002:merge"
_PACKAGE = re.compile(r"#\s*@package\s+(?P<name>\S+)")
_NOT_A_COMMENT = ("SPDX-License-Identifier", "@package")


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with the text of a file."""

    where: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the file; of mappings, only empty ones are values."""

    path: tuple[str, ...]
    value: object
    line: int


@dataclass(frozen=True, slots=True)
class DefaultsItem:
    """An item of the defaults list.

    Attributes:
        group: As written, without "override"; None for a plain name.
        choice: The choice in the group, or the plain name; None for null.
        override: Whether the item replaces the choice that is made elsewhere.
        line: Its line.
    """

    group: str | None
    choice: str | None
    override: bool
    line: int


@dataclass(slots=True)
class YamlFile:
    """The contents of a file; nothing at all if it cannot be read.

    Attributes:
        path: The file.
        header: The comment at its top.
        package: Its ``# @package`` line for Hydra, if it has one.
        defaults: Its defaults list.
        entries: Its values, in the order of the file.
        comments: The comment above each key, sections included; "" where there is none.
        lines: The line of each key.
        mistakes: What is wrong with its text.
        complete: Whether everything that it says could be read.
    """

    path: Path
    header: str = ""
    package: str | None = None
    defaults: list[DefaultsItem] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    comments: dict[tuple[str, ...], str] = field(default_factory=dict)
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    complete: bool = True

    def where(self, line: int) -> str:
        """``FILE:LINE``."""
        return f"{display(self.path)}:{line}"


_CACHE: dict[Path, tuple[tuple[int, int], YamlFile]] = {}


def read_yaml(path: Path) -> YamlFile:
    """Reads a file; what is wrong with it is in ``mistakes``. Treat the result as constant."""
    try:
        status = path.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            # Nobody might ever write to a pipe, and devices have no end.
            raise OSError("it is no regular file")
        stamp = (status.st_mtime_ns, status.st_size)
        if path not in _CACHE or _CACHE[path][0] != stamp:
            _CACHE[path] = (stamp, _read(path))
        return _CACHE[path][1]
    except OSError as error:
        reason = error.strerror or str(error)
        mistake = Mistake(display(path), f"cannot be read: {reason}", "Check the path")
        return YamlFile(path, mistakes=[mistake], complete=False)


def _read(path: Path) -> YamlFile:
    file = YamlFile(path)
    try:
        text = path.read_text(encoding="utf-8")
        loader = Loader(text)
        root = loader.get_single_node()
        if root is not None:
            check_size(root)
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 (byte {error.start})"
        file.mistakes.append(Mistake(display(path), what, "Save it as UTF-8"))
        file.complete = False
        return file
    except yaml.YAMLError as error:
        file.mistakes.append(_syntax_mistake(file, error))
        file.complete = False
        return file
    lines = text.splitlines()
    file.header = _header(lines)
    package = _PACKAGE.match(text)
    file.package = package["name"] if package else None
    if root is not None:
        _Reader(file, loader, lines).read(root)
    return file


class _Reader:
    """Walks the nodes of one file."""

    def __init__(self, file: YamlFile, loader: Loader, lines: list[str]) -> None:
        self._file, self._loader, self._lines = file, loader, lines

    def read(self, root: yaml.Node) -> None:
        self._check(root)
        if not isinstance(root, yaml.MappingNode):
            if not (isinstance(root, yaml.ScalarNode) and root.value == ""):
                self._mistake(root, "the file is not a mapping of keys", "Write key: value")
                self._file.complete = False
            return
        for name, key, value in self._items(root):
            if name == "defaults":
                self._file.defaults.extend(self._defaults(value))
            else:
                self._walk((name,), key, value)

    def _walk(self, path: tuple[str, ...], key: yaml.Node, node: yaml.Node) -> None:
        line = key.start_mark.line
        self._file.comments[path] = self._comment_above(line)
        self._file.lines[path] = line + 1
        if isinstance(node, yaml.MappingNode) and node.value:
            for name, inner_key, inner in self._items(node):
                self._walk((*path, name), inner_key, inner)
            return
        try:
            value = self._loader.construct_object(node, deep=True)
        except yaml.YAMLError as error:
            self._file.mistakes.append(_syntax_mistake(self._file, error))
            return
        self._file.entries.append(Entry(path, value, line + 1))

    def _items(self, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """The keys of a mapping with merge keys (``<<``) expanded; a key's own value wins."""
        try:
            self._loader.flatten_mapping(node)
        except yaml.YAMLError as error:
            self._file.mistakes.append(_syntax_mistake(self._file, error))
            self._file.complete = False
            return
        last = {key.value: (key, value) for key, value in node.value if _is_name(key)}
        for name, (key, value) in last.items():
            yield name, key, value

    def _check(self, node: yaml.Node) -> None:
        """Keys must be names and unique."""
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._check(item)
        elif isinstance(node, yaml.MappingNode):
            self._check_keys([key for key, _ in node.value])
            for _, value in node.value:
                self._check(value)

    def _check_keys(self, keys: list[yaml.Node]) -> None:
        seen = dict[str, int]()
        for key in keys:
            if key.tag == _MERGE:
                continue
            if not _is_name(key):
                shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a collection"
                remedy = "Write one name per key; a section is a mapping below its name"
                self._mistake(key, f"the key {shown} is not a name", remedy)
            elif key.value in seen:
                what = f"{key.value} is given twice, first in line {seen[key.value]}"
                self._mistake(key, what, "Keep one of the two")
            else:
                seen[key.value] = key.start_mark.line + 1

    def _defaults(self, node: yaml.Node) -> Iterator[DefaultsItem]:
        if not isinstance(node, yaml.SequenceNode):
            self._mistake(node, "defaults is not a list", "Write a list: - override /loss: gspo")
            self._file.complete = False
            return
        for item in node.value:
            line = item.start_mark.line + 1
            if isinstance(item, yaml.ScalarNode):
                yield DefaultsItem(None, item.value, False, line)
            elif isinstance(item, yaml.MappingNode) and (words := _group_words(item)):
                value = item.value[0][1]
                try:
                    choice = self._loader.construct_object(value, deep=True)
                except yaml.YAMLError as error:
                    self._file.mistakes.append(_syntax_mistake(self._file, error))
                    self._file.complete = False
                    continue
                if choice is not None and not isinstance(choice, str):
                    what = f"the choice {choice!r} for {words[-1]} is not a name"
                    self._mistake(value, what, "Write - override /GROUP: CHOICE")
                    continue
                yield DefaultsItem(words[-1], choice, words[0] == "override", line)
            else:
                self._mistake(
                    item, "an item of defaults is not understood", "Write - override /GROUP: CHOICE"
                )
                self._file.complete = False

    def _comment_above(self, line: int) -> str:
        """The comment lines directly above a (zero-based) line, joined."""
        start = line
        while start > 0 and self._lines[start - 1].lstrip().startswith("#"):
            start -= 1
        return _join(self._lines[start:line], " ")

    def _mistake(self, node: yaml.Node, what: str, remedy: str) -> None:
        where = self._file.where(node.start_mark.line + 1)
        self._file.mistakes.append(Mistake(where, what, remedy))


def _group_words(item: yaml.MappingNode) -> list[str]:
    """The words before the colon of an item of defaults; none if it is not one name."""
    if len(item.value) != 1 or not isinstance(item.value[0][0], yaml.ScalarNode):
        return []
    words: list[str] = item.value[0][0].value.split()
    return words


def _is_name(key: yaml.Node) -> bool:
    if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
        return False
    return key.value != "" and "." not in key.value


def _header(lines: list[str]) -> str:
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return _join(lines[:end], "\n")


def _join(lines: list[str], separator: str) -> str:
    texts = [line.strip().removeprefix("#").removeprefix(" ") for line in lines]
    return separator.join(t for t in texts if not t.startswith(_NOT_A_COMMENT)).strip()


def _syntax_mistake(file: YamlFile, error: yaml.YAMLError) -> Mistake:
    if isinstance(error, Refused):
        where = file.where(error.mark.line + 1)
        return Mistake(where, error.what, error.remedy)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        where = file.where(error.problem_mark.line + 1)
        return Mistake(where, f"is not valid YAML: {error.problem}", "Check indentation and quotes")
    text = str(error).splitlines()[0]
    return Mistake(display(file.path), f"is not valid YAML: {text}", "Save it as plain text")
