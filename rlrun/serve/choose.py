# SPDX-License-Identifier: Apache-2.0
"""What can be known of a server before any model is loaded: its package, its parsers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from rlrun.errors import ConfigError, NotInstalled, Problem
from rlrun.interfaces import Generation, Http
from rlrun.serve.parsers import (
    ReasoningParser,
    ToolParser,
    own_reasoning_parsers,
    own_tool_parsers,
)
from rlrun.serve.vllm_parsers import (
    VllmReasoning,
    VllmTools,
    vllm_is_installed,
    vllm_reasoning_parsers,
    vllm_tool_parsers,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_serving(generation: Generation) -> None:
    """Makes sure that a server that is asked for can be started.

    Raises:
        ConfigError: There is no parser of a name; NotInstalled: a package is missing.
    """
    if not generation.expose_http_server:
        return
    problems = [*_unknown_parsers(generation.http)]
    if problems:
        raise ConfigError(problems)
    missing = [*_missing_package()]
    if missing:
        raise NotInstalled(missing)


def choose_tool_parser(http: Http, tokenizer: PreTrainedTokenizerBase) -> ToolParser | None:
    """The configured one, or None.

    Raises:
        ConfigError: It does not fit the tokenizer.
    """
    if http.tool_parser is None:
        return None
    own = own_tool_parsers().get(http.tool_parser)
    return own or VllmTools(http.tool_parser, tokenizer)


def choose_reasoning_parser(
    http: Http, tokenizer: PreTrainedTokenizerBase
) -> ReasoningParser | None:
    """The configured one, or None.

    Raises:
        ConfigError: It does not fit the tokenizer.
    """
    if http.reasoning_parser is None:
        return None
    own = own_reasoning_parsers().get(http.reasoning_parser)
    return own or VllmReasoning(http.reasoning_parser, tokenizer)


def _missing_package() -> Iterator[Problem]:
    if importlib.util.find_spec("aiohttp") is None:
        key = "generation.expose_http_server"
        what = f"{key}=true needs the package aiohttp, which is not installed"
        yield Problem(key, what, "pip install 'rlrun[http]', or set it to false", (key,))


def _unknown_parsers(http: Http) -> Iterator[Problem]:
    yield from _unknown("tool_parser", http.tool_parser, own_tool_parsers(), vllm_tool_parsers)
    yield from _unknown(
        "reasoning_parser", http.reasoning_parser, own_reasoning_parsers(), vllm_reasoning_parsers
    )


def _unknown(
    kind: str, name: str | None, own: Collection[str], others: Callable[[], list[str]]
) -> Iterator[Problem]:
    if name is None or name in own:
        return
    names, more = sorted(own), "; those of vLLM are there once it is installed"
    if vllm_is_installed():
        names, more = sorted({*own, *others()}), ""
    if name not in names:
        key = f"generation.http.{kind}"
        what = f"there is no {kind.replace('_', ' ')} {name!r}"
        yield Problem(key, what, f"Choose one of {', '.join(names)}{more}", (key,))
