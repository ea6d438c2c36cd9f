# SPDX-License-Identifier: Apache-2.0
"""The learner: log-probs of the policy and of the reference, and optimizer updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlrun.batch import Floats, Sample
from rlrun.config.schema import Policy
from rlrun.errors import StorageError, TrainingError
from rlrun.interfaces import Loss, LossInputs, Precision
from rlrun.learner.logprobs import TokenRows, token_logprobs
from rlrun.learner.microbatch import split_by_tokens
from rlrun.learner.model import load_model
from rlrun.learner.schedule import lr_factor
from rlrun.training_state import (
    flatten_optimizer_state,
    load_tensors,
    save_tensors,
    unflatten_optimizer_state,
)
from rlrun.types import Sampling


@dataclass(frozen=True, slots=True)
class Logprobs:
    """What a pass without gradient found, float32 over the sampled tokens of each sample."""

    logprobs: list[Floats]
    entropies: list[Floats]


class Learner:
    """Holds the policy, its reference and the optimizer on one device."""

    def __init__(
        self, policy: Policy, loss: Loss, sampling: Sampling, device: torch.device
    ) -> None:
        """Loads the model (and the reference, if the loss has a KL penalty).

        Args:
            policy: What to train and how.
            loss: The objective.
            sampling: Temperature and filters that training samples are drawn with.
            device: Where to compute.
        """
        self.policy, self.loss, self.sampling, self.device = policy, loss, sampling, device
        self.model = load_model(policy, device)
        self.reference: PreTrainedModel | None = None
        if loss.reference_policy_kl_penalty > 0:
            self.reference = load_model(policy, device).requires_grad_(False)
        settings = policy.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample]) -> Logprobs:
        """Log-probs and entropies of the sampled tokens under the present weights."""
        return self._pass(self.model, samples)

    @torch.no_grad()
    def ref_logprobs(self, samples: Sequence[Sample]) -> list[Floats] | None:
        """Log-probs under the weights that training started from; None without a KL penalty."""
        if self.reference is None:
            return None
        return self._pass(self.reference, samples).logprobs

    def _pass(self, model: PreTrainedModel, samples: Sequence[Sample]) -> Logprobs:
        logprobs: list[Floats] = [np.zeros(0, np.float32)] * len(samples)
        entropies = list(logprobs)
        for members, rows in self._microbatches(samples):
            with self._autocast():
                values = token_logprobs(
                    model, rows, self.sampling, self.policy.logprob_chunk_tokens
                )
            counts = [samples[i].trajectory.num_sampled for i in members]
            parts = [value.cpu().split(counts) for value in values]
            for index, logprob, entropy in zip(members, *parts, strict=True):
                logprobs[index], entropies[index] = logprob.numpy(), entropy.numpy()
        return Logprobs(logprobs, entropies)

    def update(self, minibatches: Sequence[Sequence[Sample]], step: int) -> dict[str, float]:
        """One optimizer step per minibatch that has a trained sample.

        Args:
            minibatches: Samples; masked ones among them carry no loss.
            step: From 1; decides the learning rate.

        Returns:
            Metrics, each the mean over the minibatches that were stepped.

        Raises:
            TrainingError: A loss or gradient is not finite. No weight has changed in that update.
        """
        lr = self.policy.optimizer.lr * lr_factor(step, self.policy.scheduler)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        results = []
        for minibatch in minibatches:
            trained = [sample for sample in minibatch if sample.masked is None]
            if trained:
                results.append(self._optimizer_step(trained, step))
        names = results[0].keys() if results else ()
        means = {name: float(np.mean([result[name] for result in results])) for name in names}
        return means | {"train/lr": lr}

    def _optimizer_step(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        self.optimizer.zero_grad(set_to_none=True)
        if self.policy.activation_checkpointing:
            self.model.train()  # transformers recomputes activations in training mode only
        totals: dict[str, Tensor] = {}
        for members, rows in self._microbatches(samples):
            with self._autocast():
                logprobs, _ = token_logprobs(
                    self.model, rows, self.sampling, self.policy.logprob_chunk_tokens
                )
            chosen = [samples[i] for i in members]
            output = self.loss(self._loss_inputs(logprobs, rows, chosen, samples))
            output.loss.backward()  # type: ignore[no-untyped-call]
            shares = dict(output.metrics) | {"train/loss": output.loss.detach()}
            for name, share in shares.items():
                totals[name] = totals.get(name, torch.zeros((), device=self.device)) + share
        self.model.eval()
        metrics = {name: float(total) for name, total in totals.items()}
        metrics["train/grad_norm"] = self._clip_gradients(step, metrics["train/loss"])
        self.optimizer.step()
        return metrics

    def _loss_inputs(
        self,
        logprobs: Tensor,
        rows: TokenRows,
        chosen: Sequence[Sample],
        minibatch: Sequence[Sample],
    ) -> LossInputs:
        def flat(arrays: Sequence[Floats]) -> Tensor:
            return torch.from_numpy(np.concatenate(arrays)).to(self.device)

        advantages = [
            np.full(sample.trajectory.num_sampled, sample.advantage, np.float32)
            for sample in chosen
        ]
        references = [s.ref_logprobs for s in chosen if s.ref_logprobs is not None]
        return LossInputs(
            logprobs=logprobs,
            prev_logprobs=flat([sample.prev_logprobs for sample in chosen]),
            generation_logprobs=flat([sample.generation_logprobs for sample in chosen]),
            ref_logprobs=flat(references) if references else None,
            advantages=flat(advantages),
            weights=flat([sample.weights for sample in chosen]),
            trajectory=rows.trajectory,
            num_trajectories=len(chosen),
            total_tokens=sum(sample.trajectory.num_sampled for sample in minibatch),
            total_trajectories=len(minibatch),
        )

    def _clip_gradients(self, step: int, loss: float) -> float:
        """Returns the L2 norm before clipping."""
        limit = self.policy.max_grad_norm or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if np.isfinite(norm) and np.isfinite(loss):
            return norm
        bad = [
            name
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None and not parameter.grad.isfinite().all()
        ]
        named = f"the gradient of {bad[0]} (and {len(bad) - 1} more)" if bad else "the loss"
        raise TrainingError(
            f"step {step}",
            f"{named} is not finite (loss {loss}, gradient norm {norm})",
            "The step's batch is in trained/; lower policy.optimizer.lr or check the rewards",
        )

    def _microbatches(self, samples: Sequence[Sample]) -> Iterator[tuple[list[int], TokenRows]]:
        lengths = [len(sample.trajectory.token_ids) for sample in samples]
        for members in split_by_tokens(lengths, self.policy.train_micro_batch_tokens):
            chosen = [samples[i].trajectory for i in members]
            token_ids = [trajectory.token_ids for trajectory in chosen]
            masks = [trajectory.loss_mask for trajectory in chosen]
            yield members, TokenRows.of(token_ids, masks, self.device)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.policy.precision is Precision.BFLOAT16:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def save(self, folder: Path) -> None:
        """Writes policy/ (a Hugging Face folder with float32 weights) and the optimizer state."""
        self.model.save_pretrained(folder / "policy")
        state = flatten_optimizer_state(self.optimizer, self.model.named_parameters())
        save_tensors(folder / "optimizer.safetensors", state)

    def load(self, folder: Path) -> None:
        """Restores what ``save`` wrote, bit for bit.

        Raises:
            StorageError: The weights belong to another model.
        """
        weights: dict[str, Tensor] = {}
        for path in sorted((folder / "policy").glob("*.safetensors")):
            weights |= load_tensors(path)
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        tied = set(self.model.all_tied_weights_keys or ())
        if unexpected or set(missing) - tied:
            raise StorageError(
                str(folder / "policy"),
                f"the weights do not fit the model of policy.model={self.policy.model} "
                f"(missing {sorted(set(missing) - tied)[:3]}, unexpected {unexpected[:3]})",
                "Resume with the model that the run was started with",
            )
        path = folder / "optimizer.safetensors"
        unflatten_optimizer_state(
            self.optimizer, self.model.named_parameters(), load_tensors(path), str(path)
        )
