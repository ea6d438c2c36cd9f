# SPDX-License-Identifier: Apache-2.0
"""A policy that can use the calculator and mostly does not: what a run with tools starts from."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the customary name)
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlrun.env.arithmetic import calculate, show
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from tests.factories import config

CALLS = 0.4
"""Share of the demonstrations that call the calculator; the others guess, and are wrong."""

STEPS, BATCH_SIZE, PEAK_LR = 180, 16, 5e-3


class Problem(NamedTuple):
    """A question, the call that answers it, and the answer."""

    question: str
    call: str
    answer: str


class Demonstrations(NamedTuple):
    """Token ids, right-padded, and the same with -100 where nothing is learnt."""

    tokens: Tensor
    targets: Tensor


def problems(count: int, seed: int) -> list[Problem]:
    """Arithmetic on numbers of two digits."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        text = f"{rng.randint(10, 99)} {rng.choice('+-*')} {rng.randint(10, 99)}"
        found.append(Problem(f"What is {text}?", text, show(calculate(text))))
    return found


def write_rows(path: Path, count: int, seed: int) -> Path:
    """A data file of such problems."""
    rows = [{"problem": p.question, "answer": p.answer} for p in problems(count, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def save_policy(folder: Path) -> None:
    """Fine-tunes the embedded model on demonstrations and writes it."""
    settings = config().policy
    renderer = Renderer.load(settings)
    model = AutoModelForCausalLM.from_pretrained(resolve_model(settings.model))
    fine_tune(model, demonstrate(renderer, problems(4000, seed=0)))
    model.save_pretrained(folder)
    renderer.tokenizer.save_pretrained(folder)


def demonstrate(renderer: Renderer, asked: list[Problem]) -> Demonstrations:
    """Conversations as rollouts make them; only the policy's own tokens are learnt."""
    rng = random.Random(1)
    rows = [_conversation(renderer, problem, rng) for problem in asked]
    width = max(len(ids) for ids, _ in rows)
    tokens = torch.full((len(rows), width), renderer.pad_id)
    targets = torch.full((len(rows), width), -100)
    for number, (ids, learnt) in enumerate(rows):
        tokens[number, : len(ids)] = torch.tensor(ids)
        targets[number, : len(learnt)] = torch.tensor(learnt)
    return Demonstrations(tokens, targets)


def _conversation(
    renderer: Renderer, problem: Problem, rng: random.Random
) -> tuple[list[int], list[int]]:
    def own(text: str) -> list[int]:
        ids: list[int] = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    end = [renderer.eos_ids[0]]
    prompt = [*renderer.prompt_ids([{"role": "user", "content": problem.question}])]
    if rng.random() >= CALLS:
        guess = own(f"Answer: {rng.randint(10, 9999)}") + end
        return prompt + guess, [-100] * len(prompt) + guess
    call = own(f"<calc>{problem.call}</calc>")
    message = {"role": "tool", "content": problem.answer}
    result = [*renderer.turn_ids(prompt + call, [message], stopped=True)]
    answer = own(f"Answer: {problem.answer}") + end
    ids = prompt + call + result + answer
    return ids, [-100] * len(prompt) + call + [-100] * len(result) + answer


def fine_tune(model: torch.nn.Module, demonstrations: Demonstrations, steps: int = STEPS) -> None:
    """Next-token training with a short warm-up and a linear decay."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.0
    )
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * min(step / 20, 1.05 - step / steps, 1.0)
        rows = torch.randint(0, len(demonstrations.tokens), (BATCH_SIZE,), generator=generator)
        targets = demonstrations.targets[rows]
        width = int((targets != -100).any(0).nonzero().max()) + 1
        logits = model(input_ids=demonstrations.tokens[rows, :width], use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:width].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
