# SPDX-License-Identifier: Apache-2.0
"""Tokens of one mathematical expression to a tree, by recursive descent.

Reads LaTeX and plain notation alike: implicit products, mixed numbers, functions with and without
brackets, subscripts as parts of names, degree and percent signs inside expressions. Two numerals
side by side are not a product; a letter run of up to four letters is one symbol per letter.
"""

from __future__ import annotations

from fractions import Fraction

from rlrun.env.answers.cursor import Cursor
from rlrun.env.answers.lexer import FUNCTIONS, Kind, Token, closing
from rlrun.env.answers.nodes import Constant, Node, Number, Operation, Symbol, Unreadable, number
from rlrun.env.answers.periods import periodic
from rlrun.env.answers.units import FIGURES

_ACCENTS = frozenset(
    r"\vec \hat \bar \overline \tilde \widehat \overrightarrow \dot \ddot \mathbb".split()
)
_VECTOR_ACCENTS = frozenset(r"\vec \hat \widehat \overrightarrow".split())
_UNIT_VECTORS = {"i": "i", "j": "j", "k": "k", "\\imath": "i", "\\jmath": "j"}
_NEVER_SYMBOLS = frozenset(
    r"\pm \mp \times \cdot \int \iint \oint \sum \prod \lim \choose \over \begin \end \le \ge \ne "
    r"\cup \cap \in \notin \setminus \approx \sim \equiv \pmod \mod \bmod \to \infty \ldots \iff "
    r"\Rightarrow \implies \mapsto \subset \subseteq \wedge \vee \neg \not \max \min \gcd".split()
)
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_CONSTANTS = {"\\pi": Constant("pi"), "\\infty": Constant("oo")}
_LETTER_CONSTANTS = {"e": Constant("e"), "i": Constant("i")}
_PRODUCT_SIGNS = ("\\times", "\\cdot", "*", "/")
_DEGREE = Operation("div", (Constant("pi"), number(180)))
_MAX_TREE_DEPTH = 150
_HALF = Number(Fraction(1, 2))
_LONGEST_PRODUCT = 4


class _Parser(Cursor):
    def expression(self) -> Node:
        self.enter()
        result = self._first_term()
        while self.next_is("+", "-", "\\pm", "\\mp"):
            sign = self.take().text
            term = self.term()
            if sign == "-":
                term = Operation("neg", (term,))
            name = {"\\pm": "pm", "\\mp": "mp"}.get(sign, "add")
            result = Operation(name, (result, term))
        self.depth -= 1
        return result

    def _first_term(self) -> Node:
        if self.next_is("\\pm", "\\mp"):
            return Operation(self.take().text[1:], (self.term(),))
        return self.term()

    def term(self) -> Node:
        result = self.signed()
        while True:
            if self.next_is(*_PRODUCT_SIGNS):
                name = "div" if self.take().text == "/" else "mul"
                result = Operation(name, (result, self.signed()))
            elif self._starts_factor():
                result = Operation("mul", (result, self.power()))
            else:
                return result

    def signed(self) -> Node:
        self.enter()
        if self.next_is("-"):
            self.take()
            result: Node = Operation("neg", (self.signed(),))
        elif self.next_is("+"):
            self.take()
            result = self.signed()
        else:
            result = self.power()
        self.depth -= 1
        return result

    def _starts_factor(self) -> bool:
        token = self.peek()
        if token is None:
            return False
        if token.kind is Kind.NUMBER:
            previous = self.tokens[self.at - 1]
            if previous.kind is not Kind.CLOSE and previous.text != "!" and not self.letters:
                raise Unreadable("two numerals side by side")
            return True
        if token.kind is Kind.COMMAND:
            return token.text not in _NEVER_SYMBOLS or token.text == "\\infty"
        if token.text == "|":
            return self.bars == 0
        return token.kind in (Kind.RUN, Kind.OPEN)

    def power(self) -> Node:
        self.enter()
        base = self.primary()
        while True:
            if self.next_is("^"):
                self.take()
                base = self._raised(base)
            elif self.next_is("!"):
                self.take()
                if self.next_is("!"):
                    raise Unreadable("a double factorial")
                base = Operation("factorial", (base,))
            elif self.next_is("%"):
                self.take()
                base = Operation("div", (base, number(100)))
            else:
                self.depth -= 1
                return base

    def _raised(self, base: Node) -> Node:
        if self.degree_sign():
            return Operation("mul", (base, _DEGREE))
        return Operation("pow", (base, self.script()))

    def script(self) -> Node:
        """An exponent: a group, or one signed factor with powers to its right."""
        self.enter()
        if self.next_is("-", "+"):
            sign = self.take().text
            value = self.script()
            result: Node = Operation("neg", (value,)) if sign == "-" else value
        else:
            result = self.primary()
            if self.next_is("^"):
                self.take()
                result = Operation("pow", (result, self.script()))
            elif self.next_is("!"):
                self.take()
                result = Operation("factorial", (result,))
        self.depth -= 1
        return result

    def primary(self) -> Node:
        token = self.take()
        if token.kind is Kind.NUMBER:
            return self._numeral(token)
        if token.kind is Kind.RUN:
            return self._letter(token)
        if token.kind is Kind.OPEN:
            return self._bracketed(token)
        if token.kind is Kind.COMMAND:
            return self._command(token)
        if token.text == "|":
            return self._absolute()
        raise Unreadable(f"{token.text!r} is not the start of an expression")

    def _numeral(self, token: Token) -> Node:
        if self.next_is("_"):
            raise Unreadable("a numeral with a base inside an expression")
        if "." in token.text or token.value.denominator != 1:
            return Number(token.value)
        mixed = self.fraction_part()
        return Number(token.value) if mixed is None else Number(token.value + mixed)

    def _letter(self, token: Token) -> Node:
        if len(token.text) > 1:
            if len(token.text) > _LONGEST_PRODUCT:
                raise Unreadable(f"the word {token.text!r}")
            self.letters = [Token(Kind.RUN, c, upright=token.upright) for c in token.text]
            token = self.letters.pop(0)
        if not self.next_is("_", "'") and token.text in _LETTER_CONSTANTS:
            return _LETTER_CONSTANTS[token.text]
        return Symbol(token.text + self.suffix())

    def _bracketed(self, token: Token) -> Node:
        if token.text == "\\{" or token.text == "<":
            raise Unreadable("a set or vector inside an expression")
        end = closing(self.tokens, self.at - 1)
        allowed = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
        if self.tokens[end].text != allowed[token.text]:
            raise Unreadable("an interval inside an expression")
        inside = self._sub(self.tokens[self.at : end])
        self.at = end + 1
        rounding = {"\\lfloor": "floor", "\\lceil": "ceil"}.get(token.text)
        return Operation(rounding, (inside,)) if rounding else inside

    def _sub(self, tokens: list[Token]) -> Node:
        parser = _Parser(tokens)
        parser.depth = self.depth + 1
        return parser.whole()

    def _absolute(self) -> Node:
        self.bars += 1
        inside = self.expression()
        if not self.next_is("|"):
            raise Unreadable("a bar that never closes")
        self.take()
        self.bars -= 1
        return Operation("abs", (inside,))

    def _argument(self) -> Node:
        """A LaTeX argument: a group, or one token (a numeral gives up its first digit only)."""
        token = self.peek()
        if token is not None and token.kind is Kind.NUMBER and token.text.isdigit():
            self.at += 1
            if len(token.text) > 1:
                rest = token.text[1:]
                self.tokens = list(self.tokens)
                self.at -= 1
                self.tokens[self.at] = Token(Kind.NUMBER, rest, value=Fraction(rest))
            return Number(Fraction(token.text[0]))
        return self.primary()

    def _command(self, token: Token) -> Node:
        name = token.text[1:]
        if token.text == "\\frac":
            top = self._argument()
            return Operation("div", (top, self._argument()))
        if token.text == "\\binom":
            top = self._argument()
            return Operation("binom", (top, self._argument()))
        if token.text == "\\sqrt":
            return self._root()
        if name in FUNCTIONS:
            return self._function(_ALIASES.get(name, name))
        if token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        if token.text in _ACCENTS:
            inside = "".join(part.text for part in self.raw_argument())
            if token.text in _VECTOR_ACCENTS and inside in _UNIT_VECTORS:
                return Symbol(f"hat({_UNIT_VECTORS[inside]})" + self.suffix())
            return Symbol(f"{name}({inside})" + self.suffix())
        if token.text in FIGURES and (figure := self.peek()) and figure.kind is Kind.RUN:
            points = self.take().text
            # The angle ABC is the angle CBA; of a triangle the order of its points says nothing.
            turned = points[::-1] if token.text == "\\angle" else "".join(sorted(points))
            return Symbol(f"{token.text} {min(points, turned)}" + self.suffix())
        if token.text in _NEVER_SYMBOLS or not name.isalpha():
            raise Unreadable(f"{token.text} inside an expression")
        return Symbol(token.text + self.suffix())

    def _root(self) -> Node:
        if not self.next_is("["):
            # Plain "sqrt 12" means the whole numeral, unlike the arguments of a fraction.
            return Operation("pow", (self.primary(), _HALF))
        end = closing(self.tokens, self.at)
        if self.tokens[end].text != "]":
            raise Unreadable("brackets that do not match")
        index = self._sub(self.tokens[self.at + 1 : end])
        self.at = end + 1
        return Operation("root", (self.primary(), index))

    def _function(self, name: str) -> Node:
        exponent: Node | None = None
        base: Node | None = None
        while self.next_is("^", "_"):
            if self.take().text == "^":
                exponent = self.script()
            else:
                base = self.primary()
        inverse = exponent == Operation("neg", (number(1),))
        if inverse and name in ("sin", "cos", "tan", "cot", "sec", "csc"):
            name, exponent = "arc" + name, None
        result = self._applied(name, self._function_argument(), base)
        return result if exponent is None else Operation("pow", (result, exponent))

    @staticmethod
    def _applied(name: str, argument: Node, base: Node | None) -> Node:
        if name in ("log", "lg"):
            return Operation("log", (argument, base or number(10)))
        if base is not None:
            raise Unreadable(f"a subscript on {name}")
        if name == "ln":
            return Operation("log", (argument, Constant("e")))
        if name == "exp":
            return Operation("pow", (Constant("e"), argument))
        return Operation(name, (argument,))

    def _function_argument(self) -> Node:
        """A bracket right after the name, else the product up to the next sign or function."""
        if self.next_is("(", "[", "{"):
            return self.primary()
        result = self.signed()
        while self._starts_factor():
            token = self.peek()
            if token is None or token.text[1:] in FUNCTIONS:
                break
            result = Operation("mul", (result, self.power()))
        return result

    def whole(self) -> Node:
        result = self.expression()
        if self.next_is("\\choose", "\\over"):
            name = "binom" if self.take().text == "\\choose" else "div"
            result = Operation(name, (result, self.expression()))
        if self.peek() is not None:
            raise Unreadable(f"{self.take().text!r} after an expression")
        return result


def parse(tokens: list[Token]) -> Node:
    """The tree of an expression.

    Raises:
        Unreadable: The tokens are not one whole expression.
    """
    if (value := periodic(tokens)) is not None:
        return Number(value)
    tree = _Parser(tokens).whole()
    level = [tree]
    for _ in range(_MAX_TREE_DEPTH):
        level = [arg for node in level if isinstance(node, Operation) for arg in node.args]
        if not level:
            return tree
    raise Unreadable("too many operations")
