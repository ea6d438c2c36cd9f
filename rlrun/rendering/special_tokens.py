# SPDX-License-Identifier: Apache-2.0
"""Special tokens that a text merely spells: they are encoded by their characters.

So neither a data row nor a tool's output can end a turn or begin another. While a chat template
renders such a text, a private character stands where a special token is spelled.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STAND_INS = range(0x100000, 0x10FFFE)
"""The last private-use plane: code points that no template and hardly a text gives a meaning."""

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Of reasoning and of calls: part of what the policy says, also where they are special tokens."""


class SpecialTokens:
    """The special tokens of a tokenizer, and how their texts are encoded as mere text.

    Args:
        tokenizer: Knows which tokens are special.
        eos_ids: Every token that ends a completion: a model may end a turn with a token that its
            tokenizer has not marked as special.

    Attributes:
        spelled: By the text of a special token, the token ids of its characters; longest first,
            as one special token may contain another.
        unsaid: Token ids that are no part of what the policy says: special tokens but for TAGS, and
            ends of turns.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int]) -> None:
        specials = {
            token.content: token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.content and (token.special or token_id in eos_ids)
        }
        self.spelled: dict[str, tuple[int, ...]] = {
            special: _characters(tokenizer, special, specials[special])
            for special in sorted(specials, key=len, reverse=True)
        }
        added = tokenizer.added_tokens_decoder.items()
        special_ids = {token_id for token_id, token in added if token.special}
        tag_ids = {token_id for token_id, token in added if token.content in TAGS}
        unsaid = {*special_ids, *tokenizer.all_special_ids} - tag_ids
        self.unsaid: list[int] = sorted(unsaid.union(eos_ids))

    def stand_ins(self, text: str) -> dict[str, str]:
        """A character that is not in the text for each special token that it spells."""
        spelled = [special for special in self.spelled if special in text]
        if not spelled:
            return {}
        unused = (chr(code) for code in STAND_INS if chr(code) not in text)
        return dict(zip(spelled, unused, strict=False))


def put_stand_ins(stand_ins: Mapping[str, str], text: str) -> str:
    """The text with stand-ins for special tokens, longer ones first."""
    pattern = "|".join(map(re.escape, stand_ins))
    return re.sub(pattern, lambda match: stand_ins[match[0]], text)


def _characters(tokenizer: PreTrainedTokenizerBase, special: str, token_id: int) -> tuple[int, ...]:
    """Token ids that spell a special token without being it."""

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ]
        return ids

    whole = encode(special)
    return tuple(encode(special[:1]) + encode(special[1:]) if token_id in whole else whole)
