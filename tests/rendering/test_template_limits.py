# SPDX-License-Identifier: Apache-2.0
"""A chat template is a program, and ends all the same."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from rlrun.errors import DataError
from rlrun.models.resolve import resolve_model
from rlrun.rendering import template_limits
from rlrun.rendering.renderer import Renderer

SAID = "{% for m in messages %}{{ m.content }}{% endfor %}"
NESTED = "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}"
MACRO = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
RECURSIVE = (
    "{% for a in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}"
    "{% endfor %}"
)


def rendered(template: str) -> str:
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny"))
    tokenizer.chat_template = template
    renderer = Renderer(tokenizer)
    return renderer.decode(renderer.prompt_ids(({"role": "user", "content": "4 + 5"},)))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (NESTED, "rounds"),
        (MACRO, "rounds"),
        (RECURSIVE, "rounds"),
        ("{{ 9 ** (9 ** 9) }}", r"computes 9 \*\* 387420489"),
        ("{% set n = 9 %}{{ (n ** 99) ** 999 }}", "computes"),
        ("{{ 'x' * 10000000000 }}", "longer than"),
        ("{{ [1] * 10000000000 }}", "longer than"),
    ],
)
def test_a_template_without_end_is_refused(
    template: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "MAX_ROUNDS", 20_000)
    with pytest.raises(DataError, match=said):
        rendered(template + SAID)


def test_few_rounds_that_take_long_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.05)
    slow = "{% for a in range(99999) %}{% set b = range(99999) | list %}{% endfor %}"
    with pytest.raises(DataError, match="takes more than"):
        rendered(slow + SAID)


def test_what_templates_do_is_as_before() -> None:
    template = (
        "{% macro twice(x) %}{{ x * 2 }}{{ caller() if caller }}{% endmacro %}"
        "{% for n in range(4) if n != 2 %}{% if n == 3 %}{% break %}{% endif %}"
        "{{ loop.index }}{{ twice(n) }}{{ 2 ** n }}{% else %}none{% endfor %}"
        "{% call twice('4') %}-{% endcall %}"
    )
    assert rendered(template) == "101" + "222" + "44-"
