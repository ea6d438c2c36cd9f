# SPDX-License-Identifier: Apache-2.0
"""The expression tree of an answer: numbers, symbols, constants and operations, all immutable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Number:
    """An exact rational number."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, with its subscript and primes in the name."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """One of "pi", "e", "i" and "oo"."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A function or operator applied to arguments.

    Attributes:
        name: "add", "mul", "div", "pow", "neg", "pm", "mp", "factorial", "log" (argument, base), or
            a function of one argument such as "sin", "abs", "floor".
        args: The arguments; "pm" and "mp" have one (a bare sign) or two.
    """

    name: str
    args: tuple[Node, ...]


Node = Number | Symbol | Constant | Operation


class Unreadable(ValueError):
    """A text is not an expression that the parser knows."""


class Undecided(Exception):  # not an error: the question goes on to the next method
    """Exact rational arithmetic cannot settle a question; ask the symbolic worker."""


def number(value: int | Fraction) -> Number:
    """The node of a rational value."""
    return Number(Fraction(value))


def any_node(node: Node, test: Callable[[Node], bool]) -> bool:
    """Whether a test holds for a node or anything below it."""
    if test(node):
        return True
    return isinstance(node, Operation) and any(any_node(arg, test) for arg in node.args)


def symbols(node: Node) -> set[str]:
    """Names of the variables of an expression."""
    if isinstance(node, Symbol):
        return {node.name}
    if isinstance(node, Operation):
        return set().union(*(symbols(arg) for arg in node.args))
    return set()


def choose_sign(node: Node, upper: bool) -> Node:
    """The expression with every plus-minus sign read as its upper or its lower sign."""
    if not isinstance(node, Operation):
        return node
    args = tuple(choose_sign(arg, upper) for arg in node.args)
    if node.name not in ("pm", "mp"):
        return Operation(node.name, args)
    last = args[-1] if (node.name == "pm") == upper else Operation("neg", (args[-1],))
    return last if len(args) == 1 else Operation("add", (args[0], last))


def has_sign_choice(node: Node) -> bool:
    """Whether an expression contains a plus-minus sign."""
    return any_node(node, lambda n: isinstance(n, Operation) and n.name in ("pm", "mp"))


def infinite_sign(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, 0 for everything else."""
    if node == Constant("oo"):
        return 1
    if isinstance(node, Operation) and node.name == "neg":
        return -infinite_sign(node.args[0])
    return 0
