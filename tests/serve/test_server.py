# SPDX-License-Identifier: Apache-2.0
"""Keys, refusals, logs and the life of a server; what it says does not depend on the engine."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from rlrun.errors import ConfigError, GenerationError
from rlrun.interfaces import Generator
from rlrun.rendering.renderer import Renderer
from rlrun.serve import server as server_module
from rlrun.serve.start import new_api_key, write_address
from tests.docs.commands import DOCS, blocks
from tests.loops import until
from tests.ports import free_port
from tests.serve.engines import ADD, QUESTION, Scripted, Served, serve

BODY: dict[str, Any] = {"model": "rlrun:tiny", "messages": QUESTION}


def check(
    renderer: Renderer, work: Callable[[Served, Scripted], Awaitable[Any]], *overrides: str
) -> Any:
    """Runs ``work`` against a server in front of a scripted engine."""

    async def run() -> Any:
        generator = Scripted(renderer)
        async with asyncio.timeout(300), serve(generator, renderer, *overrides) as served:
            return await work(served, generator)

    return asyncio.run(run())


def error_of(answer: tuple[int, Any], status: int) -> dict[str, Any]:
    found, body = answer
    assert found == status, body
    error: dict[str, Any] = body["error"]
    assert set(body) == {"error"} and set(error) == {"message", "type", "param", "code"}
    return error


# --- who is let in --------------------------------------------------------------------------------


def test_nothing_is_told_without_the_key(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        for path in ("/v1/chat/completions", "/tokenize", "/nothing"):
            for key in ("", "x", served.key[:-1], served.key + "x", "\u00fc"):
                error = error_of(await served.post(path, BODY, key=key), 401)
                assert error["code"] == "invalid_api_key" and served.key not in error["message"]
        async with served.http.get(served.root + "/v1/models") as answer:
            assert answer.status == 401
        stranger = served.client.with_options(api_key="wrong")
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(**BODY)
        assert generator.calls == []

    check(renderer, work)


def test_keys_are_random_and_long() -> None:
    keys = {new_api_key() for _ in range(50)}
    assert len(keys) == 50 and min(map(len, keys)) >= 40


def test_a_server_listens_on_the_loopback_address_alone(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        assert served.server.base_url.startswith("http://127.0.0.1:")

    check(renderer, work)


def test_the_address_is_the_configured_one(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> str:
        await served.client.models.list()
        return served.server.base_url

    port = free_port()
    url = check(renderer, work, "generation.http.host=localhost", f"generation.http.port={port}")
    assert url == f"http://localhost:{port}/v1"


def test_a_taken_port_and_a_foreign_address_are_errors(renderer: Renderer) -> None:
    async def nothing(served: Served, generator: Scripted) -> None:
        raise AssertionError("there is no server")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port={port}.*cannot listen"):
            check(renderer, nothing, f"generation.http.port={port}")
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(ConfigError, match=f"host={host}"):
            check(renderer, nothing, f"generation.http.host={host}")


def test_the_address_file_is_for_the_owner_alone(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "http_server.json"
    (tmp_path / ".http_server.json.tmp").write_text("left behind")

    async def work(served: Served, generator: Scripted) -> None:
        write_address(path, served.server, served.key)
        assert json.loads(path.read_text()) == {
            "base_urls": [served.server.base_url],
            "api_key": served.key,
            "model": "short",
            "parses_reasoning": False,
        }

    check(renderer, work, "generation.http.served_model_name=short")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_client_of_the_page_gets_an_answer(
    renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, code),) = blocks(DOCS / "serving.md", "python")
    monkeypatch.chdir(tmp_path)
    Path("RUN_DIR").mkdir()

    async def work(served: Served, generator: Scripted) -> Any:
        write_address(Path("RUN_DIR/http_server.json"), served.server, served.key)
        names: dict[str, Any] = {}
        await asyncio.to_thread(exec, code, names)
        return names["answer"]

    message = check(renderer, work).choices[0].message
    assert message.content == "Answer: 82" and message.generation_token_ids


# --- engines --------------------------------------------------------------------------------------


class Two(Scripted):
    """A generator of two engines, whose answers tell which one it was."""

    def engine_views(self) -> tuple[Generator, ...]:
        return Scripted(self.renderer, ("Answer: 1",)), Scripted(self.renderer, ("Answer: 2",))


def test_each_engine_answers_at_an_address_of_its_own(renderer: Renderer, tmp_path: Path) -> None:
    async def run() -> list[str]:
        answers = []
        async with asyncio.timeout(300), serve(Two(renderer), renderer) as served:
            path = tmp_path / "http_server.json"
            write_address(path, served.server, served.key)
            urls = json.loads(path.read_text())["base_urls"]
            assert len(set(urls)) == 2
            assert served.server.address(tmp_path).base_urls == tuple(urls)
            for url in (*urls, *urls):
                client = served.client.with_options(base_url=url)
                answer = await client.chat.completions.create(**BODY)
                answers.append(answer.choices[0].message.content)
        return answers

    assert asyncio.run(run()) == ["Answer: 1", "Answer: 2"] * 2


def test_a_taken_port_of_a_later_engine_is_refused(renderer: Renderer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        async def run() -> None:
            async with serve(Two(renderer), renderer, f"generation.http.port={port - 1}"):
                raise AssertionError("it cannot listen")

        with pytest.raises(ConfigError, match=r"cannot listen.*Each of 2 engines has one"):
            asyncio.run(run())


# --- models ---------------------------------------------------------------------------------------


def test_the_served_name_and_the_models_own_both_answer(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        listed = (await served.client.models.list()).data
        assert [model.id for model in listed] == ["short", "rlrun:tiny"]
        for name in ("short", "rlrun:tiny"):
            answer = await served.client.chat.completions.create(**BODY | {"model": name})
            assert answer.model == name
        with pytest.raises(openai.NotFoundError, match="serves short or rlrun:tiny") as caught:
            await served.client.chat.completions.create(**BODY | {"model": "other"})
        assert caught.value.code == "model_not_found"
        error_of(await served.post("/tokenize", BODY | {"model": "other"}), 404)

    check(renderer, work, "generation.http.served_model_name=short")


# --- what is refused ------------------------------------------------------------------------------

MALFORMED: list[tuple[Any, str]] = [
    (b"{", "not JSON"),
    (b"\xff", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "not a JSON object"),
    ({"model": "rlrun:tiny"}, "messages is missing"),
    ({"messages": QUESTION}, "model is missing"),
    (BODY | {"messages": []}, "missing or empty"),
    (BODY | {"messages": "hello"}, "not a list of objects"),
    (BODY | {"messages": ["hello"]}, "not a list of objects"),
    (BODY | {"messages": [{"content": "hello"}]}, "has no role"),
    (BODY | {"messages": [{"role": "user", "content": 5}]}, "neither a text nor"),
    (BODY | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "Only text"),
    (BODY | {"messages": [{"role": "assistant", "tool_calls": "x"}]}, "tool_calls"),
    (BODY | {"model": 5}, "no text"),
    (BODY | {"seed": "x"}, "no whole number"),
    (BODY | {"seed": True}, "no whole number"),
    (BODY | {"temperature": "warm"}, "no finite number"),
    (BODY | {"stream": 1}, "neither true nor false"),
    (BODY | {"n": 0}, "not from 1 to"),
    (BODY | {"n": 1000}, "not from 1 to"),
    (BODY | {"max_tokens": 0}, "at least 1"),
    (BODY | {"stop": 5}, "list of texts"),
    (BODY | {"temprature": 1.0}, "no parameter 'temprature'"),
    (BODY | {"logit_bias": {"5": 1}}, "not supported"),
    (BODY | {"presence_penalty": 0.5}, "not supported"),
    (BODY | {"top_logprobs": 2, "logprobs": True}, "not supported"),
    (BODY | {"response_format": {"type": "json_object"}}, "not supported"),
    (BODY | {"stream_options": {"include_usage": True}}, "only for stream"),
    (BODY | {"stream": True, "stream_options": {"fast": True}}, "no 'fast'"),
    (BODY | {"chat_template_kwargs": {"chat_template": "x"}}, "cannot set"),
    (BODY | {"chat_template_kwargs": []}, "not an object"),
    (BODY | {"required_prefix_token_ids": [10_000]}, "token ids from 0 to 279"),
    (BODY | {"required_prefix_token_ids": [-1]}, "token ids from 0"),
    (BODY | {"required_prefix_token_ids": [True]}, "token ids from 0"),
    (BODY | {"required_prefix_token_ids": [5, 6]}, "do not begin with"),
    (
        BODY | {"messages": [*QUESTION, {"role": "assistant", "generation_token_ids": [5]}]},
        "only one of",
    ),
    (BODY | {"tools": [{}]}, "no function with a name"),
    (BODY | {"tools": [ADD]}, "no tool parser"),
    (BODY | {"tools": [ADD], "tool_choice": "required"}, "would force"),
]


@pytest.mark.parametrize(("body", "reason"), MALFORMED, ids=[reason for _, reason in MALFORMED])
def test_a_request_that_cannot_be_honoured_is_refused(
    renderer: Renderer, body: Any, reason: str
) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        error = error_of(await served.post("/v1/chat/completions", body), 400)
        assert reason in error["message"] and error["type"] == "invalid_request_error"
        # NeMo Gym would score these words as an answer that was too long.
        assert "context length" not in error["message"]
        assert reason == "at least 1" or "max_tokens" not in error["message"]
        assert generator.calls == []

    check(renderer, work)


def test_what_changes_nothing_is_accepted(renderer: Renderer) -> None:
    extra = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "top_k": -1,
        "stop": None,
        "unheard_of": None,
        "chat_template_kwargs": {"enable_thinking": True},
    }

    async def work(served: Served, generator: Scripted) -> None:
        status, _ = await served.post("/v1/chat/completions", BODY | extra)
        assert status == 200

    check(renderer, work)


def test_other_paths_and_methods_are_refused_in_json(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        error_of(await served.post("/v1/completions", BODY), 404)
        error_of(await served.post("/v1/models", BODY), 405)

    check(renderer, work)


def test_a_body_that_is_too_large_is_refused(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_BODY_BYTES", 1000)

    async def work(served: Served, generator: Scripted) -> None:
        assert (await served.post("/v1/chat/completions", BODY))[0] == 200
        long = BODY | {"messages": [{"role": "user", "content": "x" * 1000}]}
        error_of(await served.post("/v1/chat/completions", long), 413)

    check(renderer, work)


def test_an_engine_that_fails_is_a_server_error(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        generator.error = GenerationError("generation=x", "out of memory", "Buy more")
        error = error_of(await served.post("/v1/chat/completions", BODY), 500)
        assert "out of memory" in error["message"] and error["type"] == "server_error"
        generator.error = ZeroDivisionError("a mistake")
        error = error_of(await served.post("/v1/chat/completions", BODY), 500)
        assert error["code"] == "internal_error"
        generator.error = None
        assert (await served.post("/v1/chat/completions", BODY))[0] == 200

    check(renderer, work)


def test_only_refusals_are_logged_and_no_key(
    renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(served: Served, generator: Scripted) -> str:
        await served.client.chat.completions.create(**BODY)
        await served.client.models.list()
        await served.post("/tokenize", BODY)
        assert [r for r in caplog.records if not r.name.startswith(("httpx", "openai"))] == []
        await served.post("/v1/chat/completions", {})
        return served.key

    with caplog.at_level(logging.INFO):
        key = check(renderer, work)
    records = [r for r in caplog.records if r.name.startswith(("rlrun", "aiohttp"))]
    assert [r.getMessage() for r in records] == ["400 POST /v1/chat/completions: model is missing"]
    assert key not in caplog.text


# --- holding, replacing, closing ------------------------------------------------------------------


def test_nothing_is_sampled_while_shared_weights_change(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer)
        async with serve(generator, renderer, shares_weights=True, released=False) as served:
            first = asyncio.create_task(served.post("/v1/chat/completions", BODY))
            await asyncio.sleep(0.2)  # as it would be asked, if it were not held
            assert generator.calls == []
            generator.gate.clear()
            served.server.release()
            await until(lambda: len(generator.calls) == 1)
            holding = asyncio.create_task(served.server.hold())
            second = asyncio.create_task(served.post("/v1/chat/completions", BODY))
            await asyncio.sleep(0.2)
            assert not holding.done()
            generator.gate.set()
            await holding
            assert (await first)[0] == 200
            await asyncio.sleep(0.1)
            assert len(generator.calls) == 1 and not second.done()
            await generator.refit(4)
            served.server.release()
            _, body = await second
            assert body["choices"][0]["message"]["weight_versions"][0][0] == 4

    asyncio.run(run())


def test_an_engine_with_weights_of_its_own_goes_on_during_updates(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        await served.server.hold()
        assert (await served.post("/v1/chat/completions", BODY))[0] == 200

    check(renderer, work)


def test_a_replaced_engine_keeps_the_address_and_answers_what_was_asked(
    renderer: Renderer,
) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        url = served.server.base_url
        generator.gate.clear()
        waiting = asyncio.create_task(served.post("/v1/chat/completions", BODY | {"seed": 1}))
        await until(lambda: len(generator.calls) == 1)
        other = Scripted(renderer, texts=("from the other",))
        served.server.replace(other)
        status, body = await waiting
        assert status == 200
        assert body["choices"][0]["message"]["content"] == "from the other"
        assert other.calls == generator.calls and generator.cancelled == 1
        assert served.server.base_url == url
        assert (await served.client.chat.completions.create(**BODY)).choices

    check(renderer, work)


def test_closing_ends_what_is_being_asked(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        generator.gate.clear()
        waiting = asyncio.create_task(served.post("/v1/chat/completions", BODY))
        await until(lambda: len(generator.calls) == 1)
        await served.server.close()
        error = error_of(await waiting, 500)
        assert "the run is ending" in error["message"] and generator.cancelled == 1
        with pytest.raises(openai.APIConnectionError):
            await served.client.models.list()

    check(renderer, work)


def test_a_client_that_hangs_up_takes_its_request_back(renderer: Renderer) -> None:
    async def work(served: Served, generator: Scripted) -> None:
        generator.gate.clear()
        for count, stream in enumerate((False, True), 1):
            waiting = asyncio.create_task(
                served.post("/v1/chat/completions", BODY | {"stream": stream})
            )
            await until(lambda count=count: len(generator.calls) == count)
            waiting.cancel()
            await until(lambda count=count: generator.cancelled == count)

    check(renderer, work)
