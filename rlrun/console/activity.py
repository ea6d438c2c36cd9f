# SPDX-License-Identifier: Apache-2.0
"""What a run does at this moment, for whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.console.counted import counted
from rlrun.console.terminal import columns, cut

CAUSE_WORDS = {"waiting_groups": "groups", "age_limit": "the age limit", "pause": "running groups"}
"""What the trainer waits for, by cause as the metrics name it."""

_DOING = {
    "wait/waiting_groups": "waits for groups",
    "wait/age_limit": "waits at the age limit",
    "wait/pause": "waits for running groups before a refit",
    "logprobs": "computes log-probs",
    "update": "updates",
    "refit": "brings new weights to the generators",
    "validation": "validates",
    "save": "saves a checkpoint",
}

_SHORT_ID = 20


def short_id(prompt_id: str, most: int) -> str:
    """Of a long identity the end, which tells prompts apart, in at most so many characters."""
    return prompt_id if len(prompt_id) <= most else f"..{prompt_id[2 - most :]}"


@dataclass(frozen=True, slots=True)
class Oldest:
    """The rollout that has been running longest.

    Attributes:
        prompt_id: Its prompt, in visible characters.
        environment: Name of its environment or agent, likewise; "" if unknown.
        seconds: Since it was started.
    """

    prompt_id: str
    environment: str
    seconds: float

    def short(self) -> str:
        """In few characters: of a long identity the end, which tells prompts apart."""
        return f"{short_id(self.prompt_id, _SHORT_ID)} {self.seconds:.0f}s"

    def text(self) -> str:
        """In a few words."""
        environment = f", env {self.environment}" if self.environment else ""
        return f"prompt {self.prompt_id}{environment}, {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Activity:
    """What trainer and rollouts do.

    Attributes:
        doing: What the trainer does, as the timeline names it; "" for anything else.
        seconds: For how long already.
        running: Groups that are being rolled out.
        ready: Groups that wait to be trained.
        needed: Groups that the next step needs.
        oldest: None if nothing is running.
    """

    doing: str
    seconds: float
    running: int
    ready: int
    needed: int
    oldest: Oldest | None

    def trainer(self) -> str:
        """What the trainer does, in words."""
        doing = _DOING.get(self.doing, "prepares, records or logs")
        if self.doing == "wait/waiting_groups":
            doing += f", {self.ready} of {self.needed} ready"
        return f"trainer {doing}, {self.seconds:.0f} s"

    def rollouts(self, width: int) -> str:
        """What is being rolled out, in at most so many columns; the oldest rollout first."""
        counts = f"{counted(self.running, 'group')} running, {self.ready} ready"
        if self.oldest is None:
            return cut(f"rollouts: {counts}", width)
        for line in (
            f"oldest running: {self.oldest.text()}; {counts}",
            f"oldest running: {self.oldest.text()}",
            f"oldest running: {self.oldest.short()}; {counts}",
        ):
            if columns(line) <= width:
                return line
        return cut(f"oldest: {self.oldest.short()}", width)
