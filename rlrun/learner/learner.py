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
from torch.distributed.fsdp import FSDPModule

from rlrun.batch import Floats, Sample
from rlrun.config.schema import Policy
from rlrun.interfaces import Loss, LossInputs, Precision
from rlrun.learner.files import LearnerFiles
from rlrun.learner.gradients import clip_gradients
from rlrun.learner.kept import KeptForward, is_worth_keeping
from rlrun.learner.logprobs import TokenLogprobs, TokenValues
from rlrun.learner.lora import Adapter
from rlrun.learner.loss_inputs import flat, loss_inputs
from rlrun.learner.memory import peak_memory_bytes
from rlrun.learner.microbatch import cut, microbatches
from rlrun.learner.model import load_model, saved_tensors
from rlrun.learner.rows import TokenRows
from rlrun.learner.schedule import lr_factor
from rlrun.learner.sharding import Ranks, full_tensors, shard
from rlrun.learner.shards import Saving
from rlrun.types import Sampling


@dataclass(frozen=True, slots=True)
class Logprobs:
    """What a pass found, float32 over the sampled tokens of each sample."""

    logprobs: list[Floats]
    entropies: list[Floats]


class Learner:
    """One rank: holds the policy (or its part of it), its reference and the optimizer.

    Every rank is given the same samples, computes its share of the microbatches, and returns the
    same results. Loss and gradient do not depend on how many ranks there are.
    """

    def __init__(
        self,
        policy: Policy,
        loss: Loss,
        sampling: Sampling,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> None:
        """Loads the model (and the reference, if the loss has a KL penalty).

        Args:
            policy: What to train and how.
            loss: The objective.
            sampling: Temperature and filters that training samples are drawn with.
            device: Where to compute.
            ranks: All ranks of the learner; None for this process alone.
        """
        self.policy, self.loss, self.device = policy, loss, device
        self.ranks = ranks or Ranks()
        # Before it is spread it need not fit on a rank's device.
        place = device if self.ranks.mesh is None else torch.device("cpu")
        self.model = load_model(policy, place)
        self.adapter = Adapter(self.model, policy) if policy.lora.enabled else None
        self.forward = TokenLogprobs(self.model, sampling, policy.logprob_chunk_tokens)
        shard(self.forward, self.model, self.ranks, policy)
        self.reference: TokenLogprobs | None = None
        if loss.reference_policy_kl_penalty > 0 and self.adapter is not None:
            self.reference = self.forward
        elif loss.reference_policy_kl_penalty > 0:
            reference = load_model(policy, place).requires_grad_(False)
            self.reference = TokenLogprobs(reference, sampling, policy.logprob_chunk_tokens)
            shard(self.reference, reference, self.ranks, policy)
        self._kept: KeptForward | None = None
        settings = policy.optimizer
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            # One pass over the weights instead of a dozen.
            fused=True,
        )
        self.files = LearnerFiles(self.model, self.adapter, self.optimizer, self.ranks, policy)

    def logprobs(self, samples: Sequence[Sample]) -> Logprobs:
        """Log-probs and entropies of the sampled tokens under the present weights.

        Where one microbatch holds them all and most have an advantage, the update that follows
        goes on from this very pass.
        """
        self._kept = None
        with torch.set_grad_enabled(self._goes_on(samples)):
            return self._pass(self.forward, samples)

    def _goes_on(self, samples: Sequence[Sample]) -> bool:
        """Whether the update can use the graph of this pass, as it can that of one microbatch."""
        policy = self.policy
        return (
            self.ranks.size == 1
            and self.reference is None
            and self.loss.needs_advantage
            and not policy.activation_checkpointing
            and len(samples) <= (policy.train_global_batch_size or len(samples))
            and is_worth_keeping(samples)
            and len(cut(samples, self.policy)) == 1
        )

    @torch.no_grad()
    def ref_logprobs(self, samples: Sequence[Sample]) -> list[Floats] | None:
        """Log-probs under the weights that training started from; None without a KL penalty.

        Of the plain distribution at sampling temperature: under top-k and top-p the penalty would
        be without force exactly where the policy has left the reference.
        """
        if self.reference is None:
            return None
        with self.adapter.off() if self.adapter is not None else nullcontext():
            return self._pass(self.reference, samples, unfiltered=True).logprobs

    @torch.no_grad()
    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of every token but the first at temperature 1; every rank must call it."""
        mask = [False] + [True] * (len(token_ids) - 1)
        rows = TokenRows.padded([token_ids], [mask], self.device)
        with self._autocast():
            values: TokenValues = self.forward(rows, sampling=Sampling(1.0))
        if isinstance(self.forward, FSDPModule):
            self.forward.reshard()
        return values.logprobs.tolist()

    def peak_memory_bytes(self) -> int:
        """The largest memory of this rank so far: of its GPU, or resident in its process."""
        return peak_memory_bytes(self.device)

    def _pass(
        self, forward: TokenLogprobs, samples: Sequence[Sample], *, unfiltered: bool = False
    ) -> Logprobs:
        found: dict[int, tuple[Floats, Floats]] = {}
        for microbatch in microbatches(samples, self.policy, self.ranks, self.device):
            with self._autocast():
                values: TokenValues = forward(
                    microbatch.rows, entropies=True, unfiltered=unfiltered
                )
            members = microbatch.members
            logprobs = values.logprobs if values.unfiltered is None else values.unfiltered
            if logprobs.requires_grad:
                trajectories = tuple(samples[index].trajectory for index in members)
                self._kept = KeptForward(trajectories, values)
            if members:
                counts = [samples[index].trajectory.num_sampled for index in members]
                both = (logprobs.detach(), values.entropies)
                parts = [part.cpu().split(counts) for part in both if part is not None]
                for index, one, entropy in zip(members, *parts, strict=True):
                    found[index] = one.numpy(), entropy.numpy()
        if isinstance(forward, FSDPModule):
            # Without a backward pass the root would stay gathered, its parameters not those that
            # the optimizer knows.
            forward.reshard()
        merged = self.ranks.merge(found)
        ordered = [merged[index] for index in range(len(samples))]
        return Logprobs([one for one, _ in ordered], [entropy for _, entropy in ordered])

    def update(self, minibatches: Sequence[Sequence[Sample]], step: int) -> dict[str, float]:
        """One optimizer step per minibatch in which a trained sample has a gradient.

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
        results: list[dict[str, float]] = []
        for minibatch in minibatches:
            trained = [sample for sample in minibatch if sample.masked is None]
            # Without a gradient, momentum and weight decay alone would move the weights.
            signal = self._everyone_moves or any(s.has_gradient for s in trained)
            if trained and signal:
                results.append(self._optimizer_step(trained, step, unchanged=not results))
        names = results[0].keys() if results else ()
        means = {name: float(np.mean([result[name] for result in results])) for name in names}
        return means | {"train/lr": lr}

    @property
    def _everyone_moves(self) -> bool:
        """Whether samples whose policy term has no gradient have one all the same."""
        return self.reference is not None or not self.loss.needs_advantage

    def _optimizer_step(
        self, samples: Sequence[Sample], step: int, *, unchanged: bool
    ) -> dict[str, float]:
        """Steps once. ``unchanged``: no step since the samples' prev_logprobs were computed."""
        self.optimizer.zero_grad(set_to_none=True)
        everyone = self._everyone_moves
        still = [s for s in samples if not s.has_gradient and not everyone]
        moving = [s for s in samples if s.has_gradient or everyone]
        shares = self._still_shares(still, samples, unchanged)
        shares += self._backward(moving, samples, unchanged)
        totals: dict[str, Tensor] = {}
        for name, share in shares:
            totals[name] = totals.get(name, torch.zeros((), device=self.device)) + share
        metrics = self.ranks.sum(totals)
        metrics["train/grad_norm"] = clip_gradients(
            self.model,
            self.ranks,
            self.device,
            self.policy.max_grad_norm,
            step=step,
            loss=metrics["train/loss"],
        )
        self.optimizer.step()
        return metrics

    def _backward(
        self, samples: Sequence[Sample], minibatch: Sequence[Sample], unchanged: bool
    ) -> Iterator[tuple[str, Tensor]]:
        """Adds the gradient of ``samples``; yields their shares of the minibatch's metrics."""
        if self.policy.activation_checkpointing:
            self.model.train()  # transformers recomputes activations in training mode only
        for forward, chosen in self._forwards(samples, unchanged):
            output = self.loss(self._inputs(forward, chosen, minibatch))
            # Sharded gradients are averaged over the ranks; shares of the loss add up.
            (output.loss * self.ranks.size).backward()
            yield from output.metrics.items()
            yield "train/loss", output.loss.detach()
        self.model.eval()

    def _forwards(
        self, samples: Sequence[Sample], unchanged: bool
    ) -> Iterator[tuple[TokenValues, Sequence[Sample]]]:
        """Passes with gradient, one microbatch at a time; the one that was kept if it serves."""
        kept, self._kept = self._kept, None
        values = kept.of(samples) if kept is not None and unchanged else None
        if values is not None:
            yield values, samples
            return
        for microbatch in microbatches(samples, self.policy, self.ranks, self.device):
            with self._autocast():
                forward = self.forward(microbatch.rows, unfiltered=self.reference is not None)
            yield forward, [samples[i] for i in microbatch.members]

    @torch.no_grad()
    def _still_shares(
        self, samples: Sequence[Sample], minibatch: Sequence[Sample], unchanged: bool
    ) -> list[tuple[str, Tensor]]:
        """Shares of samples without a gradient, which have a part in the metrics all the same.

        Under unchanged weights their log-probs are known already.
        """
        shares: list[tuple[str, Tensor]] = []
        for microbatch in microbatches(samples, self.policy, self.ranks, self.device):
            chosen = [samples[i] for i in microbatch.members]
            if unchanged:
                known = flat([s.prev_logprobs for s in chosen]).to(self.device)
                forward = TokenValues(known, None, None)
            else:
                with self._autocast():
                    forward = self.forward(microbatch.rows)
            output = self.loss(self._inputs(forward, chosen, minibatch))
            shares += [*output.metrics.items(), ("train/loss", output.loss)]
        return shares

    def _inputs(
        self, forward: TokenValues, chosen: Sequence[Sample], minibatch: Sequence[Sample]
    ) -> LossInputs:
        return loss_inputs(
            forward,
            chosen,
            minibatch,
            with_reference=self.reference is not None,
            device=self.device,
        )

    def _autocast(self) -> AbstractContextManager[object]:
        if self.policy.precision is Precision.BFLOAT16:
            # Gathered parameters are bfloat16 already, and a cache would keep all of them.
            cached = self.ranks.mesh is None
            return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=cached)
        return nullcontext()

    def save(self, folder: Path) -> None:
        """See ``LearnerFiles.save``."""
        self.files.save(folder)

    def save_shards(self, folder: Path) -> Saving:
        """See ``LearnerFiles.save_shards``."""
        return self.files.save_shards(folder)

    def load(self, folder: Path) -> None:
        """See ``LearnerFiles.load``."""
        self._kept = None
        self.files.load(folder)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The present weights as ``interfaces.Weights`` has them; every rank must call it."""
        if self.adapter is not None:
            yield from self.adapter.merged_weights()
        else:
            yield from full_tensors(saved_tensors(self.model))
