# SPDX-License-Identifier: Apache-2.0
"""Adapters compute what the formula says, train alone, and come back bit for bit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlrun.batch import Sample
from rlrun.checkpoint.training_state import load_tensors, save_tensors
from rlrun.errors import ConfigError, StorageError
from rlrun.learner.learner import Learner
from rlrun.learner.lora_targets import adapter_size
from rlrun.models.resolve import resolve_model
from tests.learner.mixtures import jamba, phimoe, saved

MakeLearner = Callable[..., Learner]
LORA = ("policy.lora.enabled=true", "policy.lora.rank=4", "policy.lora.alpha=12")
PLAIN_GRADIENT = ("loss=reinforce", "policy.optimizer.lr=0", "policy.max_grad_norm=null")
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def trainable(learner: Learner) -> dict[str, Tensor]:
    return {n: p for n, p in learner.model.named_parameters() if p.requires_grad}


def bits(learner: Learner) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in learner.model.named_parameters()}


def randomize(learner: Learner, seed: int = 3) -> None:
    """An adapter that does something: B is 0 at first."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in trainable(learner).items():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.05)


class Reference:
    """The tiny model in float64 with W + alpha / r B A in the place of each W."""

    def __init__(self, learner: Learner) -> None:
        lora = learner.policy.lora
        path = resolve_model("rlrun:tiny")
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
        self.scale = lora.alpha / lora.rank
        self.leaves = {
            name: p.detach().double().requires_grad_() for name, p in trainable(learner).items()
        }

    def weights(self) -> dict[str, Tensor]:
        weights = {name: p.detach() for name, p in self.model.named_parameters()}
        for name, down in self.leaves.items():
            if ".lora_A." in name:
                layer = name.partition(".lora_A.")[0]
                up = self.leaves[name.replace(".lora_A.", ".lora_B.")]
                key = f"{layer}.weight"
                weights[key] = weights[key] + self.scale * (up @ down)
        return weights

    def logprobs(self, samples: list[Sample]) -> list[Tensor]:
        found = []
        for sample in samples:
            ids = torch.tensor([sample.trajectory.token_ids])
            output = functional_call(self.model, self.weights(), kwargs={"input_ids": ids})
            logprobs = output.logits[0].log_softmax(-1)
            places = range(sample.trajectory.input_length, ids.shape[1])
            found.append(torch.stack([logprobs[t - 1, ids[0, t]] for t in places]))
        return found

    def loss(self, samples: list[Sample]) -> Tensor:
        """Of loss=reinforce at token level."""
        terms = [
            -sample.advantage * one
            for sample, one in zip(samples, self.logprobs(samples), strict=True)
        ]
        return torch.cat(terms).mean()


def test_logprobs_loss_and_gradient_are_those_of_the_formula_in_float64(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner(*LORA, *PLAIN_GRADIENT, "policy.train_micro_batch_tokens=64")
    randomize(learner)
    reference = Reference(learner)
    expected = reference.logprobs(samples)
    for ours, theirs in zip(learner.logprobs(samples).logprobs, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=5e-5)
    loss = reference.loss(samples)
    loss.backward()
    metrics = learner.update([samples], step=1)
    assert metrics["train/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, parameter in trainable(learner).items():
        assert parameter.grad is not None, name
        wanted = reference.leaves[name].grad
        assert wanted is not None
        difference = (parameter.grad.double() - wanted).norm()
        assert float(difference) < 1e-4 * float(wanted.norm()), name


def test_a_new_adapter_changes_no_bit_of_what_the_model_says(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    plain, adapted = make_learner().logprobs(samples), make_learner(*LORA).logprobs(samples)
    for ours, theirs in zip(adapted.logprobs, plain.logprobs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_adapters_alone_are_trained_and_have_optimizer_state(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner(*LORA)
    before = bits(learner)
    learner.update([samples], step=1)
    learner.update([samples], step=2)
    adapter = {name for name in before if ".lora_" in name}
    assert trainable(learner).keys() == adapter
    assert len(adapter) == 2 * 2 * len(LAYERS)
    for name, after in bits(learner).items():
        assert torch.equal(after, before[name]) == (name not in adapter), name
    held = {id(p) for p in learner.optimizer.state}
    assert held == {id(p) for p in trainable(learner).values()}


def test_the_reference_is_the_model_without_its_adapter(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner(*LORA, "loss.reference_policy_kl_penalty=0.1")
    assert learner.reference is learner.forward
    start = learner.logprobs(samples).logprobs
    references = learner.ref_logprobs(samples)
    assert references is not None
    ready = [replace(s, ref_logprobs=r) for s, r in zip(samples, references, strict=True)]
    first = learner.update([ready], step=1)["train/kl_to_reference"]
    second = learner.update([ready], step=2)["train/kl_to_reference"]
    assert abs(first) < 1e-6 < second
    changed = learner.logprobs(samples).logprobs
    again = learner.ref_logprobs(samples)
    assert again is not None
    assert any(not np.array_equal(a, b) for a, b in zip(changed, start, strict=True))
    for ours, theirs in zip(again, start, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # And the adapter is on again, with its gradients.
    for ours, theirs in zip(learner.logprobs(samples).logprobs, changed, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(p.requires_grad for n, p in learner.model.named_parameters() if ".lora_" in n)


@pytest.mark.parametrize("way", ["activation_checkpointing=true", "sequence_packing=true"])
def test_no_way_of_computing_changes_the_gradient(
    make_learner: MakeLearner, samples: list[Sample], way: str
) -> None:
    def gradient(*more: str) -> Tensor:
        learner = make_learner(*LORA, *PLAIN_GRADIENT, *more)
        randomize(learner)
        learner.update([samples], step=1)
        return torch.cat(
            [p.grad.flatten() for p in trainable(learner).values() if p.grad is not None]
        )

    whole, other = gradient(), gradient(f"policy.{way}")
    assert float((whole - other).norm() / whole.norm()) < 1e-5


def test_bfloat16_keeps_float32_adapters(make_learner: MakeLearner, samples: list[Sample]) -> None:
    learner = make_learner(*LORA, "policy.precision=bfloat16")
    learner.update([samples], step=1)
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    assert {s["exp_avg"].dtype for s in learner.optimizer.state.values()} == {torch.float32}


def test_the_first_weights_depend_on_the_seed_alone(make_learner: MakeLearner) -> None:
    torch.manual_seed(1)
    first = bits(make_learner(*LORA))
    torch.manual_seed(2)
    second, other = bits(make_learner(*LORA)), bits(make_learner(*LORA, "policy.lora.seed=5"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    for name, values in first.items():
        if ".lora_A." in name:
            bound = values.shape[1] ** -0.5
            assert float(values.abs().max()) <= bound
            assert float(values.std()) == pytest.approx(bound / 3**0.5, rel=0.15)


def test_chosen_layers_alone_get_an_adapter(make_learner: MakeLearner) -> None:
    learner = make_learner(*LORA, "policy.lora.target_modules=[q_proj,1.mlp.up_proj]")
    layers = {name.partition(".lora_")[0] for name in trainable(learner)}
    assert layers == {
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
    }


@pytest.mark.parametrize("targets", ["all-linear", "[q_proj,1.mlp.up_proj]"])
def test_the_size_is_known_before_there_are_weights(
    make_learner: MakeLearner, targets: str
) -> None:
    learner = make_learner(*LORA, f"policy.lora.target_modules={targets}")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(learner.model.config)
    assert adapter_size(model, learner.policy.lora) == sum(
        p.numel() for p in trainable(learner).values()
    )


@pytest.mark.parametrize("target", ["q_porj", "lm_head", "embed_tokens", "input_layernorm"])
def test_a_layer_that_can_get_none_is_named_with_those_that_can(
    make_learner: MakeLearner, target: str
) -> None:
    with pytest.raises(ConfigError, match=rf"no linear layer {target}.*q_proj") as caught:
        make_learner(*LORA, f"policy.lora.target_modules=[q_proj,{target}]")
    assert caught.value.exit_code == 2


def test_without_peft_the_error_says_how_to_get_it(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install 'rlrun\[lora\]'"):
        make_learner(*LORA)


def test_a_restored_learner_goes_on_bit_for_bit(
    make_learner: MakeLearner, samples: list[Sample], tmp_path: Path
) -> None:
    learner = make_learner(*LORA)
    learner.update([samples], step=1)
    learner.save(tmp_path)
    learner.update([samples[::-1]], step=2)
    restored = make_learner(*LORA, "policy.lora.seed=77")
    restored.load(tmp_path)
    restored.update([samples[::-1]], step=2)
    after = bits(restored)
    assert all(torch.equal(after[name], p) for name, p in bits(learner).items())


def test_what_is_saved_is_small_and_always_the_same_bytes(
    make_learner: MakeLearner, samples: list[Sample], tmp_path: Path
) -> None:
    for place in ("one", "two"):
        learner = make_learner(*LORA)
        learner.update([samples], step=1)
        learner.save(tmp_path / place)
    files = sorted(path.name for path in (tmp_path / "one/policy").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors", "base_weights.json"]
    for name in files:
        one, two = (tmp_path / place / "policy" / name for place in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    tensors = load_tensors(tmp_path / "one/policy/adapter_model.safetensors")
    assert sum(t.numel() for t in tensors.values()) == 16384


def test_transformers_loads_the_saved_folder_with_equal_logits(
    make_learner: MakeLearner, samples: list[Sample], tmp_path: Path
) -> None:
    learner = make_learner(*LORA)
    randomize(learner)
    learner.save(tmp_path)
    ids = torch.tensor([samples[0].trajectory.token_ids])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, learner.model(ids).logits)


def test_a_merged_model_is_plain_and_says_the_same(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner(*LORA)
    randomize(learner)
    ids = torch.tensor([samples[0].trajectory.token_ids])
    with torch.no_grad():
        before = learner.model(ids).logits
        assert learner.adapter is not None
        learner.adapter.merge()
        after = learner.model(ids).logits
    assert float((before - after).abs().max()) < 1e-5
    assert learner.model.state_dict().keys() == make_learner().model.state_dict().keys()


def test_what_a_refit_transfers_is_the_merged_model(make_learner: MakeLearner) -> None:
    learner = make_learner(*LORA)
    randomize(learner)
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    sent = {name: value.clone() for name, value in learner.weights()}
    unchanged = learner.model.state_dict()
    assert all(torch.equal(value, unchanged[name]) for name, value in before.items())
    assert learner.adapter is not None
    learner.adapter.merge()
    merged = dict(learner.model.named_parameters())
    assert sent.keys() == merged.keys()
    for name, value in sent.items():
        assert torch.allclose(value, merged[name], rtol=0, atol=1e-6), name


def test_an_adapter_is_refused_on_other_weights(make_learner: MakeLearner, tmp_path: Path) -> None:
    make_learner(*LORA).save(tmp_path / "saved")
    other = make_learner().model
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-6
    other.save_pretrained(tmp_path / "other")
    learner = make_learner(*LORA, f"policy.model={tmp_path / 'other'}")
    with pytest.raises(StorageError, match="not those that the adapter was trained on"):
        learner.load(tmp_path / "saved")


@pytest.mark.parametrize("changed", ["rank=8", "alpha=4", "target_modules=[q_proj]"])
def test_an_adapter_of_another_kind_is_refused(
    make_learner: MakeLearner, tmp_path: Path, changed: str
) -> None:
    make_learner(*LORA).save(tmp_path)
    learner = make_learner(*LORA, f"policy.lora.{changed}")
    with pytest.raises(StorageError, match=r"policy\.lora"):
        learner.load(tmp_path)


def test_a_tensor_of_another_shape_is_refused(make_learner: MakeLearner, tmp_path: Path) -> None:
    learner = make_learner(*LORA)
    learner.save(tmp_path)
    path = tmp_path / "policy/adapter_model.safetensors"
    tensors = load_tensors(path)
    name = min(tensors)
    save_tensors(path, tensors | {name: tensors[name][:1]})
    with pytest.raises(StorageError, match="does not fit"):
        learner.load(tmp_path)


def test_the_saved_configuration_is_that_of_the_settings(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    make_learner(*LORA).save(tmp_path)
    saved = json.loads((tmp_path / "policy/adapter_config.json").read_text())
    assert (saved["r"], saved["lora_alpha"], saved["lora_dropout"]) == (4, 12, 0.0)
    assert saved["target_modules"] == sorted(LAYERS)
    assert Path(saved["base_model_name_or_path"]).is_absolute()


@pytest.mark.parametrize("mixture", [jamba, phimoe])
def test_no_router_gets_an_adapter(
    make_learner: MakeLearner,
    samples: list[Sample],
    tmp_path: Path,
    mixture: Callable[[], PreTrainedModel],
) -> None:
    learner = make_learner(saved(mixture(), tmp_path), *LORA, "policy.freeze_moe_router=true")
    before = {name: value.clone() for name, value in learner.weights()}
    learner.update([samples], step=1)
    learner.update([samples], step=2)
    changed = {name for name, value in learner.weights() if not value.equal(before[name])}
    assert changed
    assert not [name for name in changed if "router" in name]
