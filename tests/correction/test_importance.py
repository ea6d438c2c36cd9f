# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.correction.importance import CorrectionLevel, ImportanceCorrection, Treatment
from rlrun.errors import TrainingError
from rlrun.interfaces import CorrectionInputs, CorrectionOutput, MismatchVerdict
from tests import reference_float64

Gaps = list[list[float]]
VARIANTS = [
    ("none", "token", None, None),
    ("none", "sequence", None, None),
    ("none", "geometric", None, None),
    ("tis", "token", None, 1.2),
    ("tis", "token", 0.8, 1.2),
    ("tis", "sequence", 0.5, 1.5),
    ("tis", "geometric", None, 1.05),
    ("icepop", "token", 0.8, 1.2),
    ("icepop", "sequence", 0.7, 1.4),
    ("icepop", "geometric", 0.9, 1.1),
    ("seq_mask_tis", "token", 0.9, 1.1),
]


def correction(
    treatment: str = "tis",
    level: str = "token",
    low: float | None = None,
    high: float | None = 2.0,
    enabled: bool | None = None,
    ess_warn: float | None = 0.5,
    ess_stop: float | None = 0.2,
) -> ImportanceCorrection:
    return ImportanceCorrection(
        enabled=enabled,
        allow_stale_without=False,
        type=Treatment(treatment),
        level=CorrectionLevel(level),
        ratio_min=low,
        ratio_max=high,
        ess_warn=ess_warn,
        ess_stop=ess_stop,
        mismatch_kl_stop=1.0,
        stop_after_steps=5,
    )


def inputs(batch: list[list[tuple[float, float]]]) -> CorrectionInputs:
    flat = [pair for tokens in batch for pair in tokens]
    return CorrectionInputs(
        prev_logprobs=torch.tensor([prev for prev, _ in flat], dtype=torch.float32),
        generation_logprobs=torch.tensor([own for _, own in flat], dtype=torch.float32),
        trajectory=torch.tensor(
            [i for i, tokens in enumerate(batch) for _ in tokens], dtype=torch.int64
        ),
        num_trajectories=len(batch),
    )


def of_gaps(gaps: Gaps) -> CorrectionInputs:
    """Tokens whose log-ratio learner / generator is the given number."""
    return inputs([[(gap - 2.0, -2.0) for gap in tokens] for tokens in gaps])


def apply(settings: ImportanceCorrection, batch: CorrectionInputs) -> CorrectionOutput:
    return settings(batch, asynchronous=True)


@pytest.mark.parametrize(("treatment", "level", "low", "high"), VARIANTS)
@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 0.02, 0.3, 5.0]),
)
def test_equals_the_reference(
    treatment: str,
    level: str,
    low: float | None,
    high: float | None,
    lengths: list[int],
    seed: int,
    spread: float,
) -> None:
    rng = np.random.default_rng(seed)
    batch = [
        [
            (float(np.float32(-2.0 + rng.normal(0, spread))), float(np.float32(-2.0)))
            for _ in range(length)
        ]
        for length in lengths
    ]
    weights, metrics = reference_float64.correction(batch, treatment, level, low, high)
    output = apply(correction(treatment, level, low, high), inputs(batch))
    assert output.weights.dtype == torch.float32
    assert output.weights.tolist() == pytest.approx(weights, rel=1e-6)
    assert dict(output.metrics) == pytest.approx(metrics, rel=1e-9, abs=1e-12)


def test_a_truncation_that_never_binds_is_the_plain_ratio() -> None:
    batch = of_gaps([[0.3, -0.5], [1.0]])
    plain = apply(correction("none", high=None), batch)
    truncated = apply(correction("tis", high=1e30), batch)
    assert torch.equal(plain.weights, truncated.weights)
    assert truncated.metrics["correction/clipped_fraction"] == 0.0
    expected = [math.exp(gap) for gap in (0.3, -0.5, 1.0)]
    assert plain.weights.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("treatment", "level", "low", "high"), VARIANTS)
def test_where_both_agree_all_weights_are_one(
    treatment: str, level: str, low: float | None, high: float | None
) -> None:
    output = apply(correction(treatment, level, low, high), of_gaps([[0.0, 0.0], [], [0.0]]))
    assert output.weights.tolist() == [1.0] * 3
    assert output.metrics == {
        "correction/ess": 1.0,
        "correction/clipped_fraction": 0.0,
        "correction/mismatch_kl": 0.0,
        "correction/token_mult_prob_error": 1.0,
    }


@pytest.mark.parametrize(
    ("enabled", "asynchronous", "active"),
    [
        (None, True, True),
        (None, False, False),
        (True, True, True),
        (True, False, True),
        (False, True, False),
        (False, False, False),
    ],
)
def test_weights_are_applied_where_asked_and_measured_everywhere(
    enabled: bool | None, asynchronous: bool, active: bool
) -> None:
    settings = correction(enabled=enabled)
    batch = of_gaps([[0.5, 2.0], [-1.0]])
    output = settings(batch, asynchronous=asynchronous)
    assert settings.active(asynchronous) is active
    expected = [math.exp(0.5), 2.0, math.exp(-1.0)] if active else [1.0, 1.0, 1.0]
    assert output.weights.tolist() == pytest.approx(expected, rel=1e-6)
    assert output.metrics == apply(correction(), batch).metrics
    assert output.metrics["correction/clipped_fraction"] == pytest.approx(1 / 3)
    assert output.metrics["correction/ess"] < 1.0


def test_treatments_of_the_same_tokens() -> None:
    gaps = [[math.log(4), math.log(0.5)], [math.log(1.1), math.log(0.9)]]

    def weights(treatment: str, level: str, low: float | None, high: float | None) -> list[float]:
        return apply(correction(treatment, level, low, high), of_gaps(gaps)).weights.tolist()

    assert weights("none", "token", None, None) == pytest.approx([4, 0.5, 1.1, 0.9])
    assert weights("tis", "token", None, 2.0) == pytest.approx([2, 0.5, 1.1, 0.9])
    assert weights("icepop", "token", 0.6, 2.0) == pytest.approx([0, 0, 1.1, 0.9])
    assert weights("seq_mask_tis", "token", 0.9, 1.2) == pytest.approx([0, 0, 1.1, 0.9])
    assert weights("none", "sequence", None, None) == pytest.approx([2, 2, 0.99, 0.99])
    root = math.sqrt(2)
    assert weights("none", "geometric", None, None)[:2] == pytest.approx([root, root])


def test_sample_size_counts_trajectories_above_token_level() -> None:
    gaps = [[math.log(3)], [0.0] * 9, []]
    token = apply(correction("none", "token", None, None), of_gaps(gaps))
    sequence = apply(correction("none", "sequence", None, None), of_gaps(gaps))
    assert token.metrics["correction/ess"] == pytest.approx(12**2 / (10 * 18))
    assert sequence.metrics["correction/ess"] == pytest.approx(4**2 / (2 * 10))


@pytest.mark.parametrize(("treatment", "level", "low", "high"), VARIANTS)
@pytest.mark.parametrize("gap", [200.0, -200.0, math.inf, -math.inf, math.nan])
def test_extreme_ratios_give_finite_weights_and_metrics(
    treatment: str, level: str, low: float | None, high: float | None, gap: float
) -> None:
    batch = inputs([[(-1.0, -1.0), (-1.0, -1.0)], [(-2.0, -2.0 - gap), (-1.0, -1.0)]])
    output = apply(correction(treatment, level, low, high), batch)
    assert bool((output.weights.isfinite() & (output.weights >= 0)).all())
    assert output.weights[:2].tolist() == [1.0, 1.0]
    assert all(math.isfinite(value) for value in output.metrics.values())
    if math.isnan(gap):
        assert output.weights[2] == 0.0
        assert output.metrics["correction/clipped_fraction"] > 0.0
        assert output.metrics["correction/mismatch_kl"] == 0.0


def test_a_ratio_that_overflows_is_truncated_not_dropped() -> None:
    assert apply(correction(high=2.0), of_gaps([[500.0]])).weights.tolist() == [2.0]


@pytest.mark.parametrize(("treatment", "level", "low", "high"), VARIANTS)
@pytest.mark.parametrize("gaps", [[], [[]], [[], []]])
def test_nothing_to_train_raises_no_alarm(
    treatment: str, level: str, low: float | None, high: float | None, gaps: Gaps
) -> None:
    settings = correction(treatment, level, low, high)
    output = apply(settings, of_gaps(gaps))
    assert output.weights.tolist() == []
    assert output.metrics["correction/ess"] == 1.0
    assert output.metrics["correction/clipped_fraction"] == 0.0
    assert settings.check(output.metrics, 0) == MismatchVerdict(None, False)


def test_renormalised_logprobs_of_top_p_show_as_a_ratio() -> None:
    kept = math.log(0.909969)
    logprob = 2.0 - math.log(math.exp(2) + math.exp(1) + 1)
    same = apply(correction(), inputs([[(logprob - kept, logprob - kept)]]))
    other = apply(correction(), inputs([[(logprob, logprob - kept)]]))
    assert same.weights.item() == 1.0
    assert other.weights.item() == pytest.approx(0.909969, rel=1e-6)


def test_a_low_sample_size_warns_then_stops() -> None:
    def metrics(ess: float) -> dict[str, float]:
        return {
            "correction/ess": ess,
            "correction/mismatch_kl": 0.1,
            "correction/clipped_fraction": 0.2,
        }

    settings = correction(ess_warn=0.5, ess_stop=0.2)
    assert settings.check(metrics(0.5), 0) == MismatchVerdict(None, False)
    verdict = settings.check(metrics(0.3), 4)
    assert verdict.warning is not None and not verdict.bad
    assert "0.3" in verdict.warning and "correction.ess_warn=0.5" in verdict.warning
    assert not settings.check(metrics(0.2), 4).bad
    for before in range(4):
        verdict = settings.check(metrics(0.1), before)
        assert verdict.bad and f"step {before + 1} of 5" in str(verdict.warning)
    with pytest.raises(TrainingError, match=r"0\.1 .*ess_stop=0\.2 for 5 steps") as error:
        settings.check(metrics(0.1), 4)
    assert error.value.exit_code == 6
    silent = correction(ess_warn=None, ess_stop=None)
    assert silent.check(metrics(0.0), 4) == MismatchVerdict(None, False)


def test_another_model_is_bad_however_even_its_ratios_are() -> None:
    settings = correction(ess_warn=None, ess_stop=None)
    output = apply(settings, of_gaps([[-4.0, -4.0, -4.0]]))
    assert output.metrics["correction/ess"] == pytest.approx(1.0)
    verdict = settings.check(output.metrics, 0)
    assert verdict.bad and "mismatch_kl_stop=1.0" in str(verdict.warning)


def test_a_batch_that_is_masked_whole_is_bad() -> None:
    settings = correction("icepop", low=0.5, high=5.0)
    output = apply(settings, of_gaps([[3.0, 3.0]]))
    assert settings.check(output.metrics, 0).bad


@pytest.mark.parametrize(("treatment", "level", "low", "high"), VARIANTS)
def test_possible_settings_are_accepted(
    treatment: str, level: str, low: float | None, high: float | None
) -> None:
    assert list(correction(treatment, level, low, high).problems()) == []


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (correction("none", high=2.0), ("type", "ratio_min", "ratio_max")),
        (correction("none", low=0.5, high=None), ("type", "ratio_min", "ratio_max")),
        (correction("tis", high=None), ("type", "ratio_max")),
        (correction("icepop", low=None, high=5.0), ("type", "ratio_min")),
        (correction("icepop", low=0.5, high=None), ("type", "ratio_max")),
        (correction("seq_mask_tis", low=None, high=1.1), ("type", "ratio_min")),
        (correction("tis", low=1.5, high=1.2), ("ratio_min", "ratio_max")),
        (correction("tis", low=None, high=0.9), ("ratio_min", "ratio_max")),
        (correction("icepop", low=1.1, high=2.0), ("ratio_min", "ratio_max")),
        (correction("seq_mask_tis", "sequence", 0.9, 1.1), ("type", "level")),
        (correction("seq_mask_tis", "geometric", 0.9, 1.1), ("type", "level")),
        (correction(ess_warn=0.2, ess_stop=0.5), ("ess_warn", "ess_stop")),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(
    settings: ImportanceCorrection, keys: tuple[str, ...]
) -> None:
    ((found, what, remedy),) = settings.problems()
    assert found == keys
    assert all(f"{key}=" in what for key in keys if key != "level")
    assert remedy
