# SPDX-License-Identifier: Apache-2.0
"""vLLM's tool and reasoning parsers, for the names that parsers.py does not have."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlrun.errors import ConfigError, Problem
from rlrun.serve.parsers import ReasoningParser, ToolCall, ToolParser

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def vllm_is_installed() -> bool:
    """Whether there are any; does not import vLLM, which takes seconds."""
    return importlib.util.find_spec("vllm") is not None


def vllm_tool_parsers() -> list[str]:
    """Names of vLLM's tool parsers."""
    from vllm.tool_parsers import ToolParserManager

    return [str(name) for name in ToolParserManager.list_registered()]


def vllm_reasoning_parsers() -> list[str]:
    """Names of vLLM's reasoning parsers."""
    from vllm.reasoning import ReasoningParserManager

    return [str(name) for name in ReasoningParserManager.list_registered()]


def _request(tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Any:
    """What the parsers look tools and template variables up in."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(
        messages=[{"role": "user", "content": ""}],
        tools=[dict(tool) for tool in tools] or None,
        chat_template_kwargs=dict(options),
    )


class VllmTools(ToolParser):
    """A tool parser of vLLM."""

    tags = None

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ConfigError where it does not fit the tokenizer."""
        from vllm.tool_parsers import ToolParserManager

        self._class: Any = ToolParserManager.get_tool_parser(name)
        self._tokenizer = tokenizer
        try:
            self._class(tokenizer)
        except (RuntimeError, ValueError) as error:
            raise _unfit("tool_parser", name, error) from error

    def __call__(
        self, text: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[ToolCall, ...]]:
        """See ToolParser; what counts as a call is the parser's."""
        request = _request(tools, {})
        found = self._class(self._tokenizer, request.tools).extract_tool_calls(text, request)
        if not found.tools_called:
            return text, ()
        calls = (call.function for call in found.tool_calls)
        return found.content or "", tuple(ToolCall(call.name, call.arguments) for call in calls)


class VllmReasoning(ReasoningParser):
    """A reasoning parser of vLLM."""

    tags = None

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ConfigError where it does not fit the tokenizer."""
        from vllm.reasoning import ReasoningParserManager

        self._class: Any = ReasoningParserManager.get_reasoning_parser(name)
        self._tokenizer = tokenizer
        try:
            self._class(tokenizer)
        except (RuntimeError, ValueError) as error:
            raise _unfit("reasoning_parser", name, error) from error

    def __call__(
        self, text: str, opened: bool, options: Mapping[str, Any]
    ) -> tuple[str | None, str]:
        """See ReasoningParser; whether the prompt opened it is the parser's to assume."""
        parser = self._class(self._tokenizer, chat_template_kwargs=dict(options))
        reasoning, answer = parser.extract_reasoning(text, _request((), options))
        return reasoning or None, answer or ""


def _unfit(key: str, name: str, error: Exception) -> ConfigError:
    key = f"generation.http.{key}"
    what = f"vLLM's parser {name!r} does not fit the tokenizer: {error}"
    return ConfigError([Problem(key, what, "Choose the one that the model's card names", (key,))])
