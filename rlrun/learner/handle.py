# SPDX-License-Identifier: Apache-2.0
"""What a run asks of its learner, be it in this process or spread over Ray actors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from rlrun.batch import Floats, Sample
from rlrun.learner.learner import Logprobs


class Pending(Protocol):
    """Work that goes on in the background."""

    def finish(self) -> None:
        """Returns when it is done.

        Raises:
            RlrunError: It failed.
        """


class LearnerHandle(Protocol):
    """``learner.Learner`` is one, and says what each method does; calls block until it is done."""

    @property
    def device(self) -> torch.device:
        """What the learner computes on."""

    def logprobs(self, samples: Sequence[Sample]) -> Logprobs:
        """See ``Learner.logprobs``."""

    def ref_logprobs(self, samples: Sequence[Sample]) -> list[Floats] | None:
        """See ``Learner.ref_logprobs``."""

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Learner.score``."""

    def update(self, minibatches: Sequence[Sequence[Sample]], step: int) -> dict[str, float]:
        """See ``Learner.update``."""

    def peak_memory_bytes(self) -> int:
        """See ``Learner.peak_memory_bytes``."""

    def save(self, folder: Path) -> None:
        """See ``Learner.save``."""

    def save_shards(self, folder: Path) -> Pending:
        """See ``Learner.save_shards``."""

    def load(self, folder: Path) -> None:
        """See ``Learner.load``."""
