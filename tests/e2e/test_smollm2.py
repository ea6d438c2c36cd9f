# SPDX-License-Identifier: Apache-2.0
"""A pretrained checkpoint with its own tokenizer and chat template goes through the whole path.

Needs the folder that ``make smollm2`` makes, which ``make test`` sees to.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlrun.checkpoint.training_state import load_tensors
from rlrun.config import load
from rlrun.derived import sampling_of
from rlrun.generation.sampler import Sampler
from rlrun.generation.static_batch import StaticBatches
from rlrun.learner.learner import Learner
from rlrun.metrics.logs import read_metrics
from rlrun.models.resolve import SMOLLM2_FOLDER, eos_token_ids, resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.run_dir.records import read_trained
from rlrun.types import GenerationRequest, Sampling
from tests.e2e.forked import forked
from tests.factories import ROOT, sample, trajectory

FOLDER = ROOT / SMOLLM2_FOLDER
STEPS, PROMPTS, SAMPLES = 2, 2, 4

pytestmark = [
    pytest.mark.skipif(not FOLDER.is_dir(), reason="make smollm2 was not run"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two short steps of the recipe, with one short validation at the end."""
    path = tmp_path_factory.mktemp("smollm2") / "run"
    done = forked(
        "train",
        "+recipe=smollm2_135m",
        f"policy.model={FOLDER}",
        f"grpo.num_prompts_per_step={PROMPTS}",
        f"grpo.num_generations_per_prompt={SAMPLES}",
        f"grpo.max_num_steps={STEPS}",
        "grpo.val_at_start=false",
        "grpo.val_period=0",
        "grpo.max_val_samples=2",
        "grpo.val_num_generations_per_prompt=1",
        "policy.train_micro_batch_tokens=256",
        "policy.precision=float32",  # so that records can be checked to three digits
        f"run_dir={path}",
        timeout=800,
    )
    assert done.code == 0, done.err
    yield path
    # Weights and optimizer are 1.6 GB, and pytest keeps the folders of three sessions.
    shutil.rmtree(path)


def ask(folder: Path, question: str, length: int) -> str:
    """The most likely answer."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    renderer = Renderer(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = renderer.prompt_ids([{"role": "user", "content": question}])
    request = GenerationRequest(ids, length, 0, Sampling(0.0))
    [completion] = StaticBatches(Sampler(model, renderer, None), None)([request], Event())
    return renderer.decode(completion.token_ids, skip_special=False)


def test_the_converted_model_is_complete_and_knows_its_end() -> None:
    settings = load(["+recipe=smollm2_135m", f"policy.model={FOLDER}"]).config
    assert resolve_model(str(FOLDER)) == str(FOLDER)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert eos_token_ids(settings.policy, tokenizer) == (2,)
    assert "quantization_config" not in json.loads((FOLDER / "config.json").read_text())
    [weights] = FOLDER.glob("*.safetensors")
    assert {tensor.dtype for tensor in load_tensors(weights).values()} == {torch.bfloat16}


def test_the_converted_model_answers_and_ends_its_turn() -> None:
    answer = ask(FOLDER, "What is the capital of France?", 16)
    assert answer == "The capital of France is Paris.<|im_end|>"


def test_the_tokenizer_is_lossless_and_splits_digits() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = "12 + 345 = 357;\n\n  naïve 日本 \U0001f600"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert [tokenizer.decode(i) for i in tokenizer("345")["input_ids"]] == ["3", "4", "5"]


def test_steps_have_finite_losses_and_rewards_in_range(run_dir: Path) -> None:
    lines = [line for line in read_metrics(run_dir / "metrics.jsonl") if line["step"] > 0]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        assert 0.0 <= line["train/reward_mean"] <= 1.0
        assert 0.0 < line["train/entropy"] < math.log(49152)
        if not line["train/skipped_update"]:
            assert math.isfinite(line["train/loss"])
            assert 0.0 < line["train/grad_norm"] < math.inf
    assert 0.0 <= lines[-1]["validation/accuracy"] <= 1.0


def test_rows_are_rendered_by_the_models_own_template(run_dir: Path) -> None:
    rows = list(read_trained(run_dir / "trained/step_000001.jsonl"))
    assert len(rows) == PROMPTS * SAMPLES
    for row in rows:
        assert row["prompt"].startswith("<|im_start|>system\nYou are a helpful AI assistant named")
        assert row["prompt"].endswith(
            "Reply with the number only.<|im_end|>\n<|im_start|>assistant\n"
        )
        sampled = row["token_ids"][row["input_length"] :]
        assert 1 <= len(sampled) <= 16
        assert (sampled[-1] == 2) == (row["stop_reason"] == "stop")


def test_learner_and_generator_agree_on_probabilities(run_dir: Path) -> None:
    for row in read_trained(run_dir / f"trained/step_{STEPS:06d}.jsonl"):
        mask = np.array(row["token_loss_mask"], dtype=bool)
        theirs = np.array(row["generation_logprobs"])[mask]
        assert np.abs(np.array(row["prev_logprobs"])[mask] - theirs).max() < 1e-3


def test_the_checkpoint_is_a_changed_model_that_still_speaks(run_dir: Path) -> None:
    policy = run_dir / f"checkpoints/step_{STEPS:06d}/policy"
    trained = load_tensors(policy / "model.safetensors")
    base = load_tensors(FOLDER / "model.safetensors")
    assert trained.keys() == base.keys()
    assert {tensor.dtype for tensor in trained.values()} == {torch.float32}
    lines = read_metrics(run_dir / "metrics.jsonl")
    if any(line.get("train/skipped_update") == 0.0 for line in lines):
        assert any(not trained[name].equal(base[name].float()) for name in base)
    assert "Paris" in ask(policy, "What is the capital of France?", 16)


def test_bfloat16_stays_near_float32_and_keeps_float32_master_weights() -> None:
    renderer = Renderer(AutoTokenizer.from_pretrained(FOLDER))
    # Short: a processor without instructions for bfloat16 takes seven times as long.
    before, answer = renderer.tokenizer(["The capital of France", " is Paris."])["input_ids"]
    rows = [sample(trajectory(answer, before=before, logprobs=[-0.1] * len(answer)))]
    full, half = make_learner("float32"), make_learner("bfloat16")
    [ours], [theirs] = full.logprobs(rows).logprobs, half.logprobs(rows).logprobs
    assert 0.0 < np.abs(ours - theirs).max() < 0.1
    assert math.isfinite(half.update([rows], step=1)["train/grad_norm"])
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}


def make_learner(precision: str) -> Learner:
    settings = load(
        ["+recipe=smollm2_135m", f"policy.model={FOLDER}", f"policy.precision={precision}"]
    ).config
    sampling = sampling_of(settings, training=True)
    return Learner(settings.policy, settings.loss, sampling, torch.device("cpu"))
