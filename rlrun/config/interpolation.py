# SPDX-License-Identifier: Apache-2.0
"""Resolves ``${...}`` in values: other keys, environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
)

from rlrun.config.suggest import nearest_key
from rlrun.config.values import WrongValue, is_interpolated

_VARIABLE = re.compile(r"Environment variable '(?P<name>[^']*)' not found")
_MISSING_KEY = re.compile(r"Interpolation key '(?P<name>[^']*)' not found")


class Resolver:
    """Resolves values against each other.

    Args:
        raw: The value of every key as written.
    """

    def __init__(self, raw: Mapping[tuple[str, ...], object]) -> None:
        self._names = [".".join(path) for path in raw]
        self._faults: dict[tuple[str, ...], WrongValue] = {}
        tree: dict[str, object] = {}
        for path, value in raw.items():
            if is_interpolated(value):
                fault = _grammar_fault(value)
                if fault is not None:
                    self._faults[path] = fault
                    continue
            node = tree
            for name in path[:-1]:
                inner = node.setdefault(name, {})
                assert isinstance(inner, dict)
                node = inner
            node[path[-1]] = value
        self._tree: DictConfig = OmegaConf.create(tree)

    def resolve(self, path: tuple[str, ...]) -> object:
        """The value at a path, with plain lists and mappings.

        Raises:
            WrongValue: It refers to something that is not there.
        """
        if path in self._faults:
            raise self._faults[path]
        try:
            node = self._tree
            for name in path[:-1]:
                node = node[name]
            value = node[path[-1]]
            if isinstance(value, DictConfig | ListConfig):
                value = OmegaConf.to_container(value, resolve=True)
            return value
        except InterpolationToMissingValueError as error:
            raise WrongValue(
                f"refers to a value that is not set ({_first_line(error)})", "Set that value first"
            ) from error
        except (OmegaConfBaseException, RecursionError) as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> WrongValue:
        text = _first_line(error)
        if isinstance(error, RecursionError):
            return WrongValue("refers to itself", "Write the value out")
        variable = _VARIABLE.search(text)
        if variable is not None:
            name = variable["name"]
            remedy = f"Set {name}, or give a default: ${{oc.env:{name},null}}"
            return WrongValue(f"needs the environment variable {name}, which is not set", remedy)
        key = _MISSING_KEY.search(text)
        if isinstance(error, InterpolationKeyError) and key is not None:
            near = nearest_key(key["name"], self._names)
            remedy = f"The nearest key is {near}" if near else "Write the key in full"
            return WrongValue(f"refers to {key['name']}, which does not exist", remedy)
        return WrongValue(f"cannot be resolved: {text}", "Check the text in ${...}")


def _grammar_fault(value: object) -> WrongValue | None:
    try:
        OmegaConf.create({"value": value})
    except GrammarParseError as error:
        text = _first_line(error)
        return WrongValue(
            f"has a malformed ${{...}}: {text}", "Write \\${ if no interpolation is meant"
        )
    except RecursionError:
        return WrongValue("has a ${...} that is nested too deeply", "Write the value out")
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
