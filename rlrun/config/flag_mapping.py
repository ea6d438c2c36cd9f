# SPDX-License-Identifier: Apache-2.0
"""Names that a mapping in a flag gives twice: Hydra takes the last of them and says nothing."""

from __future__ import annotations

from typing import Any

from hydra.core.override_parser.overrides_parser import create_functions
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.grammar.gen.OverrideLexer import (  # type: ignore[attr-defined]
    CommonTokenStream,
    InputStream,
    OverrideLexer,
)
from hydra.grammar.gen.OverrideParser import OverrideParser


def given_twice(text: str) -> str | None:
    """The first name that a mapping in an override gives twice, or None.

    Args:
        text: An override that Hydra can parse.
    """
    if "{" not in text:
        return None
    visitor = HydraOverrideVisitor(create_functions())
    parser: Any = OverrideParser(CommonTokenStream(OverrideLexer(InputStream(text))))
    nodes = [parser.override()]
    while nodes:
        node = nodes.pop()
        if isinstance(node, OverrideParser.DictContainerContext):
            seen = set[str]()
            for pair in node.dictKeyValuePair():
                # A number or a truth value becomes the text that Python writes for it.
                name = str(visitor.visitDictKey(pair.dictKey()))
                if name in seen:
                    return name
                seen.add(name)
        nodes += (node.getChild(index) for index in reversed(range(node.getChildCount())))
    return None
