# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from rlrun.batch import Floats, Masked, Sample
from rlrun.checkpoint.training_state import load_tensors, save_tensors
from rlrun.errors import StorageError, TrainingError
from rlrun.learner.learner import Learner
from tests.learner.mixtures import phimoe, saved

MakeLearner = Callable[..., Learner]


def parameters(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in learner.model.named_parameters()}


def gradients(learner: Learner, minibatch: list[Sample]) -> torch.Tensor:
    """The gradient of one update, flat; the step itself has a learning rate of 0."""
    learner.update([minibatch], step=1)
    return torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_logprobs_are_those_of_a_plain_float64_forward_pass(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner("policy.train_micro_batch_tokens=64")
    found = learner.logprobs(samples).logprobs
    model = learner.model.double()
    for one, logprobs in zip(samples, found, strict=True):
        ids = torch.tensor([one.trajectory.token_ids])
        with torch.no_grad():
            reference = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        start = one.trajectory.input_length
        expected = [
            float(reference[t - 1, ids[0, t]]) for t in range(start, len(one.trajectory.token_ids))
        ]
        np.testing.assert_allclose(logprobs, expected, atol=2e-5)


def test_entropy_is_that_of_the_whole_distribution(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner()
    found = learner.logprobs(samples[:1]).entropies[0]
    ids = torch.tensor([samples[0].trajectory.token_ids])
    with torch.no_grad():
        logits = learner.model.double()(input_ids=ids, use_cache=False).logits[0]
    start = samples[0].trajectory.input_length
    expected = torch.distributions.Categorical(logits=logits[start - 1 : -1]).entropy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("filters", ["top_p=0.8", "top_k=5", "temperature=0.7"])
def test_logprobs_follow_the_sampling_of_the_generator(
    make_learner: MakeLearner, samples: list[Sample], filters: str
) -> None:
    plain = make_learner().logprobs(samples).logprobs
    filtered = make_learner(f"generation.{filters}").logprobs(samples).logprobs
    assert any(not np.allclose(a, b) for a, b in zip(plain, filtered, strict=True))


@pytest.mark.parametrize("tokens", [64, 100, 300])
@pytest.mark.parametrize("loss", ["grpo", "gspo", "cispo"])
def test_the_microbatch_size_changes_no_gradient(
    make_learner: MakeLearner, samples: list[Sample], tokens: int, loss: str
) -> None:
    fixed = (
        f"loss={loss}",
        "loss.reference_policy_kl_penalty=0",
        "policy.optimizer.lr=0",
        "policy.max_grad_norm=null",
    )
    whole = gradients(make_learner(*fixed), samples)
    cut = gradients(make_learner(*fixed, f"policy.train_micro_batch_tokens={tokens}"), samples)
    assert relative(cut, whole) < 1e-5


@pytest.mark.parametrize("tokens", [64, 1000])
def test_packing_changes_no_gradient_and_no_logprob(
    make_learner: MakeLearner, samples: list[Sample], tokens: int
) -> None:
    fixed = ("policy.optimizer.lr=0", "policy.max_grad_norm=null")
    padded = make_learner(*fixed)
    packed = make_learner(
        *fixed, "policy.sequence_packing=true", f"policy.train_micro_batch_tokens={tokens}"
    )
    ours, theirs = packed.logprobs(samples).logprobs, padded.logprobs(samples).logprobs
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert relative(gradients(packed, samples), gradients(padded, samples)) < 1e-5


def test_the_order_of_samples_changes_no_gradient(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    fixed = ("policy.optimizer.lr=0", "policy.max_grad_norm=null")
    forward = gradients(make_learner(*fixed), samples)
    backward = gradients(make_learner(*fixed), samples[::-1])
    assert relative(backward, forward) < 1e-5


def test_masked_samples_change_no_gradient(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    fixed = ("policy.optimizer.lr=0", "policy.max_grad_norm=null")
    alone = gradients(make_learner(*fixed), samples[:6])
    masked = [replace(s, masked=Masked.FAILED, advantage=0.0) for s in samples[6:]]
    together = gradients(make_learner(*fixed), [*samples[:6], *masked])
    assert torch.equal(together, alone)


def test_chunks_of_logits_change_no_gradient(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    fixed = ("policy.optimizer.lr=0", "policy.max_grad_norm=null")
    whole = gradients(make_learner(*fixed), samples)
    chunked = gradients(make_learner(*fixed, "policy.logprob_chunk_tokens=3"), samples)
    assert relative(chunked, whole) < 1e-5


def test_activation_checkpointing_changes_no_gradient(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    fixed = ("policy.optimizer.lr=0", "policy.max_grad_norm=null")
    whole = gradients(make_learner(*fixed), samples)
    recomputed = gradients(make_learner(*fixed, "policy.activation_checkpointing=true"), samples)
    assert relative(recomputed, whole) < 1e-6


def tiny_opt(folder: Path, **settings: float) -> str:
    """A model that hands its dropout to torch's function, as ``policy.model``."""
    torch.manual_seed(0)
    shape = OPTConfig(
        vocab_size=280,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        **settings,
    )
    OPTForCausalLM(shape).save_pretrained(folder)
    return f"policy.model={folder}"


def test_activation_checkpointing_turns_no_dropout_on(
    make_learner: MakeLearner, samples: list[Sample], tmp_path: Path
) -> None:
    model = tiny_opt(tmp_path, dropout=0.5, activation_dropout=0.5)
    fixed = (model, "policy.optimizer.lr=0", "policy.max_grad_norm=null")
    plain = gradients(make_learner(*fixed), samples)
    recomputed = gradients(make_learner(*fixed, "policy.activation_checkpointing=true"), samples)
    assert relative(recomputed, plain) < 1e-5


@pytest.mark.parametrize("noise", ["layerdrop", "routes"])
def test_a_model_that_trains_as_another_is_refused(
    make_learner: MakeLearner, tmp_path: Path, noise: str
) -> None:
    model = tiny_opt(tmp_path, layerdrop=1.0) if noise == "layerdrop" else saved(phimoe(), tmp_path)
    make_learner(model)
    with pytest.raises(TrainingError, match="computes something else while it is trained"):
        make_learner(model, "policy.activation_checkpointing=true")


def test_two_minibatches_are_two_optimizer_steps(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner()
    learner.update([samples[:6], samples[6:]], step=1)
    assert {int(state["step"]) for state in learner.optimizer.state.values()} == {2}


def test_a_minibatch_in_which_everything_is_masked_is_not_stepped(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner()
    before = parameters(learner)
    metrics = learner.update([[replace(s, masked=Masked.FAILED) for s in samples]], step=1)
    assert metrics.keys() == {"train/lr"}
    assert all(torch.equal(before[name], p) for name, p in parameters(learner).items())


def test_a_learning_rate_of_zero_leaves_every_bit(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner("policy.optimizer.lr=0")
    before = parameters(learner)
    learner.update([samples], step=1)
    assert all(torch.equal(before[name], p) for name, p in parameters(learner).items())


def test_a_gradient_that_is_not_finite_names_its_tensor_and_changes_nothing(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner()
    before = parameters(learner)
    broken = [replace(samples[0], advantage=float("nan")), *samples[1:]]
    with pytest.raises(TrainingError, match=r"gradient of model\..* is not finite") as caught:
        learner.update([broken], step=7)
    assert caught.value.where == "step 7"
    assert caught.value.exit_code == 6
    assert all(torch.equal(before[name], p) for name, p in parameters(learner).items())


def test_weights_that_are_not_finite_are_not_saved(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    learner = make_learner()
    name, parameter = next(iter(learner.model.named_parameters()))
    with torch.no_grad():
        parameter[0, 0] = torch.inf
    for save in (learner.save, learner.save_shards):
        with pytest.raises(TrainingError, match=f"{name} is not finite, so nothing is saved"):
            save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_bfloat16_keeps_float32_master_weights(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner("policy.precision=bfloat16")
    learner.update([samples], step=1)
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    assert {s["exp_avg"].dtype for s in learner.optimizer.state.values()} == {torch.float32}


def test_kl_to_the_reference_is_zero_before_the_first_update_and_not_after(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner("loss.reference_policy_kl_penalty=0.1")
    references = learner.ref_logprobs(samples)
    assert references is not None
    with_refs = [replace(s, ref_logprobs=r) for s, r in zip(samples, references, strict=True)]
    first = learner.update([with_refs], step=1)["train/kl_to_reference"]
    second = learner.update([with_refs], step=2)["train/kl_to_reference"]
    assert abs(first) < 1e-6 < second


def test_a_restored_learner_goes_on_bit_for_bit(
    make_learner: MakeLearner, samples: list[Sample], tmp_path: Path
) -> None:
    learner = make_learner()
    learner.update([samples], step=1)
    learner.save(tmp_path)
    learner.update([samples[::-1]], step=2)
    restored = make_learner()
    restored.load(tmp_path)
    restored.update([samples[::-1]], step=2)
    after = parameters(restored)
    assert all(torch.equal(after[name], p) for name, p in parameters(learner).items())


@pytest.mark.parametrize("lora", ["false", "true"])
def test_the_reference_of_a_restored_learner_is_what_training_started_from(
    make_learner: MakeLearner, samples: list[Sample], tmp_path: Path, lora: str
) -> None:
    settings = ("loss.reference_policy_kl_penalty=0.1", f"policy.lora.enabled={lora}")
    learner = make_learner(*settings)
    started = learner.ref_logprobs(samples)
    assert started is not None
    ready = [replace(s, ref_logprobs=r) for s, r in zip(samples, started, strict=True)]
    learner.update([ready], step=1)
    learner.save(tmp_path)
    restored = make_learner(*settings)
    restored.load(tmp_path)
    now, references = restored.logprobs(samples).logprobs, restored.ref_logprobs(samples)
    assert references is not None
    for reference, before, policy in zip(references, started, now, strict=True):
        np.testing.assert_array_equal(reference, before)
        assert not np.array_equal(reference, policy)


@pytest.mark.parametrize("lacks", ["advantage", "weight"])
def test_a_minibatch_without_signal_is_not_stepped(
    make_learner: MakeLearner, samples: list[Sample], lacks: str
) -> None:
    learner = make_learner()
    learner.update([samples], step=1)
    before = parameters(learner)
    dead = [replace(s, advantage=0.0) for s in samples]
    if lacks == "weight":
        # What correction.type=icepop and seq_mask_tis leave of samples that are too far off.
        dead = [replace(s, weights=np.zeros_like(s.weights)) for s in samples]
    assert learner.update([dead[:6], dead[6:]], step=2).keys() == {"train/lr"}
    assert all(torch.equal(before[name], p) for name, p in parameters(learner).items())


def test_a_loss_that_needs_no_advantage_is_stepped_without_any(
    make_learner: MakeLearner, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner("policy.optimizer.weight_decay=0.1")
    before = parameters(learner)
    monkeypatch.setattr(type(learner.loss), "needs_advantage", False)
    assert "train/loss" in learner.update([[replace(s, advantage=0.0) for s in samples]], step=1)
    # Weight decay alone, as this loss is 0 without an advantage.
    assert any(not torch.equal(before[name], p) for name, p in parameters(learner).items())


def test_a_checkpoint_of_another_size_is_refused(
    make_learner: MakeLearner, samples: list[Sample], tmp_path: Path
) -> None:
    learner = make_learner()
    learner.save(tmp_path)
    path = tmp_path / "policy" / "model.safetensors"
    weights = load_tensors(path)
    name = next(name for name, value in weights.items() if value.dim() == 1)
    # One number would be spread over the whole parameter.
    save_tensors(path, weights | {name: weights[name][:1]})
    with pytest.raises(StorageError, match=rf"{name} has shape \[1\]"):
        make_learner().load(tmp_path)


def mixed(samples: list[Sample]) -> list[Sample]:
    """Every third sample without advantage, and one without weight."""
    cut = [replace(s, advantage=s.advantage * bool(i % 3)) for i, s in enumerate(samples)]
    cut[1] = replace(cut[1], weights=np.zeros_like(cut[1].weights))
    return cut


@pytest.mark.parametrize("kl", [0, 0.1])
def test_samples_without_advantage_change_neither_gradient_nor_metrics(
    make_learner: MakeLearner, samples: list[Sample], monkeypatch: pytest.MonkeyPatch, kl: float
) -> None:
    setting = f"loss.reference_policy_kl_penalty={kl}"
    one, all_backward = make_learner(setting), make_learner(setting)
    logprobs = one.logprobs(samples).logprobs
    refs: Sequence[Floats | None] = one.ref_logprobs(samples) or [None] * len(samples)
    batch = [
        replace(s, prev_logprobs=p, ref_logprobs=r)
        for s, p, r in zip(mixed(samples), logprobs, refs, strict=True)
    ]
    halves = [batch[:6], batch[6:]]
    ours = one.update(halves, step=1)

    # What a loss of which nothing is known gets: all samples go through the backward pass.
    monkeypatch.setattr(type(all_backward.loss), "needs_advantage", False)
    theirs = all_backward.update(halves, step=1)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    pairs = zip(one.model.parameters(), all_backward.model.parameters(), strict=True)
    gradients = [(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None]
    assert gradients
    assert all(relative(a, b) < 1e-4 for a, b in gradients)


@pytest.mark.parametrize("filters", [(), ("generation.top_k=3",), ("generation.top_p=0.5",)])
def test_the_reference_is_compared_without_filters(
    make_learner: MakeLearner, samples: list[Sample], filters: tuple[str, ...]
) -> None:
    learner = make_learner(
        "loss.reference_policy_kl_penalty=0.1", "policy.optimizer.lr=0", *filters
    )
    references = learner.ref_logprobs(samples)
    assert references is not None
    assert all(np.isfinite(one).all() for one in references)
    # No advantage: what gradient there is comes from the penalty.
    ready = [
        replace(s, ref_logprobs=r, advantage=0.0) for s, r in zip(samples, references, strict=True)
    ]
    assert abs(learner.update([ready], step=1)["train/kl_to_reference"]) < 1e-6
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(1.05)
    metrics = learner.update([ready], step=2)
    assert metrics["train/kl_to_reference"] > 1e-3
    assert metrics["train/grad_norm"] > 1e-3
