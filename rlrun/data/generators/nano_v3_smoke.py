# SPDX-License-Identifier: Apache-2.0
"""Rows of NeMo Gym for five environments of Nemotron 3 Nano, small enough for a model of no size.

Every environment has its turn: math_with_judge, mcqa, code_gen, structured_outputs and
workplace_assistant, in this order, again and again. The rows are our own; they show that an
environment works, not what it can tell of a model.
"""

from __future__ import annotations

import json
from typing import Any

TRAIN_ROUNDS = 6
"""Of all environments; the round after them is for validation."""
EMAILS = ("00000373", "00000353", "00000013", "00000103", "00000295", "00000230", "00000393")
"""Of the mailbox that the server workplace_assistant comes with."""
NAMES = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus")
DELETE_TOOL = {
    "type": "function",
    "name": "email_delete_email",
    "description": "Deletes an email.",
    "parameters": {
        "type": "object",
        "properties": {"email_id": {"type": "string"}},
        "required": ["email_id"],
        "additionalProperties": False,
    },
    "strict": False,
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def records(split: str) -> list[dict[str, Any]]:
    """Rows of a split, which shares none with the other."""
    rounds = range(TRAIN_ROUNDS) if split == "train" else range(TRAIN_ROUNDS, TRAIN_ROUNDS + 1)
    return [row for number in rounds for row in _round(number)]


def _round(number: int) -> list[dict[str, Any]]:
    """A row of each environment."""
    return [_math(number), _choice(number), _code(number), _structure(number), _email(number)]


def _row(agent: str, asked: str, tools: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"input": [{"role": "user", "content": asked}]}
    if tools is not None:
        params["tools"] = tools
    return {
        "responses_create_params": params,
        "agent_ref": {"type": "responses_api_agents", "name": f"{agent}_simple_agent"},
        **fields,
    }


def _math(number: int) -> dict[str, Any]:
    a, b = number + 1, (number * 3) % 7 + 1
    question = f"What is {a} + {b}?"
    asked = f"{question} Answer in \\boxed{{}}."
    return _row("math_with_judge", asked, question=question, expected_answer=str(a + b))


def _choice(number: int) -> dict[str, Any]:
    sizes = [(number * 5 + shift * 3) % 9 + 1 for shift in range(3)]
    options = dict(zip("ABC", map(str, sizes), strict=True))
    largest = max(options, key=lambda letter: int(options[letter]))
    listed = "\n".join(f"{letter}: {size}" for letter, size in options.items())
    return _row(
        "mcqa",
        f"Which is largest? Letter in \\boxed{{}}.\n{listed}",
        options=[{letter: size} for letter, size in options.items()],
        expected_answer=largest,
        grading_mode="strict_single_letter_boxed",
        uuid=f"rlrun-{number}",
    )


def _code(number: int) -> dict[str, Any]:
    added = number + 1
    tests = {"inputs": ["3", "8"], "outputs": [str(3 + added), str(8 + added)], "fn_name": None}
    asked = f"Python in ```python: read a number, print it plus {added}."
    return _row("code_gen", asked, verifier_metadata={"unit_tests": tests})


def _structure(number: int) -> dict[str, Any]:
    asked = f"{NAMES[number]} is {number + 20}. JSON with name and age."
    return _row("structured_outputs", asked, schema_str=json.dumps(PERSON), schema_type="json")


def _email(number: int) -> dict[str, Any]:
    email = EMAILS[number]
    call = {"name": "email_delete_email", "arguments": json.dumps({"email_id": email})}
    return _row(
        "workplace_assistant",
        f"Delete email {email}.",
        [DELETE_TOOL],
        id=number,
        ground_truth=[call],
        category="workplace_assistant_email",
        environment_name="workplace_assistant",
    )
