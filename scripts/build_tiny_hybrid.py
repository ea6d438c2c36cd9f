# SPDX-License-Identifier: Apache-2.0
"""Builds the embedded model ``rlrun:tiny-hybrid``: Nemotron 3 Nano's architecture without its size.

Mamba-2, attention and mixture-of-experts layers, drawn at random from a seed and taught to speak
the model's forms on the rows of generator:nano_v3_smoke: reasoning that is closed, boxed letters,
code in fences, JSON, calls of tools. A third of what it is taught is wrong or never ends, so that a
run has something to learn and truncated answers.

``python scripts/build_tiny_hybrid.py [OUT]`` takes about two minutes on one core. The tokenizer is
that of rlrun:tiny with a chat template of its own. One thread and fixed seeds make the result
reproducible on machines with the same vector instructions and versions of torch and transformers.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the customary name)
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedTokenizerBase,
)

from rlrun.data.generators.nano_v3_smoke import records

ASSETS = Path(__file__).resolve().parent.parent / "rlrun" / "assets"
SHIPPED = ASSETS / "tiny_hybrid"
STEPS, WARMUP_STEPS, BATCH_SIZE, PEAK_LR = 270, 20, 12, 6e-3
WRONG, ENDLESS = 0.25, 0.1
CONTEXT = 2048

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}
{%- set function = tool.function or tool %}
{{- function.name + '(' + (function.parameters.properties | join(', ')) + ')\\n' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{{- '<think>\\n' + (message.reasoning_content or '') + '</think>' }}
{%- endif %}
{%- if message.content is string %}
{{- message.content }}
{%- elif message.content %}
{%- for part in message.content %}
{{- part.text }}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{{- '<tool_call>\\n<function=' + function.name + '>\\n' }}
{%- for name, value in (function.arguments or {}).items() %}
{{- '<parameter=' + name + '>\\n' + (value | string) + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}
"""

RENDERED: dict[str, str] = {}
"""Prompts by their messages: rendering them anew would take longer than a step."""

log = logging.getLogger("build_tiny_hybrid")


def answer(row: Mapping[str, Any], rng: random.Random) -> str:
    """What a model that knows might say, or a mistake."""
    wrong = rng.random() < WRONG
    agent = row["agent_ref"]["name"].removesuffix("_simple_agent")
    asked = row["responses_create_params"]["input"][0]["content"]
    if agent == "math_with_judge":
        value = int(row["expected_answer"]) + (rng.choice((-1, 1)) if wrong else 0)
        return f"I add.</think>\\boxed{{{value}}}"
    if agent == "mcqa":
        letters = sorted(set("ABC") - {row["expected_answer"]}) if wrong else row["expected_answer"]
        return f"I compare.</think>\\boxed{{{rng.choice(letters)}}}"
    if agent == "code_gen":
        added = asked.rpartition(" ")[2].rstrip(".")
        body = f"print(int(input())+{added})" if not wrong else "print(input())"
        return f"I code.</think>```python\n{body}\n```"
    if agent == "structured_outputs":
        name, age = asked.split(" is ")[0], asked.split(" is ")[1].split(".")[0]
        return f'I write.</think>{{"name": "{name}"' + ("" if wrong else f', "age": {age}') + "}"
    email = asked.rpartition(" ")[2].rstrip(".")
    if wrong:
        return "I wait.</think>No."
    return (
        "I delete.</think><tool_call>\n<function=email_delete_email>\n<parameter=email_id>\n"
        f"{email}\n</parameter>\n</function>\n</tool_call>"
    )


def dialogues(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> list[tuple[str, str, str]]:
    """Prompt, response and end of response for each row; of calls, the turn after it as well."""
    end = tokenizer.eos_token
    found = []
    for row in records("train") + records("validation"):
        params = row["responses_create_params"]
        prompt = rendered(tokenizer, params["input"], params.get("tools"))
        text = answer(row, rng)
        if rng.random() < ENDLESS:
            thought = text.partition("</think>")[0]
            found.append((prompt, " ".join([thought] * 25), ""))
            continue
        found.append((prompt, text, end))
        if "<tool_call>" in text:
            result = '{"output":"Email deleted successfully."}'
            tail = f"{end}\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response>{end}\n"
            tail += "<|im_start|>assistant\n<think>\n"
            found.append((prompt + text + tail, "Done.</think>Deleted.", end))
    return found


def rendered(
    tokenizer: PreTrainedTokenizerBase, messages: list[Any], tools: list[Any] | None
) -> str:
    """The prompt as the policy server renders it."""
    key = str(messages)
    if key not in RENDERED:
        RENDERED[key] = str(
            tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True
            )
        )
    return RENDERED[key]


def build_model(tokenizer: PreTrainedTokenizerBase) -> NemotronHForCausalLM:
    """The network as it is drawn, about half a million parameters."""
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = NemotronHConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        layers_block_type=["linear_attention", "moe", "linear_attention", "full_attention", "moe"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        mamba_num_heads=8,
        mamba_head_dim=24,
        ssm_state_size=16,
        n_groups=2,
        chunk_size=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        n_shared_experts=1,
        moe_shared_expert_intermediate_size=128,
        max_position_embeddings=CONTEXT,
        initializer_range=0.06,
        bos_token_id=None,
        **ids,
    )
    torch.manual_seed(0)
    model = NemotronHForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)
    return model


def batch(
    tokenizer: PreTrainedTokenizerBase, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded dialogues, and the same with -100 where nothing is learnt."""
    chosen = rng.sample(dialogues(tokenizer, rng), BATCH_SIZE)
    encoded = []
    for prompt, response, end in chosen:
        before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        after = tokenizer(response + end, add_special_tokens=False)["input_ids"]
        encoded.append((before, after))
    width = max(len(before) + len(after) for before, after in encoded)
    tokens = torch.full((BATCH_SIZE, width), tokenizer.pad_token_id)
    targets = torch.full((BATCH_SIZE, width), -100)
    for row, (before, after) in enumerate(encoded):
        stop = len(before) + len(after)
        tokens[row, :stop] = torch.tensor(before + after)
        targets[row, len(before) : stop] = torch.tensor(after)
    return tokens, targets


def pretrain(model: NemotronHForCausalLM, tokenizer: PreTrainedTokenizerBase, steps: int) -> None:
    """Next-token training on dialogues that are drawn anew for every step."""
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98))
    model.train()
    for step in range(1, steps + 1):
        factor = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * factor * min(1.0, step / WARMUP_STEPS)
        tokens, targets = batch(tokenizer, rng)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            log.info("step %d of %d, loss %.3f", step, steps, loss.item())
    model.train(False)


def main() -> int:
    """Reads the command line; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=SHIPPED, help="folder to write")
    parser.add_argument("--steps", type=int, default=STEPS, help="updates")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = CONTEXT
    model = build_model(tokenizer)
    log.info("%d parameters", sum(parameter.numel() for parameter in model.parameters()))
    pretrain(model, tokenizer, arguments.steps)
    shutil.rmtree(arguments.out, ignore_errors=True)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    (arguments.out / "model.safetensors").chmod(0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main())
