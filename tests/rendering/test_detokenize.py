# SPDX-License-Identifier: Apache-2.0
"""The table of bytes gives the very text that the tokenizer gives."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers.decoders import Metaspace
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rlrun.models.resolve import resolve_model
from rlrun.rendering.detokenize import TokenBytes, is_byte_level


def load() -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny"))
    return tokenizer


@cache
def tables() -> tuple[PreTrainedTokenizerBase, TokenBytes, TokenBytes]:
    """A tokenizer with added tokens of every kind, and its tables without and with special ones."""
    tokenizer = load()
    tokenizer.add_tokens(
        [
            AddedToken("<|special|>", special=True),
            AddedToken(" two words", special=False),
            AddedToken("h\u00e9\u0120\u65e5\u672c", special=False),
            AddedToken("\u00e9", special=False),
        ]
    )
    specials = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    return tokenizer, TokenBytes(tokenizer, silent=specials), TokenBytes(tokenizer)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, len(tables()[0]) + 2), max_size=40))
def test_text_is_that_of_the_tokenizer(ids: list[int]) -> None:
    tokenizer, without, whole = tables()
    for table, skip in ((without, True), (whole, False)):
        assert table.text(ids) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert is_byte_level(tokenizer)


@pytest.mark.parametrize("text", ["\u00e9\u65e5\U0001f600", "a\n\tb  c", "<|im_end|>"])
def test_text_survives(text: str) -> None:
    tokenizer = load()
    whole = TokenBytes(tokenizer)
    assert whole.text(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_only_bytes_one_after_the_other_are_byte_level() -> None:
    tokenizer = load()
    tokenizer.backend_tokenizer.decoder = Metaspace()
    assert not is_byte_level(tokenizer)
