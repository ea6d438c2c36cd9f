# SPDX-License-Identifier: Apache-2.0
r"""Families of solutions: a letter stands for any integer, as in "\frac{\pi}{4} + k\pi".

The letter is that of a statement ("k \in \mathbb{Z}") or, beside a multiple of pi or of a degree,
the only one of k, l, m and n. Its name says nothing. Where the reference has the statement, another
member of the family may come first and the steps may go the other way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlrun.env.answers.nodes import (
    Constant,
    Node,
    Operation,
    Symbol,
    any_node,
    number,
    symbols,
)
from rlrun.env.answers.shapes import Answer, Listing, Named, Scalar

if TYPE_CHECKING:
    from rlrun.env.answers.quantities import Decider

_LETTERS = frozenset("klmn")
_SHIFTS = range(-4, 5)


def with_integer(answer: Answer, letter: str) -> Answer:
    """The answer, where a letter in it is said to be any integer."""
    if isinstance(answer, Scalar) and letter in symbols(answer.node):
        return replace(answer, integer=letter)
    if isinstance(answer, Named) and letter not in answer.name:
        # In "f(n) = n + 1, n in Z" the letter is that of a function.
        return replace(answer, value=with_integer(answer.value, letter))
    if isinstance(answer, Listing):
        return replace(answer, items=tuple(with_integer(item, letter) for item in answer.items))
    return answer


def renamed(gold: Scalar, answer: Scalar) -> Scalar:
    """The answer with the integer of its family called as in the reference."""
    letter, other = _integer(gold, bool(gold.integer)), _integer(answer, bool(gold.integer))
    if not letter or not other or letter == other:
        return answer
    return replace(answer, node=_with(answer.node, other, Symbol(letter)))


def _integer(scalar: Scalar, stated: bool) -> str:
    """The letter of a family, or nothing."""
    if scalar.integer:
        return scalar.integer
    letters = symbols(scalar.node) & _LETTERS
    turns = scalar.unit is not None and scalar.unit.is_only("degree")
    if len(letters) == 1 and (stated or turns or any_node(scalar.node, _is_pi)):
        return min(letters)
    return ""


def _is_pi(node: Node) -> bool:
    return node == Constant("pi")


def _with(node: Node, name: str, value: Node) -> Node:
    if node == Symbol(name):
        return value
    if isinstance(node, Operation):
        return Operation(node.name, tuple(_with(arg, name, value) for arg in node.args))
    return node


def same_family(gold: Scalar, answer: Scalar, decider: Decider) -> bool:
    """Whether two arithmetic progressions over all integers have the same members.

    Raises:
        Undecided: The decider cannot tell.
    """
    letter = gold.integer
    if not letter or letter not in symbols(answer.node):
        return False
    start, step = _progression(gold.node, letter)
    other, other_step = _progression(answer.node, letter)
    if not decider.equal(step, other_step) and not decider.equal(step, _negative(other_step)):
        return False
    if not any(decider.equal(_member(start, step, number(n)), other) for n in _SHIFTS):
        return False
    return all(
        decider.equal(node, _member(first, by, Symbol(letter)))
        for node, first, by in ((gold.node, start, step), (answer.node, other, other_step))
    )


def _progression(node: Node, letter: str) -> tuple[Node, Node]:
    """The member at 0 and its distance from the one at 1."""
    start, following = (_with(node, letter, number(index)) for index in (0, 1))
    return start, Operation("add", (following, _negative(start)))


def _member(start: Node, step: Node, index: Node) -> Node:
    return Operation("add", (start, Operation("mul", (step, index))))


def _negative(node: Node) -> Node:
    return Operation("neg", (node,))
