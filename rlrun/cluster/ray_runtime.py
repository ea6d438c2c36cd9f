# SPDX-License-Identifier: Apache-2.0
"""Ray itself: joining or starting it, reserving places, starting Ray actors, reading its errors."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import rlrun
from rlrun.cluster.placement import Node, Plan, Seat, plan, shortage
from rlrun.cluster.ray_session import LOGS, Session
from rlrun.errors import ConfigError, EnvironmentDown, Problem
from rlrun.process.machine import available_cores

if TYPE_CHECKING:
    from rlrun.cluster.ray import RayCluster

log = logging.getLogger(__name__)

_ROOT = Path(rlrun.__file__).resolve().parent.parent
PASSED_ON = ("HF_", "TRANSFORMERS_", "TORCH_", "NCCL_", "GLOO_")
"""Beginnings of the environment variables that Ray actors get from the process of the run."""

SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
"""Words in the names of variables that hold what nobody else is to know."""

SERVERS_CPUS = 1
"""Of a Ray of this machine's own, beyond its cores: a run may reserve all of them, and verifiers of
an environment's servers that join the cluster could then never begin."""

REACH_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a Ray actor runs."""

    pid: int
    ip: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.ip}"


def whereabouts() -> Whereabouts:
    """Of the calling process."""
    return Whereabouts(os.getpid(), ray.util.get_node_ip_address())


class Runtime:
    """A connection to Ray, with places that are reserved for this run."""

    def __init__(self, settings: RayCluster) -> None:
        """Joins or starts Ray and waits for the places.

        Raises:
            ConfigError: The cluster is too small.
            EnvironmentDown: It cannot be joined, or does not give the places.
        """
        self.plan: Plan = plan(settings.demand)
        self._timeout_s = settings.start_timeout_s
        self._group: Any = None
        if settings.address is None:
            # Known without Ray, which takes seconds to start.
            _check(settings, [Node(available_cores(), torch.cuda.device_count())])
        self._session = _connect(settings.address)
        try:
            _check(settings, _nodes())
            self._group = _reserve(self.plan, settings.start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Under which others can join the cluster."""
        return str(ray.get_runtime_context().gcs_address)

    def logs(self) -> str:
        """Where Ray's logs are, for whoever reads an error."""
        return LOGS if self._session is None else self._session.logs()

    def start_actor(self, cls: type, seat: Seat, *args: Any, **options: Any) -> Any:
        """A handle of a new Ray actor of a class; errors of its constructor come with its calls."""
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=seat.node
        )
        remote = ray.remote(
            num_cpus=seat.cpus, num_gpus=seat.gpus, scheduling_strategy=strategy, **options
        )(cls)
        return remote.remote(*args)

    def find(self, who: str, actor: Any) -> Whereabouts:
        """Where a Ray actor runs; waits until it does.

        Raises:
            EnvironmentDown: It does not start in time.
        """
        try:
            found: Whereabouts = ray.get(actor.whereabouts.remote(), timeout=self._timeout_s)
        except GetTimeoutError:
            what = f"Ray did not start it within {self._timeout_s:g} s"
            remedy = f"Raise cluster.start_timeout_s. {self.logs()}"
            raise EnvironmentDown(who, what, remedy) from None
        except RayTaskError as error:
            raise original(error) from None
        except RayError as error:
            log.info("%s does not start", who, exc_info=error)
            what = f"Ray cannot start it: {_first_line(error)}"
            remedy = f"Each machine needs the same Python and rlrun. {self.logs()}"
            raise EnvironmentDown(who, what, remedy) from None
        return found

    def close(self) -> None:
        """Gives the places back; ends Ray if it was started here."""
        if not ray.is_initialized():
            return
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        with _own_signals():
            ray.shutdown()
        if self._session is not None:
            self._session.end()


def end_actor(actor: Any) -> None:
    """Ends a Ray actor's process at once."""
    ray.kill(actor, no_restart=True)


def original(error: RayTaskError) -> BaseException:
    """What a Ray actor raised, as it was raised there; where it came from goes to the log."""
    cause: BaseException = error.cause
    log.info("%s", error)
    return cause


def has_died(error: BaseException) -> bool:
    """Whether a call failed since the Ray actor's process ended."""
    return isinstance(error, RayActorError)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; what a signal does to a run is the run's business."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _connect(address: str | None) -> Session | None:
    """Joins a cluster, or starts one of this machine that ends with this process.

    Returns:
        The folder of the one that was started.
    """
    options: dict[str, Any] = {
        # Lines of all processes would bury the run's own; errors come with the calls.
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": _environment()},
    }
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"include_dashboard": False, "num_cpus": available_cores() + SERVERS_CPUS}
    try:
        host, colon, port = (address or "").rpartition(":")
        if colon:
            # Ray itself goes on trying for a minute.
            socket.create_connection((host, int(port)), timeout=REACH_TIMEOUT_S).close()
        with _own_signals():
            joined = ray.init(address="local" if address is None else address, **options)
        if address is not None:
            return None
        _hide_token()
        return Session(Path(joined.address_info["session_dir"]))
    # Whatever it is: Ray raises a bare Exception where its processes come too late, for example.
    except Exception as error:
        log.info("Ray cannot be joined or started", exc_info=error)
        where = "cluster.address"
        if address is None:
            what, remedy = f"Ray does not start here: {_first_line(error)}", LOGS
        else:
            what = f"no Ray cluster is reached at {address}: {_first_line(error)}"
            remedy = "Start one with ray start --head, or write cluster.address=null"
        raise EnvironmentDown(where, what, remedy) from None


def _hide_token() -> None:
    """Ray asks for a token whoever joins, and leaves it in a file that all users may read."""
    path = Path.home() / ".ray" / "auth_token"
    # There need not be one.
    with suppress(OSError):
        path.chmod(0o600)


def _environment() -> dict[str, str]:
    """What Ray actors, wherever they are, take over from this process."""
    paths = [str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    passed = {
        name: value
        for name, value in os.environ.items()
        # Ray writes what it passes on to its logs, which all users of a machine may read.
        if name.startswith(PASSED_ON) and not any(word in name for word in SECRETS)
    }
    return passed | {"PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in paths if p)}


def _check(settings: RayCluster, nodes: list[Node]) -> None:
    found = shortage(settings.demand, nodes)
    if found is not None:
        raise ConfigError([Problem("cluster", *found, ("cluster",))])


def _nodes() -> list[Node]:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(there.get("CPU", 0.0), there.get("GPU", 0.0)) for there in alive]


def _reserve(wanted: Plan, timeout_s: float) -> Any:
    """A placement group of a bundle per machine; machines are different ones."""
    bundles = list(wanted.bundles)
    strategy = "STRICT_PACK" if len(bundles) == 1 else "STRICT_SPREAD"
    group = placement_group(bundles, strategy=strategy)
    if group.wait(timeout_seconds=timeout_s):
        return group
    remove_placement_group(group)
    free = ray.available_resources()
    raise EnvironmentDown(
        "cluster",
        f"Ray did not give the run its places within {timeout_s:g} s: it needs {bundles}, and of "
        f"the whole cluster {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free",
        "Wait for other work to end (ray status shows it), or take less",
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
