# SPDX-License-Identifier: Apache-2.0
"""The text of single tokens, from the tokenizer that a run used, without torch or transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from rlrun.config.paths import is_file
from rlrun.config.yaml_file import read_yaml
from rlrun.models.embedded import EMBEDDED, embedded_folder
from rlrun.run_dir.directory import RunDir

_LONGEST = 8
"""Tokens of a character at most: what is no text by then is shown as it is."""

_CACHED = 100_000


class TokenText:
    """Splits token ids into the pieces of text that they stand for.

    Args:
        tokenizer: None if the run's cannot be found.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[tuple[int, ...], str] = {}

    @classmethod
    def of_run(cls, run_dir: RunDir) -> TokenText:
        """With the tokenizer of the newest checkpoint, or of the model that the run names.

        A tokenizer that is nowhere on this machine is no error: the page shows token ids then.
        """
        saved = sorted(run_dir.checkpoints.glob("step_*/policy/tokenizer.json"))
        for path in [*reversed(saved), *_named(run_dir)]:
            if is_file(path):
                try:
                    return cls(Tokenizer.from_file(str(path)))
                # The library raises Exception itself for a file that is none of its own.
                except Exception:  # noqa: BLE001
                    continue
        return cls(None)

    def pieces(self, token_ids: Sequence[int]) -> list[str] | None:
        """A text per token; "" for all but the last of several that make up one character.

        None without a tokenizer.
        """
        if self._tokenizer is None:
            return None
        pieces: list[str] = []
        before: tuple[int, ...] = ()
        open_ids: tuple[int, ...] = ()
        for token_id in token_ids:
            open_ids = (*open_ids, token_id)
            text = self._behind(before, open_ids)
            if text.endswith("\ufffd") and len(open_ids) < _LONGEST:
                pieces.append("")
                continue
            pieces.append(text)
            before, open_ids = open_ids, ()
        if open_ids:
            pieces[-1] = self._behind(before, open_ids)
        return pieces

    def _behind(self, before: tuple[int, ...], token_ids: tuple[int, ...]) -> str:
        """The text behind that of other tokens: at the very beginning some drop their space."""
        head, whole = self._decode(before), self._decode((*before, *token_ids))
        return whole[len(head) :] if whole.startswith(head) else self._decode(token_ids)

    def _decode(self, token_ids: tuple[int, ...]) -> str:
        assert self._tokenizer is not None
        text = self._cache.get(token_ids)
        if text is None:
            text = self._text(token_ids)
            if len(self._cache) < _CACHED:
                self._cache[token_ids] = text
        return text

    def _text(self, token_ids: tuple[int, ...]) -> str:
        assert self._tokenizer is not None
        try:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))
        except OverflowError:
            # A damaged file may hold what is no id of any tokenizer, which has no text.
            return ""


def _named(run_dir: RunDir) -> list[Path]:
    """Where the tokenizer of the run's model may be, if it is a folder."""
    given = {entry.path: entry.value for entry in read_yaml(run_dir.config).entries}
    names = [given.get(("policy", key)) for key in ("tokenizer", "model")]
    texts = [name for name in names if isinstance(name, str)]
    folders = [embedded_folder(name) if name in EMBEDDED else Path(name) for name in texts]
    return [folder / "tokenizer.json" for folder in folders]
