# SPDX-License-Identifier: Apache-2.0
"""Token lists to answers: listings, brackets, unions, relations, quantities with units."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from rlrun.env.answers import regions
from rlrun.env.answers.cursor import Cursor
from rlrun.env.answers.lexer import FUNCTIONS, Kind, Token, closing
from rlrun.env.answers.measures import compound, single_letter_unit
from rlrun.env.answers.nodes import (
    Symbol,
    Unreadable,
    choose_sign,
    has_sign_choice,
    symbols,
)
from rlrun.env.answers.parser import parse
from rlrun.env.answers.relations import INEQUALITIES, RELATIONS, read_relation
from rlrun.env.answers.shapes import (
    Answer,
    Colons,
    Listing,
    Named,
    Order,
    Piece,
    Region,
    Scalar,
)
from rlrun.env.answers.units import Unit, in_figures, is_wordy, split_unit
from rlrun.env.answers.wording import text_answer

_MAX_ITEMS = 100
_LOGIC = frozenset({"\\wedge", "\\vee"})
_SEPARATORS = frozenset({",", ";", "and", "or", "&"}) | _LOGIC
_EITHER = frozenset({"or", "\\vee"})
_UNION, _INTERSECTION = frozenset({"\\cup"}), frozenset({"\\cap"})
_POSITIVE = ("^+", "^{+}", "_+", "_{+}", "_{>0}")
_ABOUT = frozenset({"about", "approximately", "approx", "around", "exactly"})
_WHOLE = tuple(Symbol(f"mathbb({letter})") for letter in "ZNQ")
_SHORT_WORDS = frozenset("no ok up on off yes odd true red".split())


def split_top(
    tokens: list[Token], separators: frozenset[str]
) -> tuple[list[list[Token]], list[str]]:
    """The token lists between separators that stand outside all brackets, and the separators."""
    parts: list[list[Token]] = [[]]
    found: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        bracket = token.kind in (Kind.OPEN, Kind.CLOSE)
        if depth == 0 and not bracket and token.text in separators:
            parts.append([])
            found.append(token.text)
        else:
            parts[-1].append(token)
    return parts, found


def read_tokens(tokens: list[Token]) -> Answer:
    """What the tokens of a whole answer, or of a bracket's inside, say.

    Raises:
        Unreadable: They are none of the known forms.
    """
    parts, separators = split_top(tokens, _SEPARATORS)
    if len(parts) == 1:
        return _read_part(parts[0])
    if set(separators) <= {"and", ","}:
        joined_up = [token for token in tokens if token.text not in ("and", ",")]
        if (sum_of_units := compound(joined_up)) is not None:
            return sum_of_units
        if separators == ["and"] and _is_mixed(*parts):
            return _read_part(joined_up)
    kept = [parts[0]]
    joined: list[str] = []
    for separator, part in zip(separators, parts[1:], strict=True):
        if kept[-1]:
            joined.append(separator)
            kept.append(part)
        elif separator in ("and", "or") and joined:
            # "1, 2, and 3": the comma and the word are one separator.
            joined[-1], kept[-1] = separator, part
        else:
            raise Unreadable("a separator with nothing before it")
    if not kept[-1]:
        raise Unreadable("a separator with nothing after it")
    if len(kept) > _MAX_ITEMS:
        raise Unreadable(f"more than {_MAX_ITEMS} items")
    return _combined([_read_part(part) for part in kept], joined)


def _is_mixed(whole: list[Token], part: list[Token]) -> bool:
    """Whether "2 and 3/4 hours" says one quantity; without a unit it may be two numbers."""
    if len(whole) != 1 or whole[0].kind is not Kind.NUMBER:
        return False
    figures = Cursor(part)
    proper = figures.fraction_part() is not None
    unit = figures.peek()
    return proper and unit is not None and is_wordy(unit)


def _says_where(answer: Answer) -> bool:
    """Whether an answer only says what kind of number a letter is: "x in R", "k in Z"."""
    if not isinstance(answer, Named):
        return False
    kind = answer.value.node if isinstance(answer.value, Scalar) else answer.value
    return kind == regions.REALS or kind in _WHOLE


def _combined(answers: list[Answer], separators: list[str]) -> Answer:
    kept = [index for index, answer in enumerate(answers) if not _says_where(answer)]
    if 0 < len(kept) < len(answers):
        answers, separators = [answers[i] for i in kept], [separators[i - 1] for i in kept[1:]]
    if len(answers) == 1:
        return answers[0]
    if _LOGIC & set(separators) and not any(isinstance(a, Named | Region) for a in answers):
        raise Unreadable("a formula of logic")
    if any(isinstance(answer, Region) for answer in answers) and set(separators) <= _EITHER:
        answers = [_point(answer) for answer in answers]
    found = [answer for answer in answers if isinstance(answer, Region) and answer.variable]
    if len(found) == len(answers) and len({region.variable for region in found}) == 1:
        return _combined_regions(found, separators)
    either = not _EITHER.isdisjoint(separators)
    first = answers[0]
    named = [answer for answer in answers if isinstance(answer, Named)]
    if isinstance(first, Named) and (
        len(named) == 1 or (len(named) == len(answers) and len({n.name for n in named}) == 1)
    ):
        values = [a.value if isinstance(a, Named) else a for a in answers]
        return replace(first, value=_list(values, either or isinstance(first.node, Symbol)))
    return _list(answers, either)


def _point(answer: Answer) -> Answer:
    """The set of the one number of "x = 5", which stands beside inequalities."""
    if isinstance(answer, Named) and isinstance(answer.node, Symbol):
        if isinstance(answer.value, Scalar) and not symbols(answer.value.node):
            return Region((regions.point(answer.value.node),), answer.node.name)
    return answer


def _list(answers: list[Answer], alternatives: bool = False) -> Listing:
    """One list of the answers; alternatives from a plus-minus sign are items of their own."""
    items: list[Answer] = []
    for answer in answers:
        if isinstance(answer, Listing) and answer.order is Order.LIST:
            items += answer.items
        else:
            items.append(answer)
    return Listing(Order.LIST, tuple(items), alternatives=alternatives)


def _combined_regions(found: list[Region], separators: list[str]) -> Answer:
    result = found[0]
    for separator, region in zip(separators, found[1:], strict=True):
        both = None
        if separator not in _EITHER:
            both = regions.intersection(result, region) or regions.opposite(result, region)
        # "x < -2 and x > 2" can only mean both parts of the solution.
        result = both if both is not None and both.pieces else regions.union(result, region)
    return result


def _read_part(tokens: list[Token]) -> Answer:
    parts, _ = split_top(tokens, _UNION)
    if len(parts) > 1 and all(split_top(part, INEQUALITIES)[1] for part in parts):
        return _union([_read_part(part) for part in parts])
    sides, signs = split_top(tokens, RELATIONS)
    if signs:
        return read_relation(sides, signs, _read_part)
    if len(parts) > 1:
        return _union([_read_part(part) for part in parts])
    both, caps = split_top(tokens, _INTERSECTION)
    if caps:
        return _intersection([as_region(_read_part(part)) for part in both])
    whole, less = split_top(tokens, frozenset({"\\setminus"}))
    if len(less) == 1:
        return _without(as_region(_read_part(whole[0])), whole[1])
    terms, colons = split_top(tokens, frozenset({":"}))
    if len(colons) == 1 and terms[0] and _is_text(terms[0]):
        return Named("".join(token.text for token in terms[0]), None, _read_part(terms[1]), True)
    if 1 <= len(colons) <= 2:
        return Colons(tuple(parse(term) for term in terms), False, "")
    return _read_value(tokens)


def _union(parts: list[Answer]) -> Answer:
    if all(isinstance(part, Listing) and part.order is Order.SET for part in parts):
        items = tuple(i for part in parts if isinstance(part, Listing) for i in part.items)
        return Listing(Order.SET, items)
    result: Region | None = None
    for part in parts:
        region = as_region(part)
        if region is None:
            raise Unreadable("a union of things that are not sets")
        result = region if result is None else regions.union(result, region)
    if result is None:
        raise Unreadable("an empty union")
    return result


def _intersection(parts: list[Region | None]) -> Region:
    result = parts[0]
    for part in parts[1:]:
        result = regions.intersection(result, part) if result and part else None
    if result is None:
        raise Unreadable("an intersection of things that are no sets with rational ends")
    return result


def as_region(answer: Answer) -> Region | None:
    """An answer as a set of real numbers, if it can be one."""
    if isinstance(answer, Region):
        return answer
    if not isinstance(answer, Listing):
        return None
    if answer.order is Order.LIST:
        regions_of_items = [as_region(item) for item in answer.items]
        found = [region for region in regions_of_items if region is not None]
        if not found or len(found) < len(answer.items):
            return None
        several = len({region.variable for region in found} - {""}) > 1
        return None if several else reduce(regions.union, found)
    nodes = [item.node for item in answer.items if isinstance(item, Scalar)]
    if len(nodes) != len(answer.items):
        return None
    if answer.order is Order.SET:
        return Region(tuple(regions.point(node) for node in nodes))
    if answer.order is Order.TUPLE and len(nodes) == 2 and answer.brackets[:1] in ("(", "["):
        closed = (answer.brackets[0] == "[", answer.brackets[1] == "]")
        return Region((Piece(nodes[0], nodes[1], *closed),))
    return None


def _is_text(tokens: list[Token]) -> bool:
    if not all(t.kind in (Kind.WORD, Kind.RUN) and t.text != "$" for t in tokens):
        return False
    if len(tokens) == 1 and tokens[0].kind is Kind.RUN:
        return _is_word(tokens[0].text)
    return any(t.kind is Kind.WORD or len(t.text) > 2 for t in tokens)


def _is_word(run: str) -> bool:
    """Whether letters alone are a word ("dog") rather than a product of symbols ("xyz")."""
    if run.lower() in _SHORT_WORDS:
        return True
    if not 3 <= len(run) <= 4 or run.isupper():
        return len(run) > 2
    run = run.lower()
    ordered = all(a < b for a, b in zip(run, run[1:], strict=False))
    return not ordered and any(letter in "aeiou" for letter in run)


def _read_value(tokens: list[Token]) -> Answer:
    if not tokens:
        raise Unreadable("nothing between two signs")
    if _is_text(tokens):
        return text_answer(" ".join(token.text for token in tokens))
    texts = [token.text for token in tokens]
    if texts == ["\\emptyset"]:
        return Listing(Order.SET, ())
    if texts[:4] == ["\\mathbb", "{", "R", "}"]:
        return _reals(tokens[4:])
    first = tokens[0]
    if first.kind is Kind.RUN and len(first.text) == 1 and "," in texts and texts[1] == "(":
        # "P(3, -4)" names the point.
        first, tokens = tokens[1], tokens[1:]
    if first.kind is Kind.OPEN and closing(tokens, 0) == len(tokens) - 1:
        if first.text not in ("\\lfloor", "\\lceil"):
            return _bracketed(first.text, tokens[-1].text, tokens[1:-1])
    return _quantity(tokens)


def _reals(rest: list[Token]) -> Answer:
    if not rest:
        return regions.REALS
    if "".join(token.text for token in rest) in _POSITIVE:
        return regions.POSITIVE
    return _without(regions.REALS if rest[0].text == "-" else None, rest[1:])


def _without(region: Region | None, tokens: list[Token]) -> Region:
    """The numbers of a set that are not in another one."""
    rest = None
    excluded = _read_part(tokens)
    if region is not None and isinstance(excluded, Listing) and excluded.order is Order.SET:
        nodes = [item.node for item in excluded.items if isinstance(item, Scalar)]
        rest = regions.without(region, nodes) if len(nodes) == len(excluded.items) else None
    elif region is not None and (hole := as_region(excluded)) is not None:
        outside = regions.complement(hole)
        rest = None if outside is None else regions.intersection(region, outside)
    if rest is None:
        raise Unreadable("an unknown set of real numbers")
    return rest


def _bracketed(opening: str, ending: str, inside: list[Token]) -> Answer:
    if opening == "{":
        return read_tokens(inside)
    if opening == "\\{":
        return _set(inside)
    parts, separators = split_top(inside, frozenset({",", ";"}))
    if len(set(separators)) > 1:
        raise Unreadable("commas and semicolons between the same brackets")
    if len(parts) == 1:
        if opening + ending not in ("()", "[]", "<>"):
            raise Unreadable("an interval with one end")
        return read_tokens(inside)
    if len(parts) > _MAX_ITEMS:
        raise Unreadable(f"more than {_MAX_ITEMS} items")
    if len(parts) != 2 and opening + ending in ("(]", "[)"):
        raise Unreadable("an interval with more than two ends")
    items = tuple(_read_part(part) for part in parts)
    return Listing(Order.TUPLE, items, opening + ending)


def _set(inside: list[Token]) -> Answer:
    if not inside:
        return Listing(Order.SET, ())
    for bar in ("|", ":"):
        parts, signs = split_top(inside, frozenset({bar}))
        if len(signs) == 1 and parts[0] and parts[1]:
            return read_tokens(parts[1])
    parts, _ = split_top(inside, _SEPARATORS)
    if len(parts) > _MAX_ITEMS:
        raise Unreadable(f"more than {_MAX_ITEMS} items")
    listed = _list([_read_part(part) for part in parts])
    return Listing(Order.SET, listed.items)


def _quantity(tokens: list[Token]) -> Answer:
    if tokens[0].text.lower() in _ABOUT and len(tokens) > 1:
        tokens = tokens[1:]
    tokens = in_figures(tokens)
    if (sum_of_units := compound(tokens)) is not None:
        return sum_of_units
    body, unit, taken = split_unit(tokens)
    if unit is not None and unit.is_only("degree") and any(t.text[1:] in FUNCTIONS for t in body):
        body, unit, taken = tokens, None, False
    if taken and len(body) < len(tokens) and body and body[0].kind is Kind.OPEN:
        if closing(body, 0) == len(body) - 1:
            return _with_unit(_bracketed(body[0].text, body[-1].text, body[1:-1]), unit)
    node = parse(body)
    letter = None if taken else single_letter_unit(tokens)
    if has_sign_choice(node):
        choices = (choose_sign(node, True), choose_sign(node, False))
        values = tuple(Scalar(choice, unit) for choice in choices)
        return Listing(Order.LIST, values, alternatives=True)
    rest = tokens[len(body) :] if taken and unit is None else []
    return Scalar(node, unit, letter, counted=" ".join(token.text.lower() for token in rest))


def _with_unit(answer: Answer, unit: Unit | None) -> Answer:
    if isinstance(answer, Scalar):
        return replace(answer, unit=unit)
    if isinstance(answer, Listing):
        return replace(answer, items=tuple(_with_unit(item, unit) for item in answer.items))
    return answer
