# SPDX-License-Identifier: Apache-2.0
"""YAML as settings are written in it: numbers as people write them, nothing nested without end."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rlrun.config.yaml_limits import MAX_DEPTH, Refused, too_deep

_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$")


class Loader(yaml.SafeLoader):
    """YAML in which 1e-6 is a number, while dates, 10:00:00:00 and 010 are text.

    Nesting deeper than MAX_DEPTH raises Refused, since composing it would exhaust the stack.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node of the text."""
        if self._depth == MAX_DEPTH:
            event = self.peek_event()  # type: ignore[no-untyped-call]  # its stub has no types
            raise too_deep(event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node.

        Raises:
            yaml.YAMLError: It has none. What is not as its tag says fails in yaml in many ways.
        """
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            why = str(error) if isinstance(error, ValueError) else f"it is no {kind} (!!{kind})"
            given = repr(node.value) if isinstance(node, yaml.ScalarNode) else "this"
            what = f"{given} cannot be read: {why}"
            raise Refused(node.start_mark, what, "Quote it to make it text") from error


_REPLACED = ("timestamp", "float", "int")
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
