# SPDX-License-Identifier: Apache-2.0
"""Values of vLLM's arguments: what the annotations in its source allow.

vLLM's class of arguments takes anything, and what is wrong with it comes up when an engine starts.
The class is read, not imported, for the reason given in vllm_args.py. What cannot be told from the
source (a type of another package, a function that converts) is left to vLLM.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlrun.config.suggest import nearest

SCALARS: Mapping[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    # YAML reads 1e9 as a float, and vLLM takes it where it is whole.
    "int": lambda value: is_number(value) and float(value).is_integer(),
    "float": lambda value: is_number(value),
    "str": lambda value: isinstance(value, str),
    "dict": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
}
COLLECTIONS = ("list", "set", "tuple")

BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "gt": ("above", lambda value, bound: value > bound),
    "ge": ("at least", lambda value, bound: value >= bound),
    "lt": ("below", lambda value, bound: value < bound),
    "le": ("at most", lambda value, bound: value <= bound),
}
"""Keywords of pydantic's Field."""


def is_number(value: Any) -> bool:
    """Whether it is one to YAML."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class ConfigSource:
    """The classes of vLLM's configuration, which its arguments end up in.

    Args:
        folder: The package vllm.config.
    """

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.py"))

    def problem(self, field: ast.AnnAssign, name: str, value: Any) -> tuple[str, str] | None:
        """What is wrong with the value of an argument, and the remedy; None where nothing is.

        Args:
            field: The argument in the source.
            name: Its name.
            value: As YAML has it.
        """
        if value is None:
            # Many have it as the default without a word of it in their type.
            return None
        if not self._allows(field.annotation, value):
            wanted = ", ".join(dict.fromkeys(self._in_words(field.annotation)))
            return f"{name}={value!r} is not what vLLM's engine takes", f"It takes: {wanted}"
        if isinstance(value, dict):
            return next(self._unknown_keys(field.annotation, name, value), None)
        if is_number(value):
            return self._beyond(field, name, value)
        return None

    # --- types ------------------------------------------------------------------------------------

    def _allows(self, hint: ast.expr, value: Any) -> bool:
        match hint:
            case ast.Constant(value=None):
                return value is None
            case ast.Constant(value=str() as text):
                return self._allows(_expression(text), value)
            case ast.BinOp(op=ast.BitOr()):
                return self._allows(hint.left, value) or self._allows(hint.right, value)
            case ast.Subscript(value=ast.Name(id="Literal")):
                choices = self._choices(hint)
                return choices is None or _plain(value) in map(_plain, choices)
            case ast.Subscript(value=ast.Name(id="dict")):
                return isinstance(value, dict)
            case ast.Subscript(value=ast.Name(id=kind), slice=item) if kind in COLLECTIONS:
                return isinstance(value, list) and (
                    isinstance(item, ast.Tuple) or all(self._allows(item, one) for one in value)
                )
            case ast.Name(id=name) if name in SCALARS:
                return SCALARS[name](value)
            case ast.Name(id=name):
                found = self._definition(name)
                if isinstance(found, ast.ClassDef):
                    return isinstance(value, dict) or not _fields(found)
                return found is None or self._allows(found, value)
        return True

    def _choices(self, literal: ast.expr) -> list[Any] | None:
        """All values of a Literal; None if one of them is a name that nothing is known of."""
        match literal:
            case ast.Subscript(slice=ast.Tuple(elts=parts)):
                pass
            case ast.Subscript(slice=part):
                parts = [part]
            case _:
                return None
        choices: list[Any] = []
        for part in parts:
            if isinstance(part, ast.Constant):
                choices.append(part.value)
                continue
            found = self._definition(part.id) if isinstance(part, ast.Name) else None
            more = None if found is None else self._choices_of(found)
            if more is None:
                return None
            choices += more
        return choices

    def _choices_of(self, found: ast.expr | ast.ClassDef) -> list[Any] | None:
        return None if isinstance(found, ast.ClassDef) else self._choices(found)

    def _in_words(self, hint: ast.expr) -> Iterator[str]:
        """The alternatives of a type, as YAML has them."""
        match hint:
            case ast.Constant(value=None):
                yield "null"
            case ast.BinOp(op=ast.BitOr()):
                yield from self._in_words(hint.left)
                yield from self._in_words(hint.right)
            case ast.Subscript(value=ast.Name(id="Literal")):
                yield from map(str, self._choices(hint) or ())
            case ast.Name(id=name) if name not in SCALARS:
                found = self._definition(name)
                if found is None or isinstance(found, ast.ClassDef):
                    yield "dict"
                else:
                    yield from self._in_words(found)
            case _:
                yield ast.unparse(hint)

    # --- dictionaries and bounds ------------------------------------------------------------------

    def _unknown_keys(
        self, hint: ast.expr, name: str, value: dict[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Keys that the class which a dictionary becomes does not have."""
        names = [node.id for node in ast.walk(hint) if isinstance(node, ast.Name)]
        found = map(self._definition, dict.fromkeys(names))
        classes = [one for one in found if isinstance(one, ast.ClassDef)]
        # One that inherits has fields that are not seen here.
        if len(classes) != 1 or classes[0].bases or not (known := _fields(classes[0])):
            return
        for key in value:
            if key not in known:
                near = nearest(key, sorted(known))[0]
                yield (
                    f"{name}.{key} is no key of vLLM's {classes[0].name}; did you mean {near}",
                    f"See the fields of vllm.config.{classes[0].name}",
                )

    def _beyond(self, field: ast.AnnAssign, name: str, value: float) -> tuple[str, str] | None:
        for keyword in self._field_call(field, name):
            if keyword.arg is None or keyword.arg not in BOUNDS:
                continue
            if not isinstance(keyword.value, ast.Constant):
                continue
            (words, holds), bound = BOUNDS[keyword.arg], keyword.value.value
            if isinstance(bound, int | float) and not holds(value, bound):
                return f"{name}={value} is out of the range of vLLM's", f"Give {words} {bound}"
        return None

    def _field_call(self, field: ast.AnnAssign, name: str) -> list[ast.keyword]:
        """What pydantic is told of the field that an argument ends up in."""
        owners: Sequence[ast.ClassDef | ast.expr | None]
        match field.value:
            # ``CacheConfig.gpu_memory_utilization`` as the default.
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                owners = [self._definition(owner)]
            case ast.Call(args=[ast.Name(id=owner), ast.Constant(value=str() as attribute)]):
                owners = [self._definition(owner)]
            case _:
                attribute = name
                owners = [one for one in self._containing(f"    {name}: ") if name in _fields(one)]
        found = [_fields(one).get(attribute) for one in owners if isinstance(one, ast.ClassDef)]
        if len(found) == 1 and found[0] is not None and isinstance(found[0].value, ast.Call):
            return found[0].value.keywords
        return []

    # --- the source -------------------------------------------------------------------------------

    def _definition(self, name: str) -> ast.ClassDef | ast.expr | None:
        """The class or the type of a name; None if it is not one of these files."""
        pattern = re.compile(rf"^(class )?{name}\b *[:=(]", re.MULTILINE)
        for path in self._paths:
            if not pattern.search(_text(path)):
                continue
            for node in _tree(path).body:
                match node:
                    case ast.ClassDef(name=found) if found == name:
                        return node
                    case ast.Assign(targets=[ast.Name(id=found)]) if found == name:
                        return node.value
                    case ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                        return node.value
        return None

    def _containing(self, text: str) -> list[ast.ClassDef]:
        """The classes of the files with a text in them."""
        return [
            node
            for path in self._paths
            if text in _text(path)
            for node in _tree(path).body
            if isinstance(node, ast.ClassDef)
        ]


def _fields(node: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    return {
        field.target.id: field
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _plain(value: Any) -> tuple[type, Any]:
    """Equal for what vLLM reads as equal: it takes names in either case, and dashes."""
    if isinstance(value, str):
        return str, value.lower().replace("-", "_")
    return type(value), value if not isinstance(value, list | dict) else None


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))
