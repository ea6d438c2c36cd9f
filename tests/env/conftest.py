# SPDX-License-Identifier: Apache-2.0
"""One set of real NeMo Gym servers for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transformers import AutoTokenizer

from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from tests.env.gym_real import RealGym, need_gym


@pytest.fixture(scope="session")
def real_gym(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGym]:
    need_gym()
    renderer = Renderer(AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")))
    servers = RealGym(renderer, tmp_path_factory.mktemp("gym"))
    yield servers
    servers.close()
