# SPDX-License-Identifier: Apache-2.0
"""What kind of thing a final answer is: text to one of the records of ``shapes``."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from rlrun.env.answers.clean import clean
from rlrun.env.answers.dates import day_of
from rlrun.env.answers.exact import plain_number
from rlrun.env.answers.families import with_integer
from rlrun.env.answers.lexer import lex
from rlrun.env.answers.nodes import Number, Unreadable
from rlrun.env.answers.shapes import (
    Answer,
    Calculus,
    Colons,
    Congruence,
    Listing,
    Matrix,
    Named,
    Numeral,
    Option,
    Order,
    Scalar,
    Text,
    Unparsed,
)
from rlrun.env.answers.statements import read_tokens
from rlrun.env.answers.wording import spoken, text_answer

MAX_CHARACTERS = 2000
"""A longer final answer is not read."""

_CALCULUS = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim|partial)(?![a-zA-Z])|\\frac\s*\{d\}\s*\{d|\\begin\{[pbv]matrix\}"
)
_MATRIX = re.compile(
    r"(?:([^=\\]+)=\s*)?[(\[]?\s*\\begin\{((?:[pbBV]|small)?matrix|array)\}(?:\s*\{[lcr| ]*\})?(.*)"
    r"\\end\{\2\}\s*[)\]]?",
    re.DOTALL,
)
_ROWS = re.compile(r"(?:([^=\\]+)=\s*)?\[([^\[\];]+(?:;[^\[\];]+)+);?\s*\]")
_ANGLES = re.compile(r"((?:[^=<>]+=\s*)?)<([^<>]*,[^<>]*)>")
_TRANSPOSED = re.compile(r"([(\[].*[)\]]|\\begin.*\})\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?")
_COLONS = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?::|(?<=\s)to(?=\s))\s*(\d+(?:\.\d+)?)(?:\s*:\s*(\d+(?:\.\d+)?))?"
    r"\s*(?:([ap])\.? ?m\.?)?",
    re.IGNORECASE,
)
_HOUR = re.compile(r"(\d{1,2})\s*([ap])\.? ?m\.?", re.IGNORECASE)
_CONGRUENCE = re.compile(
    r"(.+?)\s*(?:\\pmod\s*(?:\{\s*(\d{1,18})\s*\}|(\d{1,18}))|"
    r"\(\s*\\?b?mod\s*\{?\s*(\d{1,18})\s*\}?\s*\))"
)
_EXCEPT = re.compile(
    r"(?:the set of )?all (?:real numbers?|reals|real values|real)(?: (?:of )?x)?,? "
    r"(?:except|other than|excluding)(?: for| when)?\s*(?:x\s*(?:=|\\ne)\s*)?(.+)",
    re.IGNORECASE,
)
_INTEGER = re.compile(
    r"(?:(?:where|for|with) )?(?:(?:any|some|an) )?(?<![A-Za-z\\])"
    r"(?:integer ([a-z])|([a-z])\s*(?:\\in\s*(?:\\mathbb\{Z\}|Z)|is (?:an|any) integer))\s*\)?$"
)
"""Behind a family of solutions: which letter is any integer."""
_ANY = re.compile(
    r"[\s,]*\(?(?:\b(?:for (?:all|any|every|each|some)|where) |\\forall\s*)"
    r"(?:(?:real|positive|integers?|constants?|numbers?|reals|arbitrary|values? of) )*[a-z]"
    r"(?:\s*\\in\s*\\mathbb\{R\}| is (?:an?|any) (?:real |arbitrary )?(?:constant|number))?\)?$"
)
"""Behind a formula: that a letter in it may be anything."""
_OUTWARD = re.compile(r"([\[\]])([^\[\]]*[,;][^\[\]]*)([\[\]])")
_BASE = re.compile(
    r"\(?([0-9A-Z]+|[0-9a-f]+)\)?\s*_\s*\{?\s*\(?(?:(\d{1,2})|([a-z]+))\)?\s*\}?"
    r"|([0-9A-Z]+|[0-9a-f]+)(?:\s+|\s*\()base[ -]+(?:(\d{1,2})|([a-z]+))\)?"
)
_BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
_BASE_NAMES |= {"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16}
_OPTION = re.compile(r"(?:\(([A-J])\)|\[([A-J])\]|([A-J])[).:](?=\s|$))\s*(.*)", re.DOTALL)
_FURTHER_OPTION = re.compile(r"(?<![^\s,;])(?:\([A-J]\)|\[[A-J]\]|[A-J][).:](?=\s|$))")
_OPTION_WORD = re.compile(r"(?:option|choice|answer)\s*\(?([A-Ja-j])\)?", re.IGNORECASE)
_NOT_CONTENT = re.compile(r"(?:or|and)\b|[,;+*/^=<>-]|\\cdot|\\times|\(|\[")
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mbox|mathbf|textrm)\s*\{([^{}]*)\}")
_MATHEMATICS = re.compile(r"\\(?!text|mathrm|mbox|[$%])|[\^_=<>]")


def read(text: str) -> Answer | None:
    """What an answer text says; None if there is nothing in it.

    A text that is not understood comes back as ``Unparsed`` (or ``Calculus``, if the symbolic
    worker may understand it); nothing is raised for any input.
    """
    text = text.strip()
    if (value := plain_number(text)) is not None:
        return Scalar(Number(value))
    if len(text) > MAX_CHARACTERS:
        return Unparsed(text, f"more than {MAX_CHARACTERS} characters")
    cleaned = clean(text)
    return _read_cleaned(cleaned) if cleaned else None


@lru_cache(maxsize=8192)
def read_gold(text: str) -> Answer | None:
    """``read``, remembered: a reference answer is met once per sample."""
    return read(text)


def _read_cleaned(cleaned: str) -> Answer | None:
    try:
        answer = _whole_text(cleaned)
        if answer is not None:
            return answer
        if _CALCULUS.search(cleaned):
            return Calculus(cleaned)
        tokens = lex(cleaned)
        return read_tokens(tokens) if tokens else None
    except Unreadable as problem:
        if _MATHEMATICS.search(_TEXT_COMMAND.sub(r"\1", cleaned)):
            return Unparsed(cleaned, str(problem))
        return text_answer(cleaned)


def flattened(cleaned: str) -> str:
    """A cleaned text without text commands around its words."""
    return " ".join(_TEXT_COMMAND.sub(r"\1", cleaned).split())


def _whole_text(cleaned: str) -> Answer | None:
    """Notations that are recognised by the look of the whole text, else None."""
    if (matrix := _MATRIX.fullmatch(cleaned)) and matrix.group(3).count("\\begin") == 0:
        rows = _matrix(matrix.group(3))
        name = (matrix.group(1) or "").strip()
        return Named(name, None, rows, True) if name else rows
    if (vector := _vector(cleaned)) is not None:
        return vector
    flat = flattened(cleaned)
    if (day := day_of(flat)) is not None:
        return Text(day)
    if congruence := _CONGRUENCE.fullmatch(flat):
        value = read(congruence.group(1))
        modulus = int(next(group for group in congruence.groups()[1:] if group))
        readable = value is not None and not isinstance(value, Calculus | Unparsed | Text)
        return Congruence(value, modulus) if value is not None and readable and modulus else None
    if (family := _family(flat)) is not None:
        return family
    if " and " in flat and (said := spoken(flat.lower())) is not None:
        return Scalar(Number(said))
    if excepted := _EXCEPT.fullmatch(flat):
        return read(rf"\mathbb{{R}} \setminus \{{{excepted.group(1)}\}}")
    if (outward := _OUTWARD.fullmatch(cleaned)) and outward.group(1, 3) != ("[", "]"):
        # ]a, b[ is how an open interval is written where brackets turn outward.
        opening = {"]": "(", "[": "["}[outward.group(1)]
        return read(opening + outward.group(2) + {"[": ")", "]": "]"}[outward.group(3)])
    if hour := _HOUR.fullmatch(flat):
        parts = (Number(Fraction(hour.group(1))), Number(Fraction(0)))
        return Colons(parts, True, f"{hour.group(2)}m".lower())
    if colons := _COLONS.fullmatch(flat):
        return _colons(colons)
    if base := _BASE.fullmatch(flat):
        return _numeral(base)
    if option := _OPTION_WORD.fullmatch(flat):
        return Option(option.group(1).upper(), Text(""))
    if option := _OPTION.fullmatch(flat):
        letter = next(group for group in option.groups()[:3] if group)
        content = option.group(4)
        if content and (_NOT_CONTENT.match(content) or _FURTHER_OPTION.search(content)):
            return None
        return Option(letter, read(content) or Text(""))
    return None


def _family(flat: str) -> Answer | None:
    """What stands before "k in Z" or "for all x", which is said once."""
    stated, anything = _INTEGER.search(flat), _ANY.search(flat)
    end = stated or anything
    formula = "" if end is None else flat[: end.start()].rstrip(" ,;(")
    if _INTEGER.search(formula) or _ANY.search(formula):
        return None
    answer = read(formula)
    if stated is None or answer is None:
        return answer
    return with_integer(answer, stated.group(1) or stated.group(2))


def _vector(cleaned: str) -> Answer | None:
    """Notations of programs, "[1, 2; 3, 4]" and "<1, 2>", and what is transposed."""
    if angles := _ANGLES.fullmatch(cleaned):
        return read(f"{angles.group(1)}\\langle {angles.group(2)}\\rangle")
    if transposed := _TRANSPOSED.fullmatch(cleaned):
        inner = read(transposed.group(1))
        if isinstance(inner, Matrix):
            return Matrix(tuple(zip(*inner.rows, strict=True)))
        return inner if isinstance(inner, Listing) and inner.order is Order.TUPLE else None
    rows = _ROWS.fullmatch(cleaned)
    if rows is None:
        return None
    lines = [row.strip() for row in rows.group(2).split(";")]
    cells = [line.split("," if "," in line else None) for line in lines]
    if not all(len(line) > 1 for line in cells):
        return None
    body = "\\\\".join("&".join(line) for line in cells)
    name = (rows.group(1) or "").strip()
    return Named(name, None, _matrix(body), True) if name else _matrix(body)


def _matrix(body: str) -> Matrix:
    lines = re.split(r"\\\\(?:\s*\[[^\]]*\])?|\\cr(?![a-z])", body.replace("\\hline", ""))
    rows: list[tuple[Answer, ...]] = []
    for line in lines:
        if not line.strip():
            continue
        cells = [read(cell) for cell in line.split("&")]
        full = tuple(cell for cell in cells if cell is not None)
        if len(full) != len(cells):
            raise Unreadable("a matrix with an empty cell")
        rows.append(full)
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("a matrix with rows of different lengths")
    return Matrix(tuple(rows))


def _colons(match: re.Match[str]) -> Colons:
    numbers = [group for group in match.groups()[:3] if group is not None]
    clock = ":" in match.group() and all(re.fullmatch(r"[0-5]\d", group) for group in numbers[1:])
    clock = clock and re.fullmatch(r"[01]?\d|2[0-4]", numbers[0]) is not None
    suffix = f"{match.group(4)}m".lower() if match.group(4) else ""
    return Colons(tuple(Number(Fraction(group)) for group in numbers), clock, suffix)


def _numeral(match: re.Match[str]) -> Numeral | None:
    digits = match.group(1) or match.group(4)
    stated, name = match.group(2) or match.group(5), match.group(3) or match.group(6)
    base = int(stated) if stated else _BASE_NAMES.get(name, 0)
    if not 2 <= base <= 36 or (digits.isalpha() and (base != 16 or len(digits) < 2)):
        return None
    if base != 16 and digits != digits.upper():
        return None  # 2a_{11} is twice an entry of a matrix.
    try:
        value = int(digits, base)
    except ValueError:
        return None
    return Numeral(digits.lstrip("0") or "0", base, Fraction(value))
