# SPDX-License-Identifier: Apache-2.0
"""What data takes in the page."""

from __future__ import annotations

import json


def size_of(data: object) -> int:
    """Bytes that data takes in the page, where some characters are written as escapes."""
    text = json.dumps(data, separators=(",", ":"))
    return len(text) + 5 * sum(text.count(character) for character in "<>&")
