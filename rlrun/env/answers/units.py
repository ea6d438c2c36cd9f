# SPDX-License-Identifier: Apache-2.0
"""Units at the end of a number (currencies also at the front): which tokens, what they mean.

A unit of the table has a dimension and a factor, so 350 mm equals 35 cm and differs from 35 m. A
word that is not in the table ("apples", "square units") only says what is counted and is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rlrun.env.answers.lexer import Kind, Token

_TABLE: dict[str, tuple[tuple[str, str], ...]] = {
    # dimension: (factor to the base unit, names)
    "length": (
        ("1/1000", "mm millimeter millimetre"),
        ("1/100", "cm centimeter centimetre"),
        ("1/10", "dm decimeter decimetre"),
        ("1", "m meter metre"),
        ("1000", "km kilometer kilometre"),
        ("0.0254", "in inch inches"),
        ("0.3048", "ft foot feet"),
        ("0.9144", "yd yard"),
        ("1609.344", "mi mile"),
    ),
    "mass": (
        ("1/1000000", "mg milligram"),
        ("1/1000", "g gram"),
        ("1", "kg kilogram kilo"),
        ("1000", "tonne"),
        ("0.45359237", "lb lbs"),
        ("0.028349523125", "oz ounce"),
    ),
    "time": (
        ("1/1000", "ms millisecond"),
        ("1", "s sec second"),
        ("60", "min minute"),
        ("3600", "h hr hrs hour"),
        ("86400", "day"),
        ("604800", "week wk"),
    ),
    "calendar": (("1", "month"), ("12", "year yr yrs")),
    "volume": (
        ("1/1000", "ml mL milliliter millilitre"),
        ("1", "l L liter litre"),
    ),
    "dollar": (("1", "$ dollar usd USD"), ("1/100", "cent ¢")),
    "euro": (("1", "€ euro EUR"),),
    "pound": (("1", "£ GBP"),),
    "yen": (("1", "¥ yen JPY"),),
    "rupee": (("1", "₹ Rs rupee INR"),),
    "percent": (("1", "% percent"),),
    "degree": (("1", "° degree deg"),),
    "radian": (("1", "rad radian"),),
    "celsius": (("1", "celsius °C"),),
    "fahrenheit": (("1", "fahrenheit °F"),),
    "voltage": (("1", "V volt"),),
    "current": (("1", "A amp ampere"),),
    "force": (("1", "N newton"),),
    "energy": (
        ("1.602176634e-19", "eV"),
        ("1", "J joule"),
        ("4.184", "cal calorie"),
        ("1000", "kJ kilojoule"),
        ("4184", "kcal"),
    ),
    "pressure": (("1", "Pa pascal"), ("1000", "kPa"), ("101325", "atm")),
    "charge": (("1", "C coulomb"),),
    "temperature": (("1", "K kelvin"),),
    "substance": (("1", "mol mole"),),
    "power": (("1", "W watt"), ("1000", "kW kilowatt")),
    "frequency": (("1", "Hz hertz"),),
}
_UNITS = {
    name: (dimension, Fraction(factor))
    for dimension, rows in _TABLE.items()
    for factor, names in rows
    for name in names.split()
}
_COMPOUND = {"mph": ("mi", "h"), "kph": ("km", "h"), "kmh": ("km", "h"), "fps": ("ft", "s")}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3}
_NO_UNITS = frozenset("plus minus over point factorial below not wrong squared cubed".split())
"""Words that change what a numeral before them says."""
FIGURES = ("\\angle", "\\triangle")
"""Behind these stand names of points, not units."""
_FRONT = frozenset("$ € £ ¥ ₹ Rs USD EUR GBP INR".split())
_CURRENCY = frozenset("dollar euro pound yen rupee".split())
POWERS_OF_TEN = {"ten": 1, "hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Exponents of the words that multiply a numeral."""
DENOMINATORS = {"third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
DENOMINATORS |= {"ninth": 9, "halve": 2}
"""Singular of the words that divide a numeral; quarters may be coins or hours."""
_MAGNITUDES = {name + "th": Fraction(1, 10**power) for name, power in POWERS_OF_TEN.items()}
_MAGNITUDES |= {f"{name}s": Fraction(1, part) for name, part in DENOMINATORS.items()}
_MAGNITUDES |= {name: Fraction(10**power) for name, power in POWERS_OF_TEN.items() if power > 1}


@dataclass(frozen=True, slots=True)
class Unit:
    """A product of units of the table.

    Attributes:
        dimensions: (dimension, exponent), sorted, exponents not 0.
        factor: To the product of the base units.
    """

    dimensions: tuple[tuple[str, int], ...]
    factor: Fraction

    def is_only(self, dimension: str) -> bool:
        """Whether this is a plain unit of one dimension."""
        return self.dimensions == ((dimension, 1),)


def _lookup(word: str) -> tuple[str, Fraction] | None:
    for spelling in (word, word.lower(), word.lower().removesuffix("s")):
        if spelling in _UNITS and (len(spelling) > 1 or spelling == word):
            return _UNITS[spelling]
    return None


def known(word: str) -> bool:
    """Whether a word names a unit of the table."""
    return _lookup(word) is not None or word in _COMPOUND or word == "sq"


def is_wordy(token: Token) -> bool:
    """Whether a letter run after a number is a word or unit rather than a product of symbols."""
    run = token.text
    if token.kind is Kind.WORD:
        return True
    if token.kind is not Kind.RUN:
        return False
    if len(run) == 1:
        return token.upright and known(run)
    if token.upright or known(run):
        return True
    ordered = all(ord(a) < ord(b) for a, b in zip(run, run[1:], strict=False))
    return (len(run) > 4 or (len(run) == 4 and not ordered)) or (len(run) == 3 and token.spaced)


def _is_unit_token(tokens: list[Token], index: int) -> bool:
    token = tokens[index]
    if is_wordy(token) or (token.kind is Kind.MARK and token.text in "%/-"):
        return True
    if token.text in ("C", "F") and "\\circ" in [t.text for t in tokens[max(index - 2, 0) : index]]:
        return True
    if token.text in ("\\circ", "^", "\\cdot", "{", "}"):
        return True
    after_power = index > 0 and tokens[index - 1].text in ("^", "{", "-")
    return token.kind is Kind.NUMBER and token.text in ("1", "2", "3") and after_power


def split_unit(tokens: list[Token]) -> tuple[list[Token], Unit | None, bool]:
    """Takes the unit off a quantity.

    Returns:
        The tokens of the number, the unit (None if there is none or it is not in the table) and
        whether anything was taken off.
    """
    if tokens and tokens[0].text in FIGURES:
        return tokens, None, False
    front = [token.text for token in tokens[:1] if token.text in _FRONT and token.kind != Kind.MARK]
    sign = tokens[:1] if tokens and tokens[0].text == "-" else []
    if sign and len(tokens) > 1 and tokens[1].text in _FRONT:
        front = [tokens[1].text]
    after = tokens[len(sign) + 1 :]
    if front and after and after[0].text == ".":  # "Rs. 500"
        after = after[1:]
    body = sign + after if front else tokens
    start = len(body)
    while start > 0 and _is_unit_token(body, start - 1):
        start -= 1
    # The tail must begin with a unit: give back exponents, brackets and signs of the number itself.
    while start < len(body) and not _begins_unit(body, start):
        start += 1
    if start == 0:
        return tokens, None, False
    number, tail = body[:start], body[start:]
    if not front and not tail:
        return tokens, None, False
    unit = _meaning(tail)
    if unit is None and any(token.text.lower() in _NO_UNITS for token in tail):
        return tokens, None, False
    if front:
        unit = unit if unit is not None and _is_currency(unit) else _single(front[0])
    return number, unit, True


def in_figures(tokens: list[Token]) -> list[Token]:
    """The tokens with "million" after a numeral as a factor."""
    figures: list[Token] = []
    for token in tokens:
        name = token.text.lower()
        factor = _MAGNITUDES.get(name, _MAGNITUDES.get(name.removesuffix("s")))
        after = bool(figures) and (figures[-1].kind is Kind.NUMBER or figures[-1].text == "}")
        if factor is not None and token.kind in (Kind.RUN, Kind.WORD) and after:
            figures.append(Token(Kind.COMMAND, "\\times"))
            figures.append(Token(Kind.NUMBER, str(factor), value=factor))
        else:
            figures.append(token)
    return figures


def _is_currency(unit: Unit) -> bool:
    return len(unit.dimensions) == 1 and unit.dimensions[0][0] in _CURRENCY


def _begins_unit(tokens: list[Token], index: int) -> bool:
    token = tokens[index]
    if is_wordy(token) or (token.kind is Kind.MARK and token.text == "%"):
        return True
    following = [t.text for t in tokens[index + 1 : index + 4]]
    return token.text == "^" and (following[:1] == ["\\circ"] or following == ["{", "\\circ", "}"])


def _single(word: str) -> Unit | None:
    found = _lookup(word)
    return None if found is None else Unit(((found[0], 1),), found[1])


def _meaning(tail: list[Token]) -> Unit | None:
    """The unit that the words of a tail name; None if a word is unknown."""
    words = [t.text for t in tail if t.text not in ("{", "}", "^", "\\cdot", "and")]
    if words[:1] == ["\\circ"]:
        scale = {"C": "celsius", "F": "fahrenheit", "c": "celsius", "f": "fahrenheit"}
        words = [scale.get(words[1], words[1])] if len(words) > 1 else ["degree"]
    if words[:1] in (["degree"], ["degrees"]) and len(words) > 1:
        words = words[1:]
    exponents: dict[str, int] = {}
    factor = Fraction(1)
    sign, pending, last = 1, 1, ("", Fraction(1), 0)
    for word in words:
        if word in ("/", "per"):
            sign = -1
        elif word == "-":
            pending = -pending
        elif word in _POWERS and word not in ("squared", "cubed"):
            pending = _POWERS[word]
        elif word.isdigit() or word in _POWERS:
            dimension, size, power = last
            raised = (int(word) if word.isdigit() else _POWERS[word]) * pending * power
            exponents[dimension] = exponents.get(dimension, 0) + raised - power
            factor *= size ** (raised - power)
            pending = 1
        else:
            names = _COMPOUND.get(word, (word,))
            for place, name in enumerate(names):
                found = _lookup(name)
                if found is None:
                    return None
                power = pending * (sign if place == 0 else -1)
                last = (*found, power)
                exponents[found[0]] = exponents.get(found[0], 0) + power
                factor *= found[1] ** power
            pending = 1
    kept = tuple(sorted((name, power) for name, power in exponents.items() if power))
    return Unit(kept, factor) if kept else None
