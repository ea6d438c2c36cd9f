# SPDX-License-Identifier: Apache-2.0
"""Penalties for how a response is formed, whatever its verifier says: reasoning, calls, length.

What a response is penalized for is read off the text of each turn. A penalty of the reward makes
the environment's reward 0 before it is scaled or shaped; a penalty of the advantage replaces the
advantage of the tokens of the turn alone, after advantages were computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from rlrun.batch import Sample
from rlrun.interfaces import GRPO, Effort
from rlrun.serve.parsers import ToolParser
from rlrun.types import Prompt, StopReason, Trajectory

MALFORMED, INVALID_CALL = "malformed_thinking", "invalid_tool_call"
DUPLICATED, EMPTY, UNWANTED = "duplicated_reasoning", "empty_final_answer", "unwanted_tokens"
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion of a trajectory.

    Attributes:
        start: Its first token, counted over the sampled tokens of the trajectory.
        end: The token after its last one.
        text: What it says, without special tokens.
        cut: It was cut off rather than ended by the model.
    """

    start: int
    end: int
    text: str
    cut: bool


@dataclass(slots=True)
class Penalties:
    """Reads the settings of a run.

    Attributes:
        grpo: Which penalties there are.
        decode: From token ids to text.
        tool_parser: That of the policy's server; None without one.
        counts: By kind, samples of the present batch that were found; taken by ``take_counts``.
    """

    grpo: GRPO
    decode: Decode
    tool_parser: ToolParser | None
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def active(self) -> bool:
        """Whether any penalty is asked for."""
        grpo, wanted = self.grpo, self.grpo.reward_penalties
        return (
            wanted.duplicated_reasoning
            or wanted.empty_final_answer
            or wanted.malformed_thinking
            or bool(wanted.unwanted_tokens)
            or grpo.effort.low_string is not None
            or grpo.invalid_tool_call_advantage is not None
            or grpo.malformed_thinking_advantage is not None
        )

    def reward(self, prompt: Prompt, trajectory: Trajectory) -> float | None:
        """The environment's reward, or what is left of it; None where there is none."""
        reward = trajectory.reward
        if reward is None or not self.active:
            return reward
        found = [kind for kind in self._kinds(trajectory) if self._takes_reward(kind)]
        if found:
            self.counts.update(set(found))
            reward = 0.0
        return reward + effort_bonus(
            self.decode(prompt.token_ids), trajectory.num_sampled, reward, self.grpo.effort
        )

    def with_turn_advantages(
        self, samples: Sequence[Sample], generated: Sequence[Trajectory]
    ) -> list[Sample]:
        """The samples, those of penalized turns with the advantage that these get instead.

        Args:
            samples: What is trained.
            generated: The trajectory of each as it was generated: of one that is partly too old,
                the sample's own lacks what the turns said in full.
        """
        if not self.active:
            return list(samples)
        pairs = zip(samples, generated, strict=True)
        return [self._with_turn_advantages(sample, whole) for sample, whole in pairs]

    def take_counts(self) -> dict[str, float]:
        """Metrics of what was found since it was last asked."""
        counts, self.counts = self.counts, Counter()
        return {f"penalty/{kind}": float(count) for kind, count in sorted(counts.items())}

    def _with_turn_advantages(self, sample: Sample, whole: Trajectory) -> Sample:
        if sample.masked is not None:
            return sample
        values = {
            MALFORMED: self.grpo.malformed_thinking_advantage,
            INVALID_CALL: self.grpo.invalid_tool_call_advantage,
        }
        spans = []
        fresh = _trained_before(whole, sample.trajectory)
        for turn in turns_of(whole, self.decode):
            start, end = fresh[turn.start], fresh[turn.end]
            for kind, value in values.items():
                if value is not None and start < end and kind in self._kinds_of_turn(turn):
                    self.counts[kind] += 1
                    spans.append((start, end, value))
                    break
        return replace(sample, turn_advantages=tuple(spans)) if spans else sample

    def _takes_reward(self, kind: str) -> bool:
        wanted = self.grpo.reward_penalties
        return {
            DUPLICATED: wanted.duplicated_reasoning,
            EMPTY: wanted.empty_final_answer,
            MALFORMED: wanted.malformed_thinking,
            UNWANTED: bool(wanted.unwanted_tokens),
            INVALID_CALL: False,
        }[kind]

    def _kinds(self, trajectory: Trajectory) -> Iterator[str]:
        """Everything that there is to say against a trajectory."""
        wanted = self.grpo.reward_penalties
        sampled = {t for t, m in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if m}
        if sampled & set(wanted.unwanted_tokens):
            yield UNWANTED
        turns = turns_of(trajectory, self.decode)
        for turn in turns:
            yield from self._kinds_of_turn(turn)
        if turns and not turns[-1].cut:
            reasoning, answer = self._parts(turns[-1].text)
            if not answer.strip():
                yield EMPTY
            elif reasoning.strip() == answer.strip():
                yield DUPLICATED

    def _kinds_of_turn(self, turn: Turn) -> Iterator[str]:
        wanted = self.grpo.reward_penalties
        if is_malformed(turn, wanted.think_open, wanted.think_close):
            yield MALFORMED
        if self.tool_parser is not None and has_invalid_call(turn, self.tool_parser):
            yield INVALID_CALL

    def _parts(self, text: str) -> tuple[str, str]:
        """Reasoning and answer of a turn; without a closing tag all of it is the answer."""
        wanted = self.grpo.reward_penalties
        reasoning, closed, answer = text.rpartition(wanted.think_close)
        if not closed:
            return "", text
        return reasoning.replace(wanted.think_open, ""), answer


def _trained_before(whole: Trajectory, trained: Trajectory) -> list[int]:
    """For each sampled token of ``whole``, and its end: the trained tokens before it."""
    counts = [0]
    for sampled, kept in zip(whole.loss_mask, trained.loss_mask, strict=True):
        if sampled:
            counts.append(counts[-1] + kept)
    return counts


def turns_of(trajectory: Trajectory, decode: Decode) -> list[Turn]:
    """The completions of a trajectory: stretches of sampled tokens, in order."""
    found: list[Turn] = []
    start = 0
    runs = groupby(
        zip(trajectory.token_ids, trajectory.loss_mask, strict=True), lambda pair: pair[1]
    )
    for sampled, run in runs:
        if sampled:
            ids = [token for token, _ in run]
            found.append(Turn(start, start + len(ids), decode(ids), cut=False))
            start += len(ids)
    if found and trajectory.stop_reason is StopReason.LENGTH:
        found[-1] = replace(found[-1], cut=True)
    return found


def is_malformed(turn: Turn, think_open: str, think_close: str) -> bool:
    """Whether reasoning is set apart wrongly: a tag twice, in the wrong order, or never closed.

    The prompt may have opened it, so an opening tag may be missing. What was cut off may be open.
    """
    opened, closed = turn.text.count(think_open), turn.text.count(think_close)
    if opened > 1 or closed > 1:
        return True
    if opened and closed:
        return turn.text.index(think_open) > turn.text.index(think_close)
    return bool(opened) and not closed and not turn.cut


def has_invalid_call(turn: Turn, parser: ToolParser) -> bool:
    """Whether a turn means to call a tool, and its call cannot be read."""
    if turn.cut or not any(tag in turn.text for tag in parser.tags or ()):
        return False
    return not parser(turn.text, ())[1]


def effort_bonus(prompt: str, tokens: int, reward: float, effort: Effort) -> float:
    """What is added to the reward of a response to a prompt that asks for little effort.

    With l = min(1, low_weight (1 - tokens / low_tokens)): reward l where l is above 0, low_penalty
    l below. So a right answer earns up to twice its reward for being short, and any answer loses
    for being longer than low_tokens.
    """
    if effort.low_string is None or effort.low_string not in prompt:
        return 0.0
    length = min(1.0, effort.low_weight * (1.0 - tokens / effort.low_tokens))
    return reward * max(length, 0.0) + effort.low_penalty * min(length, 0.0)
