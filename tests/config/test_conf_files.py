# SPDX-License-Identifier: Apache-2.0
"""What holds for every file of conf/ and recipes/ and every settings class."""

import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from rlrun.config import Loaded, conf_dir, list_recipes, load, recipes_dir
from rlrun.config.compose import compose
from rlrun.config.keys import keys_of, run_keys
from rlrun.config.recipes import is_overlay, recipe_files
from rlrun.config.reference import documented_sections
from rlrun.config.report import Report
from rlrun.config.schema import RunConfig
from rlrun.config.settle import settle
from rlrun.config.variants import discover
from rlrun.config.yaml_file import read_yaml
from rlrun.errors import ConfigError
from rlrun.interfaces import REGISTRY, SLOTS
from rlrun.metrics.registry import METRICS, is_declared

discover()
CONF_FILES = sorted(conf_dir().rglob("*.yaml"))
RECIPE_FILES = sorted(recipe_files(recipes_dir()))
OVERLAYS = sorted(path for path in recipes_dir().glob("*.yaml") if is_overlay(path))
SCALES = sorted(path.stem for path in (conf_dir() / "scale").glob("*.yaml"))


def name_of(path: Path) -> str:
    return str(path.relative_to(conf_dir().parent))


@pytest.mark.parametrize("path", CONF_FILES, ids=name_of)
def test_every_key_has_a_comment_above_it(path: Path) -> None:
    file = read_yaml(path)
    assert file.mistakes == []
    assert [key for key, comment in file.comments.items() if not comment] == []


@pytest.mark.parametrize("path", CONF_FILES + RECIPE_FILES + OVERLAYS, ids=name_of)
def test_every_file_names_its_licence(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[:2]
    assert "# SPDX-License-Identifier: Apache-2.0" in first


def test_no_settings_class_has_a_default() -> None:
    classes = set(REGISTRY.values()) | {RunConfig}
    for cls in list(classes):
        classes |= set(keys_of(cls).sections.values())
    for cls in classes:
        assert is_dataclass(cls)
        for field in fields(cls):
            assert field.default is MISSING, f"{cls.__name__}.{field.name}"
            assert field.default_factory is MISSING, f"{cls.__name__}.{field.name}"


def test_every_key_of_every_settings_class_is_commented_in_conf() -> None:
    for section in documented_sections():
        assert section.meaning
        for key, doc in section.keys.items():
            assert doc.comment, f"{section.name}={section.choice}: {key}"
        assert all(section.comments.values()), section.comments


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_variant_has_a_complete_file_of_its_name(name: str) -> None:
    slot, _, variant = name.partition("/")
    assert slot in SLOTS
    assert (conf_dir() / slot / f"{variant}.yaml").is_file()
    # What must be given, such as the class of env=python, is the only thing that may be missing.
    try:
        load([f"{slot}={variant}", "policy/model=tiny", "data=addition"])
    except ConfigError as error:
        for problem in error.problems:
            assert "unknown key" not in problem.what
            assert "there is no value" not in problem.what


def test_every_model_and_data_set_is_a_choice() -> None:
    models = [path.stem for path in (conf_dir() / "policy" / "model").glob("*.yaml")]
    for model in models:
        assert load([f"policy/model={model}", "data=addition"]).config.policy.model
    sets = [path.stem for path in (conf_dir() / "data").glob("*.yaml") if path.stem != "default"]
    for name in sets:
        assert load([f"data={name}", "policy/model=tiny"]).config.data.train.source


@pytest.mark.parametrize("path", RECIPE_FILES, ids=name_of)
def test_a_recipe_restates_no_default(path: Path, tmp_path: Path) -> None:
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    bare = tmp_path / "bare.yaml"
    bare.write_text(yaml.safe_dump({"defaults": text["defaults"]}), encoding="utf-8")
    report = Report([])
    composition = compose([f"+recipe={bare}"], None, report)
    without = settle(composition, run_keys(composition.variants), report).values
    whole = load([f"+recipe={path}"]).values
    for entry in read_yaml(path).entries:
        key = ".".join(entry.path)
        assert key not in without or without[key] != whole[key], f"{key} has this value anyway"


def test_every_recipe_says_hardware_time_and_what_to_expect() -> None:
    assert [info.name for info in list_recipes()] == [path.stem for path in RECIPE_FILES]
    for info in list_recipes():
        for word in ("Hardware:", "Time:", "Expected:"):
            assert word in info.header, info.name


def test_recipes_of_several_ranks_say_what_the_reference_does_and_they_do_not() -> None:
    found = [
        info
        for info in list_recipes()
        if load([f"+recipe={info.name}"]).values.get("cluster.num_learner_ranks", 1) != 1
    ]
    assert len(found) == 5
    for info in found:
        assert "Megatron" in info.header and "FSDP2" in info.header, info.name


def test_headers_of_recipes_name_metrics_that_exist() -> None:
    stages = "|".join({name.partition("/")[0] for name in METRICS})
    found = [
        (info.name, name)
        for info in list_recipes()
        for name in re.findall(rf"\b(?:{stages})/[a-z_/]+", info.header)
    ]
    assert len(found) > 10
    assert [one for one in found if not is_declared(one[1])] == []


def test_there_are_the_scales_that_recipes_are_run_at() -> None:
    assert SCALES == ["1gpu", "1node", "full", "smoke"]


@pytest.mark.parametrize("path", RECIPE_FILES, ids=name_of)
def test_every_recipe_takes_the_other_schedule_by_one_flag(path: Path) -> None:
    own = load([f"+recipe={path.stem}"]).config.grpo
    other = "sync" if own.concurrent else "async"
    changed = load([f"+recipe={path.stem}", f"grpo={other}"]).config
    assert changed.grpo.concurrent is not own.concurrent
    assert changed.grpo.num_prompts_per_step == own.num_prompts_per_step
    assert changed.correction.active(changed.grpo.concurrent) or own.concurrent


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", RECIPE_FILES, ids=name_of)
def test_every_recipe_composes_at_every_scale(path: Path, scale: str) -> None:
    config = load([f"+recipe={path.stem}", f"scale={scale}"]).config
    if scale == "smoke":
        assert config.policy.model.startswith("rlrun:")
        assert not config.policy.architecture
        assert config.grpo.max_num_steps == 2


@pytest.mark.parametrize("path", OVERLAYS, ids=name_of)
def test_an_overlay_restates_nothing(path: Path) -> None:
    """Each of its keys changes what the recipe and the scale make of it."""
    recipe, _, scale = path.stem.rpartition(".")
    with_overlay = load([f"+recipe={recipe}", f"scale={scale}"])
    for entry in read_yaml(path).entries:
        key = ".".join(entry.path)
        without = _without(recipe, scale)
        if without is not None:
            assert without.values.get(key) != with_overlay.values.get(key), key


def _without(recipe: str, scale: str) -> Loaded | None:
    """The run without the overlay; None where it cannot be composed without."""
    text = (recipes_dir() / f"{recipe}.yaml").read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.yaml"
        bare.write_text(text, encoding="utf-8")
        try:
            return load([f"+recipe={bare}", f"scale={scale}"])
        except ConfigError:
            return None
