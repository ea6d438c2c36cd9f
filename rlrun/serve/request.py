# SPDX-License-Identifier: Apache-2.0
"""A chat completion request, checked against what the run samples with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.serve.conversation import Conversation, read_conversation
from rlrun.serve.errors import bad_request
from rlrun.serve.fields import Fields
from rlrun.types import Sampling

MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests are checked against.

    Attributes:
        sampling: What the run samples with: in training, then in validation.
        max_new_tokens: Per answer.
        context: Tokens of prompt and answer together.
        vocabulary: Number of token ids that the model knows.
        has_tool_parser: Whether calls of tools can be told from text.
    """

    sampling: tuple[Sampling, ...]
    max_new_tokens: int
    context: int
    vocabulary: int
    has_tool_parser: bool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What is asked for.

    Attributes:
        model: The name that the client knows the policy by.
        conversation: What the prompt is made of.
        sampling: One of the run's.
        max_new_tokens: At most the run's; the room in the context may be less.
        choices: Answers that are wanted.
        seed: The client's own, or None.
        calls_tools: Whether calls of tools are looked for.
        one_call: Whether only the first call is told.
        logprobs: Whether ``choices[].logprobs`` is filled.
        tokens_as_ids: Whether tokens there are written ``token_id:N``.
        token_ids: Whether token ids are put beside the messages as well.
        stream: Whether the answer comes as server-sent events.
        stream_usage: Whether these end with the usage.
    """

    model: str
    conversation: Conversation
    sampling: Sampling
    max_new_tokens: int
    choices: int
    seed: int | None
    calls_tools: bool
    one_call: bool
    logprobs: bool
    tokens_as_ids: bool
    token_ids: bool
    stream: bool
    stream_usage: bool


def read_chat_request(fields: Fields, limits: Limits) -> ChatRequest:
    """Takes all fields of a chat completion request.

    Raises:
        ApiError: A field is missing, malformed, unknown, or cannot be honoured (400).
    """
    model = fields.text("model")
    if model is None:
        raise bad_request("model is missing", "model")
    conversation = read_conversation(fields, limits.vocabulary)
    stream = fields.flag("stream")
    request = ChatRequest(
        model=model,
        conversation=conversation,
        sampling=_sampling(fields, limits.sampling),
        max_new_tokens=_max_new_tokens(fields, limits.max_new_tokens),
        choices=_choices(fields),
        seed=fields.integer("seed"),
        calls_tools=_calls_tools(fields, bool(conversation.view.tools), limits.has_tool_parser),
        one_call=not fields.flag("parallel_tool_calls", default=True),
        logprobs=fields.flag("logprobs"),
        tokens_as_ids=fields.flag("return_tokens_as_token_ids"),
        token_ids=fields.flag("return_token_ids"),
        stream=stream,
        stream_usage=_stream_usage(fields, stream),
    )
    fields.finish()
    return request


def _sampling(fields: Fields, profiles: Sequence[Sampling]) -> Sampling:
    """The first of the run's that has the values given; a value left out fits each."""
    given: dict[str, Any] = {}
    for name in ("temperature", "top_p"):
        if name in fields:
            given[name] = fields.number(name)
    if "top_k" in fields:
        top_k = fields.integer("top_k")
        # vLLM's two ways to say that there is no limit.
        given["top_k"] = None if top_k in (-1, 0) else top_k
    if "stop" in fields:
        given["stop"] = fields.texts("stop")
    for profile in profiles:
        if all(_same(profile, name, value) for name, value in given.items()):
            return profile
    # The field to name: the first that no profile has, or one that only fits another profile.
    name = min(given, key=lambda name: any(_same(one, name, given[name]) for one in profiles))
    values = " or ".join(dict.fromkeys(_shown(one, name) for one in profiles))
    raise bad_request(
        f"{name} is {given[name]!r}, but the run samples with {values}: what is trained on must be "
        "drawn as training expects. Leave it out",
        name,
    )


def _same(profile: Sampling, name: str, value: Any) -> bool:
    own = _value(profile, name)
    return set(own) == set(value) if name == "stop" else bool(own == value)


def _value(profile: Sampling, name: str) -> Any:
    return {
        "temperature": profile.temperature,
        "top_p": profile.top_p,
        "top_k": profile.top_k,
        "stop": profile.stop,
    }[name]


def _shown(profile: Sampling, name: str) -> str:
    value = _value(profile, name)
    return "no limit" if value is None else repr(list(value) if name == "stop" else value)


def _max_new_tokens(fields: Fields, most: int) -> int:
    """The lowest of the upper bounds: the run's and the client's."""
    for name in ("max_tokens", "max_completion_tokens"):
        asked = fields.integer(name)
        if asked is None:
            continue
        if asked < 1:
            raise bad_request(f"{name} must be at least 1, got {asked}", name)
        most = min(most, asked)
    return most


def _choices(fields: Fields) -> int:
    asked = fields.integer("n")
    if asked is not None and not 1 <= asked <= MAX_CHOICES:
        raise bad_request(f"n is {asked}, which is not from 1 to {MAX_CHOICES}", "n")
    return asked or 1


def _calls_tools(fields: Fields, has_tools: bool, has_parser: bool) -> bool:
    choice = fields.any("tool_choice")
    if choice not in (None, "auto", "none"):
        raise bad_request(
            f"tool_choice={choice!r} would force what the policy is to learn. Write auto or none",
            "tool_choice",
        )
    if not has_tools or choice == "none":
        return False
    if not has_parser:
        raise bad_request(
            "this run has no tool parser, so calls of tools would stay text. Set "
            "generation.http.tool_parser, or send tool_choice=none",
            "tools",
        )
    return True


def _stream_usage(fields: Fields, stream: bool) -> bool:
    options = fields.mapping("stream_options")
    if options and not stream:
        raise bad_request("stream_options is only for stream=true", "stream_options")
    unknown = sorted(options.keys() - {"include_usage", "include_obfuscation"})
    if unknown:
        raise bad_request(f"stream_options has no {unknown[0]!r}", "stream_options")
    return options.get("include_usage") is True
