# SPDX-License-Identifier: Apache-2.0
"""Completions to what the OpenAI API answers, with token ids beside the text."""

from __future__ import annotations

import hashlib
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.rendering.renderer import Renderer
from rlrun.serve.parsers import THINK, ReasoningParser, ToolCall, ToolParser
from rlrun.serve.request import ChatRequest
from rlrun.types import Completion, StopReason

PROMPT_END_TOKENS = 8
"""Tokens of the prompt that are looked at for the beginning of reasoning."""

CALL_ID_SIGNS = string.ascii_letters + string.digits

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is about.

    Attributes:
        request: The request.
        prompt: Its token ids.
        key: Tells its answers from all others; equal for equal draws.
    """

    request: ChatRequest
    prompt: tuple[int, ...]
    key: str


@dataclass(frozen=True, slots=True)
class _Parts:
    """A completion's text, taken apart."""

    reasoning: str | None
    answer: str
    calls: tuple[ToolCall, ...]


class AnswerMaker:
    """Writes answers for one tokenizer and its formats."""

    def __init__(
        self,
        renderer: Renderer,
        tool_parser: ToolParser | None,
        reasoning_parser: ReasoningParser | None,
    ) -> None:
        """Finds out which tokens are never part of a text."""
        self._renderer = renderer
        self._tools, self._reasoning = tool_parser, reasoning_parser
        kept: set[str] = set()
        keep_all = False
        for parser in (tool_parser, reasoning_parser):
            if parser is not None:
                keep_all |= parser.tags is None
                kept.update(parser.tags or ())
        self._texts: dict[int, tuple[str, list[int] | None]] = {}
        specials = renderer.tokenizer.added_tokens_decoder.items()
        self._hidden = frozenset(renderer.eos_ids) | {
            token_id
            for token_id, token in specials
            if token.special and token.content not in kept and not keep_all
        }

    @property
    def parses_reasoning(self) -> bool:
        """Whether there is a reasoning parser."""
        return self._reasoning is not None

    def whole(self, asked: Asked, completions: Sequence[Completion]) -> JsonObject:
        """The answer in one piece."""
        choices = []
        for index, completion in enumerate(completions):
            choice = self._choice(asked, index, completion)
            if asked.request.token_ids:
                choice["token_ids"] = list(completion.token_ids)
            choices.append(choice)
        answer = self._head(asked, "chat.completion")
        answer |= {"choices": choices, "usage": _usage(asked, completions)}
        if asked.request.token_ids:
            answer["prompt_token_ids"] = list(asked.prompt)
        return answer

    def events(self, asked: Asked, completions: Sequence[Completion]) -> Iterator[JsonObject]:
        """The same answer as the objects of a stream: two per choice, and the usage if wanted."""
        head = self._head(asked, "chat.completion.chunk")
        for choice in self.whole(asked, completions)["choices"]:
            delta = choice.pop("message")
            for position, call in enumerate(delta.get("tool_calls", ())):
                call["index"] = position
            finish_reason = choice.pop("finish_reason")
            yield head | {"choices": [choice | {"delta": delta, "finish_reason": None}]}
            end = {"index": choice["index"], "delta": {}, "finish_reason": finish_reason}
            yield head | {"choices": [end]}
        if asked.request.stream_usage:
            yield head | {"choices": [], "usage": _usage(asked, completions)}

    @staticmethod
    def _head(asked: Asked, kind: str) -> JsonObject:
        return {
            "id": f"chatcmpl-{asked.key}",
            "object": kind,
            "created": int(time.time()),
            "model": asked.request.model,
        }

    def _choice(self, asked: Asked, index: int, completion: Completion) -> JsonObject:
        parts = self._parts(asked, completion)
        message: JsonObject = {"role": "assistant", "content": parts.answer, "refusal": None}
        if parts.reasoning is not None:
            # Both names are in use: the first in vLLM, the second in templates and older clients.
            message |= {"reasoning": parts.reasoning, "reasoning_content": parts.reasoning}
        calls = parts.calls[:1] if asked.request.one_call else parts.calls
        if calls:
            message["content"] = parts.answer if parts.answer.strip() else None
            message["tool_calls"] = [
                {
                    "id": call_id(f"{asked.key}/{index}/{position}"),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for position, call in enumerate(calls)
            ]
        message |= {
            "prompt_token_ids": list(asked.prompt),
            "generation_token_ids": list(completion.token_ids),
            "generation_log_probs": list(completion.logprobs),
            "weight_versions": [[s.version, s.start, s.end] for s in completion.weight_versions],
        }
        logprobs = self._logprobs(asked, completion) if asked.request.logprobs else None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": _finish_reason(completion, bool(calls)),
        }

    def _parts(self, asked: Asked, completion: Completion) -> _Parts:
        ids = [token for token in completion.token_ids if token not in self._hidden]
        text = self._renderer.decode(ids, skip_special=False)
        view = asked.request.conversation.view
        reasoning, calls = None, tuple[ToolCall, ...]()
        if self._reasoning is not None:
            end = self._renderer.decode(asked.prompt[-PROMPT_END_TOKENS:], skip_special=False)
            opened = end.rstrip().endswith(THINK)
            reasoning, text = self._reasoning(text, opened, view.options)
        if self._tools is not None and asked.request.calls_tools:
            text, calls = self._tools(text, view.tools)
        return _Parts(reasoning, self._without_stop(asked, completion, text), calls)

    def _without_stop(self, asked: Asked, completion: Completion, text: str) -> str:
        """The answer up to the stop string, which the tokens include and the API leaves out."""
        stopped = completion.stop_reason is StopReason.STOP and completion.token_ids
        if not stopped or completion.token_ids[-1] in self._renderer.eos_ids:
            return text
        found = [text.find(stop) for stop in asked.request.sampling.stop if stop in text]
        return text[: min(found)] if found else text

    def _logprobs(self, asked: Asked, completion: Completion) -> JsonObject:
        entries: list[JsonObject] = []
        for token_id, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            if asked.request.tokens_as_ids:
                # Bytes of what is named by its id nobody reads, and they are half of the answer.
                token, octets = f"token_id:{token_id}", None
            else:
                token, octets = self._text(token_id)
            entries.append(
                {"token": token, "logprob": logprob, "bytes": octets, "top_logprobs": []}
            )
        return {"content": entries, "refusal": None}

    def _text(self, token_id: int) -> tuple[str, list[int] | None]:
        """Text of a token, and its bytes; kept, as to decode one takes as long as many do."""
        found = self._texts.get(token_id)
        if found is None:
            text = self._renderer.decode((token_id,), skip_special=False)
            found = self._texts[token_id] = text, list(text.encode())
        return found


def call_id(text: str) -> str:
    """Nine letters and digits, which is the one form that all chat templates take."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    base = len(CALL_ID_SIGNS)
    return "".join(CALL_ID_SIGNS[number // base**place % base] for place in range(9))


def _finish_reason(completion: Completion, calls: bool) -> str:
    """A cut answer is told as cut, even if a whole call is in it."""
    if completion.stop_reason is StopReason.LENGTH:
        return "length"
    return "tool_calls" if calls else "stop"


def _usage(asked: Asked, completions: Sequence[Completion]) -> JsonObject:
    sampled = sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": len(asked.prompt),
        "completion_tokens": sampled,
        "total_tokens": len(asked.prompt) + sampled,
    }
