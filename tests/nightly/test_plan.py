# SPDX-License-Identifier: Apache-2.0
"""Nightly files are read strictly, and those that come with rlrun are valid and short enough."""

from __future__ import annotations

from functools import cache

import pytest

from rlrun.config import list_recipes, recipes_dir
from rlrun.errors import ConfigError, EnvironmentDown
from rlrun.nightly.assertions import AgeBound, Audited, Bound, LedgerClosed, StepTime
from rlrun.nightly.plan import Plan, check_hardware, make_plan
from rlrun.nightly.spec import TIERS
from tests.nightly.conftest import RUN, WriteNightly

CPU_MINUTES = 45


@cache
def shipped(tier: str) -> Plan:
    """The plan of a tier by the files that come with rlrun."""
    return make_plan(tier, None, None)


def test_shipped_files_are_valid_and_the_cpu_tier_fits_its_time() -> None:
    plan = shipped("cpu")
    assert plan.minutes <= CPU_MINUTES
    names = [case.spec.full_name for case in plan.cases]
    assert "grpo-tiny-1n0g-async.v1" in names
    sides = {side for parity in plan.parities for side in parity.runs}
    assert {"grpo-tiny-1n0g-sync", "grpo-tiny-1n0g-async"} <= sides
    for case in plan.cases:
        if case.spec.name in sides:
            assert len(case.seeds) >= 3, "parity of fewer seeds says little"


def test_every_recipe_has_a_run_on_the_cpu() -> None:
    """What shows that the recipe works where there is no GPU; others learn something there."""
    by_recipe = {case.recipe.stem for case in shipped("cpu").cases}
    assert by_recipe == {info.name for info in list_recipes()}


@pytest.mark.parametrize("tier", TIERS)
def test_every_run_asserts_its_books_and_that_engine_and_learner_agree(tier: str) -> None:
    for case in shipped(tier).cases:
        kinds = {type(one) for one in case.spec.assertions.values()}
        metrics = {one.metric for one in case.spec.assertions.values() if isinstance(one, Bound)}
        assert case.spec.name.partition("-")[0] in ("grpo", "dapo", "gspo"), case.spec.name
        assert {LedgerClosed, Audited} <= kinds, case.spec.name
        assert "correction/token_mult_prob_error" in metrics, case.spec.name
        assert AgeBound in kinds, case.spec.name
        learns = "reward_rises" in case.spec.assertions or "accuracy_rises" in case.spec.assertions
        floor = metrics & {"train/reward_mean", "train/shaped_reward_mean", "validation/accuracy"}
        assert learns or floor, case.spec.name
        if learns:
            assert StepTime in kinds, f"{case.spec.name} is long enough to be timed"


def test_nightly_files_are_no_recipes() -> None:
    assert list(recipes_dir().glob("*.nightly.yaml"))
    assert not [info.name for info in list_recipes() if "nightly" in info.name]


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("minutes: 5", "minuts: 5", "minuts is not known here.*minutes"),
        ("minutes: 5", "minutes: soon", "minutes is 'soon', not a finite number"),
        ("minutes: 5", "minutes: 0", "minutes=0"),
        ("version: 1", "version: true", "version is True, not a whole number"),
        ("    version: 1\n", "", "version is missing"),
        ("runs:", "run:", "run is not known here.*runs"),
        ("kind: ledger", "kind: leger", "kind=leger does not exist.*ledger"),
        ("{kind: ledger}", "{}", "ledger has no kind"),
        ("{kind: ledger}", "{kind: ledger, by: 2}", "by is not known here"),
        ("tiny-1n0g-sync", "tiny", "grpo-tiny is no name of a run"),
        ("1n0g-sync", "1n0g-sync.v2", "is no name of a run"),
        ("minutes: 5", "minutes: 5\n    seeds: [1, 1]", "are not different"),
        ("minutes: 5", "minutes: 5\n    seeds: 1", "seeds is not a list"),
        ("minutes: 5", "minutes: 5\n    overrides: [grpo.seed=2]", "which the nightly sets itself"),
        ("minutes: 5", "minutes: 5\n    overrides: [grpo.sede=2]", "grpo.sede"),
        (
            "{kind: ledger}",
            "{kind: bound, metric: train/reward_meen, statistic: mean, at_least: 0}",
            "train/reward_meen is not declared; did you mean train/reward_mean",
        ),
        (
            "{kind: ledger}",
            "{kind: bound, metric: train/loss, statistic: meen, at_least: 0}",
            "statistic=meen is none of the choices.*Did you mean mean",
        ),
        (
            "{kind: ledger}",
            "{kind: bound, metric: train/loss, statistic: mean}",
            "neither at_least nor at_most",
        ),
        (
            "{kind: ledger}",
            "{kind: bound, metric: perf/ceiling_efficiency, statistic: mean, at_least: 0}",
            "the run is synchronous",
        ),
        (
            "{kind: ledger}",
            "{kind: rises, metric: train/reward_mean, window: 9, by: 0.1}",
            "the run has 2 steps: two windows of 9 do not fit in",
        ),
        ("1n0g-sync", "1n2g-sync", "does not exist|gpus|no run of tier"),
    ],
)
def test_a_mistake_is_refused_with_its_line_and_a_suggestion(
    write_nightly: WriteNightly, right: str, wrong: str, said: str
) -> None:
    assert right in RUN
    folder = write_nightly(RUN.replace(right, wrong, 1))
    with pytest.raises(ConfigError, match=said) as caught:
        make_plan("cpu", ["own"], folder)
    assert caught.value.exit_code == 2
    if "no run of tier" not in str(caught.value):
        assert "own.nightly.yaml:" in str(caught.value)


def test_a_recipe_may_be_named_by_its_file(write_nightly: WriteNightly) -> None:
    folder = write_nightly() / "recipes"
    plan = make_plan("cpu", [str(folder / "own.yaml")], None)
    assert [(case.recipe, case.spec.name) for case in plan.cases] == [
        (folder / "own.yaml", "grpo-tiny-1n0g-sync")
    ]
    (folder / "own.nightly.yaml").rename(folder / "other.nightly.yaml")
    with pytest.raises(
        ConfigError, match=r"no nightly file beside it\. Write .*own\.nightly\.yaml"
    ):
        make_plan("cpu", [str(folder / "own.yaml")], None)
    for name in ("missing.yaml", str(folder / "other.nightly.yaml")):
        with pytest.raises(ConfigError, match="is no recipe .*Give the recipe's own file"):
            make_plan("cpu", [name], None)
    with pytest.raises(ConfigError, match=r"own has no nightly file beside it\. Write"):
        make_plan("cpu", ["own"], folder)


def test_parity_names_two_runs_of_the_file(write_nightly: WriteNightly) -> None:
    parity = """\
parity:
  both:
    runs: [grpo-tiny-1n0g-sync, grpo-tiny-1n0g-asink]
    metric: train/reward_mean
    statistic: last
    within: 0.1
"""
    with pytest.raises(ConfigError, match="runs has grpo-tiny-1n0g-asink"):
        make_plan("cpu", ["own"], write_nightly(RUN + parity))


def test_a_nightly_file_without_its_recipe_is_refused(write_nightly: WriteNightly) -> None:
    folder = write_nightly()
    (folder / "recipes" / "own.yaml").rename(folder / "recipes" / "other.yaml")
    with pytest.raises(ConfigError, match="beside no recipe"):
        make_plan("cpu", None, folder)


def test_a_recipe_without_a_nightly_file_is_named_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match="'quickstrat' is no recipe.*Did you mean quickstart"):
        make_plan("cpu", ["quickstrat"], None)
    with pytest.raises(ConfigError, match="no tier 'cup'"):
        make_plan("cup", None, None)


def test_gpus_that_are_not_there_are_said_before_anything_runs(
    write_nightly: WriteNightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    plan = make_plan("1gpu", ["own"], write_nightly(RUN.replace("1n0g", "1n1g")))
    with pytest.raises(EnvironmentDown, match="needs 1 GPU on a machine, and torch sees 0"):
        check_hardware(plan)
