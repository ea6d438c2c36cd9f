# SPDX-License-Identifier: Apache-2.0
"""A model folder that is not whole is refused; nothing is made up in its place."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlrun.checkpoint.training_state import load_tensors, save_tensors
from rlrun.errors import DataError
from rlrun.inputs import check_model
from rlrun.learner.model import load_model, read_weights, save_model
from rlrun.models.resolve import load_tokenizer, resolve_model
from tests.factories import config
from tests.learner.conftest import new_learner


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    return Path(shutil.copytree(resolve_model("rlrun:tiny"), tmp_path / "model"))


def load(folder: Path) -> None:
    load_model(replace(config().policy, model=str(folder)), torch.device("cpu"))


def test_a_missing_parameter_is_not_replaced_by_random_numbers(folder: Path) -> None:
    weights = load_tensors(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_tensors(folder / "model.safetensors", weights)
    with pytest.raises(DataError, match=r"1 missing parameter, such as model\.layers\.1\.mlp"):
        load(folder)


def test_truncated_weights_are_damaged(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="cannot be loaded"):
        load(folder)
    with pytest.raises(DataError, match="is damaged"):
        check_model(replace(config().policy, model=str(folder)))


def test_a_configuration_of_other_shapes_is_refused(folder: Path) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"intermediate_size": 128}))
    with pytest.raises(DataError, match=r"policy\.model"):
        load(folder)


@pytest.mark.parametrize("text", ["{}", "[]", '{"model_type": "no_such"}', "not json"])
def test_a_configuration_that_says_nothing_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(DataError):
        check_model(replace(config().policy, model=str(folder)))


@pytest.mark.parametrize(
    "template",
    [
        "hello",
        "{% for i in range(10**10) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ raise_exception(1) }}",
    ],
)
def test_a_chat_template_that_hides_or_fails_is_refused(template: str, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(template)
    with pytest.raises(DataError, match="chat template"):
        load_tokenizer(replace(config().policy, chat_template=str(path)))


GENERATION = {
    "bos_token_id": 0,
    "do_sample": False,
    "eos_token_id": [2, 7],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}
"""What many models come with; transformers reads it, and by itself refuses to write it."""


@pytest.mark.parametrize("layout", ["whole", "sharded"])
def test_settings_of_generation_are_saved_as_the_model_has_them(
    folder: Path, tmp_path: Path, layout: str
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    learner = new_learner(f"policy.model={folder}")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    if layout == "whole":
        learner.save(checkpoint)
    else:
        learner.save_shards(checkpoint).finish()
    # Read again as an export reads it.
    model = read_weights(str(checkpoint / "policy"), "saved")
    save_model(model, tmp_path / "exported")
    for saved in (checkpoint / "policy", tmp_path / "exported"):
        values = json.loads((saved / "generation_config.json").read_text())
        del values["transformers_version"]
        assert values == GENERATION
    assert load_tensors(tmp_path / "exported/model.safetensors").keys() == (
        load_tensors(folder / "model.safetensors").keys()
    )
