# SPDX-License-Identifier: Apache-2.0
"""The plan's memory: formulas, and a real step's peak within a band of the estimate."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from transformers import NemotronHConfig, NemotronHForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import get_verbosity, set_verbosity

from rlrun.planning.kept import Kept, kept_bytes
from rlrun.planning.memory import Engine, Learner, learner_parts, sequences_that_fit
from rlrun.planning.shape import Layer, Shape
from tests.e2e.forked import FORKS, start_server
from tests.planning.step_peak import send

BAND = (0.8, 1.15)
"""Measured over estimated. docs/planning.md names it."""

QWEN = Qwen3Config(
    vocab_size=8192,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=64,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    eos_token_id=2,
)
HYBRID = NemotronHConfig(
    vocab_size=8192,
    hidden_size=256,
    layers_block_type=[
        "linear_attention",
        "moe",
        "linear_attention",
        "full_attention",
        "moe",
        "linear_attention",
        "moe",
    ],
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    mamba_num_heads=16,
    mamba_head_dim=32,
    ssm_state_size=32,
    n_groups=4,
    chunk_size=64,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=256,
    moe_shared_expert_intermediate_size=512,
    max_position_embeddings=4096,
    eos_token_id=2,
)


@pytest.mark.parametrize(
    ("config", "model", "segment_tokens", "checkpointing"),
    [
        (QWEN, Qwen3ForCausalLM, 4096, False),
        (HYBRID, NemotronHForCausalLM, 4096, True),
        (HYBRID, NemotronHForCausalLM, 128, False),
    ],
    ids=["attention", "hybrid with activation checkpointing", "hybrid in segments"],
)
def test_the_peak_of_a_step_is_within_the_band(
    config: Qwen3Config | NemotronHConfig,
    model: type[Qwen3ForCausalLM] | type[NemotronHForCausalLM],
    segment_tokens: int,
    checkpointing: bool,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model(config).save_pretrained(tmp_path)
    switch = f"policy.activation_checkpointing={str(checkpointing).lower()}"
    start_server()
    receiver, sender = FORKS.Pipe(duplex=False)
    given = (str(tmp_path), 4, 768, segment_tokens, [switch])
    child = FORKS.Process(target=send, args=(sender, *given))
    child.start()
    sender.close()
    found = receiver.recv()
    child.join()
    assert BAND[0] < found["measured"] / found["estimated"] < BAND[1], found


def shape(**changes: int) -> Shape:
    layer = Layer(parameters=1000, active=400, kv=8, attended=32, state=changes.pop("state", 0))
    return Shape("Model", 3000, changes.pop("adapters", 0), 10, 50, (layer, layer))


def learner(**changes: bool | int) -> Learner:
    values: dict[str, bool | int] = {
        "ranks": 1,
        "offloaded": False,
        "half": False,
        "checkpointing": False,
        "reference": False,
        "microbatch_tokens": 100,
        "chunk_tokens": 20,
    }
    return Learner(**(values | changes))  # type: ignore[arg-type]


def parts_of(of: Shape, **changes: bool | int) -> dict[str, float]:
    kept = Kept(layers=(700, 900), inputs=(40, 50), peaks=(2500, 1600))
    return {part.name: part.bytes for part in learner_parts(of, learner(**changes), kept)}


def test_what_is_spread_is_divided_by_the_ranks() -> None:
    alone, four = parts_of(shape()), parts_of(shape(), ranks=4)
    for name, each in {"weights": 4, "gradients": 4, "optimizer": 8}.items():
        assert alone[name] == each * 3000
        assert four[name] == each * 3000 / 4
    assert "gathered layers" in four and "gathered layers" not in alone


def test_what_is_offloaded_is_not_in_the_memory_of_the_gpu() -> None:
    names = {"weights", "gradients", "optimizer"}
    there = parts_of(shape(), ranks=4)
    away = parts_of(shape(), ranks=4, offloaded=True)
    assert names <= there.keys() and not names & away.keys()
    assert sum(away.values()) == pytest.approx(sum(there.values()) - 1.1 * 16 * 3000 / 4)


def test_adapters_alone_have_gradients_and_moments() -> None:
    parts = parts_of(shape(adapters=10))
    assert parts["weights"] == 4 * 3010
    assert (parts["gradients"], parts["optimizer"]) == (40, 80)


def test_checkpointing_keeps_inputs_and_one_layer() -> None:
    again = parts_of(shape(), checkpointing=True, chunk_tokens=1)
    assert (again["layer inputs"], again["one layer again"]) == (90, 2500 - 40)
    kept = parts_of(shape(), chunk_tokens=1)
    assert (kept["activations"], kept["one layer backward"]) == (1600, 2500 - 700)
    assert "logits" not in again.keys() | kept.keys(), "they are gone by then, and smaller"


def test_logits_exist_for_a_chunk_and_no_more_than_there_are_tokens() -> None:
    assert parts_of(shape())["logits"] == 5 * 4 * 20 * 50
    assert parts_of(shape(), chunk_tokens=1000)["logits"] == 5 * 4 * 100 * 50


def test_sequences_fit_into_what_weights_leave() -> None:
    engine = Engine(gpus=1, half=True, share=1.0, longest=10, sequences=1)
    gpu = 4 * 2**30 + 2 * 3000 + 3 * (2 * 16 * 10 + 4 * 2 * 5)
    assert sequences_that_fit(shape(state=5), engine, gpu) == 3
    assert sequences_that_fit(shape(state=5), engine, 100.0) == 0


def test_twice_the_tokens_keep_twice_as_much() -> None:
    one = kept_bytes(QWEN, 1, 256, half=False, cast_weights=False)
    two = kept_bytes(QWEN, 2, 256, half=False, cast_weights=False)
    assert len(one.layers) == 6
    assert two.layers[0] == pytest.approx(2 * one.layers[0], rel=0.02)
    assert two.inputs[0] == 2 * one.inputs[0] == 2 * 256 * 256 * 4


def test_bfloat16_keeps_less() -> None:
    full = kept_bytes(HYBRID, 1, 256, half=False, cast_weights=False)
    half = kept_bytes(HYBRID, 1, 256, half=True, cast_weights=True)
    assert sum(half.layers) < 0.8 * sum(full.layers)


def test_a_plan_says_nothing_about_kernels_that_are_not_here(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, before = logging.getLogger("transformers"), get_verbosity()
    # It hands records on where the variable CI is set, and they would be captured twice.
    monkeypatch.setattr(theirs, "propagate", False)
    set_verbosity(logging.WARNING)  # as outside of tests
    logging.Logger.warning_once.cache_clear()  # type: ignore[attr-defined]  # said once, by theirs
    theirs.addHandler(caplog.handler)
    try:
        kept_bytes(HYBRID, 1, 64, half=False, cast_weights=False)
        theirs.warning("this is heard again")
    finally:
        theirs.removeHandler(caplog.handler)
        set_verbosity(before)
    assert [record.getMessage() for record in caplog.records] == ["this is heard again"]


def test_segments_bound_what_a_long_scan_needs() -> None:
    """From one segment on, a layer of the scan needs little more for each further token."""
    short = kept_bytes(HYBRID, 1, 4096, half=False, cast_weights=False)
    long = kept_bytes(HYBRID, 1, 16384, half=False, cast_weights=False)
    assert long.layers[0] < 0.75 * 4 * short.layers[0]
    assert long.peaks[0] < 0.75 * 4 * short.peaks[0]
    for layers in zip(long.inputs, long.layers, long.peaks, strict=True):
        assert layers[0] < layers[1] < layers[2]


def test_casts_of_weights_are_counted_once() -> None:
    """They have a part of their own in the plan."""
    one = kept_bytes(QWEN, 1, 64, half=True, cast_weights=False)
    four = kept_bytes(QWEN, 4, 64, half=True, cast_weights=False)
    assert four.layers[0] == pytest.approx(4 * one.layers[0], rel=0.02)
