# SPDX-License-Identifier: Apache-2.0
"""Advantages, losses and corrections once more, as loops over Python floats, from the formulas.

Shares nothing with rlrun: a mistake would have to be made twice to go unseen. A batch is a list of
trajectories, a trajectory a list of tokens. Where a formula stops a gradient, the stopped value is
read from ``frozen`` (the current log-prob by default), so that finite differences of ``loss`` in
``logprob`` alone are the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Token:
    logprob: float
    prev: float
    generation: float
    ref: float
    advantage: float
    weight: float
    frozen: float | None = None

    @property
    def stopped(self) -> float:
        return self.logprob if self.frozen is None else self.frozen


Batch = list[list[Token]]


# --- advantage ------------------------------------------------------------------------------------


def advantages(
    rewards: list[float | None],
    baseline: str,
    normalize: bool,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> list[float]:
    there = [i for i, reward in enumerate(rewards) if reward is not None]
    values = np.array([rewards[i] for i in there], dtype=np.float64)
    result = [0.0] * len(rewards)
    for place, i in enumerate(there):
        if baseline == "none":
            value = float(values[place])
        elif len(values) == 1 or np.ptp(values) <= 1e-6 * np.abs(values).max():
            value = 0.0
        else:
            compared = values if baseline == "mean" else np.delete(values, place)
            value = float(values[place] - compared.mean())
            if normalize:
                if len(compared) < 2 or np.ptp(compared) <= 1e-6 * np.abs(compared).max():
                    compared = values
                value /= float(compared.std(ddof=1)) + 1e-6
        if clip_low is not None and value < clip_low:
            value = clip_low
        if clip_high is not None and value > clip_high:
            value = clip_high
        result[i] = value
    return result


# --- loss -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    kind: str
    level: str = "token"
    clip_min: float = 0.2
    clip_max: float = 0.2
    clip_c: float | None = None
    normalizer: int = 1
    kl_penalty: float = 0.0
    kl_type: str = "k3"
    kl_input_clamp: float | None = 20.0
    kl_output_clamp: float | None = 10.0
    on_policy_kl: bool = False


def hold(x: float, bound: float) -> float:
    return min(max(x, -bound), bound)


def pessimistic(ratio: float, advantage: float, options: Options) -> float:
    held = min(max(ratio, 1 - options.clip_min), 1 + options.clip_max)
    loss = max(-advantage * ratio, -advantage * held)
    if options.clip_c is not None and advantage < 0:
        loss = min(loss, -advantage * options.clip_c)
    return loss


def policy_losses(trajectory: list[Token], options: Options) -> list[float]:
    result = []
    log_ratios = [token.logprob - token.prev for token in trajectory]
    for token, log_ratio in zip(trajectory, log_ratios, strict=True):
        if options.kind in ("grpo", "dr_grpo"):
            loss = pessimistic(math.exp(hold(log_ratio, 20)), token.advantage, options)
        elif options.kind == "gspo":
            mean = sum(log_ratios) / len(log_ratios)
            loss = pessimistic(math.exp(hold(mean, 20)), token.advantage, options)
        elif options.kind == "cispo":
            ratio = math.exp(hold(token.stopped - token.prev, 20))
            held = min(max(ratio, 1 - options.clip_min), 1 + options.clip_max)
            loss = -token.advantage * held * token.logprob
        elif options.kind == "reinforce":
            loss = -token.advantage * token.logprob
        else:
            raise AssertionError(options.kind)
        result.append(loss)
    return result


def kl(token: Token, options: Options) -> float:
    log_r = token.ref - token.logprob
    bound = 30.0 if options.kl_input_clamp is None else options.kl_input_clamp
    base = token.generation if options.on_policy_kl else token.stopped
    weight = math.exp(hold(token.logprob - base, 20))
    if abs(log_r) > bound:
        log_r = hold(log_r, bound)
        weight = math.exp(hold(token.stopped - base, 20))
    estimate = {
        "k1": -log_r,
        "k2": log_r * log_r / 2,
        "k3": math.exp(log_r) - 1 - log_r,
    }[options.kl_type]
    value = weight * estimate
    return value if options.kl_output_clamp is None else hold(value, options.kl_output_clamp)


def loss(batch: Batch, options: Options) -> float:
    filled = [trajectory for trajectory in batch if trajectory]
    tokens = sum(len(trajectory) for trajectory in filled)
    total = 0.0
    for trajectory in filled:
        policy = policy_losses(trajectory, options)
        for token, value in zip(trajectory, policy, strict=True):
            contribution = token.weight * value
            if options.kl_penalty > 0:
                contribution += options.kl_penalty * kl(token, options)
            if options.kind == "dr_grpo":
                total += contribution / (options.normalizer * len(filled))
            elif options.level == "token":
                total += contribution / tokens
            else:
                total += contribution / (len(trajectory) * len(filled))
    return total


def gradient(batch: Batch, options: Options, step: float = 1e-6) -> list[float]:
    """Central differences of the loss in each log-prob, stopped values held."""
    result = []
    for t, trajectory in enumerate(batch):
        for i, token in enumerate(trajectory):
            ends = []
            for sign in (1, -1):
                moved = [
                    [replace(other, frozen=other.stopped) for other in others] for others in batch
                ]
                moved[t][i] = replace(moved[t][i], logprob=token.logprob + sign * step)
                ends.append(loss(moved, options))
            result.append((ends[0] - ends[1]) / (2 * step))
    return result


# --- correction -----------------------------------------------------------------------------------


def correction(
    batch: list[list[tuple[float, float]]],
    treatment: str,
    level: str,
    low: float | None,
    high: float | None,
) -> tuple[list[float], dict[str, float]]:
    """Weights of all tokens and the metrics; a token is (prev, generation)."""
    low = 0.0 if low is None else low
    high = math.inf if high is None else high
    weights, units, outside = [], [], []
    gaps = [[prev - generation for prev, generation in tokens] for tokens in batch if tokens]
    for trajectory in gaps:
        mean = math.exp(hold(sum(trajectory) / len(trajectory), 20))
        ratios = [math.exp(hold(gap, 20)) for gap in trajectory]
        if treatment == "seq_mask_tis":
            kept = low <= mean <= high
            outside.append(not kept)
            ratios = [ratio if kept else 0.0 for ratio in ratios]
            weights += ratios
            units += ratios
            continue
        if level == "sequence":
            ratios = [math.exp(hold(sum(trajectory), 20))]
        elif level == "geometric":
            ratios = [mean]
        treated = []
        for ratio in ratios:
            inside = low <= ratio <= high
            outside.append(not inside)
            if treatment == "tis":
                ratio = min(max(ratio, low), high)
            elif not inside:
                ratio = 0.0
            treated.append(ratio)
        units += treated
        weights += treated if level == "token" else treated * len(trajectory)
    flat = [gap for trajectory in gaps for gap in trajectory]
    squares = sum(weight * weight for weight in units)
    held = [hold(gap, 20) for gap in flat]
    metrics = {
        "correction/ess": sum(units) ** 2 / (len(units) * squares) if squares else 0.0,
        "correction/clipped_fraction": sum(outside) / len(outside),
        "correction/mismatch_kl": sum(math.exp(gap) - 1 - gap for gap in held) / len(held),
        "correction/token_mult_prob_error": sum(math.exp(abs(gap)) for gap in held) / len(held),
    }
    return weights, metrics
