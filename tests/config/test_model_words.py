# SPDX-License-Identifier: Apache-2.0
"""Settings for layers that a model does not have are refused by the configuration."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun.config import load
from rlrun.config.model_words import is_recurrent, may_have_routers, not_causal, words_of
from rlrun.config.schema import Policy
from rlrun.errors import ConfigError, DataError
from rlrun.inputs import check_model
from rlrun.models.resolve import resolve_model
from rlrun.planning.shape import check_weights, config_of, shape_of
from tests.config.config_problems import only_problem
from tests.factories import config


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({"model_type": "qwen3", "num_hidden_layers": 2}, False),
        ({"model_type": "qwen3_moe", "num_experts": 128}, True),
        ({"model_type": "mixtral", "num_local_experts": 8}, True),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, True),
        ({"model_type": "deepseek_v2", "n_routed_experts": None}, False),
        ({"model_type": "qwen2_moe", "num_experts": 1}, False),
        ({"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}}, True),
        ({"layers_block_type": ["linear_attention", "moe"], "n_routed_experts": 8}, True),
        ({"layers_block_type": ["linear_attention", "mlp"], "n_routed_experts": 8}, False),
        ({"hybrid_override_pattern": "ME*E", "n_routed_experts": 8}, True),
        ({"hybrid_override_pattern": "M-*-", "n_routed_experts": 8}, False),
    ],
)
def test_a_model_with_experts_may_have_routers(words: dict[str, Any], found: bool) -> None:
    assert may_have_routers(words) is found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, False),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, True),
        ({"layers_block_type": ["mamba", "attention"]}, True),
        ({"layers_block_type": ["attention", "moe"]}, False),
        ({"hybrid_override_pattern": "ME*E"}, True),
        ({"hybrid_override_pattern": "-*-"}, False),
        ({"layer_types": None, "layers_block_type": 3}, False),
        ({"text_config": {"layer_types": ["linear_attention"]}}, True),
    ],
)
def test_a_model_with_a_state_is_known(words: dict[str, Any], found: bool) -> None:
    assert is_recurrent(words) is found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, None),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, None),
        ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, None),
        ({"model_type": "gemma4_text", "use_bidirectional_attention": "vision"}, None),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"], "is_decoder": True}, None),
        ({"model_type": "xlm", "causal": True}, None),
        ({"architectures": 3}, None),
        ({"model_type": ["bert"]}, None),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "an encoder"),
        ({"model_type": "roberta", "is_decoder": False}, "an encoder"),
        ({"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]}, "an encoder"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder-decoder"),
        ({"model_type": "qwen2", "is_causal": False}, "bidirectional"),
        ({"text_config": {"use_bidirectional_attention": True}}, "bidirectional"),
    ],
)
def test_a_model_that_does_not_continue_a_text_is_known(
    words: dict[str, Any], found: str | None
) -> None:
    said = not_causal(words)
    assert said is found is None or (said or "").startswith(found or "?")


def test_a_model_that_does_not_continue_a_text_is_refused_before_it_is_loaded(
    tmp_path: Path,
) -> None:
    policy = policy_with(tmp_path, model_type="bert", architectures=["BertForMaskedLM"])
    problem = only_problem(["+recipe=quickstart", f"policy.model={policy.model}"])
    assert "is an encoder, which sees what comes after a token" in problem.what
    assert "causal language model" in problem.remedy
    # As where it had to be fetched first, or is evaluated.
    with pytest.raises(ConfigError, match="is an encoder"):
        resolve_model(policy.model)


def test_a_recipe_for_a_mixture_is_refused_with_another_model() -> None:
    problem = only_problem(
        ["+recipe=nanov3", "policy.model=rlrun:tiny", "policy.architecture=null"]
    )
    assert "policy.freeze_moe_router=true and policy.moe_router_fp32=true" in problem.what
    assert "rlrun:tiny has no router" in problem.what
    load(["+recipe=nanov3", "scale=smoke"])


def test_the_config_json_of_a_folder_decides(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(resolve_model("rlrun:tiny-hybrid"), tmp_path / "model"))
    flags = ["+recipe=quickstart", f"policy.model={folder}", "policy.moe_router_fp32=true"]
    load(flags)
    words = json.loads((folder / "config.json").read_text())
    kinds = ["mlp" if kind == "moe" else kind for kind in words["layers_block_type"]]
    (folder / "config.json").write_text(json.dumps(words | {"layers_block_type": kinds}))
    assert "has no router" in only_problem(flags).what


def test_a_model_that_is_fetched_is_looked_at_before_it_is_loaded() -> None:
    with pytest.raises(ConfigError, match="has no router"):
        check_model(replace(config().policy, freeze_moe_router=True))


def test_words_that_are_nested_without_end_are_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 400 + "{}" + "}" * 400)
    assert words_of(str(tmp_path), {}) is None


def policy_with(tmp_path: Path, **words: Any) -> Policy:
    """The tiny model with another config.json, as no save_pretrained would write it."""
    folder = Path(shutil.copytree(resolve_model("rlrun:tiny"), tmp_path / "model"))
    own = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(own | words))
    return replace(config().policy, model=str(folder))


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    quantized = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(ConfigError, match="quantized"):
        check_model(policy_with(tmp_path, quantization_config=quantized))


@pytest.mark.parametrize("words", [{"num_attention_heads": 0}, {"text_config": 5}])
def test_a_model_that_cannot_be_built_is_a_data_error(
    tmp_path: Path, words: dict[str, object]
) -> None:
    policy = policy_with(tmp_path, **words)
    with pytest.raises(DataError, match=r"cannot be built|cannot be used"):
        shape_of(policy, config_of(policy))


def test_weights_of_another_shape_than_the_configuration_says_are_refused(tmp_path: Path) -> None:
    policy = policy_with(tmp_path, hidden_size=64)
    with pytest.raises(DataError, match=r"model\.safetensors: .* by config\.json \["):
        check_weights(policy, config_of(policy))


@pytest.mark.parametrize("model", ["rlrun:tiny", "rlrun:tiny-hybrid"])
def test_weights_are_as_the_configuration_says(model: str) -> None:
    policy = replace(config().policy, model=model)
    check_weights(policy, config_of(policy))
