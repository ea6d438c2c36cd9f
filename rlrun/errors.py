# SPDX-License-Identifier: Apache-2.0
"""The one exception tree: what happened, where, what to do, and the exit code it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RESTORE = "Restore it from a copy"
"""What to do about a file that is not as it was written."""


class RlrunError(Exception):
    """An error that a user can act on; printed as ``error: where: what. remedy``.

    Args:
        where: The file (with line), flag or part of the system that the error is about.
        what: What is wrong, with the offending value.
        remedy: What to do about it, a sentence of its own.
    """

    exit_code = 1

    def __init__(self, where: str, what: str, remedy: str = "") -> None:
        self.where, self.what, self.remedy = where, what.rstrip("."), remedy.rstrip(".")
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}."
        return f"{text} {self.remedy}." if self.remedy else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries; the default would pass one argument to three.
        return type(self), (self.where, self.what, self.remedy)


class CheckFailed(RlrunError):
    """An assertion of ``rlrun audit`` or ``rlrun nightly`` does not hold."""

    exit_code = 1


class DataError(RlrunError):
    """A data row, file or source cannot be used."""

    exit_code = 3


class NotHere(DataError):
    """A model or data set comes from elsewhere (a hub, a command) and is not on this machine."""


class EnvironmentDown(RlrunError):
    """An environment cannot be reached or started."""

    exit_code = 4


class GenerationError(RlrunError):
    """Generation, refit or progress itself failed for good.

    Attributes:
        tokens: Sampled by the call that failed, as far as that is known: gone, but to be counted.
    """

    exit_code = 5
    tokens = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"tokens": self.tokens}


class GenerationTimeout(GenerationError):
    """A request took longer than it may. The engine goes on: it is its prompt that failed."""


class TrainingError(RlrunError):
    """The numbers of training cannot be trusted: non-finite, probe mismatch, sample size."""

    exit_code = 6


class StorageError(RlrunError):
    """A run directory or checkpoint cannot be read or written."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration.

    Attributes:
        where: ``FILE:LINE`` or the flag as typed.
        what: What is wrong, naming the key and the value.
        remedy: What to write instead.
        keys: The configuration keys involved; a rule's finding about a key that already has a
            problem of its own would be an echo and is dropped.
    """

    where: str
    what: str
    remedy: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.where}: {self.what.rstrip('.')}."
        return f"{text} {self.remedy.rstrip('.')}." if self.remedy else text


class ConfigError(RlrunError):
    """Everything that is wrong with a configuration or command line, at once."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(first.where, first.what, first.remedy)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    # As above, and with other arguments than the base class takes.
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class NotInstalled(ConfigError):
    """A package that the run needs is not installed on this machine."""


class Interrupted(RlrunError):
    """A signal ended the run after its checkpoint was written.

    Args:
        signal_number: The signal; the exit code is 128 plus it (130 Ctrl-C, 143 SIGTERM).
    """

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number
        super().__init__("run", f"interrupted by signal {signal_number}", "")

    # Likewise.
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.signal_number,)
