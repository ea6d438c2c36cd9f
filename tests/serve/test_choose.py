# SPDX-License-Identifier: Apache-2.0
"""What is refused before anything starts."""

from __future__ import annotations

import pytest

from rlrun.errors import ConfigError
from rlrun.rendering.renderer import Renderer
from rlrun.serve import choose
from rlrun.serve.choose import check_serving, choose_reasoning_parser, choose_tool_parser
from rlrun.serve.parsers import own_reasoning_parsers, own_tool_parsers
from tests.factories import config

EXPOSED = "generation.expose_http_server=true"


def test_names_that_exist_are_taken(renderer: Renderer) -> None:
    for kind, names in (("tool", own_tool_parsers()), ("reasoning", own_reasoning_parsers())):
        for name in names:
            generation = config(EXPOSED, f"generation.http.{kind}_parser={name}").generation
            check_serving(generation)
            tools = choose_tool_parser(generation.http, renderer.tokenizer)
            reasoning = choose_reasoning_parser(generation.http, renderer.tokenizer)
            assert (tools is None) == (kind == "reasoning")
            assert (reasoning is None) == (kind == "tool")


def test_unknown_names_are_refused_with_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "vllm_is_installed", lambda: False)
    flags = ("generation.http.tool_parser=hermess", "generation.http.reasoning_parser=qwen")
    with pytest.raises(ConfigError) as caught:
        check_serving(config(EXPOSED, *flags).generation)
    tools, reasoning = caught.value.problems
    assert "'hermess'" in tools.what
    assert all(name in tools.remedy for name in own_tool_parsers())
    assert "'qwen'" in reasoning.what
    assert all(name in reasoning.remedy for name in own_reasoning_parsers())
    # Without a server they are not looked at.
    check_serving(config(*flags).generation)


def test_vllms_names_are_in_the_list_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "vllm_is_installed", lambda: True)
    monkeypatch.setattr(choose, "vllm_tool_parsers", lambda: ["hermes", "mistral"])
    check_serving(config(EXPOSED, "generation.http.tool_parser=mistral").generation)
    with pytest.raises(ConfigError, match="hermes, mistral, qwen3_coder"):
        check_serving(config(EXPOSED, "generation.http.tool_parser=x").generation)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rlrun\[http\]'"):
        check_serving(config(EXPOSED).generation)
    check_serving(config().generation)


@pytest.mark.parametrize("flag", ["port=65536", "port=-1", "host=''", "tool_parser=' '"])
def test_settings_that_cannot_be_are_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match="generation.http"):
        config(f"generation.http.{flag}")
