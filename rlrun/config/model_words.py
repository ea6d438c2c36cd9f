# SPDX-License-Identifier: Apache-2.0
"""What kind of model it is, and what layers it has, by the words of its config.json alone.

Asked before a model is loaded, so that one of the wrong kind, or a setting for what is not there,
is refused as any other mistake in a configuration is. In doubt the answers let a setting pass:
loading the model tells for certain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlrun.config.paths import expand, is_file
from rlrun.models.embedded import EMBEDDED, embedded_folder
from rlrun.run_dir.json_line import is_shallow

_ENCODERS = frozenset(
    (
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
        *("megatron-bert", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert"),
        *("roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod"),
    )
)
"""Types of model that transformers also loads as causal ones, but that see what comes after a token
unless their configuration says that they are decoders."""

_RECURRENT = ("mamba", "linear_attention")
_LISTS = ("layers_block_type", "layer_types")
"""Hybrids list their layers, under one of these names or as letters."""


def words_of(model: str, architecture: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What can be read here of a model's config.json; None for one that is not here.

    Args:
        model: ``policy.model``.
        architecture: ``policy.architecture``, which speaks for a model that is not here.
    """
    if architecture:
        return architecture
    folder = embedded_folder(model) if model in EMBEDDED else expand(model)
    if not is_file(folder / "config.json"):
        return None
    try:
        words = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # What is wrong with the folder is said by those who need all of it.
    return words if isinstance(words, dict) and is_shallow(words) else None


def not_causal(words: Mapping[str, Any]) -> str | None:
    """What such a model is known to be in place of one that continues a text, or None."""
    if words.get("is_encoder_decoder") is True:
        return "an encoder-decoder model"
    names = words.get("architectures")
    masked = isinstance(names, list) and any(str(name).endswith("ForMaskedLM") for name in names)
    decodes = words.get("is_decoder") is True or words.get("causal") is True
    if (masked or str(words.get("model_type")) in _ENCODERS) and not decodes:
        return "an encoder, which sees what comes after a token"
    text = words.get("text_config")
    for one in (words, text if isinstance(text, Mapping) else {}):
        if one.get("is_causal") is False or one.get("use_bidirectional_attention") in (True, "all"):
            return "bidirectional: it sees what comes after a token"
    return None


CAUSAL_MODELS = "Choose a causal language model: one that continues a text"
"""The remedy."""


def may_have_routers(words: Mapping[str, Any]) -> bool:
    """Whether such a model may have a layer of experts.

    Every family has its own name for their number, and all have the word "experts" in it; hybrids
    need not have a layer of that kind all the same.
    """
    kinds = words.get("layers_block_type")
    pattern = words.get("hybrid_override_pattern")
    if isinstance(kinds, list) and not any("moe" in str(kind) for kind in kinds):
        return False
    if isinstance(pattern, str) and "E" not in pattern:
        return False
    return any(
        may_have_routers(value)
        if isinstance(value, Mapping)
        else "experts" in str(name) and isinstance(value, int) and value > 1
        for name, value in words.items()
    )


def is_recurrent(words: Mapping[str, Any]) -> bool:
    """Whether a layer of such a model is known to carry a state from token to token."""
    pattern = words.get("hybrid_override_pattern")
    lists = [words.get(name) for name in _LISTS]
    kinds = [kind for one in lists if isinstance(one, list) for kind in one]
    return (
        (isinstance(pattern, str) and "M" in pattern)
        or any(kind in _RECURRENT for kind in kinds)
        or any(is_recurrent(value) for value in words.values() if isinstance(value, Mapping))
    )


def missing_routers(freeze: bool, exact: bool, words: Mapping[str, Any], model: str) -> str | None:
    """What is wrong with settings for routers of such a model, or None."""
    if not (freeze or exact) or may_have_routers(words):
        return None
    keys = ("policy.freeze_moe_router",) * freeze + ("policy.moe_router_fp32",) * exact
    asked = " and ".join(f"{key}=true" for key in keys)
    return f"{asked}, and policy.model={model} has no router: its config.json names no experts"


NO_ROUTERS = "Set it to false, or choose a mixture of experts"
"""The remedy."""
