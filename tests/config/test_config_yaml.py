# SPDX-License-Identifier: Apache-2.0
import math
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from rlrun.config import load
from rlrun.config.keys import Leaf, run_keys
from rlrun.config.recipe_text import recipe_text
from rlrun.config.variants import discover
from rlrun.config.yaml_file import read_yaml
from rlrun.errors import ConfigError
from tests.config.config_problems import QUICK

Recipe = Callable[..., str]

discover()
VARIANTS = load([QUICK]).variants
LOSSES = ["grpo", "gspo", "cispo", "dr_grpo", "reinforce", "dapo"]
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1).filter(
    # What exists here as a file or folder would be written as an absolute path.
    lambda text: "${" not in text and text != "???" and not Path(text).exists()
)


def number(leaf: Leaf, whole: bool) -> st.SearchStrategy[Any]:
    """Numbers in the range of a key."""
    low = leaf.bounds.get("ge", leaf.bounds.get("gt"))
    high = leaf.bounds.get("le", leaf.bounds.get("lt"))
    if whole:
        most = min(int(high), 10**6) if high is not None else 10**6
        return st.integers(int(low or 0) + ("gt" in leaf.bounds), most)
    return st.floats(
        low,
        high,
        exclude_min="gt" in leaf.bounds,
        exclude_max="lt" in leaf.bounds,
        allow_nan=False,
        allow_infinity=False,
    )


def values_of(leaf: Leaf) -> st.SearchStrategy[Any]:
    """Values that are legal for a key by itself, as YAML has them."""
    kind = leaf.type
    if get_origin(kind) is list:
        plain: st.SearchStrategy[Any] = st.lists(WORDS, max_size=3)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        plain = st.sampled_from([member.value for member in kind])
    elif kind is bool:
        plain = st.booleans()
    elif kind is int or int in get_args(kind):
        plain = number(leaf, whole=True)
    elif kind is float:
        plain = number(leaf, whole=False)
    else:
        plain = WORDS
    return st.none() | plain if leaf.optional else plain


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """Recipes that change a few keys of the quick start at random."""
    loss = draw(st.sampled_from(LOSSES))
    variants = {**VARIANTS, "loss": "grpo" if loss == "dapo" else loss}
    leaves = [leaf for leaf in run_keys(variants).leaves.values() if not leaf.is_mapping]
    tree: dict[str, Any] = {
        "defaults": [
            {"override /policy/model": "tiny"},
            {"override /data": "addition"},
            {"override /loss": loss},
            "_self_",
        ]
    }
    for leaf in draw(st.lists(st.sampled_from(leaves), max_size=6, unique_by=lambda x: x.key)):
        node = tree
        *sections, name = leaf.key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = draw(values_of(leaf))
    tree["run_dir"] = None
    return tree


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tree=recipes())
def test_the_written_run_loads_to_an_equal_one(recipe: Recipe, tree: dict[str, Any]) -> None:
    try:
        loaded = load([recipe(yaml.safe_dump(tree, allow_unicode=True))])
    except ConfigError:
        # Values that are legal by themselves may not go together.
        reject()
    again = load([recipe(loaded.yaml(), "again.yaml")])
    assert again.config == loaded.config
    assert again.yaml().partition("\n")[2] == loaded.yaml().partition("\n")[2]


@pytest.mark.parametrize(
    "text",
    [
        "1e-6",
        "0x10",
        "010",
        "1:30",
        "true",
        "yes",
        "~",
        "2026-11-29",
        "- a",
        "a: b",
        "#x",
        " x ",
        "é\n",
    ],
)
def test_text_that_looks_like_something_else_stays_text(recipe: Recipe, text: str) -> None:
    quoted = yaml.safe_dump({"policy": {"chat_template": text}}, default_style='"')
    loaded = load([recipe(f"defaults: [quickstart, _self_]\n{quoted}")])
    assert loaded.config.policy.chat_template == text
    assert load([recipe(loaded.yaml(), "again.yaml")]).config == loaded.config


def test_the_run_directory_is_left_out() -> None:
    assert "run_dir" not in load([QUICK, "run_dir=/tmp/x"]).yaml()


def test_scale_and_flags_are_written_into_the_run(recipe: Recipe) -> None:
    loaded = load([QUICK, "scale=smoke", "loss=gspo", "grpo.seed=9"])
    assert load([recipe(loaded.yaml())]).config == loaded.config


def test_what_comes_from_the_environment_stays_there(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLRUN_SECRET", "hunter2")
    flag = recipe(
        "defaults: [quickstart, _self_]\n"
        "policy:\n  tokenizer: ${oc.env:RLRUN_SECRET}\n  chat_template: ${policy.tokenizer}\n"
        "generation: {stop: ['${oc.env:RLRUN_SECRET}', b]}\n"
    )
    loaded = load([flag, "data.train.system_prompt=${oc.env:RLRUN_SECRET}x"])
    assert loaded.config.policy.chat_template == "hunter2"
    assert loaded.config.generation.stop == ["hunter2", "b"]
    text = loaded.yaml()
    assert "hunter2" not in text
    assert text.count("${oc.env:RLRUN_SECRET}") == 3
    again = recipe(text, "again.yaml")
    assert load([again]).config == loaded.config
    monkeypatch.setenv("RLRUN_SECRET", "other")
    assert load([again]).config.policy.tokenizer == "other"


def test_free_mappings_are_written_in_full(recipe: Recipe) -> None:
    flag = recipe(
        "defaults:\n  - override /policy/model: tiny\n  - override /env: reasoning_gym\n"
        "data: {train: {source: 'reasoning_gym:chain_sum', size: 4, seed: 0, "
        "options: {a: 1, b: {c: [1, x], d: 1.5}}}}\n"
    )
    loaded = load([flag])
    assert loaded.config.data.train.options == {"a": 1, "b": {"c": [1, "x"], "d": 1.5}}
    assert load([recipe(loaded.yaml(), "again.yaml")]).config == loaded.config


def test_floats_keep_every_bit() -> None:
    value = math.nextafter(0.1, 1)
    loaded = load([QUICK, f"policy.optimizer.lr={value!r}"])
    text = recipe_text("x", loaded.variants, loaded.origins, loaded.values)
    assert yaml.safe_load(text)["policy"]["optimizer"]["lr"] == value


def test_a_run_is_written_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out.yaml").write_text(load([QUICK]).yaml(), encoding="utf-8")
    assert load(["+recipe=out.yaml"]).config == load([QUICK]).config


def test_relative_paths_are_written_so_that_they_hold_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "mine.py").write_text("def score(response, answer, **row): return 0.0\n")
    monkeypatch.chdir(tmp_path)
    loaded = load(
        [
            QUICK,
            "data.train={source: rows.jsonl, split: null}",
            "env=python",
            "env.reward_function=mine.py:score",
        ]
    )
    written = yaml.safe_load(loaded.yaml())
    assert written["data"]["train"]["source"] == str(tmp_path / "rows.jsonl")
    assert written["env"]["reward_function"] == f"{tmp_path / 'mine.py'}:score"
    assert written["policy"]["model"] == "rlrun:tiny"


def test_a_pipe_beside_recipes_is_no_wait_without_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (mistake,) = read_yaml(tmp_path / "pipe.yaml").mistakes
    assert "no regular file" in mistake.what
