# SPDX-License-Identifier: Apache-2.0
"""What a recipe's nightly file says: runs with their assertions, and which of them must agree."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.config.recipes import NIGHTLY, list_recipes, recipe_folders
from rlrun.errors import ConfigError, Problem
from rlrun.nightly.assertions import KINDS, Assertion
from rlrun.nightly.fields import meant, read_fields, unknown_names
from rlrun.nightly.statistics import Statistic
from rlrun.nightly.yaml_tree import Node, read_tree

_NAME = re.compile(r"[A-Za-z0-9_.]+(?:-[A-Za-z0-9_.]+)*-(\d+)n(\d+)g(?:-[A-Za-z0-9_.]+)+")
_VERSION = re.compile(r"\.v\d+$")

TIERS = ("cpu", "1gpu", "1node", "multinode")
"""By the hardware in a run's name: 1n0g, 1n1g, 1n2g and more, 2n and more."""


@dataclass(frozen=True)
class RunSpec:
    """A run: a recipe with overrides, once per seed.

    Attributes:
        where: ``FILE:LINE``.
        name: "<algorithm>-<model>-<N>n<M>g-<parallelism or schedule>[-modifiers]".
        assertions: By name.
        version: Raised when its convergence changes on purpose; trends of versions are apart.
        minutes: Time limit of a seed.
        seeds: Values of grpo.seed; none for the recipe's own.
        overrides: As on the command line of ``rlrun train``.
    """

    where: str
    name: str
    assertions: dict[str, Assertion]
    version: int
    minutes: float
    seeds: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """With the version: what trend and reports call it."""
        return f"{self.name}.v{self.version}"

    @property
    def hardware(self) -> tuple[int, int]:
        """Machines, and GPUs of each."""
        match = _NAME.fullmatch(self.name)
        assert match is not None
        return int(match[1]), int(match[2])

    @property
    def tier(self) -> str:
        """One of TIERS."""
        nodes, gpus = self.hardware
        if gpus == 0:
            return "cpu"
        return "multinode" if nodes > 1 else "1gpu" if gpus == 1 else "1node"


@dataclass(frozen=True)
class ParitySpec:
    """Two runs reach the same: the means of a metric over their seeds differ by little.

    Attributes:
        where: ``FILE:LINE``.
        name: Of the assertion.
        runs: The names of two runs of the file.
        metric: A declared metric.
        statistic: Over the steps of a seed.
        within: Largest difference of the two means.
        from_step: The first step that counts.
    """

    where: str
    name: str
    runs: tuple[str, ...]
    metric: str
    statistic: Statistic
    within: float
    from_step: int = 1


@dataclass(frozen=True)
class NightlySpec:
    """A recipe's nightly file.

    Attributes:
        recipe: The recipe's file.
        runs: In the order of the file.
        parities: Likewise.
    """

    recipe: Path
    runs: list[RunSpec]
    parities: list[ParitySpec] = field(default_factory=list)


def nightly_recipes(config_dir: Path | None = None) -> dict[str, Path]:
    """The recipes that have a nightly file, by name."""
    found = {info.name: info.path for info in list_recipes(config_dir)}
    return {name: path for name, path in found.items() if nightly_file(path).is_file()}


def nightly_file(recipe: Path) -> Path:
    """Where the nightly file of a recipe would be: beside it."""
    return recipe.with_name(recipe.stem + NIGHTLY)


def files_without_recipe(config_dir: Path | None = None) -> list[Problem]:
    """Nightly files that lie beside no recipe of their name: they would never be run."""
    return [
        Problem(str(path), "lies beside no recipe of this name", "Rename it like its recipe")
        for folder in recipe_folders(config_dir)
        for path in sorted(folder.glob(f"*{NIGHTLY}"))
        if not path.with_name(path.name.removesuffix(NIGHTLY) + ".yaml").is_file()
    ]


def read_spec(recipe: Path) -> NightlySpec:
    """Reads the nightly file of a recipe.

    Raises:
        ConfigError: With all its mistakes.
    """
    tree = read_tree(nightly_file(recipe))
    problems = unknown_names(tree.mapping(), {"runs": 0, "parity": 0})
    runs, parities = tree.mapping().get("runs"), tree.mapping().get("parity")
    if runs is None:
        problems.append(Problem(tree.where, "runs is missing", "Write the runs below runs:"))
    read: list[RunSpec] = []
    for name, node in ({} if runs is None else runs.mapping()).items():
        read += _read_run(name, node, problems)
    names = [run.name for run in read]
    found: list[ParitySpec] = []
    for name, node in ({} if parities is None else parities.mapping()).items():
        parity = read_fields(ParitySpec, node, problems, where=node.where, name=name)
        if parity is not None:
            found.append(parity)
            problems += _parity_problems(parity, names)
    if problems:
        raise ConfigError(problems)
    return NightlySpec(recipe, read, found)


def _read_run(name: str, node: Node, problems: list[Problem]) -> list[RunSpec]:
    """The run, or nothing and what is wrong with it."""
    before = len(problems)
    if not _NAME.fullmatch(name) or _VERSION.search(name):
        remedy = (
            "Write ALGORITHM-MODEL-<N>n<M>g-REST, such as grpo-tiny-1n0g-sync; version: is apart"
        )
        problems.append(Problem(node.where, f"{name} is no name of a run", remedy))
    mapping = node.mapping()
    given = mapping.get("assertions")
    assertions: dict[str, Assertion] = {}
    if given is None or not given.mapping():
        what = "the run has no assertions"
        problems.append(Problem(node.where, what, "Add some below assertions:"))
    else:
        for key, inner in given.mapping().items():
            assertions |= _read_assertion(key, inner, problems)
    rest = Node(node.where, {k: v for k, v in mapping.items() if k != "assertions"})
    run = read_fields(RunSpec, rest, problems, where=node.where, name=name, assertions=assertions)
    if run is None or len(problems) > before:
        return []
    problems += _run_problems(run)
    return [run]


def _read_assertion(name: str, node: Node, problems: list[Problem]) -> dict[str, Assertion]:
    mapping = dict(node.mapping())
    kind = mapping.pop("kind", None)
    if kind is None:
        what, remedy = f"{name} has no kind", f"Kinds: {', '.join(KINDS)}"
        problems.append(Problem(node.where, what, remedy))
        return {}
    if kind.value not in KINDS:
        what = f"kind={kind.value} does not exist"
        problems.append(Problem(kind.where, what, meant(str(kind.value), KINDS, "Kinds")))
        return {}
    read = read_fields(KINDS[str(kind.value)], Node(node.where, mapping), problems)
    return {} if read is None else {name: read}


def _run_problems(run: RunSpec) -> list[Problem]:
    found: list[Problem] = []
    if run.minutes <= 0 or run.version < 1:
        remedy = "minutes is above 0, version at least 1"
        found.append(Problem(run.where, f"minutes={run.minutes:g} version={run.version}", remedy))
    if len(set(run.seeds)) < len(run.seeds) or any(seed < 0 for seed in run.seeds):
        what = f"seeds={list(run.seeds)} are not different whole numbers from 0"
        found.append(Problem(run.where, what, "Write each once"))
    for text in run.overrides:
        if text.lstrip("+").startswith(("grpo.seed=", "run_dir=", "recipe=")):
            what = f"overrides has {text}, which the nightly sets itself"
            found.append(Problem(run.where, what, "Leave it out; seeds: takes the seeds"))
    return found


def _parity_problems(parity: ParitySpec, names: list[str]) -> list[Problem]:
    found = [
        Problem(parity.where, f"runs has {name}", meant(name, names, "Runs"))
        for name in parity.runs
        if names and name not in names
    ]
    if len(set(parity.runs)) != 2:
        what = f"runs={list(parity.runs)} are not two runs"
        found.append(Problem(parity.where, what, "Name two runs of this file"))
    if parity.within <= 0:
        found.append(Problem(parity.where, f"within={parity.within:g} is not above 0", "Raise it"))
    return found
