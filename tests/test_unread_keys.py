# SPDX-License-Identifier: Apache-2.0
"""No key is accepted without effect: what runs read of their settings, and what the rules say."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from rlrun.config import load
from rlrun.config.keys import all_keys
from rlrun.config.recipes import list_recipes
from rlrun.config.unread import IDLE, idle_keys, unread_keys
from rlrun.config.variants import discover
from rlrun.interfaces import REGISTRY
from tests.e2e.forked import FORKS, start_server
from tests.unread_run import run

ROOT = Path(__file__).parent.parent
SHORT = (
    *("grpo.max_num_steps=2", "grpo.num_prompts_per_step=2", "grpo.num_generations_per_prompt=2"),
    *("grpo.val_period=2", "grpo.max_val_samples=2", "generation.max_new_tokens=8"),
    *("grpo.val_at_start=false", "num_threads=1"),
)
EVERYTHING = (
    *("grpo=async", "grpo.on_age_limit=expire", "grpo.use_dynamic_sampling=true"),
    *("grpo.dynamic_sampling_max_gen_batches=40", "grpo.effort.low_string=please"),
    *("grpo.reward_scaling.enabled=true", "grpo.overlong_shaping.enabled=true"),
    *("grpo.overlong_shaping.max_response_tokens=8", "grpo.overlong_shaping.buffer_tokens=4"),
    *("grpo.reward_penalties.malformed_thinking=true", "policy.lora.enabled=true"),
    *("loss.reference_policy_kl_penalty=0.01", "policy.scheduler.decay=linear"),
    *("policy.scheduler.decay_steps=10", "grpo.stop_at_validation_metric=validation/accuracy"),
    "grpo.stop_at_validation_threshold=1",
)
AT_LOAD = {
    "policy.architecture": "the plan and rlrun check compare it with the model",
    "correction.allow_stale_without": "a rule of the configuration",
    "grpo.skip_reference_policy_logprobs_calculation": "a rule of the configuration",
}
"""Keys that are used before or beside a run."""

IN_OTHER_STEPS = {
    "correction.stop_after_steps": "once a step is bad",
    "grpo.val_start_at": "in a step that validates and is not the last one",
}
"""Keys that a run of other steps reads."""


@pytest.mark.parametrize("more", [(), EVERYTHING], ids=["plain", "everything"])
def test_what_a_run_does_not_read_is_refused_by_check(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    """And the reason is one that the configuration shows."""
    overrides = ["+recipe=quickstart", *SHORT, *more]
    out = tmp_path / "unread.json"
    start_server()
    child = FORKS.Process(target=run, args=([*overrides, f"run_dir={tmp_path / 'run'}"], out))
    child.start()
    child.join()
    assert child.exitcode == 0, out.with_suffix(".log").read_text()
    idle = {key for key, _ in idle_keys(dict(load(overrides).values))}
    unread = set(json.loads(out.read_text()))
    assert unread - idle - AT_LOAD.keys() - IN_OTHER_STEPS.keys() == set()


def attributes() -> Iterator[str]:
    """Names that are read as attributes anywhere in the package."""
    for path in (ROOT / "rlrun").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield node.attr


def test_every_key_of_every_variant_is_read_somewhere() -> None:
    """For variants that no run here takes: nothing but a declaration is no use of a key."""
    discover()
    read = set(attributes())
    names = {key.rsplit(".", 1)[-1]: key for key in all_keys()}
    names |= {field.name: field.name for kind in REGISTRY.values() for field in fields(kind)}
    at_load = {key.rsplit(".", 1)[-1] for key in AT_LOAD}
    assert names.keys() - read - at_load == set()
    assert "no_such_attribute_anywhere" not in read


def test_keys_of_the_table_exist() -> None:
    discover()
    known = set(all_keys())
    for idle in IDLE:
        for key in idle.keys:
            assert key in known or any(name.startswith(key) for name in known), key


@pytest.mark.parametrize("recipe", [info.name for info in list_recipes()])
def test_no_recipe_sets_a_key_in_vain(recipe: str) -> None:
    assert list(unread_keys(load([f"+recipe={recipe}"]))) == []


@pytest.mark.parametrize("other", ["batching=in_order", "grpo.max_trajectory_age_steps=0"])
def test_a_limit_that_nothing_reaches_is_told(other: str) -> None:
    flags = ["+recipe=quickstart", "grpo=async", "grpo.on_age_limit=mask"]
    assert list(unread_keys(load(flags))) == []
    assert [where for where, _, _ in unread_keys(load([*flags, other]))] == [flags[-1]]


def test_several_greedy_samples_of_a_prompt_are_told() -> None:
    greedy = ["+recipe=quickstart", "generation.val_temperature=0"]
    assert list(unread_keys(load([*greedy, "grpo.val_num_generations_per_prompt=1"]))) == []
    ((where, what, _),) = unread_keys(load([*greedy, "grpo.val_num_generations_per_prompt=4"]))
    assert where == "grpo.val_num_generations_per_prompt=4" and "are equal" in what


def test_a_resolved_configuration_may_name_what_is_idle(tmp_path: Path) -> None:
    whole = tmp_path / "config.yaml"
    whole.write_text(load(["+recipe=quickstart"]).yaml(), encoding="utf-8")
    assert list(unread_keys(load([f"+recipe={whole}"]))) == []
    told = list(unread_keys(load([f"+recipe={whole}", "policy.lora.rank=4"])))
    assert [origin for origin, _, _ in told] == ["policy.lora.rank=4"]
