# SPDX-License-Identifier: Apache-2.0
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rlrun.config import load
from rlrun.config.flag_mapping import given_twice
from rlrun.config.flags import quoted
from rlrun.errors import Problem
from tests.config.config_problems import QUICK, only_problem, problems

Recipe = Callable[..., str]


def by_flag(flags: Sequence[str]) -> dict[str, Problem]:
    """The one problem of each of many wrong flags, which are all reported at once."""
    found = problems([QUICK, *flags])
    assert [problem.where for problem in found] == list(flags)
    return {problem.where: problem for problem in found}


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_a_misspelt_key_is_refused_however_it_is_written(prefix: str) -> None:
    flag = f"{prefix}grpo.num_generatons=8"
    problem = only_problem([QUICK, flag])
    assert problem.where == flag
    assert "grpo.num_generatons" in problem.what
    assert "grpo.num_generations_per_prompt" in problem.remedy


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_a_known_key_is_accepted_however_it_is_written(prefix: str) -> None:
    assert load([QUICK, f"{prefix}grpo.seed=8"]).config.grpo.seed == 8


NEAREST = [
    ("data.train.splt", "data.train.split"),
    ("num_prompts_per_step", "grpo.num_prompts_per_step"),
    ("policy.lr", "policy.optimizer.lr"),
    ("max_new_tokens", "generation.max_new_tokens"),
    ("grpo.optimizer.lr", "policy.optimizer.lr"),
    ("checkpoint.save_period", "checkpointing.save_period"),
    ("generation.max_tokens", "generation.max_new_tokens"),
    ("poilcy.model", "policy.model"),
    ("gpo.seed", "grpo.seed"),
    ("GRPO.Seed", "grpo.seed"),
]


def test_the_nearest_key_is_suggested() -> None:
    found = by_flag([f"{key}=1" for key, _ in NEAREST])
    for key, near in NEAREST:
        assert found[f"{key}=1"].remedy == f"The nearest key is {near}"


def test_a_key_of_another_section_is_named_with_its_choice() -> None:
    (found,) = by_flag(["generation.colocated=true"]).values()
    assert found.remedy == "Here it is cluster.colocated, with cluster=ray"


def test_keys_for_parallelism_that_is_not_there_say_so() -> None:
    keys = ("policy.tensor_parallel_size", "policy.parallel.context", "cluster.expert_parallel")
    for problem in by_flag([f"{key}=2" for key in keys]).values():
        assert "no tensor, sequence, context, pipeline or expert parallelism" in problem.remedy


def test_an_unknown_key_in_a_recipe_is_named_with_its_line(recipe: Recipe) -> None:
    flag = recipe("defaults: [quickstart, _self_]\n\ngrpo:\n  seed: 1\n  sede: 2\nextra: {a: 1}\n")
    found = problems([flag])
    assert [problem.where for problem in found] == ["mine.yaml:5", "mine.yaml:6"]


def test_an_unknown_key_in_a_group_of_the_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    text = "defaults: [grpo, _self_]\nratio_clip_mx: 0.05\n"
    (tmp_path / "loss" / "tight.yaml").write_text(text, encoding="utf-8")
    problem = only_problem([QUICK, "loss=tight"], tmp_path)
    assert problem.where.endswith("loss/tight.yaml:2")
    assert problem.remedy.endswith("loss.ratio_clip_max")


def test_an_unknown_choice_lists_the_choices_nearest_first(recipe: Recipe) -> None:
    assert only_problem([QUICK, "loss=gsppo"]).remedy.startswith("Choose one of gspo, ")
    assert only_problem([QUICK, "policy/model=smol"]).remedy.startswith(
        "Choose one of smollm2_135m"
    )
    flag = recipe("defaults:\n  - quickstart\n  - override /loss: gsppo\n")
    assert only_problem([flag]).where == "mine.yaml:3"


def test_keys_of_a_choice_that_does_not_exist_are_not_blamed() -> None:
    only_problem([QUICK, "loss=gsppo", "loss.normalizer_tokens=3"])
    only_problem(["policy/model=tinny", "data=addition", "generation.max_new_tokens=5"])


def test_a_key_of_another_variant_names_the_variants_that_have_it() -> None:
    problem = only_problem([QUICK, "loss=gspo", "loss.normalizer_tokens=3"])
    assert "loss=dr_grpo" in problem.what
    assert "loss=gspo is chosen" in problem.what


def test_a_schedule_key_may_stay_at_its_default_under_another_schedule() -> None:
    key = "grpo.max_trajectory_age_steps"
    assert load([QUICK, f"{key}=4"]).config == load([QUICK]).config
    problem = only_problem([QUICK, f"{key}=8"])
    assert "grpo=async" in problem.what
    assert "at its default 4 it may stay" in problem.remedy
    load([QUICK, f"{key}=8", f"{key}=4"])


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("grpo.max_num_in_flight_batches_in_generation=5",), "max(1, max_trajectory_age_steps)=4"),
        (
            (
                "grpo.max_trajectory_age_steps=0",
                "grpo.max_num_in_flight_batches_in_generation=2",
            ),
            "max(1, max_trajectory_age_steps)=1",
        ),
        (("grpo.max_trajectory_age_steps=-1",), "-1"),
        (
            (
                "grpo.in_flight_weight_updates=false",
                "grpo.recompute_kv_cache_after_weight_updates=true",
            ),
            "no effect",
        ),
    ],
)
def test_impossible_asynchronous_settings_are_refused(flags: tuple[str, ...], what: str) -> None:
    assert what in only_problem([QUICK, "grpo=async", *flags]).what


def test_an_unknown_group_is_refused(recipe: Recipe) -> None:
    assert "The nearest group is policy/model" in only_problem([QUICK, "polcy/model=tiny"]).remedy
    flag = recipe("defaults:\n  - quickstart\n  - override /los: gspo\n")
    assert only_problem([flag]).where == "mine.yaml:3"


def test_a_choice_in_a_recipe_must_say_override(recipe: Recipe) -> None:
    flag = recipe("defaults:\n  - quickstart\n  - loss: gspo\n")
    assert only_problem([flag]).remedy == "Write - override /loss: gspo"


def test_a_choice_as_a_value_says_where_it_belongs(recipe: Recipe) -> None:
    flag = recipe("defaults: [quickstart, _self_]\nloss: gspo\n")
    assert "- override /loss: gspo" in only_problem([flag]).remedy


WRONG_TYPES = [
    ("grpo.seed=abc", "whole number"),
    ("grpo.seed=4.5", "whole number"),
    ("grpo.seed=4.0", "whole number"),
    ("grpo.seed='4'", "whole number"),
    ("grpo.seed=true", "whole number"),
    ("grpo.seed=[1]", "whole number"),
    ("policy.optimizer.lr=high", "number"),
    ("policy.optimizer.lr=true", "number"),
    ("policy.optimizer.lr=nan", "finite"),
    ("policy.optimizer.lr=inf", "finite"),
    ("policy.optimizer.lr=-inf", "finite"),
    ("grpo.val_at_end=yes please", "true or false"),
    ("grpo.val_at_end=1", "true or false"),
    ("policy.tokenizer=7", "text"),
    ("policy.tokenizer=true", "text"),
    ("policy.precision=fp16", "float32, bfloat16"),
    ("policy.precision=FLOAT32", "float32, bfloat16"),
    ("generation.stop=abc", "list"),
    ("generation.stop=[1]", "list"),
    ("generation.stop=null", "cannot be null"),
    ("policy.optimizer=adam", "section"),
    ("policy.optimizer=null", "section, not null"),
    ("policy=null", "section, not null"),
    ("loss=null", "section, not null"),
    ("policy.optimizer=[1]", "section"),
    ("data.train.options=3", "mapping"),
    ("policy.model.name=x", "not a section"),
    ("policy.model={name: x}", "not a section"),
    ("grpo.seed=null", "cannot be null"),
    ("policy.model=null", "cannot be null"),
]


def test_values_of_the_wrong_type_are_refused() -> None:
    found = by_flag([flag for flag, _ in WRONG_TYPES])
    for flag, what in WRONG_TYPES:
        assert what in found[flag].what
        assert found[flag].remedy


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("run_dir=2024", "2024"),
        ("+run_dir=1_0", "1_0"),
        ("policy.tokenizer=1e5", "1e5"),
        ("run_dir=true", "true"),
        ("generation.stop=[1,a,2.50]", ["1", "a", "2.5"]),
    ],
)
def test_a_number_for_a_text_has_a_remedy_that_can_be_pasted(flag: str, text: object) -> None:
    remedy = only_problem([QUICK, flag]).remedy
    (pasted,) = shlex.split(remedy.partition(": ")[2])
    key = flag.partition("=")[0].lstrip("+")
    assert load([QUICK, pasted]).values[key] == text


def test_a_stop_text_of_escapes_that_a_flag_does_not_know_is_refused(recipe: Recipe) -> None:
    problem = only_problem([QUICK, r'generation.stop=["\n"]'])
    assert "the characters and not what they stand for" in problem.what
    assert r"""$'generation.stop=["\n"]'""" in problem.remedy
    # As bash makes it of that, and as a recipe has it.
    for flags in (
        [QUICK, 'generation.stop=["\n"]'],
        [recipe('defaults: [quickstart, _self_]\ngeneration: {stop: ["\\n"]}\n')],
    ):
        assert load(flags).config.generation.stop == ["\n"]
    assert load([QUICK, r"generation.stop=['\neq']"]).config.generation.stop == [r"\neq"]


def test_null_in_other_words_is_refused() -> None:
    words = ["None", "none", "nil", "Nil", "'NULL'", "undefined"]
    may_be_null = [f"{key}={word}" for key in ("grpo.max_num_steps", "run_dir") for word in words]
    never_null = [f"policy.model={word}" for word in words]
    found = by_flag(may_be_null + never_null)
    assert all("Write null" in found[flag].remedy for flag in may_be_null)
    assert all("cannot be null" in found[flag].what for flag in never_null)


OUT_OF_RANGE = [
    ("grpo.seed=-1", "at least 0"),
    ("grpo.num_prompts_per_step=0", "at least 1"),
    ("policy.optimizer.beta1=1", "at least 0 and below 1"),
    ("policy.optimizer.eps=0", "above 0"),
    ("policy.max_grad_norm=0", "above 0"),
    ("generation.top_p=1.5", "above 0 and at most 1"),
    ("generation.temperature=0", "at least 0.001"),
]


def test_numbers_out_of_range_are_refused_with_the_range() -> None:
    found = by_flag([flag for flag, _ in OUT_OF_RANGE])
    for flag, legal in OUT_OF_RANGE:
        assert legal in found[flag].what
        assert legal in found[flag].remedy


MALFORMED = [
    "~grpo.seed",
    "~grpo.seed=42",
    "grpo.seed",
    "=3",
    "grpo.seed=1,2",
    "grpo.seed=range(1,3)",
    "grpo.seed=[1,2",
    "grpo.seed='1",
    "loss@other=gspo",
    "policy.tokenizer=",
    "generation.stop[0]=a",
    "loss=[gspo]",
    "hydra.run.dir=x",
    "hydra/launcher=basic",
    "+recipe=",
    "",
    " ",
]


def test_malformed_flags_are_refused() -> None:
    assert all(problem.remedy for problem in by_flag(MALFORMED).values())


@pytest.mark.parametrize("value", ["[1,2", "a\\boxed{(.+)}", 'a"b', "${x", "x\\", '\\"', ""])
def test_the_suggested_quotes_give_the_value_that_was_meant(value: str) -> None:
    override = OverridesParser.create().parse_override(f"key={quoted(value)}")
    assert override.value() == value


def test_the_suggested_quotes_hold_in_a_shell() -> None:
    (problem,) = problems([QUICK, "run_dir=it's"])
    (pasted,) = shlex.split(problem.remedy.partition(": ")[2])
    assert load([QUICK, pasted]).config.run_dir == "it's"


def test_a_second_recipe_is_refused() -> None:
    assert "second recipe" in problems([QUICK, "recipe=quickstart"])[0].what


def test_an_unknown_recipe_lists_those_there_are() -> None:
    assert "quickstart" in only_problem(["+recipe=quickstrat"]).remedy
    assert "no recipe" in only_problem(["+recipe=nowhere/mine.yaml"]).what


def test_mandatory_values_say_how_to_give_them() -> None:
    found = problems([])
    assert [problem.keys for problem in found] == [("data.train.source",), ("policy.model",)]
    assert found[0].where.startswith("conf/data/default.yaml:")
    assert "policy/model=tiny" in found[1].remedy


def test_taking_a_mandatory_value_back_is_noticed() -> None:
    assert only_problem([QUICK, "policy.model='???'"]).where == "policy.model='???'"


def test_yaml_that_cannot_be_read_is_the_only_thing_blamed(recipe: Recipe) -> None:
    problem = only_problem([recipe("grpo:\n  seed: 1\n bad: 2\n")])
    assert problem.where == "mine.yaml:3"
    assert only_problem([recipe("grpo: {seed: 1\n")]).where.startswith("mine.yaml:")
    assert only_problem([recipe("- a\n- b\n")]).where == "mine.yaml:1"


@pytest.mark.parametrize("quotes", ["", "'"])
@pytest.mark.parametrize(
    ("value", "why", "remedy"),
    [
        (
            "90",
            "not of the form DD:HH:MM:SS",
            "Write 00:00:01:30 for 90 seconds, 00:01:30:00 for 90 minutes or 03:18:00:00 for ",
        ),
        (
            "1.5",
            "not of the form",
            "Write 00:00:01:30 for 1.5 minutes or 00:01:30:00 for 1.5 hours",
        ),
        ("90m", "not of the form", "Write 00:01:30:00 for 90m"),
        ("1 Hour 30 min", "not of the form", "Write 00:01:30:00 for 1 Hour 30 min"),
        ("2days", "not of the form", "Write 02:00:00:00 for 2days"),
        ("03:40:00", "not of the form", "Write 00:03:40:00 for 3 hours and 40 minutes"),
        (
            "1:30",
            "not of the form",
            "Write 00:01:30:00 for 1 hour and 30 minutes or 00:00:01:30 for 1 minute and ",
        ),
        ("00:24:00:00", "HH=24, not below 24", "Write 01:00:00:00 for 24 hours"),
        ("00:00:60:00", "MM=60, not below 60", "Write 00:01:00:00 for 60 minutes"),
        ("00:00:00:60", "SS=60, not below 60", "Write 00:00:01:00 for 60 seconds"),
        ("00:00:00:00", "is zero", "or null for no limit"),
        ("0", "not of the form", "or null for no limit"),
        ("-1:00:00:00", "not of the form", "such as 00:03:40:00"),
        ("90 apples", "not of the form", "such as 00:03:40:00"),
        ("true", "", "Write a duration as DD:HH:MM:SS or null"),
    ],
)
def test_a_duration_is_told_how_it_is_written(
    value: str, why: str, remedy: str, quotes: str
) -> None:
    flag = f"checkpointing.checkpoint_must_save_by={quotes}{value}{quotes}"
    if (value, quotes) == ("true", "'"):
        return  # A text then, as any other.
    problem = only_problem([QUICK, flag])
    assert (problem.where, why in problem.what) == (flag, True)
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("{a: 'http://h', a: 'http://i'}", "a"),
        ("{x y: 1,x y : 2}", "x y"),
        ("{b: 1, c: {d: 1, e: [{f: 1}, {f: 1, f: 1}]}}", "f"),
        ("{1: a, 1: b}", "1"),
    ],
)
def test_a_name_that_a_mapping_in_a_flag_has_twice_is_refused(value: str, name: str) -> None:
    flag = f"env.agents={value}"
    problem = only_problem([QUICK, "env=gym", "generation.expose_http_server=true", flag])
    assert (problem.where, problem.what) == (flag, f"{name} is given twice")


def test_a_name_may_be_in_several_mappings_of_a_flag_and_in_a_text() -> None:
    value = "{a: {a: '{b: 1, b: 2}'}, b: {a: 1}, c: [{a: 1}, {a: 2}]}"
    assert given_twice(f"policy.architecture={value}") is None


def test_a_key_given_twice_names_both_lines(recipe: Recipe) -> None:
    flag = recipe("defaults: [quickstart, _self_]\ngrpo:\n  seed: 1\n  val_period: 2\n  seed: 3\n")
    problem = only_problem([flag])
    assert problem.where == "mine.yaml:5"
    assert "first in line 3" in problem.what


@pytest.mark.parametrize("key", ["grpo.seed", "5", "true", "null", "[a]", "''"])
def test_a_key_that_is_not_a_name_is_refused(recipe: Recipe, key: str) -> None:
    flag = recipe(f"defaults: [quickstart, _self_]\n{key}: 1\n")
    assert only_problem([flag]).where == "mine.yaml:2"


def test_a_file_that_is_not_text_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    flag = recipe("")
    (tmp_path / "mine.yaml").write_bytes(b"grpo: {seed: 1}\n# \xff\n")
    assert "UTF-8" in only_problem([flag]).what
    (tmp_path / "mine.yaml").write_bytes(b"grpo: {seed: \x01}\n")
    assert "not valid YAML" in only_problem([flag]).what


def test_a_value_that_contains_itself_is_refused(recipe: Recipe) -> None:
    flag = recipe("generation: &a\n  stop: [*a]\n")
    assert "part of" in only_problem([flag]).what


def test_anchors_and_merge_keys_work(recipe: Recipe) -> None:
    flag = recipe(
        "defaults: [quickstart, _self_]\ndata:\n  train: &rows\n    limit: 7\n"
        "  validation:\n    <<: *rows\n    shuffle: false\n"
    )
    config = load([flag]).config
    assert (config.data.train.limit, config.data.validation.limit) == (7, 7)


def test_a_missing_environment_variable_is_named_with_its_key(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLRUN_TOKEN", raising=False)
    flag = recipe("defaults: [quickstart, _self_]\npolicy:\n  tokenizer: ${oc.env:RLRUN_TOKEN}\n")
    problem = only_problem([flag])
    assert problem.where == "mine.yaml:3"
    assert "RLRUN_TOKEN" in problem.what
    assert "policy.tokenizer" in problem.what


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("${grpo.sed}", "refers to grpo.sed, which does not exist"),
        ("${policy.tokenizer}", "Recursive"),
        ("${nothing:1}", "Unsupported interpolation type"),
        ("${", "malformed"),
        ("${data.train.source}", "not set"),
    ],
)
def test_an_interpolation_that_leads_nowhere_is_refused(
    recipe: Recipe, value: str, what: str
) -> None:
    flag = recipe(
        "defaults: [quickstart, _self_]\n"
        f"policy: {{tokenizer: '{value}'}}\ndata: {{train: {{source: '???'}}}}\n"
    )
    found = {problem.keys: problem.what for problem in problems([flag])}
    assert what in found["policy.tokenizer",]
    assert "not set" in found["data.train.source",]


def test_all_sources_report_at_once_flags_first(recipe: Recipe) -> None:
    flag = recipe(
        "defaults:\n  - quickstart\n  - override /loss: gsppo\n  - _self_\n"
        "grpo: {sede: 1, seed: x}\npolicy: {optimizer: {lr: -1}}\n"
    )
    found = problems(["grpo.val_at_end=maybe", flag, "sclae=smoke"])
    assert [problem.where for problem in found] == [
        "grpo.val_at_end=maybe",
        "sclae=smoke",
        "mine.yaml:3",
        "mine.yaml:5",
        "mine.yaml:5",
        "mine.yaml:6",
    ]


def test_the_same_problem_counts_once() -> None:
    only_problem([QUICK, "grpo.sede=1", "grpo.sede=1"])


def test_a_wrong_value_that_is_overridden_is_still_wrong(recipe: Recipe) -> None:
    flag = recipe("defaults: [quickstart, _self_]\ngrpo: {seed: x}\n")
    assert only_problem([flag, "grpo.seed=1"]).where == "mine.yaml:2"


def test_a_rule_does_not_echo_a_value_that_is_wrong_by_itself() -> None:
    only_problem([QUICK, "policy.train_global_batch_size=-7"])
    only_problem([QUICK, "generation.max_new_tokens=65", "policy.max_total_sequence_length=x"])


OUT_OF_BOUNDS = [
    "num_threads=1025",
    f"grpo.seed={2**63}",
    "policy.optimizer.lr=1.5",
    "generation.temperature=0.0009",
    "generation.temperature=101",
    "generation.val_temperature=101",
]


def test_values_that_no_run_can_use_are_out_of_range() -> None:
    found = by_flag(OUT_OF_BOUNDS)
    assert all(problem.what.count("must be") for problem in found.values())


@pytest.mark.parametrize(
    "flag",
    [
        "run_dir=''",
        "generation.val_temperature=0.0009",
        "generation.stop=[a,'']",
    ],
)
def test_values_that_only_look_legal_are_refused(flag: str) -> None:
    assert only_problem([QUICK, flag]).where == flag


def test_the_ends_of_the_ranges_are_legal() -> None:
    load([QUICK, "num_threads=1024", f"grpo.seed={2**63 - 1}", "policy.optimizer.lr=1"])
    load([QUICK, "generation.temperature=0.001", "generation.val_temperature=0"])
    load([QUICK, "generation.temperature=100", "generation.val_temperature=0.001"])


def doubling(levels: int) -> str:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a:\n  " + "[" * 5000 + "]" * 5000 + "\n", 2, "deeper than 64"),
        ("".join("  " * n + "a:\n" for n in range(2000)), 64, "deeper than 64"),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 99)), 64, "64"),
        (doubling(50), 17, "more than 100000"),
        ("a: [" + "x, " * 100_000 + "]\n", 1, "more than 100000"),
        ("a: &a\n  b: [*a]\n", 1, "part of"),
    ],
)
def test_a_recipe_that_would_exhaust_memory_is_a_problem(
    recipe: Recipe, text: str, line: int, told: str
) -> None:
    problem = only_problem([recipe(text)])
    assert problem.where == f"mine.yaml:{line}"
    assert told in problem.what
