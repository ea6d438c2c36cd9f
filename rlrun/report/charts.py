# SPDX-License-Identifier: Apache-2.0
"""Which curves there are, in which order, and what each one tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Chart:
    """Some curves over the steps, in one picture.

    Attributes:
        title: In a few words.
        metrics: Names; one that ends in a slash stands for all that begin with it.
        hint: What is good, what is not, and what to do then.
        zero: Whether the axis begins at 0.
    """

    title: str
    metrics: tuple[str, ...]
    hint: str
    zero: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON-able fields."""
        return asdict(self)

    def names_in(self, names: Iterable[str]) -> list[str]:
        """Those of the names that the chart shows."""
        shown = tuple(metric for metric in self.metrics if metric.endswith("/"))
        return [name for name in names if name in self.metrics or name.startswith(shown)]


CHARTS = (
    Chart(
        "Reward",
        ("train/reward_mean", "train/shaped_reward_mean"),
        "Should rise. Flat from the start: look at zero-signal groups; falling: lower "
        "policy.optimizer.lr.",
    ),
    Chart(
        "Validation",
        ("validation/accuracy", "validation/reward_mean", "validation/pass_k"),
        "What counts. If the training reward rises and this does not, the policy learns the "
        "training prompts or exploits the reward.",
    ),
    Chart("Parts of the reward", ("reward/",), "Each named part, before scaling."),
    Chart(
        "Loss",
        ("train/loss", "train/policy_loss"),
        "Hovers around 0 with group-relative advantages; jumps matter, the level does not.",
    ),
    Chart(
        "Gradient norm",
        ("train/grad_norm",),
        "Before clipping. Spikes come before collapses: lower the learning rate or "
        "policy.max_grad_norm.",
        True,
    ),
    Chart(
        "Entropy",
        ("train/entropy",),
        "Falls slowly. Near 0 the policy explores no more; a rise means that it comes apart.",
        True,
    ),
    Chart(
        "KL and mismatch",
        ("correction/mismatch_kl", "train/kl_to_reference"),
        "Mismatch is how far the generator's probabilities are from the learner's: near 0 when "
        "on-policy, growing with age. A jump at age 0 is a numerical defect.",
    ),
    Chart(
        "Mismatch per token",
        ("correction/token_mult_prob_error",),
        "1 is exact agreement of generator and learner; above 1.05 look at precision and age.",
    ),
    Chart(
        "Effective sample size",
        ("correction/ess", "correction/clipped_fraction", "train/ratio_clipped_fraction"),
        "Share of the batch that the importance weights leave. Under 0.5 the data is too old: "
        "lower grpo.max_trajectory_age_steps.",
        True,
    ),
    Chart(
        "Response length",
        (
            "train/response_tokens_mean",
            "rollout/response_tokens_max",
            "rollout/response_tokens_min",
        ),
        "In sampled tokens. Growing into the limit with a growing truncated share: raise "
        "generation.max_new_tokens.",
        True,
    ),
    Chart(
        "Truncated and length bias",
        ("train/truncated_fraction", "rollout/length_bias"),
        "Share cut by a limit; length bias below 1 means that long answers are lost.",
        True,
    ),
    Chart(
        "Age",
        ("age/mean", "age/max"),
        "Steps between the weights that sampled a token and the step that trains it; 0 is "
        "on-policy.",
        True,
    ),
    Chart(
        "Groups without signal",
        ("train/zero_variance_groups", "train/dropped_groups", "buffer/groups"),
        "Groups whose rewards are all equal teach nothing. Many: use prompts of another "
        "difficulty or grpo.use_dynamic_sampling.",
        True,
    ),
    Chart(
        "Seconds per step",
        ("perf/step_s", "perf/exposed_generation_s", "perf/update_s", "perf/logprobs_s"),
        "The step and what it was spent on.",
        True,
    ),
    Chart(
        "Tokens per second",
        ("perf/generated_tokens_per_s", "perf/trained_tokens_per_s"),
        "Sampled while something was sampled; trained over the whole step.",
        True,
    ),
    Chart(
        "Efficiency",
        ("perf/ceiling_efficiency", "perf/speedup_over_sync", "perf/per_gpu_over_sync"),
        "E is the share of what the machines could do if nothing waited and no token was wasted.",
        True,
    ),
    Chart("Memory", ("perf/peak_memory_gib",), "Of the learner, in GiB.", True),
    Chart("Learning rate", ("train/lr",), "As scheduled.", True),
)
