# SPDX-License-Identifier: Apache-2.0
"""Whatever a server does, a failure is a failure of a kind, never a reward, and others go on."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from rlrun.env.gym_agents import Agents
from rlrun.env.gym_client import asked_wait
from rlrun.env.gym_environment import GymEnvironment, request_row
from rlrun.errors import EnvironmentDown
from rlrun.gym.plan import Plan, Server
from rlrun.gym.servers import Servers
from rlrun.interfaces import Abandoned, Episode
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.rollout import Job, RolloutSettings
from rlrun.rollout.agents import AgentRollout
from rlrun.types import Failure, FailureKind, Row, Sampling, StopReason
from tests.env.gym_fakes import AGENT, TURNS, Running, order, running, settings
from tests.loops import settled, until

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(300):
            return await work

    return asyncio.run(bounded())


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    from transformers import AutoTokenizer

    return Renderer(AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")))


def test_an_episode_becomes_a_trajectory_of_its_ids() -> None:
    async def work() -> None:
        async with running() as live:
            trajectory = await live.episode()
        assert trajectory.failure is None and trajectory.reward == 1.0
        assert trajectory.token_ids == (5, 6, 7, 8, 9, 1, 2, 3, 4)
        assert trajectory.loss_mask == (False,) * 3 + (True,) * 2 + (False,) * 2 + (True,) * 2
        assert trajectory.generation_logprobs == (0, 0, 0, -0.5, -0.5, 0, 0, -0.5, -0.5)
        assert [(s.start, s.end) for s in trajectory.weight_versions] == [(3, 5), (7, 9)]
        assert (trajectory.input_length, trajectory.turns, trajectory.agent) == (3, 2, AGENT)
        assert trajectory.stop_reason is StopReason.STOP

    run(work())


def test_the_row_goes_out_as_it_is_with_the_sampling_of_the_run() -> None:
    async def work() -> dict[str, Any]:
        async with running() as live:
            await live.environment.run_episode(
                order(max_output_tokens=7, temperature=0.1, metadata={"extra_body": '{"a": 1}'})
            )
            return live.agent.rows[0]

    row = run(work())
    params = row["responses_create_params"]
    assert params["input"] == [{"role": "user", "content": "?"}] and row["mode"] == "good"
    assert (params["temperature"], params["top_p"], params["max_output_tokens"]) == (0.75, 0.5, 7)
    assert json.loads(params["metadata"]["extra_body"]) == {"a": 1, "seed": 1000}


@pytest.mark.parametrize(("own", "sent"), [({}, 16), ({"max_output_tokens": 99}, 16)])
def test_a_row_may_ask_for_fewer_tokens_and_not_for_more(own: dict[str, int], sent: int) -> None:
    assert request_row(order(**own), AGENT)["responses_create_params"]["max_output_tokens"] == sent


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({}, None),
        ({"max_output_tokens": 1, "metadata": {"extra_body": "{}", "audio_path": ""}}, None),
        ({"max_output_tokens": None, "metadata": None}, None),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"max_output_tokens": "64"}, "max_output_tokens is '64'"),
        ({"max_output_tokens": True}, "max_output_tokens is True"),
        ({"metadata": ["a"]}, "metadata is ['a'], not an object"),
        ({"metadata": {"extra_body": "{seed: 1}"}}, "extra_body is '{seed: 1}'"),
        ({"metadata": {"extra_body": "[1]"}}, "extra_body is '[1]'"),
        ({"metadata": {"extra_body": '{"a": 1, "a": 2}'}}, "extra_body: field 'a' occurs more"),
        ({"metadata": {"extra_body": {"a": 1}}}, "extra_body is {'a': 1}"),
        ({"metadata": {"audio_path": "a.wav"}}, "metadata.audio_path names audio"),
        ({"metadata": {"audio_paths": '["a.wav"]'}}, "metadata.audio_paths names audio"),
        ({"metadata": {"level": 3}}, "metadata.level is 3, not a text"),
        ({"metadata": {"audio_data": "data:audio/wav;base64,"}}, "metadata.audio_data"),
    ],
)
def test_a_row_that_could_not_be_sent_is_refused_at_load(
    params: dict[str, Any], told: str | None
) -> None:
    found = settings("env.agents={a: 'http://127.0.0.1:9'}").check_row(order(**params).prompt.row)
    assert (found is None) == (told is None)
    assert told is None or (found is not None and told in found)


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({}, "no responses_create_params"),
        ({"responses_create_params": {}}, "agent_ref.name is missing"),
        ({"responses_create_params": {}, "agent_ref": {"name": "a/b"}}, "'a/b' has a name"),
        ({"responses_create_params": "?", "agent_ref": {"name": "a"}}, "is '?', not an object"),
    ],
)
def test_a_row_that_names_no_agent_or_no_request_is_refused_at_load(
    payload: dict[str, Any], told: str
) -> None:
    row = Row("rows:1", (), "", payload, "rows.jsonl:1")
    assert told in (settings("env.agents={a: 'http://127.0.0.1:9'}").check_row(row) or "")


def test_rows_without_an_agent_go_to_the_default_one() -> None:
    row = Row("rows:1", (), "", {"responses_create_params": {}}, "rows.jsonl:1")
    env = settings("env.agents={a: 'http://127.0.0.1:9'}", "env.default_agent=a")
    assert env.check_row(row) is None


KINDS = {
    "down": (FailureKind.ENV_ERROR, 3, "boom"),
    "unavailable": (FailureKind.ENV_DOWN, 3, "503"),
    "reset": (FailureKind.ENV_DOWN, 3, ""),
    "half": (FailureKind.ENV_DOWN, 3, ""),
    "engine": (FailureKind.ENGINE_LOST, 1, "generation_failed"),
    "refused": (FailureKind.ENV_ERROR, 1, "unknown key"),
    "malformed": (FailureKind.ENV_ERROR, 1, "no JSON"),
    "twice": (FailureKind.ENV_ERROR, 1, "in the answer, field 'reward' occurs more than once"),
    "page": (FailureKind.ENV_ERROR, 1, "<html>Please log in"),
    "count": (FailureKind.ENV_ERROR, 1, "a list of 2"),
    "nan": (FailureKind.REWARD_ERROR, 1, "nan"),
    "huge": (FailureKind.ENV_ERROR, 1, "max_body_mib"),
    "silent": (FailureKind.ENV_ERROR, 1, "no sampled tokens"),
}


@pytest.mark.parametrize("mode", KINDS)
def test_a_fault_has_a_kind_and_no_reward_and_is_retried_where_that_may_help(mode: str) -> None:
    kind, tries, text = KINDS[mode]

    async def work() -> None:
        async with running("env.max_body_mib=1") as live:
            failed, good = await asyncio.gather(live.episode(mode), live.episode(number=1))
            assert failed.failure is not None and failed.reward is None
            assert (failed.failure.kind, live.agent.asked[mode]) == (kind, tries)
            assert text in failed.failure.message
            assert failed.stop_reason is StopReason.ERROR
            assert good.reward == 1.0
            metrics = live.environment.metrics()
            assert metrics[f"agent/{AGENT}/failures/{kind.value}"] == 1

    run(work())


def test_a_server_that_comes_back_costs_nothing() -> None:
    async def work() -> None:
        async with running() as live:
            trajectory = await live.episode("flaky")
            assert trajectory.reward == 1.0 and live.agent.asked["flaky"] == 2
            assert not any("failures" in name for name in live.environment.metrics())

    run(work())


@pytest.mark.parametrize("mode", ["moved", "packed", "untyped", "closing"])
def test_an_answer_counts_however_it_comes(mode: str) -> None:
    async def work() -> None:
        async with running() as live:
            trajectories = [await live.episode(mode, number=number) for number in range(3)]
            assert [one.reward for one in trajectories] == [1.0] * 3

    run(work())


def test_a_server_is_left_alone_for_as_long_as_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float, result: Any = None) -> Any:
        waits.append(seconds)
        return await sleep(0, result)

    async def work() -> None:
        async with running() as live:
            monkeypatch.setattr("rlrun.env.gym_client.asyncio.sleep", noted)
            trajectory = await live.episode("busy")
            assert trajectory.reward == 1.0 and live.agent.asked["busy"] == 2

    run(work())
    assert 7.0 in waits


def test_a_proxy_of_the_machine_is_not_asked_for_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def work() -> None:
        async with running() as live:
            assert (await live.episode()).reward == 1.0

    run(work())


@pytest.mark.parametrize(
    ("told", "seconds"), [("", 0), ("3", 3), ("-3", 0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0)]
)
def test_a_wait_is_a_number_of_seconds(told: str, seconds: float) -> None:
    assert asked_wait(told) == seconds


def test_no_episode_waits_for_a_connection() -> None:
    """aiohttp's own limit is 100; episodes beyond it would only begin when others end."""

    async def work() -> None:
        async with running() as live:
            live.agent.crowd = 130
            episodes = [live.episode("together", number=number) for number in range(130)]
            assert all(one.reward == 1.0 for one in await asyncio.gather(*episodes))

    run(work())


def test_a_server_that_never_answers_costs_the_time_limit_once() -> None:
    async def work() -> None:
        async with running() as live:
            await live.episode()  # the connection is there
            failed = await live.episode("hang", timeout_s=2.0)
            assert failed.failure is not None and failed.failure.kind is FailureKind.TIMEOUT
            assert live.agent.asked["hang"] == 1

    run(work())


def test_an_episode_whose_server_ends_fails_at_once_with_the_cause(tmp_path: Path) -> None:
    """An agent whose verifier was killed asks for it without end."""

    async def work() -> list[Failure | None]:
        async with running() as live:
            servers = Servers(plan_of(live.url), tmp_path)
            live.environment._directory._servers = servers
            assert (await live.episode()).failure is None
            waiting = asyncio.create_task(live.episode("hang", timeout_s=None))
            await until(lambda: live.agent.asked["hang"] == 1)
            pipe = asyncio.StreamReader()
            pipe.feed_data(b'{"name": "other", "code": 1}\n{"name": "verifier", "code": -9}\n')
            pipe.feed_eof()
            servers._supervisor = SimpleNamespace(stdout=pipe)  # type: ignore[assignment]
            await servers._listen()
            servers._supervisor = None
            return [(await waiting).failure, (await live.episode("hang", timeout_s=None)).failure]

    for failure in run(work()):
        assert failure is not None and failure.kind is FailureKind.ENV_DOWN
        assert "server verifier ended with -9" in failure.message
        assert "other" not in failure.message


def plan_of(url: str) -> Plan:
    """An agent with its verifier, and an agent of another server."""
    port = int(url.rpartition(":")[2])
    servers = [
        Server(AGENT, "responses_api_agents", "x", "app.py", "127.0.0.1", port, "verifier"),
        Server("verifier", "resources_servers", "x", "app.py", "127.0.0.1", 1, None),
        Server("other", "resources_servers", "x", "app.py", "127.0.0.1", 1, None),
    ]
    return Plan(tuple(servers), "", Path(), Path(), ("", ""))


def test_answers_to_other_rows_are_told_from_their_own() -> None:
    async def work() -> None:
        async with running() as live:
            both = await asyncio.gather(live.episode("swap"), live.episode("swap", number=1))
            for trajectory in both:
                assert trajectory.failure is not None
                assert trajectory.failure.kind is FailureKind.ENV_ERROR
                assert "1000" in trajectory.failure.message

    run(work())


def test_tokens_of_a_failed_episode_are_counted() -> None:
    async def work() -> None:
        async with running() as live:
            failed = await live.episode("nan")
            assert failed.num_sampled == sum(len(generation) for _, generation in TURNS)

    run(work())


def test_what_is_being_sampled_when_the_time_is_over_is_counted_too() -> None:
    async def work() -> None:
        async with running() as live:
            await live.episode()  # the connection is there
            failed = await live.episode("sampling", timeout_s=2.0)
            assert failed.failure is not None and failed.failure.kind is FailureKind.TIMEOUT
            assert (failed.num_sampled, failed.lost_tokens) == (4, 5)

    run(work())


def test_a_cancelled_episode_says_what_was_sampled_for_it() -> None:
    async def work() -> None:
        async with running() as live:
            task = asyncio.create_task(live.episode("sampling", timeout_s=None))
            await until(lambda: live.agent.asked["sampling"] == 1)
            await settled()
            task.cancel()
            with pytest.raises(Abandoned) as stopped:
                await task
            assert stopped.value.tokens == 4 + 5
            assert live.environment.metrics()[f"agent/{AGENT}/failures/cancelled"] == 1

    run(work())


def test_an_unknown_agent_ends_the_run_and_names_those_there_are() -> None:
    async def work() -> None:
        async with running() as live:
            with pytest.raises(EnvironmentDown, match=f"none of that name among {AGENT}"):
                await live.environment.run_episode(order(agent="fake_agnet"))

    run(work())


def test_a_head_server_that_names_no_agent_is_an_error() -> None:
    async def work() -> None:
        async with running() as live:
            live.agent.instances = [{"server_type": "resources_servers", "process_name": "r"}]
            environment = GymEnvironment(settings(f"env.head_server={live.url}"))
            with pytest.raises(EnvironmentDown, match="names no agent among 1 server"):
                await environment.open(None)
            await environment.close()

    run(work())


def test_servers_of_somebody_else_that_do_not_come_are_named() -> None:
    async def work(*overrides: str) -> None:
        environment = GymEnvironment(settings("env.start_timeout_s=0.3", *overrides))
        with pytest.raises(EnvironmentDown, match=r"at http://127.0.0.1:9 is not ready"):
            await environment.open(None)
        await environment.close()

    run(work("env.head_server=http://127.0.0.1:9"))
    run(work("env.agents={a: 'http://127.0.0.1:9'}"))


def test_what_is_no_number_is_named_once_and_is_no_metric(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with running() as live:
            for number in range(2):
                trajectory = await live.episode("telling", number=number)
                assert trajectory.measures == {"steps": 3.0}

    with caplog.at_level(logging.WARNING):
        run(work())
    (notice,) = [record.message for record in caplog.records if "no metric" in record.message]
    assert notice.endswith("no number and therefore no metric: transcript, verdict")


@pytest.mark.parametrize("verdict", ['{"reward": NaN}', '{"reward": null}', "{}", "[1.0]", "7"])
def test_a_verifier_without_a_finite_reward_scores_nothing(verdict: str) -> None:
    async def work() -> None:
        async with running() as live:
            prompt = order(verdict=verdict).prompt
            step = await live.environment.step(Episode(prompt, 0, (), "said", 1, StopReason.STOP))
            assert step.reward is None and step.failure is not None
            assert step.failure.kind is FailureKind.REWARD_ERROR

    run(work())


# --- breaker --------------------------------------------------------------------------------------


def test_a_broken_agent_is_paused_and_others_go_on() -> None:
    async def work() -> None:
        async with running(
            "env.max_agent_failures=3", "env.max_retries=0", names=(AGENT, "other")
        ) as live:
            environment = live.environment
            await environment.run_episode(order(agent="other"))
            for number in range(3):
                assert environment.paused(order().prompt) is None
                await live.episode("down", number=number)
            reason = environment.paused(order().prompt)
            assert reason is not None and "boom" in reason
            assert environment.paused(order(agent="other").prompt) is None
            assert (await environment.run_episode(order(agent="other"))).reward == 1.0
            metrics = environment.metrics()
            assert metrics[f"agent/{AGENT}/paused"] == 1
            assert metrics[f"agent/{AGENT}/passed_over"] == 1
            assert metrics["agent/other/paused"] == 0

    run(work())


def test_what_is_counted_since_the_run_began_goes_on_over_a_resume() -> None:
    before, after = Agents(2, 10.0), Agents(2, 10.0)
    for kind in (FailureKind.ENV_DOWN, FailureKind.ENV_DOWN, FailureKind.REWARD_ERROR):
        before.failed("a", Failure(kind, "?"), now=0.0)
    before["a"].passed_over = 3
    after.restore(json.loads(json.dumps(before.state())))
    after.failed("a", Failure(FailureKind.ENV_DOWN, "?"), now=0.0)
    found = after.metrics(now=0.0)
    assert found["agent/a/failures/env_down"] == 3
    assert found["agent/a/failures/reward_error"] == 1
    assert found["agent/a/passed_over"] == 3
    assert after.paused("a", now=0.0) is None


def test_a_pause_ends_and_one_success_closes_the_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("rlrun.env.gym_environment.time", clock)

    async def work() -> None:
        async with running(
            "env.max_agent_failures=2",
            "env.max_retries=0",
            "env.agent_pause_s=10",
            names=(AGENT, "other"),
        ) as live:
            await live.environment.run_episode(order(agent="other"))
            for number in range(2):
                await live.episode("down", number=number)
            now[0] += 9.0
            assert live.environment.paused(order().prompt) is not None
            now[0] += 1.0
            assert live.environment.paused(order().prompt) is None
            # One more failure opens it again at once.
            await live.episode("down", number=3)
            assert live.environment.paused(order().prompt) is not None
            now[0] += 10.0
            assert live.environment.paused(order().prompt) is None
            assert (await live.episode()).reward == 1.0
            await live.episode("down", number=4)
            assert live.environment.paused(order().prompt) is None

    run(work())


def test_when_all_agents_are_paused_the_run_ends_with_the_cause() -> None:
    async def work() -> None:
        async with running("env.max_agent_failures=2", "env.max_retries=0") as live:
            await live.episode("down")
            with pytest.raises(EnvironmentDown, match="boom") as error:
                await live.episode("down", number=1)
            assert error.value.exit_code == 4

    run(work())


def test_an_agent_whose_pause_is_over_is_not_taken_for_paused() -> None:
    agents = Agents(max_failures=1, pause_s=10.0)
    broken = Failure(FailureKind.ENV_DOWN, "gone")
    agents.failed("a", broken, 0.0)
    assert agents.all_paused(5.0) == "a: env_down: gone"
    assert agents.metrics(5.0)["agent/a/paused"] == 1
    # Nobody has asked for it meanwhile: it may well be there again.
    agents.failed("b", broken, 11.0)
    assert agents.all_paused(11.0) is None
    assert agents.metrics(11.0)["agent/a/paused"] == 0
    agents.failed("a", broken, 12.0)
    assert agents.all_paused(12.0) is not None


def test_a_lost_engine_is_not_the_agents_fault() -> None:
    async def work() -> None:
        async with running("env.max_agent_failures=1") as live:
            await live.episode("engine")
            await live.episode("nan", number=1)
            assert live.environment.paused(order().prompt) is None

    run(work())


# --- groups ---------------------------------------------------------------------------------------


def rollout(live: Running, renderer: Renderer) -> AgentRollout:
    limits = RolloutSettings(Sampling(1.0), 16, 64, 1, 20.0, seed=1)
    return AgentRollout(live.environment, renderer, limits, "training")


def test_a_failed_sample_is_rolled_out_again(renderer: Renderer) -> None:
    async def work() -> None:
        async with running("env.max_retries=0") as live:
            (group,) = await rollout(live, renderer).run([Job(order("flaky").prompt, 3)])
            assert [t.reward for t in group.trajectories] == [1.0] * 3
            assert [t.sample_index for t in group.trajectories] == [0, 1, 2]
            assert live.agent.asked["flaky"] == 4
            # What the failed try sampled is not forgotten.
            assert group.num_sampled == 4 * 4
            seeds = [row["_rowidx"] for row in live.agent.rows]
            assert len(set(seeds)) == 4

    run(work())


@pytest.mark.parametrize(
    ("policy", "needed"), [("null", [1, 2, 8]), ("2", [1, 2, 2]), ("5", [1, 2, 5])]
)
def test_a_group_needs_as_many_scored_samples_as_is_set(policy: str, needed: list[int]) -> None:
    agents = "env.agents={a: 'http://127.0.0.1:9'}"
    env = settings(agents, f"env.min_group_samples={policy}")
    assert [env.scored_needed(count) for count in (1, 2, 8)] == needed


def test_a_cancelled_group_says_what_all_its_samples_had(renderer: Renderer) -> None:
    async def work() -> None:
        async with running() as live:
            jobs = [Job(order("sampling").prompt, 3)]
            task = asyncio.create_task(rollout(live, renderer).run(jobs))
            await until(lambda: live.agent.asked["sampling"] == 3)
            await settled()
            task.cancel()
            with pytest.raises(Abandoned) as stopped:
                await task
            assert stopped.value.tokens == 3 * (4 + 5)

    run(work())


def test_a_sample_that_always_fails_is_tried_as_often_as_set(renderer: Renderer) -> None:
    async def work() -> None:
        async with running("env.max_retries=0", "env.max_sample_attempts=3") as live:
            (group,) = await rollout(live, renderer).run([Job(order("nan").prompt, 2)])
            assert all(t.failure is not None for t in group.trajectories)
            assert live.agent.asked["nan"] == 6
            assert group.num_sampled == 6 * 4

    run(work())
