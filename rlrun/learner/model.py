# SPDX-License-Identifier: Apache-2.0
"""Loads the policy and finds its two halves: the body that makes hidden states, and the head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from rlrun.config.schema import Policy
from rlrun.console.counted import counted
from rlrun.errors import DataError, TrainingError
from rlrun.learner import shards
from rlrun.learner.attention import attends_by_sequence, no_mask, use_attention
from rlrun.learner.bfloat16 import suit_precision
from rlrun.learner.mixture import set_up_routers
from rlrun.learner.rows import TokenRows
from rlrun.learner.scan import use_segments
from rlrun.models.resolve import resolve_model, shards_of

GENERATION = "generation_config.json"
REPAIR = "Restore the folder, or save the model anew with save_pretrained"

PROBE_TOLERANCE = 1e-3
"""Largest difference between logits of body and head and those of the whole model, in logits.
Float32 noise is below 1e-4; a soft cap or a logit scale that we do not know of is far above."""


ROUNDING = 1e-5
"""What float32 sums in another order leave, as a share of the largest value."""


def load_model(policy: Policy, device: torch.device) -> PreTrainedModel:
    """The model with float32 master weights, dropout off.

    Raises:
        TrainingError: Its logits are not a linear map of its last hidden state.
        DataError: There is no such model.
    """
    path = resolve_model(policy.model)
    disable_progress_bar()
    model = read_weights(path, policy.model)
    without_dropout(model)
    use_attention(model)
    set_up_routers(model, policy)
    use_segments(model)
    suit_precision(model, policy.precision, device)
    if policy.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    nn.Module.to(model, device)
    check_head(model, policy.model)
    if policy.activation_checkpointing:
        check_training_mode(model, policy.model)
    if policy.sequence_packing:
        check_packing(model, policy.model)
    return model


def read_weights(path: str, name: str) -> PreTrainedModel:
    """The model of a folder in float32, every parameter from its files.

    Raises:
        DataError: Files are damaged, do not fit their configuration, or lack a parameter (which
            transformers would make up).
    """
    beside = shards_of(Path(path))
    if beside is not None:
        return _read_shards(path, beside, name)
    loaded: Any  # typed as a model by transformers; with the loading info it is a pair
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    # Whatever is wrong with the files, transformers raises what comes up while reading them.
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"policy.model={name}", f"cannot be loaded: {text}", REPAIR) from error
    model: PreTrainedModel = loaded[0]
    found: Mapping[str, Collection[object]] = loaded[1]
    for kind in ("missing", "mismatched"):
        keys = sorted(str(key) for key in found.get(f"{kind}_keys", ()))
        if keys:
            what = f"{counted(len(keys), f'{kind} parameter')}, such as {keys[0]}"
            raise DataError(f"policy.model={name}", what, REPAIR)
    return model


def _read_shards(path: str, folder: Path, name: str) -> PreTrainedModel:
    """The model of a checkpoint that every rank wrote its part of."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(path), dtype=torch.float32
        )
        if (Path(path) / GENERATION).is_file():
            model.generation_config = GenerationConfig.from_pretrained(path)
    # As above.
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"policy.model={name}", f"cannot be loaded: {text}", REPAIR) from error
    shards.load(folder, saved_tensors(model), None)
    model.eval()
    return model


def save_model(
    model: PreTrainedModel, folder: Path, weights: dict[str, Tensor] | None = None
) -> None:
    """As save_pretrained, with the settings of generation that the model came with.

    Args:
        model: Whose settings are saved.
        folder: Where to.
        weights: In place of the model's own.
    """
    own = model.generation_config
    # Some that it reads transformers refuses to write: a temperature without do_sample, say.
    model.generation_config = GenerationConfig()
    try:
        model.save_pretrained(folder, state_dict=weights)
    finally:
        model.generation_config = own
    _save_generation(model, folder)


def save_settings(model: PreTrainedModel, folder: Path) -> None:
    """Writes what ``save_model`` writes beside the weights."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    _save_generation(model, folder)


def _save_generation(model: PreTrainedModel, folder: Path) -> None:
    if model.generation_config is not None:
        path = folder / GENERATION
        model.generation_config.to_json_file(path, keys_to_pop=["compile_config"])


def without_dropout(model: PreTrainedModel) -> None:
    """Turns dropout off for good: a ratio between two passes must come from the weights alone."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Some models hand a number of theirs to torch's function instead.
        for name, value in module.__dict__.items():
            if "dropout" in name and isinstance(value, float):
                module.__dict__[name] = 0.0


def body(model: PreTrainedModel) -> nn.Module:
    """The part that maps token ids to the last hidden state [B, T, H]."""
    part: nn.Module = model.base_model
    return part


def head(model: PreTrainedModel) -> nn.Module:
    """The part that maps hidden states [N, H] to logits [N, V]."""
    part: nn.Module = model.get_output_embeddings()
    return part


def saved_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters and buffers of a checkpoint; tied ones once, under the name registered first."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: value for name, value in model.state_dict().items() if name in own}


def hidden_states(model: PreTrainedModel, rows: TokenRows) -> Tensor:
    """Last hidden state [B, T, H]."""
    mask = rows.attention_mask
    extra: dict[str, tuple[int, ...]] = {}
    if rows.packed_lengths is not None and attends_by_sequence(model):
        mask, extra = no_mask(rows.token_ids.device), {"sequence_lengths": rows.packed_lengths}
    output = body(model)(
        input_ids=rows.token_ids,
        attention_mask=mask,
        position_ids=rows.position_ids,
        use_cache=False,
        **extra,
    )
    hidden: Tensor = output.last_hidden_state
    return hidden


@torch.no_grad()
def check_head(model: PreTrainedModel, name: str) -> None:
    """Makes sure that head(body(x)) is the whole model, which chunked log-probs rely on.

    Raises:
        TrainingError: It is not (a logit soft cap or scale, for example).
    """
    token_ids = _probe_ids(model, 8)
    ours = head(model)(body(model)(input_ids=token_ids, use_cache=False).last_hidden_state).float()
    theirs = model(input_ids=token_ids, use_cache=False).logits.float()
    difference = (ours - theirs).abs().max().item()
    if not difference <= PROBE_TOLERANCE:
        raise TrainingError(
            f"policy.model={name}",
            f"logits differ by {difference:.3g} from a linear map of the last hidden state "
            f"({type(model).__name__} may cap or scale its logits)",
            "Use a model without logit soft-capping or logit scaling",
        )


@torch.no_grad()
def check_training_mode(model: PreTrainedModel, name: str) -> None:
    """Makes sure that the mode in which activations are computed again changes nothing else.

    Raises:
        TrainingError: It does (noise on a router, for example, or layers that are left out).
    """
    # More than for other probes: what is drawn at random comes out as usual for many a token.
    ids = _probe_ids(model, 32)
    usual = body(model)(input_ids=ids, use_cache=False).last_hidden_state
    model.train()
    training = body(model)(input_ids=ids, use_cache=False).last_hidden_state
    model.eval()
    difference = (training - usual).abs().max().item()
    if not difference <= ROUNDING * usual.abs().max().item():
        raise TrainingError(
            f"policy.model={name}",
            f"{type(model).__name__} computes something else while it is trained: hidden states "
            f"differ by {difference:.3g}",
            "Set policy.activation_checkpointing=false",
        )


@torch.no_grad()
def check_packing(model: PreTrainedModel, name: str) -> None:
    """Makes sure that packed sequences do not see each other.

    Raises:
        TrainingError: They do (state-space layers, for example, know no positions).
    """
    ids = _probe_ids(model, 12)
    sequences = ids[0].split([7, 5])
    masks = [[False] + [True] * (len(sequence) - 1) for sequence in sequences]
    rows = TokenRows.packed([sequence.tolist() for sequence in sequences], masks, ids.device)
    packed = hidden_states(model, rows)
    alone = body(model)(input_ids=ids[:, 7:], use_cache=False).last_hidden_state
    difference = (packed[:, 7:] - alone).abs().max().item()
    if not difference <= PROBE_TOLERANCE * max(1.0, alone.abs().max().item()):
        raise TrainingError(
            f"policy.model={name}",
            f"packed sequences see each other ({type(model).__name__}: hidden states differ by "
            f"{difference:.3g})",
            "Set policy.sequence_packing=false",
        )


def _probe_ids(model: PreTrainedModel, length: int) -> Tensor:
    """Some token ids [1, length], the same ones for a model every time."""
    vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
    return (torch.arange(length, device=model.device) * 7 + 1)[None] % vocabulary
