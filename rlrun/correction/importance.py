# SPDX-License-Identifier: Apache-2.0
"""Importance-sampling correction: tokens were sampled by the generator, the learner disagrees.

Weight = learner's probability before the update / generator's probability, at a level (token,
sequence, geometric) and with a treatment of extreme values (none, tis, icepop, seq_mask_tis).
docs/loss.md has the formulas and sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from rlrun.errors import TrainingError
from rlrun.interfaces import (
    Correction,
    CorrectionInputs,
    CorrectionOutput,
    MismatchVerdict,
    component,
    setting,
)
from rlrun.tensors import (
    MAX_LOG_RATIO,
    bounded_exp,
    effective_sample_fraction,
    k3,
    log_ratio,
    mean_share,
    segment_counts,
    segment_expand,
    segment_mean,
    segment_sum,
)

if TYPE_CHECKING:
    from torch import Tensor


class Treatment(StrEnum):
    """What happens to extreme ratios."""

    NONE = "none"
    """Nothing: the raw ratio is the weight."""
    TIS = "tis"
    """Truncated: clamped to [ratio_min or 0, ratio_max]."""
    ICEPOP = "icepop"
    """Masked: 0 outside [ratio_min, ratio_max]."""
    SEQ_MASK_TIS = "seq_mask_tis"
    """Trajectories whose geometric mean ratio is outside [ratio_min, ratio_max] get 0; the tokens
    of the others keep their raw ratios."""


class CorrectionLevel(StrEnum):
    """What a ratio is taken over."""

    TOKEN = "token"
    """Each token has its own."""
    SEQUENCE = "sequence"
    """The product over the trajectory's tokens."""
    GEOMETRIC = "geometric"
    """The geometric mean over the trajectory's tokens."""


@component("correction/importance")
@dataclass(kw_only=True, slots=True)
class ImportanceCorrection(Correction):
    """Weights p/g per token or trajectory, with a treatment of extremes and a guard on the ESS."""

    enabled: bool | None
    allow_stale_without: bool
    type: Treatment
    level: CorrectionLevel
    ratio_min: float | None = setting(ge=0)
    ratio_max: float | None = setting(gt=0)
    ess_warn: float | None = setting(gt=0, le=1)
    ess_stop: float | None = setting(gt=0, le=1)
    mismatch_kl_stop: float | None = setting(gt=0)
    stop_after_steps: int = setting(ge=1)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Bounds must exist where the treatment uses them, and only there, and contain 1."""
        yield from self._missing_bounds()
        low, high = self.ratio_min, self.ratio_max
        if low is not None and high is not None and low > high:
            yield (
                ("ratio_min", "ratio_max"),
                f"ratio_min={low} is above ratio_max={high}",
                "Swap them",
            )
        elif (low is not None and low > 1) or (high is not None and high < 1):
            yield (
                ("ratio_min", "ratio_max"),
                f"ratio_min={low} and ratio_max={high} leave out ratio 1, that of every token on "
                "which generator and learner agree",
                "Give bounds around 1",
            )
        if self.type is Treatment.SEQ_MASK_TIS and self.level is not CorrectionLevel.TOKEN:
            yield (
                ("type", "level"),
                f"type=seq_mask_tis with level={self.level.value}: it masks by trajectory and "
                "weighs by token",
                "Set level=token, or type=icepop with level=geometric to mask and weigh alike",
            )
        if (
            self.ess_warn is not None
            and self.ess_stop is not None
            and self.ess_stop > self.ess_warn
        ):
            yield (
                ("ess_warn", "ess_stop"),
                f"ess_stop={self.ess_stop} is above ess_warn={self.ess_warn}",
                "The run should warn before it stops: set ess_stop below ess_warn",
            )

    def _missing_bounds(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        low, high = self.ratio_min, self.ratio_max
        if self.type is Treatment.NONE:
            if low is not None or high is not None:
                yield (
                    ("type", "ratio_min", "ratio_max"),
                    f"ratio_min={low} and ratio_max={high} have no effect with type=none",
                    "Set both to null, or type=tis to truncate",
                )
            return
        if high is None:
            yield (
                ("type", "ratio_max"),
                f"type={self.type.value} with ratio_max=null",
                f"Set ratio_max, such as {_USUAL[self.type][1]}",
            )
        if low is None and self.type is not Treatment.TIS:
            yield (
                ("type", "ratio_min"),
                f"type={self.type.value} with ratio_min=null",
                f"Set ratio_min, such as {_USUAL[self.type][0]}",
            )

    def active(self, asynchronous: bool) -> bool:
        """As ``enabled`` says; null means exactly when tokens may be stale."""
        return asynchronous if self.enabled is None else self.enabled

    def __call__(self, inputs: CorrectionInputs, *, asynchronous: bool) -> CorrectionOutput:
        """Weights and metrics; see the base class.

        A ratio that is NaN weighs 0 (and with it the trajectory, where the ratio or the mask is
        the trajectory's) and counts as clipped. Log-ratios are held within +-MAX_LOG_RATIO before
        exp, so weights are finite.
        """
        log_r = log_ratio(inputs.prev_logprobs.double(), inputs.generation_logprobs.double())
        weights, units, inside = self._weights(inputs, log_r)
        held = log_r[~log_r.isnan()].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        errors = held.abs().exp()
        metrics = {
            "correction/ess": effective_sample_fraction(units),
            "correction/clipped_fraction": float(mean_share((~inside).double(), inside.numel())),
            "correction/mismatch_kl": float(mean_share(k3(held), held.numel())),
            "correction/token_mult_prob_error": float(errors.mean()) if errors.numel() else 1.0,
        }
        dtype = inputs.prev_logprobs.dtype
        applied = weights if self.active(asynchronous) else weights.new_ones(weights.shape)
        return CorrectionOutput(weights=applied.to(dtype), metrics=metrics)

    def check(self, metrics: Mapping[str, float], bad_steps: int) -> MismatchVerdict:
        """Compares ``correction/ess`` and ``correction/mismatch_kl`` with their limits.

        Raises:
            TrainingError: This step is bad, and with it ``stop_after_steps`` in a row.
        """
        ess, mismatch = metrics["correction/ess"], metrics["correction/mismatch_kl"]
        what = (
            f"effective sample size {ess:.3g} of 1, mismatch_kl {mismatch:.3g} nats, "
            f"clipped_fraction {metrics['correction/clipped_fraction']:.3g}"
        )
        passed = [
            f"correction.{name}={limit}"
            for name, limit, beyond in (
                ("ess_stop", self.ess_stop, self.ess_stop is not None and ess < self.ess_stop),
                (
                    "mismatch_kl_stop",
                    self.mismatch_kl_stop,
                    self.mismatch_kl_stop is not None and mismatch > self.mismatch_kl_stop,
                ),
            )
            if beyond
        ]
        if passed and bad_steps + 1 >= self.stop_after_steps:
            raise TrainingError(
                "correction",
                f"{what}: beyond {' and '.join(passed)} for {bad_steps + 1} steps in a row",
                "Learner and generator disagree too much to learn from such batches: lower "
                "grpo.max_trajectory_age_steps or policy.optimizer.lr, compare the precision of "
                f"both, or set {passed[0].partition('=')[0]}=null to train regardless",
            )
        if passed:
            limit = f"step {bad_steps + 1} of {self.stop_after_steps} in a row before the run ends"
            return MismatchVerdict(f"{what}: beyond {' and '.join(passed)}, {limit}", True)
        if self.ess_warn is not None and ess < self.ess_warn:
            return MismatchVerdict(f"{what}: beyond correction.ess_warn={self.ess_warn}", False)
        return MismatchVerdict(None, False)

    def _weights(self, inputs: CorrectionInputs, log_r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of the tokens [N], weights of the units, whether each unit is within bounds.

        Units of the sample size are tokens at level token and otherwise trajectories that have a
        trained token; seq_mask_tis weighs tokens and counts trajectories as out of bounds.
        """
        trajectory, count = inputs.trajectory, inputs.num_trajectories
        present = segment_counts(trajectory, count) > 0
        if self.type is Treatment.SEQ_MASK_TIS:
            _, inside = self._treat(bounded_exp(segment_mean(log_r, trajectory, count)))
            kept = inside.index_select(0, trajectory)
            weights = bounded_exp(log_r).where(kept, 0.0)
            return weights, weights, inside[present]
        if self.level is CorrectionLevel.TOKEN:
            weights, inside = self._treat(bounded_exp(log_r))
            return weights, weights, inside
        reduce = segment_sum if self.level is CorrectionLevel.SEQUENCE else segment_mean
        units, inside = self._treat(bounded_exp(reduce(log_r, trajectory, count)))
        return segment_expand(units, trajectory), units[present], inside[present]

    def _treat(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """The treated ratios, and which of them were within the bounds (NaN is not)."""
        low = 0.0 if self.ratio_min is None else self.ratio_min
        high = float("inf") if self.ratio_max is None else self.ratio_max
        inside = (ratio >= low) & (ratio <= high)
        if self.type is Treatment.TIS:
            return ratio.clamp(low, high).where(~ratio.isnan(), 0.0), inside
        return ratio.where(inside, 0.0), inside


_USUAL: Mapping[Treatment, tuple[float, float]] = {
    Treatment.TIS: (0.0, 2.0),
    Treatment.ICEPOP: (0.5, 5.0),
    Treatment.SEQ_MASK_TIS: (0.999, 1.002),
}
"""Bounds that suit a treatment, for the error messages."""
