# SPDX-License-Identifier: Apache-2.0
"""`rlrun view`: how a run goes and what the policy writes, in the terminal or through a pipe.

Everything that a model, an environment or a data row wrote passes through ``visible``: it cannot
move the cursor, set colours or use markup.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from rich.rule import Rule
from rich.table import Table

from rlrun.errors import ConfigError, Problem, StorageError
from rlrun.logs import read_metrics
from rlrun.records import TrainedLine, read_trained
from rlrun.run_dir import RunDir
from rlrun.run_state import state_in_words
from rlrun.terminal import SteadyConsole, plain_console, sparkline, visible


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
    characters: int = 2000,
    file: TextIO | None = None,
) -> None:
    """Prints a summary of the run, then trajectories.

    Args:
        root: The run directory; the run may still be going on.
        step: Whose trajectories; the last one if None.
        sort: Which of them come first, a value of Sort.
        count: How many; 0 for the summary alone.
        prompt_id: Instead of one step's, show this prompt's trajectories over all steps.
        characters: Of longer texts the middle is left out; 0 for all.
        file: Where to; standard output if None.

    Raises:
        ConfigError: ``sort`` is none of the orders.
        StorageError: There is no run, nothing of the step or prompt, or a file is damaged.
    """
    order = _order(sort)
    run_dir = RunDir.read(root)
    target = sys.stdout if file is None else file
    console = plain_console(target)
    _print_summary(console, run_dir, target)
    if prompt_id is not None:
        _print_prompt(console, run_dir, prompt_id, count, characters)
        return
    steps = run_dir.trained_steps()
    if step is not None and step not in steps:
        have = f"there are steps {steps[0]} to {steps[-1]}" if steps else "there is none yet"
        raise StorageError(str(run_dir.trained), f"holds nothing of step {step}; {have}")
    if count == 0 or not steps:
        return
    chosen = steps[-1] if step is None else step
    lines = heapq.nsmallest(count, read_trained(run_dir.trained_file(chosen)), key=_KEYS[order])
    console.print(Rule(f"step {chosen}: {order.value}", characters=_dash(console)))
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
            table.add_row(title, *map(_number, numbers), sparkline(values, file, _SPARKLINE))
    if table.row_count:
        console.print(table)


def _print_trajectory(console: SteadyConsole, line: TrainedLine, characters: int) -> None:
    head = (
        f"prompt {line['prompt_id']}, sample {line['sample_index']}: "
        f"reward {_number(line['reward'])}{_parts(line['rewards'])}"
    )
    console.tell(head, "bold")
    console.tell(_facts(line), "dim")
    _print_text(console, "prompt", line["prompt"], characters)
    _print_text(console, "response", line["response"], characters)
    console.print()


def _facts(line: TrainedLine) -> str:
    trained = [a for a, m in zip(line["advantages"], line["token_loss_mask"], strict=False) if m]
    advantage = _number(max(trained, key=lambda a: abs(a or 0.0))) if trained else "none"
    versions = sorted({version for version, _, _ in line["weight_versions"]})
    facts = [
        f"advantage {advantage}",
        f"stop {line['stop_reason']}",
        f"{sum(line['token_loss_mask'])} sampled tokens of {line['total_length']}",
        f"weights {', '.join(map(str, versions)) or 'none'}",
    ]
    if not line["sample_loss_mask"]:
        facts.append("not in the loss")
    if line["unfiltered_reward"] != line["reward"]:
        facts.append(f"reward as given {_number(line['unfiltered_reward'])}")
    if line["agent_ref"] is not None:
        facts.append(f"agent {line['agent_ref']}")
    return ", ".join(facts)


def _print_text(console: SteadyConsole, title: str, text: str, characters: int) -> None:
    if characters and len(text) > characters:
        half = characters // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n[... {left_out} characters ...]\n{text[len(text) - half :]}"
    console.tell(f"{title}:", "cyan")
    console.tell(text)


def _print_prompt(
    console: SteadyConsole, run_dir: RunDir, prompt_id: str, count: int, characters: int
) -> None:
    lines = list(_of_prompt(run_dir, prompt_id))
    if not lines:
        raise StorageError(
            str(run_dir.trained),
            f"holds no trajectory of prompt {prompt_id!r}",
            "The prompt_id of every trajectory is in its heading in `rlrun view`",
        )
    console.print(Rule(visible(f"prompt {prompt_id}"), characters=_dash(console)))
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("step", "samples", "mean reward", "rewards"):
        table.add_column(title, overflow="fold")
    for step in sorted({line["step"] for line in lines}):
        rewards = [line["reward"] for line in lines if line["step"] == step]
        given = [reward for reward in rewards if reward is not None]
        mean = sum(given) / len(given) if given else None
        table.add_row(str(step), str(len(rewards)), _number(mean), " ".join(map(_number, rewards)))
    console.print(table)
    for line in lines[-count:] if count else []:
        console.tell(f"step {line['step']}", "bold")
        _print_trajectory(console, line, characters)


def _of_prompt(run_dir: RunDir, prompt_id: str) -> Iterator[TrainedLine]:
    for step in run_dir.trained_steps():
        for line in read_trained(run_dir.trained_file(step)):
            if line["prompt_id"] == prompt_id:
                yield line


def _parts(rewards: Mapping[str, Any]) -> str:
    if not rewards:
        return ""
    return f" ({', '.join(f'{name} {_number(value)}' for name, value in rewards.items())})"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _dash(console: SteadyConsole) -> str:
    return "─" if console.encoding.lower().startswith("utf") else "-"
