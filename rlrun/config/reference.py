# SPDX-License-Identifier: Apache-2.0
"""What docs/configuration.md says about every key, from the settings classes and conf/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args, get_origin

from rlrun.config.keys import Leaf, keys_of
from rlrun.config.paths import conf_dir
from rlrun.config.schema import RunConfig
from rlrun.config.values import MISSING, describe, range_text, shown
from rlrun.config.variants import SCHEMA_SUFFIX, discover
from rlrun.config.yaml_file import read_yaml
from rlrun.interfaces import REGISTRY, SLOTS

_INTRODUCTION = """\
# Configuration keys

This page is generated from conf/ by `scripts/docs_config.py`; do not edit it.

A run is composed of config groups, a recipe, a scale and flags, each stronger than the one before:
`rlrun train +recipe=NAME GROUP=CHOICE scale=smoke KEY=VALUE`. A key whose default is `???` must be
given.
"""


@dataclass(frozen=True, slots=True)
class Documented:
    """A key as the documentation has it.

    Attributes:
        leaf: The key.
        default: As written in conf/; "???" if it must be given.
        comment: The comment above it there.
    """

    leaf: Leaf
    default: object
    comment: str


@dataclass(frozen=True, slots=True)
class DocumentedSection:
    """A section, or a variant of a slot.

    Attributes:
        name: The section, such as "policy"; "" for the keys at the root.
        choice: The variant; None if the section is no slot.
        meaning: First paragraph of the class's documentation.
        keys: By dotted key.
        comments: Comments of the sections within, by dotted key.
    """

    name: str
    choice: str | None
    meaning: str
    keys: dict[str, Documented]
    comments: dict[str, str]


def documented_sections() -> list[DocumentedSection]:
    """All sections of a run, in its order; of slots, every variant."""
    discover()
    sections = [_section("", None, RunConfig, ["run"])]
    for name, cls in keys_of(RunConfig).sections.items():
        if name in SLOTS:
            for variant in sorted(v for v in REGISTRY if v.startswith(f"{name}/")):
                choice = variant.partition("/")[2]
                sections.append(_section(name, choice, REGISTRY[variant], [variant]))
        elif "." not in name:
            sections.append(_section(name, None, cls, [f"{name}/default"]))
    return sections


def configuration_page() -> str:
    """docs/configuration.md."""
    parts = [_INTRODUCTION]
    for section in documented_sections():
        title = section.name or "The run itself"
        if section.choice is not None:
            title = f"{section.name}={section.choice}"
        parts.append(f"## {title}\n\n{section.meaning}\n\n{_table(section)}")
    return "\n".join(parts)


def type_text(leaf: Leaf) -> str:
    """The type of a key in a word or two; enumerations as their values."""
    return _type_word(leaf.type) + (" or null" if leaf.optional else "")


def _section(name: str, choice: str | None, cls: type, files: list[str]) -> DocumentedSection:
    values, comments = dict[str, object](), dict[str, str]()
    for file in files:
        for key, value, comment in _with_bases(file, name):
            comments[key] = comment
            if value is not None:
                values[key] = value[0]
    keys = keys_of(cls, name)
    return DocumentedSection(
        name,
        choice,
        (cls.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        {
            key: Documented(leaf, values.get(key, MISSING), comments.get(key, ""))
            for key, leaf in keys.leaves.items()
            if name or "." not in key
        },
        {key: comments.get(key, "") for key in keys.sections if name},
    )


def _with_bases(file: str, section: str) -> Iterator[tuple[str, tuple[object] | None, str]]:
    """(key, value if it has one, comment) of a file of conf/, after the files it builds on."""
    read = read_yaml(conf_dir() / f"{file}.yaml")
    group = file.rpartition("/")[0]
    for item in read.defaults:
        name = item.choice or ""
        if group and item.group is None and name != "_self_" and not name.endswith(SCHEMA_SUFFIX):
            yield from _with_bases(f"{group}/{name}", section)
    values = {entry.path: entry.value for entry in read.entries}
    for path, comment in read.comments.items():
        key = ".".join((section, *path) if section else path)
        yield key, (values[path],) if path in values else None, comment


def _type_word(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if get_origin(kind) is list:
        return f"list of {_type_word(get_args(kind)[0])}"
    words = {bool: "true or false", int: "integer", float: "number", str: "text"}
    return words[kind] if kind in words else describe(kind).removeprefix("a ")


def _table(section: DocumentedSection) -> str:
    if not section.keys:
        return "No keys.\n"
    lines = ["| Key | Type | Range | Default | Meaning |", "|---|---|---|---|---|"]
    for key, doc in section.keys.items():
        default = doc.default if doc.default == MISSING else shown(doc.default)
        cells = (f"`{key}`", type_text(doc.leaf), range_text(doc.leaf.bounds), f"`{default}`")
        lines.append("| " + " | ".join(_cell(cell) for cell in (*cells, doc.comment)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
