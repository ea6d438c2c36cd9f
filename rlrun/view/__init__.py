# SPDX-License-Identifier: Apache-2.0
"""`rlrun view`: how a run goes and what the policy writes, in the terminal or through a pipe.

Everything that a model, an environment or a data row wrote passes through ``visible``: it cannot
move the cursor, set colours or use markup.
"""

from __future__ import annotations

import functools
import heapq
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from rich.table import Table

from rlrun.config.paths import is_file
from rlrun.console.terminal import SteadyConsole, plain_console, sparkline
from rlrun.errors import ConfigError, Problem, StorageError
from rlrun.metrics.logs import read_metrics
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import TrainedLine, read_trained
from rlrun.run_dir.state import state_in_words
from rlrun.view.difference import print_differences
from rlrun.view.samples import print_samples
from rlrun.view.steps import print_steps
from rlrun.view.texts import number, parts, print_text, rule


class Sort(StrEnum):
    """Which trajectories of a step come first."""

    WORST = "worst"
    """Lowest reward; failed ones before all others."""
    BEST = "best"
    """Highest reward."""
    LONGEST = "longest"
    SHORTEST = "shortest"
    ADVANTAGE = "advantage"
    """Largest advantage, positive or negative: what moved the policy most."""


_SUMMARY = (
    ("train/reward_mean", "reward"),
    ("validation/accuracy", "validation accuracy"),
    ("validation/reward_mean", "validation reward"),
    ("train/response_tokens_mean", "response tokens"),
    ("train/truncated_fraction", "truncated"),
    ("train/zero_variance_groups", "groups of one reward"),
    ("train/kl_to_reference", "KL to reference"),
    ("train/entropy", "entropy"),
    ("age/mean", "age"),
    ("perf/step_s", "seconds per step"),
)

_SPARKLINE = 24


def view(
    root: Path,
    *,
    step: int | None = None,
    sort: str = Sort.WORST,
    count: int = 3,
    prompt_id: str | None = None,
    diff: bool = False,
    steps: int | None = None,
    validation: bool = False,
    characters: int = 2000,
    file: TextIO | None = None,
) -> None:
    """Prints a summary of the run, then trajectories.

    Args:
        root: The run directory; the run may still be going on. Or a file that `rlrun eval --out`
            wrote.
        step: Whose trajectories; the last one if None.
        sort: Which of them come first, a value of Sort.
        count: How many; 0 for the summary alone.
        prompt_id: Instead of one step's, show this prompt's trajectories over all steps.
        diff: With ``prompt_id``: instead, how its best answer changed from step to step.
        steps: Instead, a table of so many last steps; 0 for all.
        validation: Instead, samples of the validation after ``step``, or of the last one.
        characters: Of longer texts the middle is left out; 0 for all.
        file: Where to; standard output if None.

    Raises:
        ConfigError: ``sort`` is none of the orders, or options contradict each other.
        StorageError: There is no run, nothing of the step or prompt, or a file is damaged.
    """
    order = _order(sort)
    if diff and prompt_id is None:
        what = "compares the answers to one prompt, and none is named"
        raise ConfigError([Problem("--diff", what, "Add --prompt PROMPT_ID")])
    target = sys.stdout if file is None else file
    console = plain_console(target)
    samples = functools.partial(
        print_samples, console, sort=sort, count=count, prompt_id=prompt_id, characters=characters
    )
    if is_file(root):
        samples(root)
        return
    run_dir = RunDir.read(root)
    _print_summary(console, run_dir, target)
    if steps is not None:
        print_steps(console, run_dir, steps)
    elif validation:
        after = _step_of(run_dir.validation, run_dir.validation_steps(), step)
        if after is not None:
            samples(run_dir.validation_file(after))
    elif prompt_id is not None:
        _print_prompt(console, run_dir, prompt_id, count, characters, diff=diff)
    else:
        _print_step(console, run_dir, step, order, count, characters)


def _step_of(folder: Path, steps: Sequence[int], wanted: int | None) -> int | None:
    """The step that is wanted, or else the last one; None if there is none at all."""
    if wanted is not None and wanted not in steps:
        have = f"there are steps {steps[0]} to {steps[-1]}" if steps else "there is none yet"
        raise StorageError(str(folder), f"holds nothing of step {wanted}; {have}")
    return wanted if wanted is not None else max(steps, default=None)


def _print_step(
    console: SteadyConsole,
    run_dir: RunDir,
    step: int | None,
    order: Sort,
    count: int,
    characters: int,
) -> None:
    chosen = _step_of(run_dir.trained, run_dir.trained_steps(), step)
    if count == 0 or chosen is None:
        return
    lines = heapq.nsmallest(count, read_trained(run_dir.trained_file(chosen)), key=_KEYS[order])
    console.print(rule(console, f"step {chosen}: {order.value}"))
    for line in lines:
        _print_trajectory(console, line, characters)


def _order(sort: str) -> Sort:
    try:
        return Sort(sort)
    except ValueError:
        remedy = f"The orders are {', '.join(Sort)}"
        raise ConfigError([Problem("--sort", f"there is no order {sort!r}", remedy)]) from None


def _reward_or(line: TrainedLine, missing: float) -> float:
    return missing if line["reward"] is None else line["reward"]


def _strength(line: TrainedLine) -> float:
    return max((abs(value) for value in line["advantages"] if value is not None), default=0.0)


_KEYS: Mapping[Sort, Callable[[TrainedLine], float]] = {
    Sort.WORST: lambda line: _reward_or(line, float("-inf")),
    Sort.BEST: lambda line: -_reward_or(line, float("-inf")),
    Sort.LONGEST: lambda line: -line["total_length"],
    Sort.SHORTEST: lambda line: line["total_length"],
    Sort.ADVANTAGE: lambda line: -_strength(line),
}


def _print_summary(console: SteadyConsole, run_dir: RunDir, file: TextIO) -> None:
    lines = read_metrics(run_dir.metrics) if run_dir.metrics.exists() else []
    console.tell(f"{run_dir.root}: {state_in_words(run_dir)}", "bold")
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("metric", "first", "last", "mean of last 10", "over the steps"):
        table.add_column(title, overflow="fold")
    for name, title in _SUMMARY:
        values = [line[name] for line in lines if isinstance(line.get(name), int | float)]
        if values:
            last = values[-10:]
            numbers = (values[0], values[-1], sum(last) / len(last))
            table.add_row(title, *map(number, numbers), sparkline(values, file, _SPARKLINE))
    if table.row_count:
        console.print(table)


def _print_trajectory(console: SteadyConsole, line: TrainedLine, characters: int) -> None:
    head = (
        f"prompt {line['prompt_id']}, sample {line['sample_index']}: "
        f"reward {number(line['reward'])}{parts(line['rewards'])}"
    )
    console.tell(head, "bold")
    console.tell(_facts(line), "dim")
    print_text(console, "prompt", line["prompt"], characters)
    print_text(console, "response", line["response"], characters)
    console.print()


def _facts(line: TrainedLine) -> str:
    trained = [a for a, m in zip(line["advantages"], line["token_loss_mask"], strict=False) if m]
    advantage = number(max(trained, key=lambda a: abs(a or 0.0))) if trained else "none"
    versions = sorted({version for version, _, _ in line["weight_versions"]})
    facts = [
        f"advantage {advantage}",
        f"stop reason {line['stop_reason']}",
        f"{sum(line['token_loss_mask'])} sampled tokens of {line['total_length']}",
        f"weights {', '.join(map(str, versions)) or 'none'}",
    ]
    if not line["sample_loss_mask"]:
        facts.append("not in the loss")
    if line["unfiltered_reward"] != line["reward"]:
        facts.append(f"reward as given {number(line['unfiltered_reward'])}")
    if line["agent_ref"] is not None:
        facts.append(f"agent {line['agent_ref']}")
    return ", ".join(facts)


def _print_prompt(
    console: SteadyConsole,
    run_dir: RunDir,
    prompt_id: str,
    count: int,
    characters: int,
    *,
    diff: bool,
) -> None:
    lines = list(_of_prompt(run_dir, prompt_id))
    if not lines:
        raise StorageError(
            str(run_dir.trained),
            f"holds no trajectory of prompt {prompt_id!r}",
            "The prompt_id of every trajectory is in its heading in `rlrun view`",
        )
    console.print(rule(console, f"prompt {prompt_id}"))
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("step", "samples", "mean reward", "rewards"):
        table.add_column(title, overflow="fold")
    for step in sorted({line["step"] for line in lines}):
        rewards = [line["reward"] for line in lines if line["step"] == step]
        given = [reward for reward in rewards if reward is not None]
        mean = sum(given) / len(given) if given else None
        table.add_row(str(step), str(len(rewards)), number(mean), " ".join(map(number, rewards)))
    console.print(table)
    if diff:
        print_differences(console, lines)
        return
    for line in lines[-count:] if count else []:
        console.tell(f"step {line['step']}", "bold")
        _print_trajectory(console, line, characters)


def _of_prompt(run_dir: RunDir, prompt_id: str) -> Iterator[TrainedLine]:
    for step in run_dir.trained_steps():
        yield from read_trained(run_dir.trained_file(step), prompt_id)
