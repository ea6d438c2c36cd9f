# SPDX-License-Identifier: Apache-2.0
"""What loading remembers of each conversation for the length filter: its roles and its size."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.types import Message

UNKNOWN = 2**32 - 1


class Extents:
    """Roles and number of characters of many conversations, a few bytes for each."""

    def __init__(self) -> None:
        self._roles: dict[tuple[str, ...], int] = {}
        self._role_ids = array("I")
        self._sizes = array("I")

    def add(self, messages: Sequence[Message]) -> None:
        """Appends a conversation."""
        size = _characters(messages)
        # Without its further fields such a conversation might not even be renderable.
        roles = () if size == UNKNOWN else tuple([message["role"] for message in messages])
        self._role_ids.append(self._roles.setdefault(roles, len(self._roles)))
        self._sizes.append(size)

    def role_sets(self) -> list[tuple[str, ...]]:
        """The different sequences of roles, in the order of their ids; () for unknown sizes."""
        return list(self._roles)

    def role_ids(self) -> NDArray[np.uint32]:
        """[N] index into role_sets of each conversation."""
        return np.array(self._role_ids, dtype=np.uint32)

    def sizes(self) -> NDArray[np.uint32]:
        """[N] characters of each conversation; UNKNOWN where these do not bound its tokens."""
        return np.array(self._sizes, dtype=np.uint32)


def _characters(messages: Sequence[Message]) -> int:
    total = 0
    for message in messages:
        content = message["content"]
        # A character outside of ASCII may become several tokens, and so may further fields.
        if len(message) != 2 or not content.isascii():
            return UNKNOWN
        total += len(content)
    return min(total, UNKNOWN)
