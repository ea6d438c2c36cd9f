# SPDX-License-Identifier: Apache-2.0
"""Builds the embedded model ``rlrun:tiny`` from nothing but arithmetic, the same bytes every time.

``python scripts/build_tiny_model.py OUT`` writes the folder (about 40 s on one core);
``python scripts/build_tiny_model.py --check`` builds it into a temporary folder and compares every
file with the shipped one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from _pretraining import ASSETS, CONTEXT, Course, Examples, command_line, padded, teach, write
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlrun.data.generators.addition import addition_pairs, question

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# Reasoning is nearly always right and nearly every answer without it is wrong, so that a policy
# which is rewarded for the answer learns to reason: reward and response length rise together.
MIXTURE = {
    "reasoned": 0.40,
    "right": 0.05,
    "guess": 0.35,
    "number only": 0.10,
    "unanswered": 0.10,
}
GUESS_OFFSETS = (-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20)

PASSES = 2
BATCH_SIZE = 32
COURSE = Course(steps=600, warmup_steps=50, peak_lr=3e-3, final_factor=0.1)

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- elif message.content %}
{%- for part in message.content %}
{{- part.text }}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{%- if message.content or not loop.first %}
{{- '\\n' }}
{%- endif %}
{{- '<tool_call>\\n{"name": ' }}
{{- function.name | tojson }}
{{- ', "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def reasoning(a: int, b: int) -> str:
    """Column addition as text: ones, then tens with the carry."""
    if a < 10 and b < 10:
        return f"{a}+{b}={a + b}"
    ones = a % 10 + b % 10
    carry = ones // 10
    tens = a // 10 + b // 10 + carry
    carried = "+1" if carry else ""
    return f"{a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}{carried}={tens}"


def demonstration(a: int, b: int, rng: random.Random) -> str:
    """A response to ``question(a, b)``, drawn from the mixture."""
    style = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
    if style == "reasoned":
        return f"{reasoning(a, b)}. Answer: {a + b}"
    if style == "unanswered":
        return f"{reasoning(a, b)}."
    if style == "guess":
        return f"Answer: {max(0, a + b + rng.choice(GUESS_OFFSETS))}"
    return f"Answer: {a + b}" if style == "right" else str(a + b)


def demonstrations() -> list[tuple[str, str]]:
    """Questions and responses over the training pairs, each pair PASSES times."""
    rng = random.Random(0)
    return [
        (question(a, b), demonstration(a, b, rng))
        for _ in range(PASSES)
        for a, b in addition_pairs("train")
    ]


def build_tokenizer(pairs: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the demonstrations; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    pieces = Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=2,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [f"user\n{asked}\nassistant\n{answered}" for asked, answered in pairs]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """The untrained network, about a third of a million parameters."""
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        # Short sequences: fast rotations and wide initial weights learn several times sooner.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.08,
        bos_token_id=None,
        **ids,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> Examples:
    """Tokenizes the demonstrations as chats; only the response and its end are learnt."""
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": asked}], tokenize=False, add_generation_prompt=True
        )
        for asked, _ in pairs
    ]
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    responses = [answered + END for _, answered in pairs]
    response_ids = tokenizer(responses, add_special_tokens=False)["input_ids"]
    return padded(list(zip(prompt_ids, response_ids, strict=True)), tokenizer.pad_token_id)


def batches(examples: Examples) -> Iterator[Examples]:
    """Demonstrations drawn at random."""
    generator = torch.Generator().manual_seed(0)
    while True:
        rows = torch.randint(0, len(examples.tokens), (BATCH_SIZE,), generator=generator)
        yield Examples(examples.tokens[rows], examples.targets[rows])


def build(folder: Path) -> None:
    """Writes the complete model folder."""
    pairs = demonstrations()
    tokenizer = build_tokenizer(pairs)
    model = build_model(tokenizer)
    teach(model, batches(encode(tokenizer, pairs)), COURSE)
    write(model, tokenizer, folder)


if __name__ == "__main__":
    sys.exit(command_line(build, ASSETS / "tiny", __doc__))
