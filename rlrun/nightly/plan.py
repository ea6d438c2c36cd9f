# SPDX-License-Identifier: Apache-2.0
"""What a nightly will run: chosen by recipe and tier, and checked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config import load
from rlrun.config.paths import display, is_dir
from rlrun.config.recipes import find_recipe, recipe_folders
from rlrun.config.schema import RunConfig
from rlrun.console.counted import counted
from rlrun.errors import ConfigError, EnvironmentDown, Problem
from rlrun.nightly.assertions import metric_mistakes
from rlrun.nightly.fields import meant
from rlrun.nightly.spec import (
    TIERS,
    ParitySpec,
    RunSpec,
    files_without_recipe,
    nightly_file,
    nightly_recipes,
    read_spec,
)


@dataclass(frozen=True)
class Case:
    """A run of the plan.

    Attributes:
        recipe: The recipe's file.
        spec: What its nightly file says of the run.
        config: Its settings.
        seeds: One run each.
    """

    recipe: Path
    spec: RunSpec
    config: RunConfig
    seeds: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """What must be the same for finished runs to count."""
        return {
            "name": self.spec.full_name,
            "recipe": str(self.recipe),
            "overrides": list(self.spec.overrides),
            "seeds": list(self.seeds),
        }


@dataclass(frozen=True)
class Plan:
    """All runs, in order, and what is asserted across them."""

    cases: list[Case]
    parities: list[ParitySpec]

    @property
    def minutes(self) -> float:
        """Sum of all time limits."""
        return sum(case.spec.minutes * len(case.seeds) for case in self.cases)

    def text(self) -> str:
        """A line per run."""
        lines = [
            f"{case.spec.full_name}: {case.recipe.stem}"
            + "".join(f" {override}" for override in case.spec.overrides)
            + f"; seeds {', '.join(map(str, case.seeds))}"
            + f"; at most {counted(case.spec.minutes, 'minute', form='g')} each"
            + f"; asserts {', '.join(case.spec.assertions)}"
            for case in self.cases
        ]
        lines += [f"parity {p.name}: {p.metric} of {' and '.join(p.runs)}" for p in self.parities]
        minutes = counted(self.minutes, "minute", form="g")
        return "\n".join([*lines, f"all limits together: {minutes}"])


def make_plan(tier: str, recipes: Sequence[str] | None, config_dir: Path | None) -> Plan:
    """Reads and checks the nightly files.

    Args:
        tier: Runs of other tiers are left out; their settings are not composed.
        recipes: Names of recipes, or files that end in .yaml; None for all that have a name and a
            nightly file.
        config_dir: A folder of further recipes.

    Raises:
        ConfigError: With all mistakes, of every file that was asked for.
    """
    if config_dir is not None and not is_dir(config_dir):
        remedy = "Give a folder with recipes or groups"
        raise ConfigError([Problem(f"--config-dir {config_dir}", "is not a folder", remedy)])
    problems = files_without_recipe(config_dir)
    if tier not in TIERS:
        what = f"there is no tier {tier!r}"
        problems.append(Problem("--tier", what, meant(tier, TIERS, "Tiers")))
    cases: list[Case] = []
    parities: list[ParitySpec] = []
    for recipe in _chosen(recipes, config_dir, problems):
        try:
            spec = read_spec(recipe)
        except ConfigError as error:
            problems += error.problems
            continue
        configs: dict[str, RunConfig] = {}
        for run in spec.runs:
            case = _case(recipe, run, config_dir, problems) if run.tier == tier else None
            if case is not None:
                configs[run.name] = case.config
                cases.append(case)
        tiers = {run.name: run.tier for run in spec.runs}
        for parity in spec.parities:
            problems += _parity_problems(parity, tiers, configs)
            parities += [parity] if tiers[parity.runs[0]] == tier else []
    names = [case.spec.name for case in cases]
    for case in cases:
        if names.count(case.spec.name) > 1:
            what = f"{case.spec.name} is the name of another run too"
            problems.append(Problem(case.spec.where, what, "Name it differently"))
    if not problems and not cases:
        what = f"no run of tier {tier}" + (f" in {', '.join(recipes)}" if recipes else "")
        problems.append(Problem("--tier", what, f"Tiers: {', '.join(TIERS)}"))
    if problems:
        raise ConfigError(problems)
    return Plan(cases, parities)


def check_hardware(plan: Plan) -> None:
    """Makes sure that this machine has the GPUs that the runs are named for.

    Several machines are Ray's to find, so only one machine's GPUs are looked at.

    Raises:
        EnvironmentDown: It has too few.
    """
    needed = max(case.spec.hardware[1] for case in plan.cases)
    if needed == 0:
        return
    import torch

    there = torch.cuda.device_count()
    if there < needed:
        run = next(case.spec for case in plan.cases if case.spec.hardware[1] == needed)
        raise EnvironmentDown(
            run.full_name,
            f"needs {counted(needed, 'GPU')} on a machine, and torch sees {there} here",
            "Run this tier where the GPUs are; --tier cpu needs none",
        )


def _chosen(
    recipes: Sequence[str] | None, config_dir: Path | None, problems: list[Problem]
) -> list[Path]:
    there = nightly_recipes(config_dir)
    files: list[Path] = []
    for name in recipes or ():
        path = find_recipe(name, recipe_folders(config_dir))
        if path is None:
            remedy = meant(name, there, "There are")
            if name.endswith((".yaml", ".yml")):
                remedy = "Give the recipe's own file; its nightly file is found beside it"
            what = f"{name!r} is no recipe with a nightly file"
            problems.append(Problem("--recipes", what, remedy))
        elif not nightly_file(path).is_file():
            what = f"{name} has no nightly file beside it"
            problems.append(Problem("--recipes", what, f"Write {display(nightly_file(path))}"))
        elif name not in there:
            files.append(path.absolute())
    names = there if recipes is None else [name for name in there if name in recipes]
    return [*(there[name] for name in names), *files]


def _case(
    recipe: Path, run: RunSpec, config_dir: Path | None, problems: list[Problem]
) -> Case | None:
    try:
        loaded = load([f"+recipe={recipe}", *run.overrides], config_dir)
    except ConfigError as error:
        problems += [
            Problem(run.where, f"{run.name}: {problem}", "Correct overrides: or the recipe")
            for problem in error.problems
        ]
        return None
    for name, assertion in run.assertions.items():
        for mistake in assertion.mistakes(loaded.config):
            what = f"{run.name}, {name}: {mistake}"
            problems.append(Problem(run.where, what, "Correct the assertion"))
    problems += _hardware_problems(run, loaded.values)
    return Case(recipe, run, loaded.config, run.seeds or (loaded.config.grpo.seed,))


def _hardware_problems(run: RunSpec, values: Any) -> list[Problem]:
    """The name says the hardware; the settings must say the same, where they say it."""
    nodes, gpus = run.hardware
    found: list[Problem] = []
    for key, named in (("cluster.num_nodes", nodes), ("cluster.gpus_per_node", gpus)):
        value = values.get(key, named if key.endswith("gpus_per_node") else 1)
        if value != named:
            what = f"{run.name} says {nodes}n{gpus}g, and its {key} is {value}"
            found.append(Problem(run.where, what, "Rename the run or set the key"))
    return found


def _parity_problems(
    parity: ParitySpec, tiers: dict[str, str], configs: dict[str, RunConfig]
) -> list[Problem]:
    found: list[Problem] = []
    if len({tiers[name] for name in parity.runs}) > 1:
        what = f"{parity.name}: its runs are of different tiers and never run together"
        found.append(Problem(parity.where, what, "Compare runs of one tier"))
    for name in parity.runs:
        if name in configs:
            found += [
                Problem(parity.where, f"{parity.name}: {mistake}", "Correct the metric")
                for mistake in metric_mistakes(parity.metric, configs[name])
            ]
    return found
