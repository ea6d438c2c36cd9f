# SPDX-License-Identifier: Apache-2.0
"""Builds the embedded model ``rlrun:tiny-hybrid``: Nemotron 3 Nano's architecture without its size.

Mamba-2, attention and mixture-of-experts layers, drawn at random from a seed and taught to speak
the model's forms on the rows of generator:nano_v3_smoke: reasoning that is closed, boxed letters,
code in fences, JSON, calls of tools. A third of what it is taught is wrong or never ends, so that a
run has something to learn and truncated answers.

``python scripts/build_tiny_hybrid.py OUT`` writes the folder (about two minutes on one core);
``python scripts/build_tiny_hybrid.py --check`` builds it into a temporary folder and compares every
file with the shipped one. The tokenizer is that of rlrun:tiny with a chat template of its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from _pretraining import ASSETS, CONTEXT, Course, Examples, command_line, padded, teach, write
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedTokenizerBase,
)

from rlrun.data.generators.nano_v3_smoke import records

BATCH_SIZE = 12
COURSE = Course(steps=270, warmup_steps=20, peak_lr=6e-3, final_factor=0.05)
WRONG, ENDLESS = 0.25, 0.1

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


def batches(tokenizer: PreTrainedTokenizerBase) -> Iterator[Examples]:
    """Dialogues that are drawn anew for every step."""
    rng = random.Random(0)
    while True:
        chosen = rng.sample(dialogues(tokenizer, rng), BATCH_SIZE)
        yield padded(
            [
                (
                    tokenizer(prompt, add_special_tokens=False)["input_ids"],
                    tokenizer(response + end, add_special_tokens=False)["input_ids"],
                )
                for prompt, response, end in chosen
            ],
            tokenizer.pad_token_id,
        )


def build(folder: Path) -> None:
    """Writes the complete model folder."""
    tokenizer = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = CONTEXT
    model = build_model(tokenizer)
    teach(model, batches(tokenizer), COURSE)
    write(model, tokenizer, folder)


if __name__ == "__main__":
    sys.exit(command_line(build, ASSETS / "tiny_hybrid", __doc__))
