# SPDX-License-Identifier: Apache-2.0
"""The embedded model: what is shipped is what its program builds, and it has something to learn."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from threading import Event
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from rlrun.data.generators.addition import addition_pairs, question
from rlrun.generation.sampler import Sampler
from rlrun.generation.static_batch import StaticBatches
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.types import GenerationRequest, Sampling, StopReason

FOLDER = Path(resolve_model("rlrun:tiny"))
TOKENIZER: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    path = Path(__file__).parent.parent / "scripts" / "build_tiny_model.py"
    spec = importlib.util.spec_from_file_location("build_tiny_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)  # as for a program that is run
        spec.loader.exec_module(module)
    return module


def test_it_is_small_and_in_a_standard_form() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_500_000
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["vocab_size"] == len(TOKENIZER) == 280
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert model.dtype is torch.float32
    assert sum(parameter.numel() for parameter in model.parameters()) == 331_520


def test_its_end_and_padding_are_the_same_everywhere() -> None:
    ids = {"eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id}
    assert ids == {"eos_token_id": 2, "pad_token_id": 0}
    for file in ("config.json", "generation_config.json"):
        assert ids.items() <= json.loads((FOLDER / file).read_text()).items()


def test_every_digit_is_a_token() -> None:
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER("190")["input_ids"]) == ["1", "9", "0"]
    assert len(TOKENIZER("12 + 34=46")["input_ids"]) == 9


@given(st.text())
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    ids = TOKENIZER(text, split_special_tokens=True)["input_ids"]
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


def test_the_tokenizer_is_the_one_that_its_program_builds(
    builder: ModuleType, tmp_path: Path
) -> None:
    builder.build_tokenizer(builder.demonstrations()).save_pretrained(tmp_path)
    for built in tmp_path.iterdir():
        assert built.read_bytes() == (FOLDER / built.name).read_bytes()


def test_held_out_questions_are_in_no_demonstration(builder: ModuleType) -> None:
    asked = {asked for asked, _ in builder.demonstrations()}
    held_out = {question(a, b) for a, b in addition_pairs("validation")}
    assert len(asked) == 9_500 and len(held_out) == 500
    assert not asked & held_out


def test_reasoning_is_right_and_shown_half_the_time(builder: ModuleType) -> None:
    assert builder.reasoning(37, 45) == "7+5=12, 3+4+1=8"
    assert builder.reasoning(9, 8) == "9+8=17"
    assert builder.reasoning(60, 31) == "0+1=1, 6+3=9"
    responses = [response for _, response in builder.demonstrations()]
    assert sum("=" in response for response in responses) / len(responses) == pytest.approx(
        0.5, abs=0.02
    )


def test_sampled_answers_leave_room_to_learn() -> None:
    torch.set_num_threads(1)
    renderer = Renderer(TOKENIZER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    pairs = addition_pairs("validation")
    requests = [
        GenerationRequest(
            renderer.prompt_ids([{"role": "user", "content": question(a, b)}]),
            28,
            seed,
            Sampling(1.0),
        )
        for seed, (a, b) in enumerate(pairs)
    ]
    completions = StaticBatches(Sampler(model, renderer, None), None)(requests, Event())
    reasoned: list[bool] = []
    plain: list[bool] = []
    for (a, b), completion in zip(pairs, completions, strict=True):
        text = renderer.decode(completion.token_ids)
        right = completion.stop_reason is StopReason.STOP and text.endswith(f"Answer: {a + b}")
        (reasoned if "=" in text else plain).append(right)
    assert 0.3 < (sum(reasoned) + sum(plain)) / 500 < 0.43
    assert 0.4 < len(reasoned) / 500 < 0.6
    assert sum(reasoned) / len(reasoned) > 0.55
    assert sum(plain) / len(plain) < 0.2
