# SPDX-License-Identifier: Apache-2.0
"""The learner over Ray actors: the handle that the run has of all ranks."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
import torch

from rlrun.batch import Floats, Sample
from rlrun.cluster.ray_rank import RankActor
from rlrun.cluster.ray_runtime import Runtime, end_actor, has_died, original
from rlrun.config.schema import RunConfig
from rlrun.errors import RlrunError, TrainingError
from rlrun.learner.learner import Logprobs

log = logging.getLogger(__name__)

POLL_S = 0.2

GRACE_S = 10.0
"""After the first failure of a rank: how long the others may take to fail too. What they say then
is that they lost a neighbour, and the one to be named may be among them."""


class RayLearner:
    """All ranks as one learner (see ``LearnerHandle``)."""

    def __init__(self, runtime: Runtime, config: RunConfig, folder: Path) -> None:
        """Starts the ranks and loads the policy.

        Raises:
            EnvironmentDown: Ray does not start them.
            RlrunError: What loading raises.
        """
        cluster: Any = config.cluster
        self.device = torch.device("cuda" if cluster.gpus_per_node > 0 else "cpu")
        self._has_reference = config.loss.reference_policy_kl_penalty > 0
        self._lock = threading.Lock()
        self._folder, self._runtime = folder, runtime
        self._ranks: list[Any] = []
        try:
            for rank, seat in enumerate(runtime.plan.ranks):
                arguments = (config, rank, folder.absolute(), os.getcwd())
                self._ranks.append(runtime.start_actor(RankActor, seat, *arguments))
            self.places = [
                runtime.find(self._name(rank), actor) for rank, actor in enumerate(self._ranks)
            ]
            for rank, place in enumerate(self.places):
                log.info("%s: %s", self._name(rank), place)
            meeting_point = self._results([self._ranks[0].meeting_point.remote()])[0]
            self._call("load", meeting_point)
        except BaseException:
            self.close()
            raise

    def logprobs(self, samples: Sequence[Sample]) -> Logprobs:
        """See ``Learner.logprobs``."""
        found: Logprobs = self._call("logprobs", ray.put(list(samples)))
        return found

    def ref_logprobs(self, samples: Sequence[Sample]) -> list[Floats] | None:
        """See ``Learner.ref_logprobs``."""
        if not self._has_reference:
            return None
        found: list[Floats] = self._call("ref_logprobs", ray.put(list(samples)))
        return found

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Learner.score``."""
        found: list[float] = self._call("score", tuple(token_ids))
        return found

    def update(self, minibatches: Sequence[Sequence[Sample]], step: int) -> dict[str, float]:
        """See ``Learner.update``."""
        metrics: dict[str, float] = self._call("update", ray.put(list(minibatches)), step)
        return metrics

    def peak_memory_bytes(self) -> int:
        """See ``Learner.peak_memory_bytes``; of the rank that needed most."""
        peaks: list[int] = self._answers("peak_memory_bytes")
        return max(peaks)

    def save(self, folder: Path) -> None:
        """See ``Learner.save``; the first rank writes, wherever it is."""
        self._call("save", folder.absolute())

    def save_shards(self, folder: Path) -> RanksSave:
        """See ``Learner.save_shards``; each rank writes its part, wherever it is."""
        self._call("save_shards", folder.absolute())
        return RanksSave(self)

    def all_saved(self) -> bool:
        """Whether every rank has written what ``save_shards`` began."""
        return all(self._answers("saved"))

    def load(self, folder: Path) -> None:
        """See ``Learner.load``."""
        self._call("load_checkpoint", folder.absolute())

    def put_weights(self) -> Any:
        """A reference to the present weights in the object store, packed.

        It is good as long as the ranks live.
        """
        references: list[Any] = self._call("put_weights")
        return references[0]

    def close(self) -> None:
        """Ends the ranks. May be called twice."""
        for actor in self._ranks:
            end_actor(actor)
        self._ranks = []

    def _call(self, method: str, *arguments: Any) -> Any:
        """The first rank's answer; all ranks do their part."""
        return self._answers(method, *arguments)[0]

    def _answers(self, method: str, *arguments: Any) -> list[Any]:
        """What every rank returns, in order."""
        # Collective operations must meet in the same order on every rank.
        with self._lock:
            calls = [getattr(actor, method).remote(*arguments) for actor in self._ranks]
        return self._results(calls)

    def _results(self, calls: list[Any]) -> list[Any]:
        """What the calls return, in order.

        Raises:
            RlrunError: What a rank raised, or TrainingError for one that died.
        """
        failures: dict[int, BaseException] = {}
        results: dict[int, Any] = {}
        for rank, call in _as_they_end(calls, lambda: GRACE_S if failures else None):
            try:
                results[rank] = ray.get(call)
            except ray.exceptions.RayError as error:
                failures[rank] = error
        if failures:
            raise self._first_cause(failures)
        return [results[rank] for rank in range(len(calls))]

    def _first_cause(self, failures: dict[int, BaseException]) -> BaseException:
        """One rank that fails takes the others with it; only the first has something to say."""
        raised = {
            rank: original(error)
            for rank, error in sorted(failures.items())
            if isinstance(error, ray.exceptions.RayTaskError)
        }
        for cause in raised.values():
            if isinstance(cause, RlrunError):
                return cause
        for rank, error in sorted(failures.items()):
            if has_died(error):
                log.info("%s", error)
                return TrainingError(
                    self._name(rank),
                    f"its process ({self.places[rank]}) died",
                    f"rlrun resume {self._folder} goes on from the newest checkpoint; if nobody "
                    f"killed it, memory is the likely cause. {self._runtime.logs()}",
                )
        return next(iter(raised.values()), next(iter(failures.values())))

    def _name(self, rank: int) -> str:
        return f"learner rank {rank} of {len(self._ranks)}"


class RanksSave:
    """A save that goes on in all ranks."""

    def __init__(self, learner: RayLearner) -> None:
        """Of what ``save_shards`` of the learner began last."""
        self._learner = learner

    def finish(self) -> None:
        """Asks until all ranks are done; each answers between two calls of the training.

        Raises:
            RlrunError: A rank could not write, or died.
        """
        while not self._learner.all_saved():
            time.sleep(POLL_S)


def _as_they_end(calls: list[Any], patience: Any) -> Iterator[tuple[int, Any]]:
    """Index and call, whichever is done first; ends early when patience does.

    Args:
        calls: References.
        patience: Asked before each wait; seconds, or None for any time.
    """
    number = {call: rank for rank, call in enumerate(calls)}
    waiting = list(calls)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=patience(), fetch_local=False)
        if not done:
            return
        yield number[done[0]], done[0]
