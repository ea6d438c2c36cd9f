# SPDX-License-Identifier: Apache-2.0
"""Finished trajectory groups between the rollouts that made them and the step that trains them.

Which of them are trained, and when, is the scheduler's decision; here they are kept, and written to
and read from checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlrun.atomic import storage_error
from rlrun.errors import StorageError
from rlrun.run_dir.json_line import parse_object
from rlrun.types import (
    Failure,
    FailureKind,
    Prompt,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    VersionSpan,
)


class ReplayBuffer:
    """Groups by the position of their prompt in the stream."""

    def __init__(self) -> None:
        self._groups: dict[int, TrajectoryGroup] = {}

    def put(self, group: TrajectoryGroup) -> None:
        """A group finished."""
        self._groups[group.prompt.position] = group

    def take(self, positions: Sequence[int]) -> list[TrajectoryGroup]:
        """Hands out the groups of a batch."""
        return [self._groups.pop(position) for position in positions]

    def get(self, position: int) -> TrajectoryGroup | None:
        """A group that waits, left where it is."""
        return self._groups.get(position)

    def discard(self, position: int) -> bool:
        """Drops a group; whether there was one."""
        return self._groups.pop(position, None) is not None

    def __len__(self) -> int:
        return len(self._groups)

    def write(self, path: Path, positions: Iterable[int]) -> None:
        """Writes these groups, a JSON line each; floats read back as the same number.

        Raises:
            OSError: The file cannot be written.
        """
        with path.open("w", encoding="utf-8") as file:
            for position in sorted(positions):
                trajectories = [asdict(t) for t in self._groups[position].trajectories]
                line = {"position": position, "trajectories": trajectories}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def read(
        self, path: Path, positions: Iterable[int], prompt_at: Callable[[int], Prompt]
    ) -> None:
        """Takes in the groups that ``write`` wrote.

        Args:
            path: The file.
            positions: What it must hold.
            prompt_at: The prompts themselves are not in the file.

        Raises:
            StorageError: The file cannot be read or holds other groups.
        """
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise storage_error(path, "read", error) from error
        for number, raw in enumerate(lines, 1):
            line = parse_object(f"{path}:{number}", raw)
            try:
                prompt = prompt_at(line["position"])
                trajectories = tuple(_trajectory(fields) for fields in line["trajectories"])
            except (LookupError, TypeError, ValueError) as error:
                what = f"is no trajectory group ({type(error).__name__}: {error})"
                raise StorageError(f"{path}:{number}", what) from error
            self.put(TrajectoryGroup(prompt, trajectories))
        if set(positions) != self._groups.keys():
            different = sorted(set(positions) ^ self._groups.keys())
            what = f"does not hold the groups that wait to be trained (position {different[0]})"
            raise StorageError(str(path), what, "Resume from an earlier checkpoint")


def _trajectory(fields: dict[str, Any]) -> Trajectory:
    failure = fields["failure"]
    if failure is not None:
        failure = Failure(FailureKind(failure["kind"]), failure["message"])
    return Trajectory(
        **{
            **fields,
            "token_ids": tuple(fields["token_ids"]),
            "loss_mask": tuple(fields["loss_mask"]),
            "generation_logprobs": tuple(fields["generation_logprobs"]),
            "weight_versions": tuple(VersionSpan(**span) for span in fields["weight_versions"]),
            "stop_reason": StopReason(fields["stop_reason"]),
            "failure": failure,
        }
    )
