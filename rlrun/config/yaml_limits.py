# SPDX-License-Identifier: Apache-2.0
"""Bounds of a YAML document, checked on its nodes before anything walks or constructs them."""

from __future__ import annotations

import yaml

MAX_DEPTH = 64
"""Levels of nesting, those behind aliases included."""

MAX_NODES = 100_000
"""Keys and values, counting what an alias refers to once per use."""


class Refused(yaml.MarkedYAMLError):
    """A document that is valid YAML but is not read.

    Attributes:
        mark: Where.
        what: What is wrong with it.
        remedy: What to do.
    """

    def __init__(self, mark: yaml.Mark, what: str, remedy: str) -> None:
        self.mark, self.what, self.remedy = mark, what, remedy
        super().__init__(problem=what, problem_mark=mark)


def too_deep(mark: yaml.Mark) -> Refused:
    """What to raise about a node below too many levels."""
    what = f"the nesting is deeper than {MAX_DEPTH} levels"
    return Refused(mark, what, "Write it flatter")


def check_size(root: yaml.Node) -> None:
    """Follows every alias once, so that the time is that of the text, not of its expansion.

    Args:
        root: Nested no deeper than MAX_DEPTH as written.

    Raises:
        Refused: With aliases expanded, it is too deep or too large, or contains itself.
    """
    _measure(root, {})


def _measure(node: yaml.Node, known: dict[yaml.Node, tuple[int, int] | None]) -> tuple[int, int]:
    """The nodes and levels of a node with aliases expanded; None is known of unfinished ones."""
    if node in known:
        measured = known[node]
        if measured is None:
            what = "an alias (*) refers to what it is part of"
            raise Refused(node.start_mark, what, "Write the value out")
        return measured
    known[node] = None
    size, depth = 1, 1
    for child in _children(node):
        child_size, child_depth = _measure(child, known)
        size, depth = size + child_size, max(depth, child_depth + 1)
    if depth > MAX_DEPTH:
        raise too_deep(node.start_mark)
    if size > MAX_NODES:
        what = f"it has more than {MAX_NODES} keys and values with aliases (*) expanded"
        raise Refused(node.start_mark, what, "Write a smaller file")
    known[node] = size, depth
    return size, depth


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
