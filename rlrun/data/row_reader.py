# SPDX-License-Identifier: Apache-2.0
"""Turns a raw record into a Row: finds problem and answer, and says why where it cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import regex

from rlrun.config.data_schema import DataSource
from rlrun.data.bad_row import BadRow, shown
from rlrun.data.gym_rows import GYM_FIELD, gym_messages
from rlrun.data.messages import check_no_media, read_messages
from rlrun.errors import DataError
from rlrun.types import Message, Row

PROMPT_FIELDS = ("problem", "prompt", "messages")
PLACEHOLDER = "{problem}"
MAX_ANSWER_EXPONENT = 400
"""Numbers beyond 10 to the power of this are not written out as an answer."""

PATTERN_SECONDS = 5.0
"""CPU time that a pattern may take for one answer; usual ones take microseconds."""


class NumberText(float):
    """A JSON number with a fraction or exponent that still knows how it was written."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> NumberText:
        """Reads the number; raises ValueError if a float cannot hold it."""
        number = super().__new__(cls, text)
        if not math.isfinite(number):
            raise ValueError(f"number {shown(text)} is out of range")
        number.text = text
        return number

    def __reduce__(self) -> tuple[type[NumberText], tuple[str]]:
        return NumberText, (self.text,)


class AnswerPattern:
    """Finds the final answer in a worked solution.

    A pattern with exactly one group is a regular expression, of which the last match counts
    ("." matches line ends too); any other text is a marker, and the answer is what follows its
    last occurrence. Surrounding white space is removed.

    What a regular expression is, is up to Python's re; matched is by the package regex, which alone
    can be told to give up: nested repetitions may take a time exponential in the text's length.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._is_regex = False
        try:
            self._is_regex = re.compile(pattern, re.DOTALL).groups == 1
        except re.error:
            return

    def find(self, text: str, where: str) -> str:
        """The answer in ``text``, which stands at ``where``.

        Raises:
            BadRow: The pattern does not occur.
            DataError: It cannot be looked for in reasonable time.
        """
        if not self._is_regex:
            _, marker, answer = text.rpartition(self.pattern)
            found = answer if marker else None
        else:
            groups = self._groups(text, where)
            found = groups[-1] if groups else None
        if found is None:
            raise BadRow("answer pattern not found", f"{self.pattern!r} is not in {shown(text)}")
        return found.strip()

    def _groups(self, text: str, where: str) -> list[str | None]:
        """What the group of each match holds."""
        try:
            matches = regex.finditer(self.pattern, text, regex.DOTALL, timeout=PATTERN_SECONDS)
            return [match.group(1) for match in matches]
        except (TimeoutError, regex.error) as error:
            # Not a bad row: the others would take as long.
            why = f"takes more than {PATTERN_SECONDS:g} s for this answer"
            raise DataError(
                where,
                f"answer_pattern={self.pattern!r} "
                f"{why if isinstance(error, TimeoutError) else f'cannot be used: {error}'}",
                "Write it without repetitions inside of repetitions, such as (a+)+, or give a "
                "marker such as ####",
            ) from error


class RowReader:
    """Reads records by the field names, patterns and templates of a data source.

    Args:
        source: The settings.
        needs_answer: False where a source may leave the answer to its own scorer.
    """

    def __init__(self, source: DataSource, *, needs_answer: bool = True) -> None:
        self._prompt_field = source.prompt_field
        self._prompt_fields = (
            PROMPT_FIELDS if source.prompt_field is None else (source.prompt_field,)
        )
        # An empty name says that rows have no answer and the environment needs none.
        self._answer_field = "answer" if source.answer_field is None else source.answer_field
        self._needs_answer = needs_answer
        self._pattern = AnswerPattern(source.answer_pattern) if source.answer_pattern else None
        self._system_prompt = source.system_prompt
        self._template = source.prompt_template

    def read(self, record: Mapping[str, Any], row_id: str, where: str) -> Row:
        """The row of a record.

        Raises:
            BadRow: A field is missing, empty, of the wrong type or not text.
            DataError: The answer pattern takes too long.
        """
        check_no_media(record, "the row")
        if self._prompt_field is None and record.get(GYM_FIELD) is not None:
            messages = self._with_system_prompt(gym_messages(record))
            return Row(row_id, messages, "", _plain(record), where)
        field = self._find_prompt_field(record)
        messages = self._with_system_prompt(self._messages(_inside(record, field), field))
        answer = self._answer(record, where) if self._answer_field else ""
        payload = {k: v for k, v in record.items() if k not in (field, self._answer_field)}
        return Row(row_id, messages, answer, _plain(payload), where)

    def _find_prompt_field(self, record: Mapping[str, Any]) -> str:
        names = self._prompt_fields
        present = [name for name in names if _inside(record, name) is not None]
        if not present:
            raise BadRow("missing problem", _missing(record, names))
        if len(present) > 1:
            raise BadRow("several problems", f"fields {present}; name one with prompt_field")
        return present[0]

    def _messages(self, value: object, field: str) -> tuple[Message, ...]:
        if isinstance(value, list):
            if self._template is not None:
                raise BadRow(
                    "bad messages", f"prompt_template needs a text, and {field!r} holds messages"
                )
            return read_messages(value, field)
        if not isinstance(value, str):
            raise BadRow("bad problem", f"field {field!r} is {shown(value)}, not a text")
        if not value.strip():
            raise BadRow("empty problem", f"field {field!r} is {shown(value)}")
        if self._template is not None:
            # Not str.format: braces of problem and template are just text.
            value = self._template.replace(PLACEHOLDER, value)
        return ({"role": "user", "content": value},)

    def _with_system_prompt(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if self._system_prompt is None:
            return messages
        if messages[0]["role"] in ("system", "developer"):
            raise BadRow("several system prompts", "the row has its own; set system_prompt=null")
        return ({"role": "system", "content": self._system_prompt}, *messages)

    def _answer(self, record: Mapping[str, Any], where: str) -> str:
        value = _inside(record, self._answer_field)
        if value is None:
            if not self._needs_answer:
                return ""
            raise BadRow("missing answer", _missing(record, (self._answer_field,)))
        text = answer_text(value, self._answer_field)
        if self._pattern is not None:
            text = self._pattern.find(text, where)
        if not text:
            raise BadRow("empty answer", f"field {self._answer_field!r} is {shown(value)}")
        return text


def _inside(record: Mapping[str, Any], name: str) -> object:
    """The field of a name; where the row has none, what a name with dots leads to inside of one."""
    if name in record:
        return record[name]
    value: object = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def answer_text(value: object, field: str) -> str:
    """A reference answer as text, stripped; a number exactly as it was given, without exponent.

    Raises:
        BadRow: Neither a text nor a finite number.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise BadRow("bad answer", f"field {field!r} is {shown(value)}, not a text or number")
    if isinstance(value, int):
        return str(value)
    literal = value.text if isinstance(value, NumberText) else repr(value)
    number = value if isinstance(value, Decimal) else Decimal(literal)
    if not number.is_finite():
        raise BadRow("bad answer", f"field {field!r} is {shown(value)}, not a finite number")
    if number and abs(number.adjusted()) > MAX_ANSWER_EXPONENT:
        raise BadRow("bad answer", f"field {field!r} is {shown(literal)}; write it as a text")
    return format(number, "f")


def _plain(record: Mapping[str, Any]) -> Mapping[str, Any]:
    if NumberText not in map(type, record.values()):
        return record
    return {k: float(v) if isinstance(v, NumberText) else v for k, v in record.items()}


def _missing(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """What a row has in place of a field of one of these names."""
    null = next((name for name in names if name in record), None)
    if null is not None:
        return f"field {null!r} is null"
    wanted = " or ".join(map(repr, names))
    return f"no field {wanted}; the row has {_fields(record)}"


def _fields(record: Mapping[str, Any]) -> str:
    return shown(sorted(map(str, record))) if record else "no fields"
