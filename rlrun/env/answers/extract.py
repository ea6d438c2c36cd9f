# SPDX-License-Identifier: Apache-2.0
r"""Which part of a response is its final answer.

In this order: the last ``\boxed{...}`` after the reasoning block (with those that "and", "or" or a
comma joins to it), the last ``\fbox{...}``, the last ``<answer>`` element, the last phrase such as
"the answer is" or "####", and a last line that is nothing but a value. Numbers in prose are never
an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlrun.env.answers.lexer import group_end
from rlrun.env.answers.reader import MAX_CHARACTERS, read
from rlrun.env.answers.shapes import Text, Unparsed


@dataclass(frozen=True, slots=True)
class Found:
    """The final answer of a response.

    Attributes:
        text: The answer as it stands there; None if there is none.
        reason: Why there is none.
    """

    text: str | None
    reason: str = ""


_BOX = re.compile(r"\\boxed(?![a-zA-Z])\*?\s*")
_FBOX = re.compile(r"\\fbox(?![a-zA-Z])\s*")
_BARE_BOX = re.compile(r"[^\s$,;{}\\]+|\\[a-zA-Z]+(?:\{[^{}]*\})*")
_PHRASE = re.compile(
    r"(?:\b(?:answer|result|correct (?:option|choice))|答案) ?(?:\*\*|__)? ?"
    r"(?:is|equals|=|:|：|是|为|(?:should|would|must|will) be) ?(?:\*\*|__)? ?:?"
    r"(?: ?(?:therefore|thus|hence|then|simply|just|indeed)\b,?)?|"
    r"\bfinal answer ?(?:\*\*|__)? ?\n|####",
    re.IGNORECASE,
)
_AROUND = r"(?:\s|\$|\*\*|\\[()\[\]])*"
_BETWEEN = re.compile(rf"{_AROUND}(?:[,;]|,?\s*(?:\\text\s*\{{\s*)?\b(?:and|or)\b\s*\}}?){_AROUND}")
"""Between two boxes that are one answer."""
_GAP = 40
_MOST_BOXES = 20
_QUOTED = (
    re.compile(r"\$\$(.+?)\$\$", re.DOTALL),
    re.compile(r"(?<!\\)\$(?!\s*\d[\d,.]*(?:\s|$))(.+?)(?<!\\)\$"),
    re.compile(r"\\\((.+?)\\\)", re.DOTALL),
    re.compile(r"\\\[(.+?)\\\]", re.DOTALL),
    re.compile(r"\*\*(.+?)\*\*"),
)
_MORE = re.compile(r"\s*(?:[,;]|,?\s*(?:and|or))\s*(?:\$|\\\(|\*\*)")
"""Behind a quoted answer: another one, which belongs to it."""
_OPEN_TAG = re.compile(r"<answer>", re.IGNORECASE)
_CLOSE_TAG = re.compile(r"</answer>", re.IGNORECASE)
_CLAUSE = re.compile(r",?\s+(?:because|since|as|which|so|when|where|after|for)\b")
_SENTENCE = re.compile(r"[.!?](?=\s|$)|。")
_PROSE = re.compile(r"[A-Za-z]{2,}\W*\s.*\w")
_LINE = 300


def final_part(response: str) -> str:
    """The response without its reasoning block, closed or left open."""
    return response.rpartition("</think>")[2].partition("<think>")[0]


def find_answer(response: str) -> Found:
    """The final answer of a response; never raises, linear in its length."""
    text = final_part(response)
    for pattern in (_BOX, _FBOX):
        boxes = list(pattern.finditer(text))
        if boxes:
            return _boxed(text, boxes)
    close = _last(_CLOSE_TAG, text)
    opening = None if close is None else _last(_OPEN_TAG, text[: close.start()])
    if close is not None and opening is not None:
        return _given(text[opening.end() : close.start()])
    phrase = _last(_PHRASE, text)
    if phrase is not None:
        return _given(_after_phrase(text[phrase.end() :]))
    return _last_line(text)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def _given(text: str) -> Found:
    text = text.strip()
    return Found(text) if text else Found(None, "the final answer is empty")


def _boxed(text: str, boxes: list[re.Match[str]]) -> Found:
    """The answer in the last box, in one around it, or in several that "and", "or" or a comma join.

    Several answers in boxes of their own are no better than several in one box.
    """
    found, end = _box(text, boxes[-1])
    if found.text is None or len(boxes) == 1:
        return found
    answers, start = {found.text: read(found.text)}, boxes[-1].start()
    for box in boxes[-2 : -2 - _MOST_BOXES : -1]:
        other, other_end = _box(text, box)
        if other.text is None:
            break
        if other_end >= end:
            answers, end = {other.text: read(other.text)}, other_end
        elif start - other_end > _GAP or not _BETWEEN.fullmatch(text, other_end, start):
            break
        elif (value := read(other.text)) not in answers.values():
            answers = {other.text: value, **answers}
        start = box.start()
    return Found(", ".join(answers))


def _box(text: str, box: re.Match[str]) -> tuple[Found, int]:
    """What is in a box, and where it ends."""
    start = box.end()
    if text[start : start + 1] != "{":
        bare = _BARE_BOX.match(text, start)
        if bare is None:
            return Found(None, "the box is empty"), start
        return Found(bare.group().rstrip(".")), bare.end()
    # An answer that is too long to be read need not be scanned to its end either.
    inside = text[start : start + 4 * MAX_CHARACTERS]
    end = group_end(inside, 0)
    if end < 0:
        return Found(None, "the last box is not closed"), start
    return _given(inside[1 : end - 1]), start + end


def _after_phrase(rest: str) -> str:
    """The answer after "the answer is": quoted mathematics, or the rest of the sentence."""
    line = next((line for line in rest.split("\n", 4)[:4] if line.strip(" *_:$\\[(")), "")
    line = line.strip()[:MAX_CHARACTERS]
    for quoted in _QUOTED:
        match = quoted.match(line)
        if match and not _MORE.match(line, match.end()):
            return match.group(1)
    sentence = _SENTENCE.search(line)
    if sentence:
        line = line[: sentence.start()]
    clause = _CLAUSE.search(line)
    return line[: clause.start()] if clause else line


def _last_line(text: str) -> Found:
    """A last line that is nothing but a value."""
    line = text.rstrip().rpartition("\n")[2].strip()
    if not line:
        return Found(None, "the response is empty")
    if len(line) <= _LINE and not _PROSE.match(line):
        answer = read(line)
        one_word = isinstance(answer, Text) and len(answer.words.split()) == 1
        if one_word or (answer is not None and not isinstance(answer, Text | Unparsed)):
            return Found(line)
    return Found(None, "no box and no phrase such as 'the answer is'")


def gold_answer(gold: str) -> str:
    """The answer part of a reference: in its box, after its "####", or the whole."""
    if "\\boxed" in gold or "\\fbox" in gold or "####" in gold:
        return find_answer(gold).text or ""
    return gold
