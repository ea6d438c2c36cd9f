# SPDX-License-Identifier: Apache-2.0
"""Cleaned answer text to tokens: numbers, letter runs, words, commands, brackets, operators."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from rlrun.env.answers.nodes import Unreadable
from rlrun.env.answers.periods import repeating


class Kind(Enum):
    """What a token is."""

    NUMBER = "number"
    RUN = "run"
    """Adjacent letters outside a text command: symbols, a unit or a word."""
    WORD = "word"
    """A word inside a text command, or "and" / "or"."""
    COMMAND = "command"
    OPEN = "open"
    CLOSE = "close"
    MARK = "mark"
    """Any other character: an operator or separator."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        kind: What it is.
        text: Its spelling, commands with the backslash.
        spaced: Whether white space comes before it.
        value: The exact value of a number.
        upright: The letters stood in a text command.
    """

    kind: Kind
    text: str
    spaced: bool = False
    value: Fraction = Fraction(0)
    upright: bool = False


TEXT_COMMANDS = frozenset(
    "text textbf textit textrm textsf texttt textnormal textup textsc mbox hbox fbox boxed mathrm "
    "mathbf mathit mathsf mathtt mathnormal mathcal operatorname emph underline bm bold pmb "
    "boldsymbol".split()
)
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc asin acos atan "
    "sinh cosh tanh coth log ln lg exp sqrt abs floor ceil".split()
)
_NAMED = FUNCTIONS | frozenset(
    "pi infty alpha beta gamma delta epsilon theta lambda mu nu xi rho sigma tau phi chi psi "
    "omega".split()
)
_INFINITIES = {"oo", "inf", "infinity", "Infinity"}
JOINING_WORDS = frozenset({"and", "or"})

_DIGITS = r"(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(_DIGITS)
_COMMAS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d+)?")
_BLANKS = re.compile(r"[1-9]\d{0,2}(?: \d{3})+(?![\d/])(?:\.\d+)?")
_REPEAT = re.compile(
    r"\s*(?:\\dot\s*\{?(\d)\}?\s*(\d*)\s*\\dot\s*\{?(\d)\}?|"
    r"(?:\\overline|\\bar|\\dot)\s*(?:\{(\d+)\}|(\d)))"
)
_ELLIPSIS = re.compile(r"\s*(?:\\ldots|\.\.\.)")
_REPEAT_PARENS = re.compile(r"\((\d+)\)")
_EXPONENT = re.compile(r"[eE]([+-]?\d{1,6})(?![\w.])")
_LETTERS = re.compile(r"[A-Za-z]+")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+\*?|.)", re.DOTALL)
_OPENING = {"(": "(", "[": "[", "{": "{", "\\{": "\\{", "\\langle": "<", "\\lfloor": "\\lfloor"}
_OPENING |= {"\\lceil": "\\lceil"}
_CLOSING = {")": ")", "]": "]", "}": "}", "\\}": "\\}", "\\rangle": ">", "\\rfloor": "\\rfloor"}
_CLOSING |= {"\\rceil": "\\rceil"}
_MAX_DEPTH = 40
_MAX_EXPONENT = 2000


def group_end(text: str, start: int) -> int:
    """Index just past the brace that closes the one at ``start``; -1 if it never closes."""
    depth, index = 0, start
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    return -1


class _Lexer:
    def __init__(self, text: str, upright: bool, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise Unreadable("nested too deeply")
        self.text, self.upright, self.depth = text, upright, depth
        self.at, self.brackets = 0, 0
        self.tokens: list[Token] = []
        # In (1,234) the comma separates; in (1,234, 5,678) the spaced commas do.
        self.spaced_commas = re.search(r",\s", text) is not None

    def run(self) -> list[Token]:
        while self.at < len(self.text):
            spaced = self.text[self.at].isspace()
            if spaced:
                self.at += 1
                if self.at >= len(self.text):
                    break
                if self.text[self.at].isspace():
                    continue
            self._next(spaced)
        return self.tokens

    def _add(self, kind: Kind, text: str, spaced: bool, upright: bool = False) -> None:
        self.tokens.append(Token(kind, text, spaced, upright=upright))

    def _next(self, spaced: bool) -> None:
        character = self.text[self.at]
        following = self.text[self.at + 1 : self.at + 2]
        if character.isdigit() or (character == "." and following.isdigit()):
            self._number(spaced)
        elif character == "\\":
            self._command(spaced)
        elif match := _LETTERS.match(self.text, self.at):
            self.at = match.end()
            self._letters(match.group(), spaced)
        else:
            self.at += 1
            self._mark(character, spaced)

    def _mark(self, mark: str, spaced: bool) -> None:
        two = mark + self.text[self.at : self.at + 1]
        double = {"**": "^", "<=": "\\le", ">=": "\\ge", "!=": "\\ne", "==": "=", "=<": "\\le"}
        if two in double:
            # 5!=120 is an equation about a factorial, not an inequality.
            if two == "!=" and not spaced and self.tokens and self.tokens[-1].kind is Kind.NUMBER:
                self._add(Kind.MARK, "!", spaced)
                return
            self.at += 1
            kind = Kind.COMMAND if double[two].startswith("\\") else Kind.MARK
            self._add(kind, double[two], spaced)
        elif mark in "€£¥₹¢":
            self._add(Kind.WORD, mark, spaced)
        elif mark in _OPENING:
            self.brackets += mark != "{"
            self._add(Kind.OPEN, mark, spaced)
        elif mark in _CLOSING:
            self.brackets -= mark != "}"
            self._add(Kind.CLOSE, mark, spaced)
        else:
            self._add(Kind.MARK, mark, spaced)

    def _letters(self, run: str, spaced: bool) -> None:
        if run.lower() in JOINING_WORDS and len(run) > 1:
            self._add(Kind.WORD, run.lower(), spaced)
        elif run in _INFINITIES:
            self._add(Kind.COMMAND, "\\infty", spaced)
        elif run in _NAMED:
            self._add(Kind.COMMAND, "\\" + run, spaced)
        elif run[:-1] in FUNCTIONS and run[-1] in "xyt":
            self._add(Kind.COMMAND, "\\" + run[:-1], spaced)
            self._add(Kind.RUN, run[-1], False)
        elif self.upright and len(run) > 1:
            self._add(Kind.WORD, run, spaced, upright=True)
        else:
            self._add(Kind.RUN, run, spaced, upright=self.upright)

    def _command(self, spaced: bool) -> None:
        match = _COMMAND.match(self.text, self.at)
        if match is None:
            raise Unreadable("a backslash at the end")
        command = match.group()
        self.at = match.end()
        name = command[1:].rstrip("*")
        if name in TEXT_COMMANDS:
            self._text(spaced)
        elif command in _OPENING:
            self.brackets += 1
            self._add(Kind.OPEN, _OPENING[command], spaced)
        elif command in _CLOSING:
            self.brackets -= 1
            self._add(Kind.CLOSE, _CLOSING[command], spaced)
        elif command == "\\$":
            self._add(Kind.WORD, "$", spaced)
        elif command in ("\\%", "\\&", "\\#", "\\_"):
            self._add(Kind.MARK, command[1], spaced)
        else:
            self._add(Kind.COMMAND, command, spaced)

    def _text(self, spaced: bool) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
        if self.text[self.at : self.at + 1] == "{":
            end = group_end(self.text, self.at)
            if end < 0:
                raise Unreadable("an open brace")
            inside = self.text[self.at + 1 : end - 1]
        else:
            end = self.at + 1
            inside = self.text[self.at : end]
        self.at = end
        lexer = _Lexer(inside, True, self.depth + 1)
        lexer.brackets = self.brackets
        tokens = lexer.run()
        if tokens and spaced and not tokens[0].spaced:
            first = tokens[0]
            tokens[0] = Token(first.kind, first.text, True, first.value, first.upright)
        self.tokens += tokens

    def _number(self, spaced: bool) -> None:
        for grouped in (_COMMAS, _BLANKS):
            match = grouped.match(self.text, self.at)
            if match and (self.brackets == 0 or (grouped is _COMMAS and self.spaced_commas)):
                break
        else:
            match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise Unreadable("a digit that is not decimal")
        self.at = match.end()
        digits = match.group().replace(",", "").replace(" ", "")
        value = self._decimal_tail(digits)
        self.tokens.append(Token(Kind.NUMBER, digits, spaced, value))

    def _decimal_tail(self, digits: str) -> Fraction:
        """Value of the digits with a period, ellipsis or power of ten that may follow."""
        if "." in digits:
            repeat = _REPEAT.match(self.text, self.at)
            if repeat is None and digits.endswith("."):
                repeat = _REPEAT_PARENS.match(self.text, self.at)
            if repeat:
                self.at = repeat.end()
                return repeating(digits, "".join(filter(None, repeat.groups())))
            if ellipsis := _ELLIPSIS.match(self.text, self.at):
                self.at = ellipsis.end()
                same = re.search(r"(\d)\1\1$|(\d{2,12})\2$", digits)
                return repeating(digits, same[1] or same[2]) if same else Fraction(digits)
        value = Fraction(digits.rstrip("."))
        if exponent := _EXPONENT.match(self.text, self.at):
            power = int(exponent.group(1))
            if abs(power) > _MAX_EXPONENT:
                raise Unreadable("an exponent out of range")
            self.at = exponent.end()
            value *= Fraction(10) ** power
        return value


def lex(text: str) -> list[Token]:
    """Tokens of a cleaned answer.

    Raises:
        Unreadable: A brace of a text command never closes, or text is nested too deeply.
    """
    tokens = _Lexer(text, False, 0).run()
    depth = 0
    for token in tokens:
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        if depth > _MAX_DEPTH:
            raise Unreadable("nested too deeply")
    return tokens


def closing(tokens: list[Token], start: int) -> int:
    """Index of the bracket that closes the one at ``start``.

    Parentheses and square brackets may be mixed, as in half-open intervals.

    Raises:
        Unreadable: It never closes, or closes with another kind of bracket.
    """
    mixed = {")": "(", "]": "(", "(": "(", "[": "("}
    pairs = {"}": "{", "\\}": "\\{", ">": "<", "\\rfloor": "\\lfloor", "\\rceil": "\\lceil"}
    stack: list[str] = []
    for index in range(start, len(tokens)):
        token = tokens[index]
        if token.kind is Kind.OPEN:
            stack.append(mixed.get(token.text, token.text))
        elif token.kind is Kind.CLOSE:
            want = mixed.get(token.text) or pairs[token.text]
            if not stack or stack.pop() != want:
                raise Unreadable("brackets that do not match")
            if not stack:
                return index
    raise Unreadable("a bracket that never closes")
