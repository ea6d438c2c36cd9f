# SPDX-License-Identifier: Apache-2.0
"""One engine of each kind for the whole session, and renderers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from tests.serve.engines import WITH_TOOLS, Engine

ENGINES = {
    "transformers": ("transformers", False, True),
    "transformers, for agents": ("transformers", False, False),
    "transformers, concurrent": ("transformers", True, False),
    "vllm": ("vllm", True, False),
}


@pytest.fixture(scope="session", params=ENGINES.values(), ids=ENGINES.keys())
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Variants of the generation slot that the contract holds for."""
    torch.set_num_threads(1)
    made = Engine(*request.param)
    yield made
    made.close()


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return Renderer(AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")))


@pytest.fixture(scope="session")
def tool_renderer() -> Renderer:
    """With a template that shows tools, and tags of calls as special tokens, as some models do."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny"))
    tokenizer.chat_template = WITH_TOOLS
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<tool_call>", "</tool_call>", "<think>", "<|pad2|>"]}
    )
    return Renderer(tokenizer)


@pytest.fixture(scope="session")
def tool_model(tool_renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the embedded model with room for these tokens."""
    folder = tmp_path_factory.mktemp("tools")
    model = AutoModelForCausalLM.from_pretrained(resolve_model("rlrun:tiny"))
    model.resize_token_embeddings(len(tool_renderer.tokenizer))
    model.save_pretrained(folder)
    tool_renderer.tokenizer.save_pretrained(folder)
    return str(folder)
