# SPDX-License-Identifier: Apache-2.0
"""``rlrun score``: rewards of stored responses by any environment, line by line.

Input lines hold "response" and the reference as "gold" or "answer", or belong to a run whose data
has the answer (rlrun/evaluation/stored.py). All other fields
reach the environment as the row's payload. The file is read as a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rlrun.console.counted import counted
from rlrun.data.bad_row import BadRow
from rlrun.data.gym_rows import GYM_FIELD
from rlrun.data.load import SHOWN_PROBLEMS
from rlrun.data.row_reader import NumberText, answer_text
from rlrun.env.verifier import VerifyingEnv
from rlrun.errors import ConfigError, DataError, Problem
from rlrun.interfaces import Env, Environment, Episode, GroupEnvironment
from rlrun.strict_json import NameTwice, read_json
from rlrun.types import EnvStep, Prompt, Row, StopReason

_WINDOW = 64
"""Rows in progress at once."""


class _BadLine(DataError):
    """A line that is not a row."""


@dataclass(slots=True)
class _BadLines:
    """All of a file; the first SHOWN_PROBLEMS of them are told one by one."""

    count: int = 0
    first: list[_BadLine] = field(default_factory=list)

    def add(self, line: _BadLine) -> None:
        self.count += 1
        if self.count <= SHOWN_PROBLEMS:
            self.first.append(line)

    def refusal(self, path: Path) -> DataError:
        """What they come to; one alone speaks for itself."""
        if self.count == 1:
            return self.first[0]
        listed = "".join(f"\n  {line}" for line in self.first)
        if self.count > len(self.first):
            listed += f"\n  ... and {self.count - len(self.first)} more"
        what = f"{self.count} lines are not rows, and nothing behind the first of them is scored"
        return DataError(str(path), what, f"Correct them:{listed}")


@dataclass(slots=True)
class Counts:
    """What a scored file held; its text is one line for people.

    Attributes:
        rows: Lines scored.
        reward_sum: Over the rows with a reward.
        failed: Rows without a reward.
        limited: Rows whose answer made the verifier hit its limit (reward 0).
    """

    rows: int = 0
    reward_sum: float = 0.0
    failed: int = 0
    limited: int = 0

    def __str__(self) -> str:
        scored = self.rows - self.failed
        mean = f", mean reward {self.reward_sum / scored:.4f}" if scored else ""
        return (
            f"{counted(self.rows, 'row')}{mean}, {self.failed} without a reward, "
            f"{self.limited} at the verifier's limit"
        )


def score_file(
    path: Path, env: Env, out: TextIO, answers: Mapping[str, str] | None = None
) -> Counts:
    """Scores every line and writes {"id", "reward", "extracted", "error"} in input order.

    Args:
        path: The file.
        env: What scores.
        out: Where to.
        answers: Reference answers by prompt_id, for lines that carry none.

    Raises:
        DataError: The file cannot be read, or lines of it are not rows: says which. What comes
            before the first of them is written, and nothing behind it is scored.
        ConfigError: The environment scores groups only.
    """
    with contextlib.redirect_stdout(sys.stderr):  # what user code prints is not a result
        return asyncio.run(_score(path, env, out, answers or {}))


async def _score(path: Path, env: Env, out: TextIO, answers: Mapping[str, str]) -> Counts:
    counts = Counts()
    environment = env.start()
    if isinstance(environment, GroupEnvironment):
        what = "the function scores the samples of a prompt together, and a line is one answer"
        remedy = "Name a function of response and answer"
        raise ConfigError([Problem("env.reward_function", what, remedy)])
    await _open(environment)
    pending: deque[tuple[object, asyncio.Task[EnvStep]]] = deque()
    bad = _BadLines()
    try:
        for read in _episodes(path, env, answers):
            if isinstance(read, _BadLine):
                # Before the rest is read, which leaves what is being scored no time.
                await _write_all(pending, out, counts)
                bad.add(read)
            elif not bad.count:
                if len(pending) >= _WINDOW:
                    await _write_first(pending, out, counts)
                identity, episode = read
                pending.append((identity, asyncio.create_task(environment.step(episode))))
                await asyncio.sleep(0)
        await _write_all(pending, out, counts)
        if bad.count:
            raise bad.refusal(path)
    except DataError:
        await _write_all(pending, out, counts)
        raise
    finally:
        await _end(pending, environment)
    return counts


async def _open(environment: Environment) -> None:
    """Opens an environment that scores only; one that does not open is closed."""
    try:
        await environment.open(None)
    except BaseException:
        await environment.close()
        raise


async def _end(
    pending: deque[tuple[object, asyncio.Task[EnvStep]]], environment: Environment
) -> None:
    for _, task in pending:
        task.cancel()
    await asyncio.gather(*(task for _, task in pending), return_exceptions=True)
    await environment.close()


async def _write_all(
    pending: deque[tuple[object, asyncio.Task[EnvStep]]], out: TextIO, counts: Counts
) -> None:
    while pending:
        await _write_first(pending, out, counts)


async def _write_first(
    pending: deque[tuple[object, asyncio.Task[EnvStep]]], out: TextIO, counts: Counts
) -> None:
    identity, task = pending[0]
    step = await task
    pending.popleft()
    error = None
    if step.failure is not None:
        error = step.failure.message
    elif step.reward is None:
        error = "the response ends in a call to the environment, not in an answer"
    elif step.verifier_timeout:
        error = "the answer made the verifier hit its limit"
    counts.rows += 1
    counts.failed += step.reward is None
    counts.limited += step.verifier_timeout
    counts.reward_sum += step.reward or 0.0
    fields = {
        "id": identity,
        "reward": step.reward,
        "extracted": step.extracted,
        "error": error,
    }
    out.write(json.dumps(fields) + "\n")


def _episodes(
    path: Path, env: Env, answers: Mapping[str, str]
) -> Iterator[tuple[object, Episode] | _BadLine]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield _read_line(line, f"{path}:{number}", number, env, answers)
    except OSError as problem:
        raise DataError(
            str(path), f"cannot be read: {problem.strerror}", "Check the path"
        ) from problem


def _read_line(
    line: bytes, where: str, number: int, env: Env, answers: Mapping[str, str]
) -> tuple[object, Episode] | _BadLine:
    try:
        return _episode(line, where, number, env, answers)
    except _BadLine as bad:
        return bad


def _fields(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = read_json(line, only_finite=True)
    except NameTwice as problem:
        raise _BadLine(where, str(problem), "Give it once") from problem
    except (ValueError, RecursionError) as problem:
        raise _BadLine(where, f"not JSON: {problem}", "Give one JSON object per line") from problem
    if not isinstance(fields, dict):
        raise _BadLine(where, "not a JSON object", "Give one JSON object per line")
    return fields


def _episode(
    line: bytes, where: str, number: int, env: Env, answers: Mapping[str, str]
) -> tuple[object, Episode]:
    fields = _fields(line, where)
    if "gold" not in fields and "answer" not in fields and _prompt_id(fields) in answers:
        fields["gold"] = answers[fields["prompt_id"]]
    stored = fields.get("response")
    # A rollout of NeMo Gym; its verifier is given the whole of it.
    is_gym = isinstance(stored, dict) and GYM_FIELD in fields
    response = "" if is_gym else stored
    if not isinstance(response, str):
        shown = f"response={json.dumps(response):.80} is not a text"
        what = shown if "response" in fields else 'there is no "response"'
        raise _BadLine(where, what, "Give the text to score")
    gold = fields.get("gold", fields.get("answer", ""))
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        what = f"gold={json.dumps(gold):.80} is not a text"
        raise _BadLine(where, what, "Give the reference answer")
    left_out = ("gold",) if is_gym else ("response", "gold")
    payload = {key: value for key, value in fields.items() if key not in left_out}
    if isinstance(gold, float):
        gold = _as_in_data(line, "gold" if "gold" in fields else "answer", where)
    row = Row(str(number), (), str(gold), payload, where)
    given = "gold" in fields or "answer" in fields
    # A verifier says of each line whether it can read the reference; a line cannot lack more.
    problem = None if given and isinstance(env, VerifyingEnv) else env.check_row(row)
    if problem is not None:
        lacks = not given and not is_gym
        raise _BadLine(where, problem, 'Add the reference answer as "gold"' if lacks else "")
    episode = Episode(
        prompt=Prompt(position=number - 1, epoch=0, row=row, token_ids=()),
        sample_index=0,
        messages=({"role": "assistant", "content": response},),
        response=response,
        turn=1,
        stop_reason=StopReason.STOP,
    )
    return _identity(fields, number), episode


def _as_in_data(line: bytes, field: str, where: str) -> str:
    """The reference answer as a data row of this number has it: its digits, without exponent."""
    try:
        return answer_text(json.loads(line, parse_float=NumberText)[field], field)
    except BadRow as problem:
        raise _BadLine(where, str(problem), "Write it as a text") from problem


def _prompt_id(fields: Mapping[str, Any]) -> str:
    value = fields.get("prompt_id")
    return value if isinstance(value, str) else ""


def _identity(fields: dict[str, Any], number: int) -> object:
    """The row's id; of a stored rollout, its group or prompt and sample; else the line number."""
    if "id" in fields:
        return fields["id"]
    for key in ("group_id", "prompt_id"):
        if key in fields:
            sample = fields.get("sample_index")
            return fields[key] if sample is None else f"{fields[key]}/{sample}"
    return number
