# SPDX-License-Identifier: Apache-2.0
"""The models that are part of the package."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = {"rlrun:tiny": "tiny", "rlrun:tiny-hybrid": "tiny_hybrid"}
"""By name: their folders under assets/."""


def embedded_folder(name: str) -> Path:
    """The folder of a model that is part of the package; a KeyError for any other name."""
    return Path(__file__).resolve().parent.parent / "assets" / EMBEDDED[name]
