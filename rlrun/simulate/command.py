# SPDX-License-Identifier: Apache-2.0
"""`rlrun simulate`: checks the command line, simulates the grid, writes the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.atomic import write_file
from rlrun.errors import ConfigError, Problem
from rlrun.scheduler import OnAgeLimit
from rlrun.simulate import render
from rlrun.simulate.clock import POLICIES
from rlrun.simulate.grid import Axes, Row, advise, run_grid, run_synchronous, try_splits
from rlrun.simulate.plot import svg
from rlrun.simulate.workload import Costs, Lengths, LogNormalLengths, RecordedLengths, Workload

if TYPE_CHECKING:
    from rlrun.simulate.from_run import Recorded

_TOKENS_OF_MEAN_SECONDS = 1000
"""Where only seconds are given, this many tokens stand for the mean: the grain of the clock."""
_LOG_SD, _PROMPT_CORRELATION = 0.5, 0.5
_PROMPTS_PER_STEP, _SAMPLES_PER_PROMPT = 32, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line; None where a flag was not given. Flags are named as the fields."""

    from_run: Path | None
    mean_seconds: float | None
    train_seconds: float | None
    mean_tokens: float | None
    max_tokens: int | None
    samples_per_prompt: int | None
    sequence_rate: float | None
    half_speed_at: float | None
    max_sequences: int | None
    train_rate: float | None
    log_sd: float | None
    prompt_correlation: float | None
    prompts_per_step: int | None
    gpus: int | None
    generating_gpus: str | None
    refit_seconds: float | None
    validation_seconds: float | None
    validation_period: int | None
    age: str
    in_flight: str
    batching: str
    on_age_limit: str
    max_expiries: int
    in_flight_weight_updates: bool
    steps: int
    seed: int


def simulate_command(options: Options, *, as_json: bool, plot: Path | None) -> str:
    """The answer as text or JSON; the picture, if one is asked for, is written to ``plot``.

    Raises:
        ConfigError: The command line says something impossible; all of it at once.
        StorageError: The run cannot be read, or the picture not be written.
    """
    problems = list(_problems(options))
    axes_found = _Axes(options)
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


# --- what is simulated ----------------------------------------------------------------------------


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


# --- what can be wrong ----------------------------------------------------------------------------

_POSITIVE = (
    "mean_seconds",
    "train_seconds",
    "mean_tokens",
    "max_tokens",
    "samples_per_prompt",
    "sequence_rate",
    "half_speed_at",
    "max_sequences",
    "train_rate",
    "prompts_per_step",
    "validation_seconds",
    "validation_period",
    "steps",
)
_NOT_NEGATIVE = ("log_sd", "refit_seconds", "max_expiries", "seed")
_OF_SECONDS = ("train_seconds",)
_OF_TOKENS = (
    "max_tokens",
    "samples_per_prompt",
    "sequence_rate",
    "half_speed_at",
    "max_sequences",
    "train_rate",
    "gpus",
)
_OF_DISTRIBUTIONS = ("log_sd", "prompt_correlation", "samples_per_prompt", "max_tokens")
_SOURCES = ("from_run", "mean_seconds", "mean_tokens")
_LARGEST_LOG_SD = 5.0


def _flag(name: str) -> str:
    return "--from" if name == "from_run" else "--" + name.replace("_", "-")


def _problems(options: Options) -> Iterator[Problem]:
    values = {name: asdict(options)[name] for name in (*_POSITIVE, *_NOT_NEGATIVE)}
    for name, value in values.items():
        least = "above 0" if name in _POSITIVE else "of at least 0"
        low = value is not None and (value <= 0 if name in _POSITIVE else value < 0)
        if value is not None and (low or not math.isfinite(value)):
            yield Problem(f"{_flag(name)}={value}", "is out of range", f"Give a number {least}")
    if options.log_sd is not None and options.log_sd > _LARGEST_LOG_SD:
        yield Problem(
            f"--log-sd={options.log_sd}",
            "is out of range: lengths would differ by many powers of ten",
            f"Give at most {_LARGEST_LOG_SD:g}; 1 is a heavy tail",
        )
    correlation = options.prompt_correlation
    if correlation is not None and not 0 <= correlation <= 1:
        yield Problem(f"--prompt-correlation={correlation}", "is out of range", "Give 0 to 1")
    if options.gpus is not None and options.gpus < 2:
        yield Problem(
            f"--gpus={options.gpus}",
            "cannot be shared out between generation and training",
            "Give at least 2, or leave it out for a machine of its own for each",
        )
    yield from _source_problems(options)
    if (options.validation_seconds is None) != (options.validation_period is None):
        yield Problem(
            "--validation-seconds, --validation-period", "only one is given", "Give both or none"
        )


def _source_problems(options: Options) -> Iterator[Problem]:
    given = {name for name, value in asdict(options).items() if value is not None}
    sources = [name for name in _SOURCES if name in given]
    if len(sources) != 1:
        what = "are given together" if sources else "are missing: nothing says what to simulate"
        remedy = "Give exactly one: a run, seconds per group, or tokens per answer"
        yield Problem("--from, --mean-seconds, --mean-tokens", what, remedy)
        return
    source = sources[0]
    useless: tuple[str, ...] = {
        "from_run": (*_OF_DISTRIBUTIONS, *_OF_SECONDS),
        "mean_seconds": _OF_TOKENS,
        "mean_tokens": _OF_SECONDS,
    }[source]
    for name in useless:
        if name in given:
            yield Problem(_flag(name), f"has no effect with {_flag(source)}", "Leave it out")
    needed = {"mean_seconds": ("train_seconds",), "mean_tokens": ("sequence_rate", "train_rate")}
    for name in needed.get(source, ()):
        if name not in given:
            yield Problem(_flag(name), f"is missing; {_flag(source)} needs it", "Give it")
    rates = given & {"half_speed_at", "max_sequences"}
    if "half_speed_at" in given and "sequence_rate" not in given and source != "mean_seconds":
        yield Problem("--half-speed-at", "has no effect without --sequence-rate", "Give both")
    if "gpus" in given and "sequence_rate" in given and not rates:
        yield Problem(
            "--gpus",
            "cannot be shared out: without --half-speed-at or --max-sequences one GPU generates "
            "as fast as any number",
            "Give --half-speed-at, the sequences on a GPU at which each has half its speed",
        )


class _Axes:
    """Reads the lists of values; ``problems`` says what is wrong with them."""

    def __init__(self, options: Options) -> None:
        self.problems: list[Problem] = []
        self._options = options
        self._ages = self._numbers("age", options.age, least=1)
        self._in_flight = self._numbers("in_flight", options.in_flight, least=1)
        self._batching = self._names("batching", options.batching, list(POLICIES))
        limits = [limit.value for limit in OnAgeLimit]
        self._limits = self._names("on_age_limit", options.on_age_limit, limits)
        self._generating_gpus: list[int | None] = [None]
        if options.generating_gpus is not None:
            self._read_generating_gpus(options.generating_gpus)
        if self._ages and self._in_flight and min(self._in_flight) > max(self._ages):
            self.problems.append(
                Problem(
                    f"--in-flight={options.in_flight}",
                    f"no value is within an age of --age={options.age}",
                    "Give at most as many batches in flight as steps of age",
                )
            )

    def axes(self) -> Axes:
        """The grid."""
        return Axes(
            ages=self._ages,
            in_flight=self._in_flight,
            batching=self._batching,
            on_age_limit=[OnAgeLimit(name) for name in self._limits],
            generating_gpus=self._generating_gpus,
            in_flight_updates=self._options.in_flight_weight_updates,
        )

    def _read_generating_gpus(self, text: str) -> None:
        gpus = self._options.gpus
        if gpus is None:
            where, what = "--generating-gpus", "has no effect without --gpus"
            self.problems.append(Problem(where, what, "Give --gpus, or leave it out"))
            return
        numbers = self._numbers("generating_gpus", text, least=1)
        if numbers and max(numbers) >= gpus:
            self.problems.append(
                Problem(
                    f"--generating-gpus={text}",
                    f"leaves none of --gpus={gpus} to train",
                    f"Give numbers from 1 to {max(1, gpus - 1)}",
                )
            )
        self._generating_gpus = list(numbers)

    def _numbers(self, name: str, text: str, least: int) -> list[int]:
        found = []
        for part in text.split(","):
            try:
                number = int(part)
            except ValueError:
                number = least - 1
            if number < least:
                self.problems.append(
                    Problem(
                        f"{_flag(name)}={text}",
                        f"{part!r} is no whole number of at least {least}",
                        "Give numbers with commas between them, such as 1,2,4",
                    )
                )
                continue
            found.append(number)
        return sorted(set(found))

    def _names(self, name: str, text: str, known: list[str]) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for unknown in [given for given in names if given not in known]:
            self.problems.append(
                Problem(
                    f"{_flag(name)}={text}",
                    f"there is no {unknown!r}; did you mean {_nearest(unknown, known)}",
                    f"Give some of {', '.join(known)} with commas between them",
                )
            )
        return names


def _nearest(word: str, known: list[str]) -> str:
    return get_close_matches(word, known, n=1, cutoff=0)[0]
