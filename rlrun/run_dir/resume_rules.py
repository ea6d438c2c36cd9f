# SPDX-License-Identifier: Apache-2.0
"""What may be changed when a run goes on: its length from now on, and what no number depends on."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.config.schema import RunConfig
from rlrun.console.counted import counted
from rlrun.errors import ConfigError, Problem
from rlrun.prompts import PromptStream

MAY_CHANGE = ("grpo.max_num_steps", "grpo.max_num_epochs", "logging.", "cluster", "checkpointing.")
"""Keys (or their beginnings) that a resume may change: nothing that was trained depends on them."""


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuses overrides of a resume that would make it another run.

    Raises:
        ConfigError: There are such.
    """
    refused = [text for text in overrides if not text.lstrip("+").startswith(MAY_CHANGE)]
    if refused:
        allowed = ", ".join(key + "*" * key.endswith(".") for key in MAY_CHANGE)
        raise ConfigError(
            [
                Problem(text, "a resumed run keeps this setting", f"What may change: {allowed}")
                for text in refused
            ]
        )


def check_length(
    config: RunConfig, stream: PromptStream, done: int, begun: int, overrides: Sequence[str]
) -> None:
    """Refuses an end that the run has passed: what is begun or trained is not taken back.

    Args:
        config: Of the run that goes on.
        stream: Its prompts.
        done: Steps of its newest checkpoint; 0 if it has none.
        begun: Prompts that were handed out until then; an asynchronous run is ahead of its steps.
        overrides: Of the resume.

    Raises:
        ConfigError: The run is longer already.
    """
    grpo, problems = config.grpo, []
    back = "rlrun export RUN_DIR DEST --step N takes an earlier checkpoint, to start a new run from"
    if grpo.max_num_steps is not None and grpo.max_num_steps < done:
        key = f"grpo.max_num_steps={grpo.max_num_steps}"
        made = counted(done, "step")
        what = f"the run has made {made} already, and a resume takes none of them back"
        problems.append(Problem(key, what, f"Give {done} or more; {back}"))
    asked = any(text.lstrip("+").startswith("grpo.max_num_epochs=") for text in overrides)
    if asked and stream.total is not None and stream.total < begun:
        key = f"grpo.max_num_epochs={grpo.max_num_epochs}"
        what = f"the run has begun {counted(begun, 'prompt')} already, and these are {stream.total}"
        epochs = -(-begun // stream.len_per_epoch)
        problems.append(Problem(key, what, f"Give {epochs} or more; {back}"))
    if problems:
        raise ConfigError(problems)
