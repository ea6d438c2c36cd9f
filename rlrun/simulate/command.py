# SPDX-License-Identifier: Apache-2.0
"""`rlrun simulate`: makes the workload, simulates the grid, writes the answer."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.atomic import write_file
from rlrun.errors import ConfigError, Problem
from rlrun.simulate import render
from rlrun.simulate.grid import Row, advise, run_grid, run_synchronous, try_splits
from rlrun.simulate.options import AxesOfOptions, Options, problems_of
from rlrun.simulate.plot import svg
from rlrun.simulate.workload import Costs, Lengths, LogNormalLengths, RecordedLengths, Workload

if TYPE_CHECKING:
    from rlrun.simulate.from_run import Recorded

_TOKENS_OF_MEAN_SECONDS = 1000
"""Where only seconds are given, this many tokens stand for the mean: the grain of the clock."""
_LOG_SD, _PROMPT_CORRELATION = 0.5, 0.5
_PROMPTS_PER_STEP, _SAMPLES_PER_PROMPT = 32, 8


def simulate_command(options: Options, *, as_json: bool, plot: Path | None) -> str:
    """The answer as text or JSON; the picture, if one is asked for, is written to ``plot``.

    Raises:
        ConfigError: The command line says something impossible; all of it at once.
        StorageError: The run cannot be read, or the picture not be written.
    """
    problems = list(problems_of(options))
    axes_found = AxesOfOptions(options)
    problems += axes_found.problems
    if problems:
        raise ConfigError(problems)
    workload = make_workload(options)
    synchronous = run_synchronous(workload, options.steps)
    axes = axes_found.axes()
    tried: list[Row] = []
    if options.generating_gpus is None:
        tried = try_splits(workload, axes, synchronous, options.steps)
        if tried:
            best = max(tried, key=lambda row: row.speedup)
            axes = replace(axes, generating_gpus=[best.plan.generating_gpus])
    rows = run_grid(workload, axes, synchronous, options.steps)
    advice = advise(rows, axes.on_age_limit[0])
    if plot is not None:
        write_file(plot, svg(rows, synchronous, advice.row))
    if not as_json:
        return render.text(rows, tried, synchronous, advice, shared=workload.gpus is not None)
    known = {
        "prompts_per_step": workload.prompts_per_step,
        "samples_per_prompt": workload.lengths.samples,
        "gpus": workload.gpus,
        "costs": asdict(workload.costs),
    }
    found = {"workload": known, **render.to_json(rows, tried, synchronous, advice)}
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False)


def make_workload(options: Options) -> Workload:
    """The workload that a checked command line, or the run that it names, describes.

    Raises:
        ConfigError: The run does not say what it would have to.
        StorageError: The run cannot be read.
    """
    recorded = None
    if options.from_run is not None:
        # Reading metrics imports TensorBoard's writer, which nothing else here needs.
        from rlrun.simulate.from_run import read_run

        recorded = read_run(options.from_run)
    prompts = options.prompts_per_step or (
        _PROMPTS_PER_STEP if recorded is None else recorded.prompts_per_step
    )
    return Workload(
        prompts_per_step=prompts,
        lengths=_lengths(options, recorded),
        costs=_seconds_costs(options)
        if recorded is None and options.mean_seconds
        else _token_costs(options, recorded),
        gpus=options.gpus,
        max_expiries=options.max_expiries,
    )


def _lengths(options: Options, recorded: Recorded | None) -> Lengths:
    if recorded is not None:
        return RecordedLengths(groups=recorded.groups, seed=options.seed)
    in_seconds = options.mean_seconds is not None
    correlation = options.prompt_correlation
    return LogNormalLengths(
        mean=_TOKENS_OF_MEAN_SECONDS if options.mean_tokens is None else options.mean_tokens,
        log_sd=_LOG_SD if options.log_sd is None else options.log_sd,
        cap=options.max_tokens,
        samples=1 if in_seconds else options.samples_per_prompt or _SAMPLES_PER_PROMPT,
        prompt_correlation=_PROMPT_CORRELATION if correlation is None else correlation,
        seed=options.seed,
    )


def _seconds_costs(options: Options) -> Costs:
    assert options.mean_seconds is not None and options.train_seconds is not None
    return Costs(
        sequence_s=options.mean_seconds / _TOKENS_OF_MEAN_SECONDS,
        saturated_s=0.0,
        max_sequences=None,
        train_step_s=options.train_seconds,
        train_token_s=0.0,
        refit_s=options.refit_seconds or 0.0,
        validation_s=options.validation_seconds or 0.0,
        validation_period=options.validation_period,
    )


def _token_costs(options: Options, recorded: Recorded | None) -> Costs:
    sequence_s, saturated_s = _rates(options, recorded)
    refit = options.refit_seconds
    if refit is None:
        refit = 0.0 if recorded is None else recorded.refit_s
    return Costs(
        sequence_s=sequence_s,
        saturated_s=saturated_s,
        max_sequences=options.max_sequences,
        train_step_s=0.0,
        train_token_s=_train_token_s(options, recorded),
        refit_s=refit,
        validation_s=options.validation_seconds or 0.0,
        validation_period=options.validation_period,
    )


def _rates(options: Options, recorded: Recorded | None) -> tuple[float, float]:
    if options.sequence_rate is not None:
        alone = 1 / options.sequence_rate
        return alone, 0.0 if options.half_speed_at is None else alone / options.half_speed_at
    assert recorded is not None
    if not recorded.generation:
        raise _unknown(
            options,
            "the run does not say how long generation alone takes (it is asynchronous, or has no "
            "perf/generation_s)",
            "Give --sequence-rate and --half-speed-at, or a run with grpo=sync",
        )
    from rlrun.simulate.from_run import fit_rates

    sequence_s, saturated_s = fit_rates(recorded.generation)
    if options.gpus is None:
        return sequence_s, saturated_s
    if not saturated_s:
        raise _unknown(
            options,
            "generation in this run did not depend on the number of tokens, so nothing says what "
            "fewer GPUs would do",
            "Give --sequence-rate and --half-speed-at, or leave out --gpus",
        )
    return sequence_s, saturated_s * options.gpus


def _train_token_s(options: Options, recorded: Recorded | None) -> float:
    if options.train_rate is not None:
        return 1 / options.train_rate
    assert recorded is not None
    if recorded.train_token_s is None:
        raise _unknown(
            options,
            "the run does not say how long training takes (no step has perf/logprobs_s and "
            "perf/update_s)",
            "Give --train-rate",
        )
    return recorded.train_token_s * (options.gpus or 1)


def _unknown(options: Options, what: str, remedy: str) -> ConfigError:
    return ConfigError([Problem(f"--from {options.from_run}", what, remedy)])
