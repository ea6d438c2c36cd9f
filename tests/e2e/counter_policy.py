# SPDX-License-Identifier: Apache-2.0
"""A policy that calls the counter of Gym, mostly with a wrong number."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from tests.e2e.calculator_policy import Demonstrations, fine_tune
from tests.env.gym_real import AGENTS, call, tool
from tests.factories import config

RIGHT = 0.4
"""Share of the demonstrations that add what was asked for."""

NUMBERS = range(1, 10)
STEPS = 110
SERVER = "example_session_state_mgmt"


def write_rows(path: Path, repeats: int) -> Path:
    """Rows that ask for one addition to a counter; the reward is 1 for its value."""
    tools = [tool("increment_counter", count={"type": "integer", "description": ""})]
    rows: list[dict[str, Any]] = [
        {
            "responses_create_params": {"input": asked(number), "tools": tools},
            "agent_ref": {"type": "responses_api_agents", "name": AGENTS[SERVER]},
            "initial_count": start,
            "expected_count": start + number,
        }
        for start in range(repeats)
        for number in NUMBERS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked(number: int) -> list[dict[str, str]]:
    """The messages of a row."""
    return [{"role": "user", "content": f"add {number}"}]


def save_policy(folder: Path) -> None:
    """Fine-tunes the embedded model on demonstrations and writes it."""
    torch.set_num_threads(1)
    settings = config().policy
    renderer = Renderer.load(settings)
    model = AutoModelForCausalLM.from_pretrained(resolve_model(settings.model))
    fine_tune(model, _demonstrations(renderer), STEPS)
    model.save_pretrained(folder)
    renderer.tokenizer.save_pretrained(folder)


def _demonstrations(renderer: Renderer) -> Demonstrations:
    rng = random.Random(0)
    rows = [_conversation(renderer, rng) for _ in range(1000)]
    width = max(len(ids) for ids, _ in rows)
    tokens = torch.full((len(rows), width), renderer.pad_id)
    targets = torch.full((len(rows), width), -100)
    for number, (ids, learnt) in enumerate(rows):
        tokens[number, : len(ids)] = torch.tensor(ids)
        targets[number, : len(learnt)] = torch.tensor(learnt)
    return Demonstrations(tokens, targets)


def _conversation(renderer: Renderer, rng: random.Random) -> tuple[list[int], list[int]]:
    def own(text: str) -> list[int]:
        ids: list[int] = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, renderer.eos_ids[0]]

    number = rng.choice(NUMBERS)
    said = number if rng.random() < RIGHT else rng.choice(NUMBERS)
    prompt = [*renderer.prompt_ids(asked(number))]
    first, last = own(call("increment_counter", count=said)), own("done")
    message = {"role": "tool", "content": '{"success":true}'}
    result = [*renderer.turn_ids(prompt + first, [message])]
    hidden = [-100] * len(prompt), [-100] * len(result)
    return prompt + first + result + last, hidden[0] + first + hidden[1] + last
