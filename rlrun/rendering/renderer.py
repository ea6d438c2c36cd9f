# SPDX-License-Identifier: Apache-2.0
"""Messages to token ids and back, such that sampled tokens are never tokenized again.

A conversation grows by appending: the prompt is rendered once by the chat template, every
completion stays as it was sampled, and what the environment says is rendered alone and put behind
it. A template's own view of a longer conversation is not used, as it may differ from what the
policy saw: it tokenizes the answers afresh, and some templates drop the reasoning of earlier turns.

Text inside messages is only text: what looks like a special token there is not one
(special_tokens.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.config.schema import Policy
from rlrun.errors import DataError
from rlrun.models.resolve import check_vocabulary, eos_token_ids, load_tokenizer, vocabulary_size
from rlrun.rendering.detokenize import TokenBytes, is_byte_level
from rlrun.rendering.messages import map_strings, normalize, strings
from rlrun.rendering.special_tokens import SpecialTokens, put_stand_ins
from rlrun.rendering.template_limits import bounded_rendering, install
from rlrun.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

# Words that no template contains, to find the parts of a rendered conversation again.
ASKED = "rlrun-probe-question"
ANSWERED = "rlrun-probe-answer"
THOUGHT = "rlrun-probe-thought"
ASKED_AGAIN = "rlrun-probe-question-again"
PROBE = ({"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED})

DAY = datetime(2024, 7, 26)
"""What templates that ask for the date are told: tomorrow, or when it is resumed, a run must render
what it renders today. The day is the one that Llama's templates name where nobody tells them."""


@dataclass(frozen=True, slots=True)
class TemplateView:
    """What a chat template is told beside the messages.

    Attributes:
        tools: Definitions of the tools, in the form of the OpenAI API.
        options: Variables of the template, such as ``enable_thinking``.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


PLAIN_VIEW = TemplateView()


class Renderer:
    """Renders for one tokenizer and its chat template.

    Attributes:
        tokenizer: As given.
        eos_ids: Every token that ends a completion.
        pad_id: What fills up the rows of a batch; never attended to.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Sequence[int] | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """Keeps the tokenizer.

        Args:
            tokenizer: With a chat template.
            eos_ids: Of the model, which may have several; None for the tokenizer's one.
            vocabulary: Token ids that the model knows; None if that is not known.
        """
        if eos_ids is None:
            eos_ids = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        if not eos_ids:
            raise DataError(
                "policy.tokenizer",
                f"the tokenizer {tokenizer.name_or_path} has no end-of-sequence token",
                "Set eos_token in its tokenizer_config.json",
            )
        install()
        self.tokenizer, self._vocabulary = tokenizer, vocabulary
        self.eos_ids: tuple[int, ...] = tuple(eos_ids)
        pad_id = tokenizer.pad_token_id
        self.pad_id: int = self.eos_ids[0] if pad_id is None else pad_id
        self._specials = SpecialTokens(tokenizer, self.eos_ids)
        self._token_bytes: tuple[TokenBytes, TokenBytes] | None = None
        """Of all tokens, and of those that are said; None if bytes do not make up the text."""
        if is_byte_level(tokenizer):
            said = TokenBytes(tokenizer, silent=self._specials.unsaid)
            self._token_bytes = TokenBytes(tokenizer), said

    @classmethod
    def load(cls, policy: Policy) -> Renderer:
        """The renderer of a policy, with every end-of-sequence token that its model names."""
        tokenizer, vocabulary = load_tokenizer(policy), vocabulary_size(policy)
        if vocabulary is not None:
            check_vocabulary(policy, tokenizer, vocabulary)
        return cls(tokenizer, eos_token_ids(policy, tokenizer), vocabulary)

    def prompt_ids(
        self, messages: Sequence[Message], view: TemplateView = PLAIN_VIEW
    ) -> tuple[int, ...]:
        """Token ids of a conversation, ready for the policy's turn.

        Raises:
            DataError: The chat template refuses the conversation, or content is not text.
        """
        plain, shown, stand_ins = self._escape(messages, view)
        return tuple(self._encode(self._render(plain, True, shown), stand_ins))

    def turn_ids(
        self,
        context_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        stopped: bool = False,
        view: TemplateView = PLAIN_VIEW,
    ) -> tuple[int, ...]:
        """Token ids to append to a turn of the policy when the environment answers.

        The context of the next turn is ``context_ids + turn_ids(...)``: the end of the turn where
        it was not sampled, what the template puts behind it, the new messages, and the beginning of
        the policy's next turn. None of them was sampled.

        Args:
            context_ids: All tokens so far, the policy's completion being the last of them.
            messages: What the environment adds; none lets the policy take another turn.
            stopped: The completion ended in a stop string, so the end of the turn is appended.
            view: What the template is told beside the messages.

        Raises:
            ValueError: The completion was cut: there is no turn to answer to.
            DataError: The chat template does not allow a conversation to be continued, or refuses
                these messages.
        """
        ended = context_ids[-1] in self.eos_ids
        if not ended and not stopped:
            raise ValueError("a completion without an end-of-sequence token cannot be answered")
        closing = self._closing
        plain, shown, stand_ins = self._escape(messages, view)
        text = self._render((*PROBE, *plain), True, shown)
        _, found, rest = text.partition(ANSWERED)
        if not found or not rest.startswith(closing):
            raise self._no_turns("it ends the policy's turn differently before these messages")
        ids = self._encode(rest, stand_ins)
        return tuple(ids[self._first_eos(ids) + 1 :] if ended else ids)

    def check_turns(self) -> None:
        """Makes sure that conversations can be continued, by rendering a small one.

        Raises:
            DataError: They cannot, so only a single turn can be trained with this template.
        """
        if self._closing and self._drops_reasoning:
            log.info(
                "the chat template of %s drops the reasoning of earlier turns; here the context "
                "keeps every sampled token",
                self.tokenizer.name_or_path,
            )

    def notices(self) -> list[str]:
        """What the user should know about the chat template, a sentence each."""
        if "strftime_now" not in self.tokenizer.get_chat_template():
            return []
        return [
            f"the chat template of {self.tokenizer.name_or_path} asks for today's date and is told "
            f"{DAY:%Y-%m-%d} every day, so that a resumed run has the same prompts; set "
            "policy.chat_template to one with another date"
        ]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids, with or without those that are not said (see SpecialTokens)."""
        if self._token_bytes is not None:
            return self._token_bytes[skip_special].text(ids)
        # As an array, since the elements of a list are looked at one by one.
        array = np.asarray(ids, np.int64)
        if skip_special:
            array = array[~np.isin(array, self._specials.unsaid)]
        text = self.tokenizer.decode(
            array, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    @cached_property
    def _closing(self) -> str:
        """What the template puts between the policy's text and the next message."""
        _, found, closing = self._render(PROBE, generation_prompt=False).partition(ANSWERED)
        if not found:
            raise self._no_turns("it does not show the policy's turn")
        ids = self._encode(closing, {})
        if not any(token in self.eos_ids for token in ids):
            raise self._no_turns(
                f"it ends the policy's turn with {closing!r}, which holds none of the model's "
                f"end-of-sequence tokens {self.decode(self.eos_ids, skip_special=False)}"
            )
        if self.decode(ids[: self._first_eos(ids)], skip_special=False).strip():
            raise self._no_turns(f"it adds {closing!r} to the policy's text")
        longer = self._render((*PROBE, {"role": "user", "content": ASKED_AGAIN}), True)
        _, found, rest = longer.partition(ANSWERED)
        if not found or not rest.startswith(closing) or ASKED_AGAIN not in rest:
            raise self._no_turns("it renders a turn differently once another message follows")
        return closing

    @cached_property
    def _drops_reasoning(self) -> bool:
        asked, answered = PROBE
        thinking = {**answered, "content": f"<think>\n{THOUGHT}\n</think>\n\n{ANSWERED}"}
        again = {"role": "user", "content": ASKED_AGAIN}
        return THOUGHT not in self._render((asked, thinking, again), True)

    def _no_turns(self, reason: str) -> DataError:
        return DataError(
            "policy.chat_template",
            f"the chat template of {self.tokenizer.name_or_path} cannot continue a conversation: "
            f"{reason}",
            "Set policy.chat_template to one that only appends, or use a single-turn environment",
        )

    def _first_eos(self, ids: Sequence[int]) -> int:
        return next(i for i, token in enumerate(ids) if token in self.eos_ids)

    def _render(
        self,
        messages: Sequence[Message],
        generation_prompt: bool,
        view: TemplateView = PLAIN_VIEW,
    ) -> str:
        try:
            with bounded_rendering():
                text = self.tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=[dict(tool) for tool in view.tools] or None,
                    tokenize=False,
                    add_generation_prompt=generation_prompt,
                    **{"strftime_now": DAY.strftime, **view.options},
                )
        # A template is a program; what it raises is up to it.
        except Exception as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise DataError(
                "policy.chat_template",
                f"the chat template of {self.tokenizer.name_or_path} refuses a conversation of "
                f"the roles {roles}: {error}",
                "Change the rows, or set policy.chat_template to one that takes them",
            ) from error
        assert isinstance(text, str)
        return text

    def _escape(
        self, messages: Sequence[Message], view: TemplateView
    ) -> tuple[list[Message], TemplateView, dict[str, str]]:
        """Puts a stand-in character where messages or view spell a special token.

        Returns:
            Both, and the special token's text by its stand-in (empty for nearly all).
        """
        plain = [normalize(message) for message in messages]
        text = "\0".join((*strings(plain), *strings(view.tools), *strings(view.options)))
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                "messages", f"text that is not Unicode: {error}", "Replace the lone surrogates"
            ) from error
        stand_ins = self._specials.stand_ins(text)
        if not stand_ins:
            return plain, view, {}
        escape = partial(put_stand_ins, stand_ins)
        escaped = [map_strings(message, escape) for message in plain]
        shown = TemplateView(
            tuple(map_strings(view.tools, escape)), map_strings(view.options, escape)
        )
        return escaped, shown, {stand_in: special for special, stand_in in stand_ins.items()}

    def _encode(self, text: str, stand_ins: Mapping[str, str]) -> list[int]:
        """Token ids of rendered text; its special tokens are the template's own."""
        parts = re.split(f"([{''.join(stand_ins)}])", text) if stand_ins else [text]
        ids: list[int] = []
        for part in parts:
            ids.extend(
                self._specials.spelled[stand_ins[part]]
                if part in stand_ins
                else self._tokenize(part)
            )
        if self._vocabulary is not None and ids and max(ids) >= self._vocabulary:
            raise DataError(
                "policy.tokenizer",
                f"{self.decode([max(ids)], skip_special=False)!r} is token {max(ids)}, and the "
                f"model knows {self._vocabulary}",
                "Take the tokenizer and chat template that the model was trained with",
            )
        return ids

    def _tokenize(self, text: str) -> list[int]:
        # The template has put a beginning-of-sequence token where there is to be one.
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids
