# SPDX-License-Identifier: Apache-2.0
"""What kinds of things a final answer can be: one small frozen record per kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from rlrun.env.answers.nodes import Node
from rlrun.env.answers.units import Unit


@dataclass(frozen=True, slots=True)
class Scalar:
    """An expression, with its unit if the table knows it.

    Attributes:
        node: The expression.
        unit: Its unit.
        letter: A single letter right after a numeral, which reads as a symbol unless the other
            side has that unit ("5 m").
        integer: A letter in it that is said to stand for any integer.
        counted: The words behind it that the table of units does not know ("apples").
    """

    node: Node
    unit: Unit | None = None
    letter: tuple[Node, Unit] | None = None
    integer: str = ""
    counted: str = ""


class Order(Enum):
    """How the items of a listing count."""

    LIST = "list"
    """Separated by commas or "or" without brackets: any order, each as often as it stands."""
    SET = "set"
    """In braces: any order, repetition does not count."""
    TUPLE = "tuple"
    """In parentheses, square or angle brackets: the order counts."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Several answers.

    Attributes:
        order: How they count.
        items: The answers.
        brackets: The opening and closing bracket of a tuple, as "()" or "[)".
        alternatives: The items are values of one thing ("1 or 2", "x = 1, 2"), not parts of one.
    """

    order: Order
    items: tuple[Answer, ...]
    brackets: str = ""
    alternatives: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """One interval; both ends may be infinite."""

    low: Node
    high: Node
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A set of real numbers as a union of disjoint intervals.

    Attributes:
        pieces: Sorted where all ends are rational.
        variable: The name that an inequality used, else "".
    """

    pieces: tuple[Piece, ...]
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation or inequality that is not solved for a name.

    Attributes:
        sign: "=", "<" (difference < 0), "<=", or "!=".
        difference: Left side minus right side, turned so that the sign fits.
    """

    sign: str
    difference: Node


@dataclass(frozen=True, slots=True)
class Named:
    """A name and its value: "k = 3, 4, 5", "f(x) = x^2", "x in (0, 1)".

    Attributes:
        name: Canonical spelling of the left side.
        node: The left side as an expression, if it is one.
        value: The right side.
        strict: The left side is a plain name, not a sum or product of names.
    """

    name: str
    node: Node | None
    value: Answer
    strict: bool


@dataclass(frozen=True, slots=True)
class Rounded:
    r"""An expression and the decimal that it is near: "\sqrt{2} \approx 1.41"."""

    exact: Answer
    shown: Answer


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of equal length."""

    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A choice by letter, with what stands beside it: "(B) 12"."""

    letter: str
    content: Answer


@dataclass(frozen=True, slots=True)
class Colons:
    """Numbers with colons: a clock time ("3:45", minutes in two digits) or a ratio ("3:2").

    Attributes:
        parts: The numbers.
        clock: Whether it reads as a time of day.
        suffix: "am", "pm" or "".
    """

    parts: tuple[Node, ...]
    clock: bool
    suffix: str


@dataclass(frozen=True, slots=True)
class Congruence:
    """A value that is meant up to multiples of a modulus: "5 (mod 7)"."""

    value: Answer
    modulus: int


@dataclass(frozen=True, slots=True)
class Numeral:
    """Digits in a stated base."""

    digits: str
    base: int
    value: Fraction


@dataclass(frozen=True, slots=True)
class Text:
    """Words, in lower case, without punctuation."""

    words: str


@dataclass(frozen=True, slots=True)
class Calculus:
    """Notation that only the symbolic worker reads (sums, integrals, limits)."""

    latex: str


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Mathematical notation that nothing here reads; equal only to the same text."""

    latex: str
    reason: str


Answer = (
    Scalar
    | Listing
    | Region
    | Relation
    | Named
    | Rounded
    | Matrix
    | Option
    | Colons
    | Congruence
    | Numeral
    | Text
    | Calculus
    | Unparsed
)
