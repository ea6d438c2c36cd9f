# SPDX-License-Identifier: Apache-2.0
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.interfaces import LossInputs
from rlrun.loss.core import Level
from tests import reference_float64
from tests.loss.batches import by_trajectory, flat, make, random_batch, run, with_tokens
from tests.reference_float64 import Batch, Options, Token

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any)
SEEDS = st.integers(0, 2**32 - 1)
OPTIONS = [
    Options("grpo"),
    Options("grpo", level="sequence"),
    Options("grpo", clip_min=0.1, clip_max=0.5, clip_c=1.3),
    Options("grpo", kl_penalty=0.1),
    Options("grpo", kl_penalty=0.1, kl_type="k1", level="sequence"),
    Options("grpo", kl_penalty=0.1, kl_type="k2"),
    Options("grpo", kl_penalty=0.1, kl_type="k1", kl_output_clamp=0.3),
    Options("grpo", kl_penalty=0.1, on_policy_kl=True),
    Options("grpo", kl_penalty=0.1, kl_input_clamp=0.5, kl_output_clamp=0.2, on_policy_kl=True),
    Options("grpo", kl_penalty=0.1, kl_input_clamp=0.5, kl_type="k1"),
    Options("grpo", kl_penalty=0.1, kl_input_clamp=None, kl_output_clamp=None),
    Options("gspo", level="sequence", clip_min=0.01, clip_max=0.02, kl_penalty=0.05),
    Options("cispo"),
    Options("cispo", level="sequence", clip_min=1.0, clip_max=0.1),
    Options("reinforce"),
    Options("reinforce", level="sequence", kl_penalty=0.1),
    Options("dr_grpo", normalizer=10),
    Options("dr_grpo", normalizer=3, clip_c=1.5, kl_penalty=0.1),
]
EACH = pytest.mark.parametrize("options", OPTIONS, ids=str)
KINDS = [
    Options("grpo", kl_penalty=0.1),
    Options("gspo", level="sequence", kl_penalty=0.1),
    Options("cispo", kl_penalty=0.1),
    Options("reinforce", kl_penalty=0.1),
    Options("dr_grpo", kl_penalty=0.1),
]
EVERY_KIND = pytest.mark.parametrize("options", KINDS, ids=lambda options: options.kind)


@EACH
@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS, seed=SEEDS)
def test_float32_equals_the_float64_reference(
    options: Options, lengths: list[int], seed: int
) -> None:
    batch = random_batch(seed, lengths)
    output, _ = run(options, flat(batch))
    expected = reference_float64.loss(batch, options)
    # Positive and negative contributions cancel: the tolerance is relative to their size.
    size = reference_float64.loss(with_tokens(batch, advantage=-2.0), replace(options, clip_c=None))
    assert output.loss.dtype == torch.float32
    assert float(output.loss) == pytest.approx(expected, rel=1e-5, abs=1e-5 * abs(size))


@EACH
@settings(max_examples=8, deadline=None)
@given(lengths=LENGTHS, seed=SEEDS)
def test_gradients_equal_finite_differences(
    options: Options, lengths: list[int], seed: int
) -> None:
    batch = random_batch(seed, lengths)
    _, gradient = run(options, flat(batch, torch.float64))
    expected = reference_float64.gradient(batch, options)
    assert gradient.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-8)


@EACH
@settings(max_examples=15, deadline=None)
@given(lengths=LENGTHS, seed=SEEDS, cut=st.integers(0, 6), order=st.permutations(range(6)))
def test_split_and_order_do_not_matter(
    options: Options, lengths: list[int], seed: int, cut: int, order: list[int]
) -> None:
    batch = random_batch(seed, lengths)
    whole, gradient = run(options, flat(batch))
    gradients = {id(tokens): part for tokens, part in by_trajectory(batch, gradient)}
    shuffled = [batch[i] for i in order if i < len(batch)]
    total, metrics = 0.0, dict.fromkeys(whole.metrics, 0.0)
    for part in (shuffled[:cut], shuffled[cut:]):
        output, gradient = run(options, flat(part, whole=batch))
        total += float(output.loss)
        for name, share in output.metrics.items():
            metrics[name] += float(share)
        for tokens, own in by_trajectory(part, gradient):
            torch.testing.assert_close(own, gradients[id(tokens)], rtol=1e-6, atol=1e-9)
    assert total == pytest.approx(float(whole.loss), rel=1e-6, abs=2e-6)
    for name, value in metrics.items():
        assert value == pytest.approx(float(whole.metrics[name]), rel=1e-6, abs=2e-6), name


@EVERY_KIND
def test_empty_trajectories_change_nothing(options: Options) -> None:
    batch = random_batch(3, [4, 2, 5])
    plain, gradient = run(options, flat(batch))
    output, same = run(options, flat([[], batch[0], [], batch[1], batch[2], []]))
    torch.testing.assert_close(output.loss, plain.loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(same, gradient, rtol=1e-6, atol=0)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["grpo", "gspo", "cispo", "reinforce"])
def test_a_token_that_filters_exclude_counts_in_the_divisor(kind: str, level: str) -> None:
    options = Options(kind, level="sequence" if kind == "gspo" else level)
    batch = with_tokens(random_batch(5, [5]), advantage=1.5)
    excluded = [[*batch[0][:4], replace(batch[0][4], logprob=-math.inf)]]
    output, gradient = run(options, flat(excluded))
    # Within one trajectory both levels are the mean over its tokens, of which one contributes 0.
    left = reference_float64.loss([batch[0][:4]], options) * 4 / 5
    assert float(output.loss) == pytest.approx(left, rel=1e-5)
    assert gradient[4] == 0.0


@EVERY_KIND
@pytest.mark.parametrize("trajectories", [0, 3])
def test_nothing_to_train_gives_zero_with_a_gradient(options: Options, trajectories: int) -> None:
    batch: Batch = [[] for _ in range(trajectories)]
    inputs = flat(batch)
    output = make(options)(inputs)
    assert output.loss.requires_grad
    (gradient,) = torch.autograd.grad(output.loss, inputs.logprobs)
    assert float(output.loss.detach()) == 0.0
    assert gradient.shape == (0,)
    assert all(float(value) == 0.0 for value in output.metrics.values())


@EVERY_KIND
@pytest.mark.parametrize("gap", [200.0, -200.0, 89.0, 1e4, -math.inf])
@pytest.mark.parametrize("field", ["logprob", "prev", "generation", "ref"])
@pytest.mark.parametrize("on_policy_kl", [False, True])
@pytest.mark.parametrize("clamp", [20.0, None])
def test_extreme_log_ratios_stay_finite(
    options: Options, gap: float, field: str, on_policy_kl: bool, clamp: float | None
) -> None:
    options = replace(
        options, on_policy_kl=on_policy_kl, kl_input_clamp=clamp, kl_output_clamp=clamp
    )
    for advantage in (-1.0, 0.0, 1.0):
        batch = with_tokens(random_batch(0, [3, 2]), advantage=advantage)
        batch[0][1] = replace(batch[0][1], **{field: getattr(batch[0][1], field) + gap})
        output, gradient = run(options, flat(batch))
        assert math.isfinite(float(output.loss))
        assert bool(gradient.isfinite().all())
        assert all(math.isfinite(float(value)) for value in output.metrics.values())


@EVERY_KIND
def test_a_nan_logprob_is_not_hidden(options: Options) -> None:
    batch = random_batch(0, [3])
    batch[0][1] = replace(batch[0][1], logprob=math.nan)
    assert math.isnan(float(make(options)(flat(batch)).loss.detach()))


def plain(losses: list[list[float]]) -> Batch:
    """Tokens on which REINFORCE's loss is the given number."""
    return [
        [Token(-loss, -loss, -loss, -loss, advantage=1.0, weight=1.0) for loss in tokens]
        for tokens in losses
    ]


def test_short_microbatches_do_not_weigh_more() -> None:
    first, second = plain([[0.9] * 10]), plain([[0.1] * 90])
    parts = [flat(part, whole=first + second) for part in (first, second)]
    shares = [float(run(Options("reinforce"), part)[0].loss) for part in parts]
    assert sum(shares) == pytest.approx(0.18, rel=1e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradient_norm_is_the_same_for_any_microbatch_size(options: Options) -> None:
    batch = random_batch(11, [5, 1, 3, 7, 2, 6, 4, 1])
    norms = []
    for size in (8, 4, 2, 1):
        parts = [batch[i : i + size] for i in range(0, 8, size)]
        gradients = [run(options, flat(part, whole=batch))[1] for part in parts]
        norms.append(float(torch.cat(gradients).norm()))
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-6)


def test_aggregations_differ() -> None:
    batch = plain([[1.0, 1.0], [1.0]])
    assert float(run(Options("reinforce", level="sequence"), flat(batch))[0].loss) == 1.0
    assert float(run(Options("reinforce"), flat(batch))[0].loss) == 1.0
    uneven = plain([[1.0, 1.0], [4.0]])
    assert float(run(Options("reinforce"), flat(uneven))[0].loss) == 2.0
    assert float(run(Options("reinforce", level="sequence"), flat(uneven))[0].loss) == 2.5
    # At ratio 1 the clipped loss is -A: the sum by sequence over two sequences is (2 + 1) / 2.
    negative = with_tokens(batch, advantage=-1.0)
    assert float(run(Options("dr_grpo", normalizer=1), flat(negative))[0].loss) == 1.5
    assert float(run(Options("dr_grpo", normalizer=3), flat(negative))[0].loss) == 0.5


def test_a_masked_completion_is_not_in_the_normaliser() -> None:
    batch = plain([[1.0] * 4])
    masked: Batch = [*batch, []]
    for level in ("token", "sequence"):
        assert float(run(Options("reinforce", level=level), flat(masked))[0].loss) == 1.0


@pytest.mark.parametrize("input_clamp", [20.0, None])
def test_an_overflowing_kl_has_the_capped_value_and_no_gradient(input_clamp: float | None) -> None:
    batch: Batch = [[Token(0.0, 0.0, 0.0, 100.0, advantage=0.0, weight=1.0)]]
    options = Options("grpo", kl_penalty=1.0, kl_input_clamp=input_clamp, kl_output_clamp=10.0)
    output, gradient = run(options, flat(batch))
    assert float(output.loss) == 10.0
    assert float(output.metrics["train/kl_to_reference"]) == 10.0
    assert gradient.tolist() == [0.0]


def test_small_ratios_survive_float32() -> None:
    batch: Batch = [[Token(-10.01, -10.03, -10.03, 0.0, advantage=-1.0, weight=1.0)]]
    output, _ = run(Options("grpo"), flat(batch))
    assert float(output.metrics["train/ratio_mean"]) == pytest.approx(1.0202, abs=1e-4)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("kind", ["grpo", "cispo", "gspo"])
def test_on_policy_all_gradients_are_those_of_reinforce(kind: str, level: Level) -> None:
    level = Level.SEQUENCE if kind == "gspo" else level
    batch = random_batch(5, [3, 6, 1], on_policy=True)
    _, expected = run(Options("reinforce", level=level.value), flat(batch))
    _, gradient = run(Options(kind, level=level.value), flat(batch))
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)


def test_a_clip_that_never_binds_changes_nothing() -> None:
    batch = random_batch(6, [4, 4])
    inputs = flat(batch)
    output, gradient = run(Options("grpo", clip_min=0.999999, clip_max=1e9), inputs)
    ratio = (inputs.logprobs - inputs.prev_logprobs).exp()
    plain_loss = -(inputs.weights * inputs.advantages * ratio).mean()
    torch.testing.assert_close(output.loss, plain_loss)
    torch.testing.assert_close(gradient, torch.autograd.grad(plain_loss, inputs.logprobs)[0])
    assert float(output.metrics["train/ratio_clipped_fraction"]) == 0.0


def test_weights_of_one_and_zero_select_tokens() -> None:
    batch = random_batch(7, [4, 3])
    batch = [
        [replace(token, weight=float(i % 2)) for i, token in enumerate(tokens)] for tokens in batch
    ]
    _, gradient = run(Options("grpo"), flat(batch))
    dropped = torch.tensor([i % 2 == 0 for tokens in batch for i, _ in enumerate(tokens)])
    assert bool((gradient[dropped] == 0).all())


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "changed"),
    [(0.5, 1.0, True), (-0.5, 1.0, True), (0.5, 0.0, False), (0.1, -1.0, False)],
)
def test_the_clipped_fraction_of_cispo_counts_changed_weights(
    log_ratio: float, advantage: float, changed: bool
) -> None:
    batch: Batch = [[Token(log_ratio - 3, -3.0, -3.0, -3.0, advantage=advantage, weight=1.0)]]
    output, _ = run(Options("cispo"), flat(batch))
    assert float(output.metrics["train/ratio_clipped_fraction"]) == float(changed)


def test_a_ratio_beyond_all_bounds_counts_as_clipped() -> None:
    batch: Batch = [[Token(-1.0, -26.0, -1.0, -1.0, advantage=-1.0, weight=1.0)]]
    output, gradient = run(Options("grpo", clip_c=None), flat(batch))
    assert float(output.metrics["train/ratio_clipped_fraction"]) == 1.0
    assert float(gradient) == 0.0


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "clipped"),
    [
        (0.5, 1.0, 1.0),
        (0.5, -1.0, 0.0),
        (-0.5, -1.0, 1.0),
        (-0.5, 1.0, 0.0),
        (2.0, -1.0, 1.0),
        (2.0, 0.0, 0.0),
        (0.1, 1.0, 0.0),
    ],
)
def test_the_clipped_fraction_counts_tokens_without_gradient(
    log_ratio: float, advantage: float, clipped: float
) -> None:
    batch: Batch = [[Token(log_ratio - 3, -3.0, -3.0, -3.0, advantage=advantage, weight=1.0)]]
    output, gradient = run(Options("grpo", clip_c=3.0), flat(batch))
    assert float(output.metrics["train/ratio_clipped_fraction"]) == clipped
    if advantage != 0:
        assert (float(gradient) == 0.0) == bool(clipped)


def test_metrics_are_means_over_the_tokens_of_the_minibatch() -> None:
    batch = random_batch(8, [3, 5, 2])
    tokens = [token for trajectory in batch for token in trajectory]
    options = Options("grpo", level="sequence", kl_penalty=0.3, kl_type="k1", kl_output_clamp=None)
    output, _ = run(options, flat(batch))

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    metrics = {name: float(value) for name, value in output.metrics.items()}
    assert metrics["train/ratio_mean"] == pytest.approx(
        mean([math.exp(token.logprob - token.prev) for token in tokens]), rel=1e-5
    )
    assert metrics["train/kl_to_reference"] == pytest.approx(
        mean([token.logprob - token.ref for token in tokens]), rel=1e-5
    )
    assert metrics["train/policy_loss"] == pytest.approx(
        reference_float64.loss(batch, replace(options, kl_penalty=0.0)), rel=1e-5
    )
    assert not any(value.requires_grad for value in output.metrics.values())


def test_ratio_mean_of_gspo_is_that_of_the_sequences() -> None:
    batch: Batch = [
        [Token(-1.0, -1.2, -1.0, -1.0, 1.0, 1.0), Token(-2.0, -2.4, -2.0, -2.0, 1.0, 1.0)],
        [Token(-1.0, -1.0, -1.0, -1.0, 1.0, 1.0), Token(-1.0, -1.0, -1.0, -1.0, 1.0, 1.0)],
    ]
    output, _ = run(Options("gspo", level="sequence"), flat(batch))
    expected = (math.exp(0.3) + 1.0) / 2
    assert float(output.metrics["train/ratio_mean"]) == pytest.approx(expected, rel=1e-6)


def test_without_a_reference_there_is_no_kl() -> None:
    inputs = flat(random_batch(9, [3]))
    without = LossInputs(
        **{name: getattr(inputs, name) for name in LossInputs.__slots__ if name != "ref_logprobs"},
        ref_logprobs=None,
    )
    output = make(Options("grpo"))(without)
    assert "train/kl_to_reference" not in output.metrics
    torch.testing.assert_close(output.loss, make(Options("grpo"))(inputs).loss)


@pytest.mark.parametrize("kl_type", ["k1", "k3"])
@pytest.mark.parametrize("on_policy_kl", [False, True])
def test_the_kl_gradient_is_that_of_the_true_kl(kl_type: str, on_policy_kl: bool) -> None:
    """Sums over a whole vocabulary, each token with its probability of being sampled."""
    torch.manual_seed(0)
    logits = torch.randn(7, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(7, dtype=torch.float64).log_softmax(0)
    older = torch.randn(7, dtype=torch.float64).log_softmax(0)
    current = logits.log_softmax(0)
    sampler = older if on_policy_kl else current.detach()
    inputs = LossInputs(
        logprobs=current,
        prev_logprobs=current.detach(),
        generation_logprobs=sampler,
        ref_logprobs=reference,
        advantages=torch.zeros(7, dtype=torch.float64),
        weights=torch.ones(7, dtype=torch.float64),
        trajectory=torch.zeros(7, dtype=torch.int64),
        num_trajectories=1,
        total_tokens=7,
        total_trajectories=1,
    )
    options = Options(
        "grpo",
        kl_penalty=1.0,
        kl_type=kl_type,
        kl_input_clamp=None,
        kl_output_clamp=None,
        on_policy_kl=on_policy_kl,
    )
    expectation = (sampler.exp() * make(options).reference_kl(inputs, reference)).sum()
    true_kl = (current.exp() * (current - reference)).sum()
    torch.testing.assert_close(expectation, true_kl)
    (expected,) = torch.autograd.grad(true_kl, logits, retain_graph=True)
    (gradient,) = torch.autograd.grad(expectation, logits)
    torch.testing.assert_close(gradient, expected)


def test_k3_keeps_the_gradient_at_large_gaps() -> None:
    batch: Batch = [[Token(-25.0, -25.0, -25.0, 0.0, advantage=0.0, weight=1.0)]]
    options = Options("grpo", kl_penalty=1.0, kl_input_clamp=None, kl_output_clamp=None)
    _, gradient = run(options, flat(batch))
    assert float(gradient) == pytest.approx(-25.0, rel=1e-4)


def test_a_ratio_of_sequences_needs_a_mean_over_sequences() -> None:
    assert list(make(Options("gspo", level="sequence")).problems()) == []
    ((keys, what, remedy),) = make(Options("gspo", level="token")).problems()
    assert keys == ("level",)
    assert "level=token" in what
    assert "loss.level=sequence" in remedy
