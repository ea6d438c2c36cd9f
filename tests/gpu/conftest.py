# SPDX-License-Identifier: Apache-2.0
"""Skips everything here unless there are two GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

NEEDED = 2
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    there = torch.cuda.device_count()
    if there < NEEDED:
        reason = f"needs {NEEDED} GPUs, and torch sees {there}: tests/gpu/README.md"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))
