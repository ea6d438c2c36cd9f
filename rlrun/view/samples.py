# SPDX-License-Identifier: Apache-2.0
"""Scored samples without training: of a validation, or what `rlrun eval --out` wrote."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from rlrun.console.counted import counted
from rlrun.console.terminal import SteadyConsole
from rlrun.errors import ConfigError, Problem, StorageError
from rlrun.run_dir.records import ValidationLine, read_validation
from rlrun.view.texts import number, parts, print_text, rule

_KEYS: Mapping[str, Callable[[ValidationLine], float]] = {
    "worst": lambda line: float("-inf") if line["reward"] is None else line["reward"],
    "best": lambda line: float("inf") if line["reward"] is None else -line["reward"],
    "longest": lambda line: -len(line["response"]),
    "shortest": lambda line: len(line["response"]),
}


def print_samples(
    console: SteadyConsole,
    path: Path,
    *,
    sort: str,
    count: int,
    prompt_id: str | None,
    characters: int,
) -> None:
    """Prints a summary of a file of samples, then some of them.

    Args:
        console: Where to.
        path: A file as of validation/.
        sort: worst, best, longest or shortest (in characters).
        count: How many samples; 0 for the summary alone.
        prompt_id: Only this prompt's.
        characters: Of longer texts the middle is left out; 0 for all.

    Raises:
        ConfigError: Samples have no such order.
        StorageError: The file cannot be read, is none of samples, or lacks the prompt.
    """
    if sort not in _KEYS:
        remedy = f"The orders of samples are {', '.join(_KEYS)}"
        raise ConfigError([Problem("--sort", f"samples have no order {sort!r}", remedy)])
    lines = list(read_validation(path))
    if not lines:
        raise StorageError(str(path), "holds no samples", "Give another file or step")
    _summarize(console, path, lines)
    if prompt_id is not None:
        lines = [line for line in lines if line["prompt_id"] == prompt_id]
        if not lines:
            what = f"holds no sample of prompt {prompt_id!r}"
            raise StorageError(str(path), what, "Each sample's prompt_id is in its heading")
    if not count:
        return
    console.print(rule(console, sort))
    for line in heapq.nsmallest(count, lines, key=_KEYS[sort]):
        head = (
            f"prompt {line['prompt_id']}, sample {line['sample_index']}: "
            f"reward {number(line['reward'])}{parts(line['rewards'])}"
        )
        read = "nothing" if line["extracted"] is None else line["extracted"]
        console.tell(head, "bold")
        console.tell(f"stop reason {line['stop_reason']}, read as {read}", "dim")
        print_text(console, "prompt", line["prompt"], characters)
        print_text(console, "response", line["response"], characters)
        print_text(console, "reference", line["answer"], characters)
        console.print()


def _summarize(console: SteadyConsole, path: Path, lines: Sequence[ValidationLine]) -> None:
    prompts = len({line["prompt_id"] for line in lines})
    failed = sum(line["reward"] is None for line in lines)
    console.tell(
        f"{path}: step {lines[0]['step']}, {counted(prompts, 'prompt')}, "
        f"{counted(len(lines), 'sample')}",
        "bold",
    )
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("reward", "samples", "share"):
        table.add_column(title, overflow="fold")
    counts: dict[float, int] = {}
    for line in lines:
        if line["reward"] is not None:
            counts[line["reward"]] = counts.get(line["reward"], 0) + 1
    for value in sorted(counts, key=lambda value: -counts[value])[:8]:
        share = f"{counts[value] / len(lines):.1%}"
        table.add_row(number(value), str(counts[value]), share)
    if failed:
        table.add_row("failed", str(failed), f"{failed / len(lines):.1%}")
    truncated = sum(line["truncated"] for line in lines)
    console.print(table)
    if truncated:
        console.tell(f"{truncated} of {counted(len(lines), 'sample')} cut by a limit")
