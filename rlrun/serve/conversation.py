# SPDX-License-Identifier: Apache-2.0
"""A request's messages to token ids, keeping those that were sampled for earlier turns.

An assistant message that came from this server carries the tokens before it and the tokens of its
own. Where the messages before it still render to the former, both are the beginning of the prompt,
and only what follows is rendered: the policy reads what it wrote and never a tokenization of it.
Where they do not, the history was edited, and the message counts as the text that it holds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlrun.rendering.renderer import Renderer, TemplateView
from rlrun.serve.errors import bad_request
from rlrun.serve.fields import Fields, token_ids
from rlrun.types import Message

log = logging.getLogger(__name__)

PROMPT, GENERATION = "prompt_token_ids", "generation_token_ids"
TOKEN_FIELDS = frozenset(
    {PROMPT, GENERATION, "generation_log_probs", "weight_versions", "routed_experts"}
)
"""Fields of a message that are about tokens and that no template is shown."""

KEPT = 64
"""Beginnings of conversations whose tokens are kept."""

ARGUMENTS_OF_RENDERING = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "processor_kwargs",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that are no variables of a template but arguments of the function that renders it."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message, and what its tokens are if this server sampled it.

    Attributes:
        message: As the template takes it.
        prompt: Tokens before it; None if it was not sampled here.
        generation: Its own tokens.
    """

    message: Message
    prompt: tuple[int, ...] | None = None
    generation: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt is made of.

    Attributes:
        said: At least one message.
        view: Tools and template variables.
        required_prefix: Tokens up to and including the last assistant message, from a client that
            keeps them beside the messages.
    """

    said: tuple[Said, ...]
    view: TemplateView
    required_prefix: tuple[int, ...] | None


def read_conversation(fields: Fields, vocabulary: int) -> Conversation:
    """Takes the fields of a conversation.

    Raises:
        ApiError: One is missing or malformed (400).
    """
    messages = fields.objects("messages")
    if not messages:
        raise bad_request("messages is missing or empty", "messages")
    said = tuple(_read_message(message, i, vocabulary) for i, message in enumerate(messages))
    options = fields.mapping("chat_template_kwargs")
    for name in sorted(ARGUMENTS_OF_RENDERING & options.keys()):
        raise bad_request(f"chat_template_kwargs cannot set {name!r}", "chat_template_kwargs")
    tools = tuple(fields.objects("tools"))
    for tool in tools:
        _check_tool(tool)
    prefix = fields.token_ids("required_prefix_token_ids", vocabulary)
    return Conversation(said, TemplateView(tools, options), prefix)


def _read_message(message: dict[str, Any], index: int, vocabulary: int) -> Said:
    name = f"messages[{index}]"
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise bad_request(f"{name} has no role", name)
    if content is not None and not isinstance(content, str | list):
        raise bad_request(f"{name}.content is neither a text nor a list of parts", name)
    calls = message.get("tool_calls")
    if calls is not None and not (
        isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
    ):
        raise bad_request(f"{name}.tool_calls is not a list of objects", name)
    plain = {key: value for key, value in message.items() if key not in TOKEN_FIELDS}
    # One thing under two names: vLLM writes the one, templates read the other.
    if plain.get("reasoning") is not None:
        plain.setdefault("reasoning_content", plain["reasoning"])
    if role != "assistant":
        return Said(plain)
    prompt = token_ids(message.get(PROMPT), f"{name}.{PROMPT}", vocabulary)
    generation = token_ids(message.get(GENERATION), f"{name}.{GENERATION}", vocabulary)
    if (prompt is None) != (generation is None):
        raise bad_request(f"{name} has only one of {PROMPT} and {GENERATION}", name)
    return Said(plain, prompt, generation or ())


def _check_tool(tool: Mapping[str, Any]) -> None:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request("a tool has no function with a name", "tools")


class PromptMaker:
    """Renders conversations for one tokenizer."""

    def __init__(self, renderer: Renderer) -> None:
        """Finds out what the template knows."""
        self._renderer = renderer
        template = renderer.tokenizer.get_chat_template()
        # Templates skip or refuse a role that they do not know; this one has had two names.
        self._roles = {} if "developer" in template else {"developer": "system"}
        self._told_of_edits = self._looked_at_tools = False
        self._prompt_ids = lru_cache(KEPT)(self._rendered)

    def __call__(self, conversation: Conversation) -> tuple[int, ...]:
        """Token ids, ready for the policy's turn.

        Raises:
            DataError: The chat template refuses the messages.
            ApiError: They do not begin with the required prefix (400).
        """
        said, view = conversation.said, conversation.view
        if view.tools and not self._looked_at_tools:
            self._looked_at_tools = True
            self._warn_of_hidden_tools(said, view)
        known: tuple[int, ...] | None = None
        start = 0
        for index, one in enumerate(said):
            if not one.prompt:
                continue
            if self._context(known, said[start:index], view) == one.prompt:
                known, start = one.prompt + one.generation, index + 1
            elif not self._told_of_edits:
                self._told_of_edits = True
                log.warning(
                    "a client sent a conversation whose messages no longer are what its token ids "
                    "say (edited, or with other tools); such turns are rendered from their text"
                )
        prompt = self._context(known, said[start:], view)
        prefix = conversation.required_prefix
        if prefix is None or prompt[: len(prefix)] == prefix:
            return prompt
        return self._spliced(prefix, said, view)

    def _context(
        self, known: tuple[int, ...] | None, said: Sequence[Said], view: TemplateView
    ) -> tuple[int, ...]:
        messages = [self._message(one) for one in said]
        if known is None:
            beginning = (messages, view.tools, dict(view.options))
            return self._prompt_ids(json.dumps(beginning)) if messages else ()
        # A turn may have been cut before its end, which is then appended.
        return known + self._renderer.turn_ids(known, messages, stopped=True, view=view)

    def _rendered(self, beginning: str) -> tuple[int, ...]:
        """Token ids of a conversation; all samples of a group, and all their turns, begin alike."""
        messages, tools, options = json.loads(beginning)
        return self._renderer.prompt_ids(messages, TemplateView(tuple(tools), options))

    def _spliced(
        self, prefix: tuple[int, ...], said: Sequence[Said], view: TemplateView
    ) -> tuple[int, ...]:
        answers = [i for i, one in enumerate(said) if one.message["role"] == "assistant"]
        if not answers or not prefix:
            raise bad_request(
                "the messages do not begin with required_prefix_token_ids, and there is no "
                "assistant message that could end there",
                "required_prefix_token_ids",
            )
        return self._context(prefix, said[answers[-1] + 1 :], view)

    def _message(self, one: Said) -> Message:
        role = one.message["role"]
        return {**one.message, "role": self._roles.get(role, role)}

    def _warn_of_hidden_tools(self, said: Sequence[Said], view: TemplateView) -> None:
        messages = [self._message(one) for one in said]
        without = TemplateView((), view.options)
        if self._renderer.prompt_ids(messages, view) == self._renderer.prompt_ids(
            messages, without
        ):
            log.warning(
                "a client sent tools, but the chat template shows no definitions of tools: the "
                "policy does not learn of them"
            )
