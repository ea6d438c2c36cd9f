# SPDX-License-Identifier: Apache-2.0
"""The schema, the documentation and the printed forms of a configuration."""

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rlrun.config import as_overrides, conf_dir, diff, list_recipes, load, recipes_dir, schema_json
from rlrun.config.keys import Leaf, all_keys
from rlrun.config.reference import configuration_page, documented_sections
from rlrun.config.show import diff_text, origin_text, recipes_text
from rlrun.errors import ConfigError
from tests.config.config_problems import QUICK

Schema = dict[str, Any]
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def matches(value: Any, schema: Schema, root: Schema) -> bool:
    """Whether a value has a schema, for the words of JSON Schema that ours uses."""
    if "$ref" in schema:
        return matches(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema and not any(matches(value, each, root) for each in schema["anyOf"]):
        return False
    if "enum" in schema:
        return value in schema["enum"]
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(
        isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
        for name in types
    ):
        return False
    if isinstance(value, str) and "pattern" in schema:
        return re.search(schema["pattern"], value) is not None
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        return all(key in known and matches(value[key], known[key], root) for key in value)
    if isinstance(value, list) and "items" in schema:
        return all(matches(item, schema["items"], root) for item in value)
    bounds = {
        "minimum": lambda bound: value >= bound,
        "exclusiveMinimum": lambda bound: value > bound,
        "maximum": lambda bound: value <= bound,
        "exclusiveMaximum": lambda bound: value < bound,
    }
    return all(check(schema[word]) for word, check in bounds.items() if word in schema)


def schema_keys(schema: Schema, prefix: str = "") -> set[str]:
    keys = set()
    for option in [schema, *schema.get("anyOf", [])]:
        for name, inner in option.get("properties", {}).items():
            keys |= {f"{prefix}{name}"} | schema_keys(inner, f"{prefix}{name}.")
    return keys


def test_the_schema_has_exactly_the_keys_there_are() -> None:
    assert schema_keys(schema_json()) - {"defaults"} == all_keys()


def test_the_schema_is_json_and_describes_every_key() -> None:
    schema = json.loads(json.dumps(schema_json()))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for section in documented_sections():
        for key, doc in section.keys.items():
            assert f'"description": {json.dumps(doc.comment)}' in json.dumps(schema), key


@pytest.mark.parametrize("path", [info.path for info in list_recipes()], ids=lambda path: path.stem)
def test_recipes_and_resolved_runs_have_the_schema(path: Path) -> None:
    schema = schema_json()
    recipe = yaml.safe_load(path.read_text(encoding="utf-8").replace("3e-4", "3.0e-4"))
    assert matches(recipe, schema, schema)
    assert matches(yaml.safe_load(load([f"+recipe={path}"]).yaml()), schema, schema)


@pytest.mark.parametrize(
    "wrong",
    [
        {"grpo": {"sede": 1}},
        {"grpo": {"seed": "x"}},
        {"grpo": {"seed": -1}},
        {"grpo": {"seed": None}},
        {"grpo": {"seed": True}},
        {"grpo": None},
        {"policy": {"precision": "fp16"}},
        {"policy": {"optimizer": {"beta1": 1.0}}},
        {"loss": {"no_such_key": 1}},
        {"generation": {"stop": "x"}},
        {"nothing": 1},
    ],
)
def test_the_schema_refuses_what_load_refuses(wrong: Any) -> None:
    schema = schema_json()
    assert not matches(wrong, schema, schema)


@pytest.mark.parametrize(
    "right",
    [
        {"grpo": {"seed": "${oc.env:SEED}", "max_num_steps": None}},
        {"policy": {"max_grad_norm": 1}},
        {"data": {"train": {"options": {"anything": [1]}}}},
        {"loss": {"normalizer_tokens": 5}},
        {"defaults": ["quickstart", {"override /loss": "gspo"}, "_self_"]},
    ],
)
def test_the_schema_takes_what_load_takes(right: Any) -> None:
    schema = schema_json()
    assert matches(right, schema, schema)


def test_the_schema_with_a_real_validator() -> None:
    jsonschema.Draft202012Validator.check_schema(schema_json())
    run = yaml.safe_load(load([QUICK]).yaml())
    jsonschema.Draft202012Validator(schema_json()).validate(run)


def test_the_page_of_keys_is_current() -> None:
    root = conf_dir().parent
    script = runpy.run_path(str(root / "scripts" / "docs_config.py"))
    assert script["main"](["--check"]) == 0, "run scripts/docs_config.py"


def test_the_page_of_keys_has_a_row_for_every_key() -> None:
    page = configuration_page()
    for section in documented_sections():
        for key in section.keys:
            assert f"| `{key}` |" in page
    assert "| `grpo.seed` | integer | at least 0 and below 9223372036854775808 | `42` |" in page
    assert "| `policy.precision` | `float32`, `bfloat16` |" in page
    assert "| `policy.model` | text |  | `???` |" in page


def test_a_variant_that_builds_on_another_is_documented_with_its_values() -> None:
    for section in documented_sections():
        for doc in section.keys.values():
            assert isinstance(doc.leaf, Leaf)
            assert doc.default is not None or doc.leaf.optional


def test_origins_are_printed_in_columns() -> None:
    text = origin_text(load([QUICK, "grpo.seed=3", "policy.tokenizer=${oc.env:HOME}"]))
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert lines["key"].split() == ["key", "value", "from", "where"]
    assert lines["grpo.seed"].split() == ["grpo.seed", "3", "flag", "grpo.seed=3"]
    assert '"${oc.env:HOME}"' in lines["policy.tokenizer"]
    starts = {line.index("default  conf/") for line in lines.values() if "default  conf/" in line}
    assert len(starts) == 1


def test_a_difference_is_a_changed_value_or_choice() -> None:
    assert diff([QUICK], [QUICK, "grpo.seed=42"]) == []
    found = diff([QUICK], [QUICK, "grpo.seed=43", "loss=reinforce"])
    by_key = {each.key: (each.left, each.right) for each in found}
    assert by_key["grpo.seed"] == ("42", "43")
    assert by_key["loss"] == ("grpo", "reinforce")
    assert by_key["loss.ratio_clip_max"] == ("0.28", "-")


def test_both_sides_of_a_difference_can_be_names_files_runs_or_flags(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    shutil.copy(recipes_dir() / "quickstart.yaml", file)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(load([QUICK]).yaml(), encoding="utf-8")
    flags = f"{QUICK} grpo.seed=1"
    assert as_overrides("quickstart") == [QUICK]
    assert as_overrides(str(file)) == [f"+recipe={file}"]
    assert as_overrides(str(run)) == [f"+recipe={run}/config.yaml"]
    assert as_overrides(flags) == [QUICK, "grpo.seed=1"]
    assert diff_text("quickstart", str(run)) == "no differences"
    assert diff_text(str(file), flags).splitlines()[1].split() == ["grpo.seed", "42", "1"]


def test_a_difference_does_not_show_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_SECRET", "hunter2")
    text = diff_text("quickstart", f"{QUICK} policy.tokenizer=${{oc.env:RLRUN_SECRET}}")
    assert "hunter2" not in text
    assert "policy.tokenizer" in text


def test_recipes_are_listed_with_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "own.yaml").write_text("# Mine.\n\ngrpo: {seed: 1}\n", encoding="utf-8")
    names = [info.name for info in list_recipes(tmp_path)]
    assert names == sorted(names)
    assert {"own", "quickstart"} <= set(names)
    assert "GRPO on two-digit addition" in recipes_text()
    assert recipes_text("quickstart").startswith("# SPDX")
    with pytest.raises(ConfigError, match="quickstart"):
        recipes_text("quickstrat")


@pytest.mark.parametrize("name", ["../conf/run", str(conf_dir() / "run")])
def test_a_recipe_name_stays_in_the_folders_of_recipes(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no recipe"):
        recipes_text(name)


def test_comparing_with_an_unknown_recipe_names_it() -> None:
    with pytest.raises(ConfigError, match="there is no recipe nope"):
        diff_text("quickstart", "nope")
