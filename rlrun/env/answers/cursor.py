# SPDX-License-Identifier: Apache-2.0
"""A position in a token list, and the small things that are read without grammar."""

from __future__ import annotations

from fractions import Fraction

from rlrun.env.answers.lexer import Kind, Token, closing
from rlrun.env.answers.nodes import Unreadable

_MAX_DEPTH = 120


class Cursor:
    """Reads tokens one by one.

    Args:
        tokens: What is read.

    Attributes:
        at: Index of the next token.
        letters: Letters of a run that is being read one by one; they come before ``tokens[at]``.
        depth: Grammar rules entered and not left.
        bars: Absolute values entered and not left.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth, self.bars = tokens, 0, 0, 0
        self.letters: list[Token] = []

    def peek(self) -> Token | None:
        """The next token, if there is one."""
        if self.letters:
            return self.letters[0]
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> Token:
        """The next token, consumed."""
        token = self.peek()
        if token is None:
            raise Unreadable("an expression that ends too early")
        if self.letters:
            self.letters.pop(0)
        else:
            self.at += 1
        return token

    def next_is(self, *texts: str) -> bool:
        """Whether the next token is one of some signs."""
        token = self.peek()
        return token is not None and token.kind is not Kind.WORD and token.text in texts

    def enter(self) -> None:
        """Counts a level of nesting."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Unreadable("nested too deeply")

    def degree_sign(self) -> bool:
        """Consumes the superscript circle of degrees, with or without braces."""
        if self.next_is("\\circ"):
            self.take()
            return True
        ahead = [token.text for token in self.tokens[self.at : self.at + 3]]
        if not self.letters and ahead == ["{", "\\circ", "}"]:
            self.at += 3
            return True
        return False

    def fraction_part(self) -> Fraction | None:
        """Consumes the proper fraction of a mixed number after its whole part."""
        ahead = self.tokens[self.at : self.at + 7]
        texts = [token.text for token in ahead]
        if texts[:2] == ["\\frac", "{"] and texts[3:5] == ["}", "{"] and texts[6:] == ["}"]:
            top, bottom, length = ahead[2], ahead[5], 7
        elif len(ahead) >= 3 and texts[1] == "/" and ahead[0].spaced:
            top, bottom, length = ahead[0], ahead[2], 3
        elif len(ahead) >= 2 and texts[0] == "\\frac" and len(texts[1]) == 2:
            digits = ahead[1]
            if digits.kind is not Kind.NUMBER or not digits.text.isdigit():
                return None
            top, bottom = (Token(Kind.NUMBER, d, value=Fraction(d)) for d in digits.text)
            length = 2
        else:
            return None
        if not all(part.kind is Kind.NUMBER and part.text.isdigit() for part in (top, bottom)):
            return None
        if not 0 < top.value < bottom.value:
            return None
        self.at += length
        return top.value / bottom.value

    def suffix(self) -> str:
        """Primes and subscript of a symbol, as text."""
        name = ""
        while self.next_is("'"):
            name += self.take().text
        if self.next_is("_"):
            self.take()
            name += "_" + "".join(token.text for token in self.raw_argument())
        return name

    def raw_argument(self) -> list[Token]:
        """The tokens of a braced group, or the next token alone."""
        token = self.take()
        if token.text != "{" or token.kind is not Kind.OPEN:
            return [token]
        end = closing(self.tokens, self.at - 1)
        inside = self.tokens[self.at : end]
        self.at = end + 1
        return inside
