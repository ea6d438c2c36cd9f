# SPDX-License-Identifier: Apache-2.0
"""What this process computes on: cores, device, and torch set up for a run."""

from __future__ import annotations

import os
import platform
import random
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from rlrun import __version__
from rlrun.config.schema import RunConfig
from rlrun.derived import thread_counts
from rlrun.errors import ConfigError, Problem
from rlrun.interfaces import Device
from rlrun.process.compute import use_threads

PACKAGES = ("torch", "transformers", "vllm", "ray", "peft")
"""Whose versions change what a run computes, where they are installed."""


def versions() -> str:
    """What a run is made with: rlrun, Python, packages."""
    found = {"rlrun": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return ", ".join(f"{name} {number}" for name, number in found.items())


def set_up_torch(config: RunConfig, num_threads: int | None = None) -> None:
    """Threads, seeds and determinism of this process; one progress bar is enough.

    Args:
        config: The run.
        num_threads: For the calling thread, which computes itself; None gives the compute thread
            the learner's part of this machine.
    """
    disable_progress_bar()
    if num_threads is None:
        use_threads(thread_counts(config, cores_to_take())[0])
    else:
        torch.set_num_threads(num_threads)
    torch.manual_seed(config.grpo.seed)
    # Rewards and environments of users may draw from these.
    random.seed(config.grpo.seed)
    np.random.seed(config.grpo.seed % 2**32)
    # On a GPU some operations (a cumulative sum in top-p sampling) have no deterministic form; the
    # promise of equal bits is for CPUs, so there torch warns instead of refusing.
    on_gpu = config.cluster.device is not Device.CPU and torch.cuda.is_available()
    torch.use_deterministic_algorithms(config.deterministic, warn_only=on_gpu)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_to_take() -> int:
    """Cores that a run computes on unless num_threads says it: OMP_NUM_THREADS, or all there are.

    torch obeys that variable too, and Slurm or whoever shares out a machine sets it.
    """
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(told) if told.isdecimal() and int(told) > 0 else available_cores()


def device_of(config: RunConfig) -> torch.device:
    """Where this process computes.

    Raises:
        ConfigError: A GPU is asked for, and there is none.
    """
    device, available = config.cluster.device, torch.cuda.is_available()
    if device is Device.CUDA and not available:
        what = "cluster.device=cuda, and torch sees no GPU"
        raise ConfigError([Problem("cluster.device", what, "Write cluster.device=auto or cpu")])
    return torch.device("cuda" if available and device is not Device.CPU else "cpu")
