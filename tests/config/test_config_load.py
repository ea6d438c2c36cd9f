# SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from rlrun.config import (
    OriginKind,
    conf_dir,
    list_recipes,
    load,
    load_section,
    recipes_dir,
)
from rlrun.config.compose import compose as compose_sources
from rlrun.config.keys import run_keys
from rlrun.config.report import Report
from rlrun.config.schema import Decay, RunConfig
from rlrun.config.settle import settle
from rlrun.errors import ConfigError
from rlrun.interfaces import REGISTRY, Precision
from tests.config.config_problems import QUICK, only_problem, problems

Recipe = Callable[..., str]


def plain(value: Any) -> Any:
    """A value as YAML has it."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.value if hasattr(value, "value") else value


def test_quickstart_is_a_finished_typed_config() -> None:
    config = load([QUICK]).config
    assert isinstance(config, RunConfig)
    assert (config.grpo.num_prompts_per_step, config.grpo.num_generations_per_prompt) == (16, 8)
    assert config.policy.precision is Precision.FLOAT32
    assert config.policy.scheduler.decay is Decay.CONSTANT
    assert config.policy.optimizer.lr == 3e-4
    assert config.generation.stop == []
    assert type(config.loss).__module__ == "rlrun.loss.grpo"


def test_each_layer_beats_the_ones_before_it(recipe: Recipe) -> None:
    flag = recipe(
        "defaults: [{override /policy/model: tiny}, {override /data: addition}, _self_]\n"
        "grpo: {num_prompts_per_step: 6, seed: 7}\npolicy: {max_total_sequence_length: 300}\n"
    )
    alone = load([flag])
    assert alone.config.grpo.max_rollout_turns == 1
    assert alone.origins["grpo.max_rollout_turns"].kind is OriginKind.DEFAULT
    assert alone.origins["policy.model"].kind is OriginKind.GROUP
    assert alone.config.policy.max_total_sequence_length == 300
    scaled = load([flag, "scale=smoke"])
    assert scaled.config.grpo.num_prompts_per_step == 4
    assert scaled.origins["grpo.num_prompts_per_step"].kind is OriginKind.SCALE
    assert scaled.config.grpo.seed == 7
    flagged = load(["grpo.num_prompts_per_step=9", flag, "scale=smoke"])
    assert flagged.config.grpo.num_prompts_per_step == 9
    assert flagged.origins["grpo.num_prompts_per_step"].kind is OriginKind.FLAG


@pytest.mark.parametrize("ending", ["", "\n  - /scale: full", "\n  - /scale: smoke"])
def test_a_scale_flag_wins_whatever_the_recipe_says_of_scales(recipe: Recipe, ending: str) -> None:
    flag = recipe(
        "defaults:\n  - override /policy/model: tiny\n  - override /data: addition\n  - _self_"
        f"{ending}\ngrpo: {{num_prompts_per_step: 6}}\n"
    )
    assert load([flag, "scale=smoke"]).config.grpo.num_prompts_per_step == 4
    assert load([flag, "+scale=full"]).config.grpo.num_prompts_per_step == 6
    assert load([flag]).config.grpo.num_prompts_per_step == (4 if "smoke" in ending else 6)


def test_a_scale_works_without_a_recipe() -> None:
    config = load(["scale=smoke", "data=addition"]).config
    assert (config.policy.model, config.grpo.max_num_steps) == ("rlrun:tiny", 2)


def test_a_recipe_may_say_what_it_needs_at_a_scale(tmp_path: Path) -> None:
    header = "defaults:\n  - override /policy/model: tiny\n  - override /data: addition\n"
    (tmp_path / "own.yaml").write_text(
        f"{header}  - override /env: python\n  - _self_\n"
        "env: {reward_function: rlrun.env.last_number:reward, num_threads: 3}\n"
    )
    (tmp_path / "own.smoke.yaml").write_text(
        "defaults:\n  - override /env: math\n  - _self_\ngrpo: {num_prompts_per_step: 2}\n"
    )
    (tmp_path / "child.yaml").write_text("defaults: [own, _self_]\ngrpo: {seed: 3}\n")
    (tmp_path / "child.smoke.yaml").write_text("grpo: {num_generations_per_prompt: 2}\n")
    full, smoke = load(["+recipe=own"], tmp_path), load(["+recipe=own", "scale=smoke"], tmp_path)
    assert (full.variants["env"], smoke.variants["env"]) == ("python", "math")
    assert (smoke.config.grpo.num_prompts_per_step, smoke.config.grpo.max_num_steps) == (2, 2)
    assert smoke.origins["grpo.num_prompts_per_step"].kind is OriginKind.SCALE
    child = load(["+recipe=child", "scale=smoke"], tmp_path).config.grpo
    assert (child.num_prompts_per_step, child.num_generations_per_prompt, child.seed) == (2, 2, 3)
    chosen = load(["+recipe=own", "scale=smoke", "env=python"], tmp_path)
    assert chosen.variants["env"] == "python"


def test_what_a_scale_replaces_may_not_be_set_by_a_flag() -> None:
    load(["+recipe=dapo_qwen2.5_7b", "scale=smoke"])
    with pytest.raises(ConfigError, match=r"cluster=local is chosen"):
        load(["+recipe=dapo_qwen2.5_7b", "scale=smoke", "cluster.num_engines=2"])


def test_an_overlay_is_no_recipe() -> None:
    assert (recipes_dir() / "nanov3.smoke.yaml").is_file()
    assert "nanov3.smoke" not in [info.name for info in list_recipes()]
    with pytest.raises(ConfigError, match="there is no recipe"):
        load(["+recipe=nanov3.smoke"])


def test_a_recipe_is_the_same_by_name_by_path_and_by_config_dir(tmp_path: Path) -> None:
    copy = tmp_path / "sub" / "copy.yaml"
    (tmp_path / "recipes").mkdir()
    copy.parent.mkdir()
    shutil.copy(recipes_dir() / "quickstart.yaml", copy)
    shutil.copy(copy, tmp_path / "recipes" / "copied.yaml")
    by_name = load([QUICK])
    by_path = load([f"+recipe={copy}"])
    by_folder = load(["+recipe=copied"], tmp_path)
    assert by_name.config == by_path.config == by_folder.config
    assert (by_name.recipe, by_path.recipe, by_folder.recipe) == ("quickstart", "copy", "copied")
    assert load(["+recipe=copy"], tmp_path / "sub").config == by_name.config


def test_a_recipe_path_is_relative_to_the_current_folder(recipe: Recipe) -> None:
    flag = recipe("defaults: [quickstart, _self_]\ngrpo: {seed: 5}\n", "a b/c=d.yaml")
    loaded = load([flag])
    assert (loaded.config.grpo.seed, loaded.recipe) == (5, "c=d")
    assert loaded.origins["grpo.seed"].where == "a b/c=d.yaml:2"


def test_a_saved_run_is_named_after_its_recipe(recipe: Recipe) -> None:
    saved = load([QUICK]).yaml()
    assert load([recipe(saved, "mine/config.yaml")]).recipe == "quickstart"
    # Without its header, or with one that cannot be the name of a folder, its place tells.
    text = saved.partition("\n")[2]
    assert load([recipe(text, "runs/mine/20261129-120000/config.yaml")]).recipe == "mine"
    for number, header in enumerate(("", "# The resolved run of ../mine.\n")):
        assert load([recipe(header + text, f"at_{number}/config.yaml")]).recipe == f"at_{number}"


def test_a_recipe_builds_on_others(recipe: Recipe) -> None:
    recipe("defaults: [quickstart]\ngrpo: {seed: 1, num_prompts_per_step: 2}\n", "base.yaml")
    flag = recipe(
        "defaults:\n  - base.yaml\n  - _self_\n  - override /loss: gspo\ngrpo: {seed: 2}\n"
    )
    loaded = load([flag])
    assert (loaded.config.grpo.seed, loaded.config.grpo.num_prompts_per_step) == (2, 2)
    assert (loaded.config.grpo.max_num_steps, loaded.variants["loss"]) == (40, "gspo")
    by_name = recipe("defaults: [base]\n", "other.yaml")
    assert load([by_name]).config.grpo.seed == 1


def test_a_recipe_that_builds_on_itself_is_refused(recipe: Recipe) -> None:
    recipe("defaults: [a.yaml]\n", "b.yaml")
    found = problems([recipe("defaults: [b.yaml]\n", "a.yaml")])
    assert "builds on itself" in found[0].what


def test_a_recipe_for_a_part_of_a_run_is_refused(recipe: Recipe) -> None:
    text = "defaults: [quickstart, _self_]\nseed: 1\n"
    assert load([recipe(f"# @package _global_\n{text}".replace("seed: 1", "grpo: {seed: 1}"))])
    found = problems([recipe(f"# @package grpo\n{text}", "part.yaml")])
    assert "part.yaml:1" in found[0].where
    assert "# @package grpo has no effect" in found[0].what


def test_a_config_dir_adds_choices(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "tight.yaml").write_text(
        "defaults: [grpo, _self_]\nratio_clip_max: 0.05\n", encoding="utf-8"
    )
    loaded = load([QUICK, "loss=tight"], tmp_path)
    assert loaded.values["loss.ratio_clip_max"] == 0.05
    assert loaded.variants["loss"] == "grpo"
    assert loaded.origins["loss.ratio_clip_max"].kind is OriginKind.GROUP


def test_a_config_dir_with_blanks_and_quotes_in_its_name_works(tmp_path: Path) -> None:
    folder = tmp_path / "my 'own' dir"
    (folder / "loss").mkdir(parents=True)
    (folder / "loss" / "tight.yaml").write_text("defaults: [grpo, _self_]\n", encoding="utf-8")
    assert load([QUICK, "loss=tight"], folder).variants["loss"] == "grpo"


def test_a_config_dir_cannot_shadow_what_is_shipped(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "grpo.yaml").write_text("ratio_clip_max: 0.05\n", encoding="utf-8")
    problem = only_problem([QUICK], tmp_path)
    assert problem.where.endswith("loss/grpo.yaml")
    assert "comes with rlrun" in problem.what


def test_a_broken_file_in_a_config_dir_is_named(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "mine.yaml").write_text("a: 1\n b: 2\n", encoding="utf-8")
    assert only_problem([QUICK, "loss=mine"], tmp_path).where.endswith("mine.yaml:2")


def test_a_choice_that_extends_nothing_is_explained(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "mine.yaml").write_text("level: token\n", encoding="utf-8")
    found = problems([QUICK, "loss=mine"], tmp_path)
    assert any("which class the section loss has" in problem.what for problem in found)


def test_hydra_composes_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra itself, given the files of conf/ and the recipe, must come to the same result."""
    (tmp_path / "recipe").mkdir()
    text = (recipes_dir() / "quickstart.yaml").read_text(encoding="utf-8")
    (tmp_path / "recipe" / "quickstart.yaml").write_text(
        f"# @package _global_\n{text}", encoding="utf-8"
    )
    flags = ["loss=gspo", "grpo.seed=3", "policy.optimizer.lr=1e-5", "generation.stop=[a,b]"]
    loaded = load([QUICK, "scale=smoke", *flags])
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", {"hydra": store.repo["hydra"]})
    for name in REGISTRY:
        slot, _, variant = name.partition("/")
        store.store(group=slot, name=f"{variant}_schema", node={})
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        search = f"hydra.searchpath=['file://{tmp_path}']"
        composed = compose("run", [search, "+recipe=quickstart", "+scale=smoke", *flags])
    for key, value in loaded.values.items():
        found = OmegaConf.select(composed, key)
        # A mapping is emptied by null, in Hydra's files as in ours.
        assert ({} if value == {} and found is None else found) == plain(value), key


def test_rebuilding_from_origins_gives_the_composed_values() -> None:
    overrides = [QUICK, "scale=smoke", "loss=dr_grpo", "data.train.limit=5"]
    loaded = load(overrides)
    report = Report([])
    composition = compose_sources(overrides, None, report)
    keys = run_keys(composition.variants)
    composition.assignments = [
        assignment
        for assignment in composition.assignments
        if loaded.origins[assignment.key].where == assignment.where
    ]
    assert {a.key for a in composition.assignments} == set(loaded.origins)
    rebuilt = settle(composition, keys, report)
    report.raise_problems()
    assert {key: loaded.values[key] for key in rebuilt.values} == rebuilt.values


def test_origins_point_at_the_line_that_says_it() -> None:
    loaded = load([QUICK, "scale=smoke", "grpo.seed=3"])
    assert loaded.origins["grpo.seed"].where == "grpo.seed=3"
    for key, origin in loaded.origins.items():
        if origin.kind is OriginKind.FLAG:
            continue
        file, _, line = origin.where.rpartition(":")
        text = (conf_dir().parent / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert text.strip().startswith(f"{key.rpartition('.')[2]}:"), (key, origin.where)


def test_a_mapping_as_a_flag_merges() -> None:
    config = load([QUICK, "grpo={seed: 3, overlong_filtering: true}"]).config
    assert (config.grpo.seed, config.grpo.overlong_filtering) == (3, True)
    assert config.grpo.num_prompts_per_step == 16


def test_lists_replace(recipe: Recipe) -> None:
    recipe("defaults: [quickstart, _self_]\ngeneration: {stop: [a, b, c]}\n", "base.yaml")
    flag = recipe("defaults: [base, _self_]\ngeneration: {stop: [d]}\n")
    assert load([flag]).config.generation.stop == ["d"]


GYM_ROWS = (
    "defaults:\n  - override /policy/model: tiny\n  - override /env: reasoning_gym\n  - _self_\n"
    "data:\n  train:\n    source: reasoning_gym:chain_sum\n    size: 10\n    seed: 1\n"
    "    options: {min_terms: 2, more: {a: 1}}\n"
)


def test_free_mappings_merge_and_null_clears_them(recipe: Recipe) -> None:
    flag = recipe(GYM_ROWS)
    merged = load([flag, "data.train.options.max_terms=3", "+data.train.options.more.b=2"])
    assert merged.config.data.train.options == {
        "min_terms": 2,
        "more": {"a": 1, "b": 2},
        "max_terms": 3,
    }
    assert load([flag, "data.train.options={}"]).config.data.train.options["min_terms"] == 2
    assert load([flag, "data.train.options=null"]).config.data.train.options == {}
    assert load([flag, "data.train.options.more=5"]).config.data.train.options["more"] == 5


def test_scientific_notation_is_a_number_everywhere(recipe: Recipe) -> None:
    flag = recipe("defaults: [quickstart, _self_]\npolicy: {optimizer: {lr: 1e-6}}\n")
    assert load([flag]).config.policy.optimizer.lr == 1e-6
    assert load([QUICK, "policy.optimizer.lr=1e-6"]).config.policy.optimizer.lr == 1e-6
    assert load([QUICK, "policy.optimizer.lr=1"]).config.policy.optimizer.lr == 1.0


@pytest.mark.parametrize("null", ["null", "Null", "NULL", "~"])
def test_every_spelling_of_null_in_yaml_is_null(recipe: Recipe, null: str) -> None:
    flag = recipe(f"defaults: [quickstart, _self_]\ngrpo: {{max_num_steps: {null}}}\n")
    assert load([flag]).config.grpo.max_num_steps is None


def test_a_specific_value_is_not_touched_by_a_shared_one(recipe: Recipe) -> None:
    flag = recipe(
        "defaults: [quickstart, _self_]\npolicy: {max_total_sequence_length: 2048}\n"
        "generation: {max_new_tokens: '${policy.max_total_sequence_length}'}\n"
    )
    assert load([flag]).config.generation.max_new_tokens == 2048
    for order in (1, -1):
        flags = ["policy.max_total_sequence_length=512", "generation.max_new_tokens=28"][::order]
        assert load([flag, *flags]).config.generation.max_new_tokens == 28


def test_environment_variables_resolve(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = recipe(
        "defaults: [quickstart, _self_]\n"
        "policy: {tokenizer: '${oc.env:RLRUN_TOK}', chat_template: '${oc.env:RLRUN_NO,null}'}\n"
        "grpo: {val_period: '${oc.decode:${oc.env:RLRUN_N,4}}', seed: '${oc.env:RLRUN_N}'}\n"
    )
    monkeypatch.setenv("RLRUN_TOK", "7")
    monkeypatch.setenv("RLRUN_N", "7")
    config = load([flag]).config
    assert (config.policy.tokenizer, config.policy.chat_template) == ("7", None)
    assert (config.grpo.val_period, config.grpo.seed) == (7, 7)
    monkeypatch.setenv("RLRUN_N", "seven")
    found = problems([flag])
    assert {problem.keys for problem in found} == {("grpo.val_period",), ("grpo.seed",)}


def test_a_section_alone_needs_nothing_of_the_rest() -> None:
    env = load_section("env", ["env=math"])
    assert type(env).__module__ == "rlrun.env.math"
    with pytest.raises(Exception, match=r"unknown key env\.timeout_sec"):
        load_section("env", ["env=math", "env.timeout_sec=1"])


def test_loading_is_quick_and_imports_no_heavy_library() -> None:
    program = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "sum(number * number for number in range(2_000_000))\n"
        "slow = max(1, (time.process_time() - start) / 0.1)\n"  # than the usual machine
        "start = time.process_time()\n"
        "from rlrun.config import load\n"
        "from rlrun.errors import ConfigError\n"
        "load(['+recipe=quickstart'])\n"
        "try:\n"
        "    load(['+recipe=quickstart', 'grpo.sed=1'])\n"
        "except ConfigError:\n"
        "    pass\n"
        "names = ('torch', 'transformers', 'pyarrow', 'datasets')\n"
        "heavy = [name for name in names if name in sys.modules]\n"
        "print(heavy, (time.process_time() - start) / slow < 2)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout.strip(), run.stderr) == ("[] True", "")


def test_hydra_orders_the_files_of_equal_recipes_once(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes four fifths of the time of a configuration."""
    text = "defaults: [quickstart, {override /loss: gspo}, _self_]\ngrpo: {seed: "
    assert load([recipe(f"{text}1}}", "one.yaml")]).config.grpo.seed == 1
    monkeypatch.setattr("rlrun.config.order.initialize", None)
    two = load([recipe(f"{text}2}}", "two.yaml"), "policy.max_grad_norm=3"])
    assert (two.config.grpo.seed, two.config.policy.max_grad_norm) == (2, 3.0)
    assert two.origins["grpo.seed"].where == "two.yaml:2"
    assert (two.variants["loss"], two.recipe) == ("gspo", "two")


def test_a_defaults_list_that_changes_is_read_again(recipe: Recipe) -> None:
    for loss in ("gspo", "cispo", "gspo"):
        flag = recipe(f"defaults: [quickstart, {{override /loss: {loss}}}, _self_]\n")
        assert load([flag]).variants["loss"] == loss


def test_a_resolved_run_is_tried_with_another_choice(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(load([QUICK, "env=calculator"]).yaml(), encoding="utf-8")
    for choice in ("env=math", "generation=vllm", "cluster=ray", "grpo=async"):
        slot, _, variant = choice.partition("=")
        loaded = load([f"+recipe={file}", choice])
        assert loaded.variants[slot] == variant
        assert loaded.values["generation.max_new_tokens"] == 28
    # The bounds of one loss are not those of another, so that they must be looked at.
    with pytest.raises(ConfigError, match="loss=gspo is chosen"):
        load([f"+recipe={file}", "loss=gspo"])
