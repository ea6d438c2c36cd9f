# SPDX-License-Identifier: Apache-2.0
"""Text of token ids of byte-level vocabularies, by a table of the bytes that each token stands for.

That is what the tokenizer's own decoder computes, which looks every token up as text and turns its
characters back into bytes one by one, each time anew: it takes more than three times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PRINTED = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(0x100) if byte not in _PRINTED)

BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(0x100 + place): byte for place, byte in enumerate(_OTHERS)
}
"""The alphabet of byte-level vocabularies: a byte is shown by its own character where that is
visible, the others in turn by the characters from U+0100 on."""


class TokenBytes:
    """Bytes by token id, found when they are first asked for.

    Args:
        tokenizer: One that ``is_byte_level``.
        silent: Token ids that stand for nothing.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, silent: Iterable[int] = ()) -> None:
        self._token = tokenizer.backend_tokenizer.id_to_token
        self._known: dict[int, bytes] = dict.fromkeys(silent, b"")

    def text(self, ids: Sequence[int]) -> str:
        """Text of token ids; bytes that are no UTF-8 are shown as U+FFFD."""
        try:
            # A plain dict: one that finds missing keys itself takes half as long again.
            return b"".join(map(self._known.__getitem__, ids)).decode(errors="replace")
        except KeyError:
            missing = set(ids) - self._known.keys()
            self._known |= {token_id: self._bytes(token_id) for token_id in missing}
            return self.text(ids)

    def _bytes(self, token_id: int) -> bytes:
        """Of one token; ids beyond the vocabulary stand for nothing."""
        token: str | None = self._token(token_id)
        if token is None:
            return b""
        if BYTES.keys() >= set(token):
            return bytes(BYTES[character] for character in token)
        # An added token is kept as it is written.
        return token.encode()


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer's text is the bytes of its tokens one after the other."""
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and type(tokenizer).decode is PreTrainedTokenizerFast.decode
        and type(tokenizer)._decode is PreTrainedTokenizerFast._decode
        and type(tokenizer.backend_tokenizer.decoder) is ByteLevel
    )
