# SPDX-License-Identifier: Apache-2.0
"""The live side of ``env=gym``: episodes by agents, over HTTP, each a trajectory or a failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from rlrun.env.gym import ROW_FIELD, GymEnv, agent_of
from rlrun.env.gym_agents import Agents
from rlrun.env.gym_client import GymClient, RequestFailed
from rlrun.env.gym_directory import Directory
from rlrun.env.gym_result import (
    BadResult,
    Result,
    Tokens,
    partial_tokens,
    read_result,
)
from rlrun.errors import EnvironmentDown
from rlrun.interfaces import (
    Abandoned,
    AgentEnvironment,
    Episode,
    EpisodeOrder,
    PolicyAddress,
)
from rlrun.run_dir.json_line import finite
from rlrun.serve.sampled import SampledEpisode, SampledLog
from rlrun.types import (
    EnvStep,
    Failure,
    FailureKind,
    Prompt,
    StopReason,
    Trajectory,
)


class GymEnvironment(AgentEnvironment):
    """Agents of NeMo Gym. Made by ``GymEnv.start``; usable once it is open."""

    def __init__(self, settings: GymEnv) -> None:
        """Connects to nothing yet."""
        self.max_sample_attempts = settings.max_sample_attempts
        self._settings = settings
        self._agents = Agents(settings.max_agent_failures, settings.agent_pause_s)
        self._directory = Directory(settings)
        self._slots: contextlib.AbstractAsyncContextManager[object] = contextlib.nullcontext()
        if settings.max_concurrent_episodes is not None:
            self._slots = asyncio.Semaphore(settings.max_concurrent_episodes)
        self._sampled = SampledLog()
        self._client: GymClient | None = None

    async def open(self, policy: PolicyAddress | None) -> None:
        """Starts the servers, or waits for those that somebody else runs.

        Raises:
            EnvironmentDown: They do not become ready in time.
        """
        settings = self._settings
        self._client = GymClient(settings.max_retries, settings.retry_wait_s, settings.max_body_mib)
        if policy is not None:
            self._sampled = policy.sampled
        await self._directory.open(self._client, policy)

    def metrics(self) -> dict[str, float]:
        """Per agent: failures by kind, pauses, latency."""
        return self._agents.metrics(time.monotonic())

    def state(self) -> dict[str, Any]:
        """Per agent: what is counted since the run began."""
        return self._agents.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """See ``Environment.restore``."""
        self._agents.restore(state)

    def paused(self, prompt: Prompt) -> str | None:
        """Why the agent of a prompt takes no episodes, if others do."""
        name = self._agent_of(prompt)
        reason = self._agents.paused(name, time.monotonic())
        if reason is not None:
            self._agents[name].passed_over += 1
        return reason

    async def run_episode(self, order: EpisodeOrder) -> Trajectory:
        """See ``AgentEnvironment.run_episode``."""
        name = self._agent_of(order.prompt)
        row = request_row(order, name)
        self._sampled.expect(order.seed)
        started = time.monotonic()
        sampled = SampledEpisode()
        try:
            try:
                async with self._slots:
                    started = time.monotonic()
                    url = self._directory.agent(name)
                    asked = self._connected.post(f"{url}/run", row, order.timeout_s, order.seed)
                    answer = await self._directory.unless_down(name, asked)
            finally:
                sampled = await self._sampled.end(order.seed)
            result = read_result(answer, row, sampled.turns)
            _check_length(result, order)
        except (RequestFailed, BadResult) as error:
            failure = Failure(error.kind, error.message)
            return self._failed(order, name, failure, sampled)
        except asyncio.CancelledError:
            failure = Failure(FailureKind.CANCELLED, "the episode was called off")
            self._agents.failed(name, failure, time.monotonic())
            raise Abandoned(sampled.tokens) from None
        self._agents.succeeded(name, time.monotonic() - started, result.tokens.turns)
        self._agents.notice_others(name, result.others)
        return _trajectory(order, name, sampled, result)

    def _failed(
        self, order: EpisodeOrder, name: str, failure: Failure, sampled: SampledEpisode
    ) -> Trajectory:
        """A trajectory without a reward, with what was sampled for it.

        Raises:
            EnvironmentDown: It was the last failure that the last agent had left.
        """
        told = self._directory.explain(name)
        if told:
            failure = Failure(failure.kind, f"{failure.message}; {told}")
        now = time.monotonic()
        self._agents.failed(name, failure, now)
        cause = self._agents.all_paused(now)
        if cause is not None:
            raise EnvironmentDown(
                "env=gym",
                f"no agent works any more ({cause})",
                "Logs of servers that the run started are in its gym/ folder; "
                "env.max_agent_failures says how many failures in a row are borne",
            )
        return _trajectory(order, name, sampled, failure=failure)

    async def step(self, episode: Episode) -> EnvStep:
        """The verifier's reward for a stored answer, as ``rlrun score`` asks for it."""
        name = self._agent_of(episode.prompt)
        url = self.verifier(name)
        if url is None:
            text = f"nothing is known of the resources server of agent {name}, which would score"
            return EnvStep(failure=Failure(FailureKind.ENV_DOWN, text))
        body = {**episode.prompt.row.payload, "response": stored_response(episode)}
        try:
            answer = await self._connected.post(
                f"{url}/verify", body, self._settings.control_timeout_s
            )
        except RequestFailed as error:
            return EnvStep(failure=Failure(error.kind, error.message))
        told = answer if isinstance(answer, Mapping) else {}
        reward = finite(told.get("reward"))
        if reward is None:
            given = f"{told.get('reward')!r:.80}"
            text = f"{url}/verify answered with the reward {given}, which is no finite number"
            return EnvStep(failure=Failure(FailureKind.REWARD_ERROR, text))
        extracted = told.get("extracted_answer")
        return EnvStep(
            reward=reward,
            extracted=extracted if isinstance(extracted, str) else None,
        )

    def verifier(self, agent: str) -> str | None:
        """URL of the resources server behind an agent, where it is known."""
        return self._directory.verifier(agent)

    async def close(self) -> None:
        """Ends connections and the servers that were started. May be called twice."""
        if self._client is not None:
            await self._client.close()
        await self._directory.close()

    @property
    def _connected(self) -> GymClient:
        assert self._client is not None, "an environment is opened before it is used"
        return self._client

    def _agent_of(self, prompt: Prompt) -> str:
        name = agent_of(prompt.row.payload, self._settings.default_agent)
        if name is None:
            raise EnvironmentDown(prompt.row.where, "the row names no agent", "Add agent_ref.name")
        return name


def request_row(order: EpisodeOrder, agent: str) -> dict[str, Any]:
    """The row as it is sent: its own fields, and the run's sampling in place of its own.

    The seed travels as a field of the requests that the agent's model server makes; it tells the
    episodes apart and makes their draws repeatable.
    """
    row = dict(order.prompt.row.payload)
    params = dict(row[ROW_FIELD])
    sampling = order.sampling
    own = params.get("max_output_tokens")
    limit = order.max_new_tokens if own is None else min(own, order.max_new_tokens)
    params |= {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_output_tokens": limit,
    }
    metadata = dict(params.get("metadata") or {})
    extra = json.loads(metadata.get("extra_body") or "{}")
    extra["seed"] = order.seed
    if sampling.top_k is not None:
        extra["top_k"] = sampling.top_k
    if sampling.stop:
        extra["stop"] = list(sampling.stop)
    metadata["extra_body"] = json.dumps(extra)
    params["metadata"] = metadata
    row[ROW_FIELD] = params
    row["_rowidx"] = order.seed
    row["_ng_task_index"] = order.prompt.position
    row["_ng_rollout_index"] = order.sample_index
    row.setdefault("agent_ref", {"type": "responses_api_agents", "name": agent})
    return row


def stored_response(episode: Episode) -> dict[str, Any]:
    """A response in Gym's form: the stored one, or one message with the stored text."""
    stored = episode.prompt.row.payload.get("response")
    base: dict[str, Any] = {
        "id": "resp_stored",
        "created_at": 0,
        "model": "stored",
        "object": "response",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    if isinstance(stored, Mapping):
        return base | {key: value for key, value in stored.items() if value is not None}
    text = {"type": "output_text", "text": episode.response, "annotations": []}
    message = {
        "id": "msg_stored",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    return base | {"output": [message]}


def _check_length(result: Result, order: EpisodeOrder) -> None:
    count = len(result.tokens.token_ids)
    if count > order.max_total_tokens:
        text = f"the episode has {count} tokens, and {order.max_total_tokens} can be trained"
        raise BadResult(FailureKind.ENV_ERROR, text)


def _trajectory(
    order: EpisodeOrder,
    agent: str,
    sampled: SampledEpisode,
    result: Result | None = None,
    failure: Failure | None = None,
) -> Trajectory:
    """The trajectory of a result, or of what was sampled before a failure."""
    tokens = partial_tokens(sampled.turns) if result is None else result.tokens
    # Tries of the request before the last one sampled as well.
    lost = sampled.tokens - sum(tokens.loss_mask)
    if not tokens.token_ids:
        prompt = order.prompt.token_ids
        tokens = Tokens(list(prompt), [False] * len(prompt), [0.0] * len(prompt), [], len(prompt))
    return Trajectory(
        sample_index=order.sample_index,
        token_ids=tuple(tokens.token_ids),
        loss_mask=tuple(tokens.loss_mask),
        generation_logprobs=tuple(tokens.logprobs),
        weight_versions=tuple(tokens.spans),
        input_length=tokens.input_length,
        response="",
        reward=None if result is None else result.reward,
        rewards={} if result is None else result.rewards,
        extracted=None if result is None else result.extracted,
        stop_reason=StopReason.ERROR if result is None else result.stop_reason,
        failure=failure,
        turns=tokens.turns,
        agent=agent,
        flagged=result is not None and result.flagged,
        measures={} if result is None else result.measures,
        lost_tokens=lost,
    )
