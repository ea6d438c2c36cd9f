# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/extend.md do what they say, and are short."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlrun.generation.sampler import Sampler
from rlrun.generation.static import StaticGenerator
from rlrun.generation.static_batch import StaticBatches
from rlrun.interfaces import REGISTRY, ReadyGroup
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.types import GenerationRequest, Sampling, StopReason
from tests.conftest import environment
from tests.docs.commands import DOCS, ROOT, blocks

BLOCKS = [text for _, text in blocks(DOCS / "extend.md", "python")]


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """What an example registers is gone afterwards."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def defined(name: str) -> Any:
    """A class of the one block that defines it."""
    (source,) = [text for text in BLOCKS if f"class {name}(" in text]
    names: dict[str, Any] = {"__name__": "example"}
    exec(source, names)
    return names[name]


@pytest.mark.parametrize("source", BLOCKS)
def test_examples_are_short(source: str) -> None:
    lines = [line for line in source.splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(("from ", "import "))]) < 40


def test_ranks_order_the_samples_of_a_group() -> None:
    ranks = defined("Ranks")()
    assert ranks([[3.0, 1.0, None, 2.0], [1.0, 1.0], [None], [5.0, 5.0, 9.0]]) == [
        [1.0, -1.0, 0.0, 0.0],
        [0.0, 0.0],
        [0.0],
        [-0.5, -0.5, 1.0],
    ]


def test_a_batching_policy_ranks_by_position() -> None:
    groups = [ReadyGroup(position, 0, 0, order) for order, position in enumerate((4, 1, 3))]
    ranked = defined("StreamOrder")().rank(groups)
    assert [group.position for group in ranked] == [1, 3, 4]


def test_a_plain_generator_draws_what_the_built_in_one_draws() -> None:
    model = AutoModelForCausalLM.from_pretrained(resolve_model("rlrun:tiny"))
    renderer = Renderer(AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")))
    prompt = renderer.prompt_ids([{"role": "user", "content": "What is 3 + 5?"}])
    generator = defined("PlainGenerator")(SimpleNamespace(model=model, renderer=renderer))
    greedy = GenerationRequest(prompt, 28, 0, Sampling(0.0))
    random = GenerationRequest(prompt, 3, 7, Sampling(0.9, top_k=20))

    async def use() -> None:
        await generator.refit(2)
        first, second = await generator.generate([greedy, random])
        built_in = StaticGenerator(StaticBatches(Sampler(model, renderer, None), None))
        (known,) = await built_in.generate([greedy])
        await built_in.close()
        assert first.token_ids == known.token_ids
        assert first.stop_reason is StopReason.STOP
        assert second.stop_reason is StopReason.LENGTH and len(second.token_ids) == 3
        assert [span.version for span in second.weight_versions] == [2]
        assert (await generator.generate([random]))[0] == second
        scores = await generator.score([*prompt, *first.token_ids])
        assert scores[len(prompt) - 1 :] == pytest.approx(first.logprobs, abs=1e-4)

    asyncio.run(use())


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the files that the page adds to one."""
    root = tmp_path_factory.mktemp("extended")
    for name in ("rlrun", "conf", "recipes"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    (loss,) = [text for _, text in blocks(DOCS / "extend.md", "yaml") if "mine_schema" in text]
    generation = (ROOT / "conf" / "generation" / "transformers.yaml").read_text()
    generation = generation.replace("transformers_schema", "plain_schema")
    settings = {
        "loss/mine": loss,
        "advantage/ranks": "defaults: [ranks_schema, _self_]\n",
        "batching/stream_order": "defaults: [stream_order_schema, _self_]\n",
        "generation/plain": generation.replace("max_batch_size: null\n", ""),
    }
    for variant, text in settings.items():
        (code,) = [block for block in BLOCKS if f'@component("{variant}")' in block]
        (root / "rlrun" / f"{variant}.py").write_text(code)
        (root / "conf" / f"{variant}.yaml").write_text(text)
    return root


def rlrun_of(root: Path, *words: str) -> str:
    """What rlrun of that checkout prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "rlrun", *words],
        cwd=root,
        env=environment() | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_takes_all_variants_of_the_page(extended: Path) -> None:
    chosen = ("loss=mine", "advantage=ranks", "batching=stream_order", "generation=plain")
    sizes = ("grpo.num_prompts_per_step=2", "grpo.num_generations_per_prompt=4")
    short = ("grpo.max_num_steps=1", "grpo.max_val_samples=2", "generation.max_new_tokens=8")
    rlrun_of(extended, "train", "+recipe=quickstart", *chosen, *sizes, *short, "run_dir=run")
    last = json.loads((extended / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 1 and -10 < last["train/loss"] < 10


def test_the_configuration_knows_a_new_loss_by_itself(extended: Path) -> None:
    assert "strength: 0.1" in rlrun_of(extended, "config", "+recipe=quickstart", "loss=mine")
    assert "strength" in rlrun_of(extended, "config", "--schema")
