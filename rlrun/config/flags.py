# SPDX-License-Identifier: Apache-2.0
"""Reads overrides as typed: choices of groups and values of keys."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from rlrun.config.flag_mapping import given_twice
from rlrun.config.origin import Assignment, OriginKind, leaves_of
from rlrun.config.report import Report
from rlrun.config.suggest import nearest
from rlrun.config.values import shown

_RECIPE = re.compile(r"\+{0,2}recipe=(?P<name>.*)", re.DOTALL)
_KEY = re.compile(r"[+~]*[\w./@:${}-]*", re.ASCII)
MAX_ITEMS = 2000
"""Items of a list or mapping in a flag: the time to parse them grows with the square."""

_KEY_VALUE = "Write KEY=VALUE or GROUP=CHOICE"


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of a config group and where it was made."""

    group: str
    name: str
    where: str


@dataclass(slots=True)
class Flags:
    """The command line, understood.

    Attributes:
        recipes: Names or paths given as recipe.
        choices: Choices of groups, the scale among them.
        assignments: Values of keys.
        doubtful: Groups for which a choice was given that does not exist.
    """

    recipes: list[Choice] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)


def parse_flags(
    overrides: Sequence[str], groups: Mapping[str, Sequence[str]], report: Report
) -> Flags:
    """Sorts overrides into choices and values; what cannot be read is reported and left out."""
    flags = Flags()
    parser = OverridesParser.create()
    for text in overrides:
        recipe = _RECIPE.fullmatch(text)
        if recipe is not None:
            _recipe(text, recipe["name"], flags, report)
            continue
        override = _parse(parser, text, report)
        if override is not None:
            _sort_in(override, text, groups, flags, report)
    return flags


def unknown_choice(choice: Choice, choices: Sequence[str], report: Report) -> None:
    """Reports a choice that its group does not have."""
    what = f"{choice.group} has no choice {choice.name}"
    remedy = f"Choose one of {', '.join(nearest(choice.name, choices))}"
    if choice.group == "policy/model":
        remedy += f"; a folder or a name of the hub is policy.model={choice.name}"
    report.add(choice.where, what, remedy, choice.group)


def _recipe(text: str, name: str, flags: Flags, report: Report) -> None:
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        name = name[1:-1]
    if name == "":
        report.add(text, "no recipe is named", "Write +recipe=NAME or +recipe=FILE.yaml")
        flags.doubtful.add("recipe")
    elif flags.recipes:
        what = f"a second recipe, after {flags.recipes[0].name}"
        report.add(text, what, "Give one; a recipe can build on another in its defaults list")
    else:
        flags.recipes.append(Choice("recipe", name, text))


def _parse(parser: OverridesParser, text: str, report: Report) -> Override | None:
    if "=" not in text and not text.startswith("~"):
        report.add(text, "has no =", _KEY_VALUE)
        return None
    if text.partition("=")[2][:1] in ("[", "{") and text.count(",") > MAX_ITEMS:
        what = f"has more than {MAX_ITEMS} items"
        report.add(text, what, "Write them in a recipe, a file", _key_of(text))
        return None
    try:
        override = parser.parse_override(text)
        twice = given_twice(text)
    except RecursionError:
        report.add(text, "is nested too deeply", "Write it flatter", _key_of(text))
        return None
    except ValueError as error:
        what = f"cannot be read: {str(error).partition(';')[0]}"
        report.add(text, what, "Write another value", _key_of(text))
        return None
    except HydraException as error:
        key, _, value = text.partition("=")
        what = f"cannot be read: {str(error).splitlines()[0].strip()}"
        remedy = f"Put the value in quotes: {shlex.quote(f'{key}={quoted(value)}')}"
        if "[" in key:
            what, remedy = "an item of a list cannot be set alone", "Give the list: KEY=[A,B]"
        elif not _KEY.fullmatch(key):
            what, remedy = f"{key} has a character that no key has", _KEY_VALUE
        report.add(text, what, remedy, _key_of(text))
        return None
    if twice is not None:
        report.add(text, f"{twice} is given twice", "Keep one of the two", _key_of(text))
    elif override.is_delete():
        report.add(text, "a key cannot be deleted", "Set it to null, or leave it out")
    elif override.package is not None:
        report.add(text, f"@{override.package} is not supported", _KEY_VALUE)
    elif override.is_sweep_override():
        report.add(
            text,
            "is a sweep over several values",
            "Give one value; a list is written [1,2]",
            override.key_or_group,
        )
    elif not override.key_or_group:
        report.add(text, "has no key", _KEY_VALUE)
    else:
        return override
    return None


def _key_of(text: str) -> str:
    return text.partition("=")[0].lstrip("+")


def quoted(value: str) -> str:
    """A value as text in Hydra's grammar, where backslashes count only before a quote."""
    escaped = re.sub(r'(\\*)"', lambda match: match[1] * 2 + '\\"', value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return '"' + escaped + "\\" * trailing + '"'


def as_text(assignment: Assignment) -> str:
    """A flag whose number, or numbers in a list, are text; in quotes that the shell takes away."""
    key, _, typed = assignment.where.partition("=")
    if isinstance(assignment.value, list):
        texts = (item if isinstance(item, str) else shown(item) for item in assignment.value)
        return shlex.quote(f"{key}=[{','.join(map(quoted, texts))}]")
    return shlex.quote(f"{key}={quoted(typed)}")


def _sort_in(
    override: Override,
    text: str,
    groups: Mapping[str, Sequence[str]],
    flags: Flags,
    report: Report,
) -> None:
    key, value = override.key_or_group, override.value()
    if key in groups and not isinstance(value, dict) and value is not None:
        choice = Choice(key, text.partition("=")[2], text)
        if isinstance(value, str) and value in groups[key]:
            # As with keys, the last word counts.
            flags.choices = [other for other in flags.choices if other.group != key]
            flags.choices.append(Choice(key, value, text))
        else:
            unknown_choice(choice, groups[key], report)
            flags.doubtful.add(key)
    elif "/" in key:
        if key in groups:
            report.add(text, f"{key} cannot be null", f"Choose one of {', '.join(groups[key])}")
        else:
            report.add(text, f"there is no config group {key}", _nearest_group(key, groups))
    elif text.endswith("=") and value == "":
        report.add(text, "no value is given", f"Write null, or {key}='\"\"' for empty text", key)
    else:
        path = tuple(key.split("."))
        flags.assignments.extend(
            Assignment(leaf, inner, OriginKind.FLAG, text) for leaf, inner in leaves_of(value, path)
        )


def _nearest_group(key: str, groups: Mapping[str, Sequence[str]]) -> str:
    return f"The nearest group is {nearest(key, groups)[0]}"
