# SPDX-License-Identifier: Apache-2.0
"""The command line of `rlrun simulate`, and everything that can be wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

from rlrun.errors import Problem
from rlrun.scheduler import OnAgeLimit
from rlrun.simulate.clock import POLICIES
from rlrun.simulate.grid import Axes


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
_LARGEST = 1e12
"""Of any number, seconds and tokens alike; sums of them are exact."""


def _flag(name: str) -> str:
    return "--from" if name == "from_run" else "--" + name.replace("_", "-")


def problems_of(options: Options) -> Iterator[Problem]:
    """What is impossible about the command line, its lists of values apart."""
    values = {name: asdict(options)[name] for name in (*_POSITIVE, *_NOT_NEGATIVE)}
    for name, value in values.items():
        least = "above 0" if name in _POSITIVE else "of at least 0"
        low = value is not None and (value <= 0 if name in _POSITIVE else value < 0)
        if value is not None and (low or not value <= _LARGEST):
            what = "is out of range" if low else f"is no number of at most {_LARGEST:g}"
            yield Problem(f"{_flag(name)}={value}", what, f"Give a number {least}")
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


class AxesOfOptions:
    """Reads the lists of values; ``problems`` says what is wrong with them."""

    def __init__(self, options: Options) -> None:
        """Reads them all."""
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
            if not least <= number <= _LARGEST:
                self.problems.append(
                    Problem(
                        f"{_flag(name)}={text}",
                        f"{part!r} is no whole number from {least} to {_LARGEST:g}",
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
