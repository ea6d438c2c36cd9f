# SPDX-License-Identifier: Apache-2.0
"""The peak memory of this process so far."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def peak_memory_bytes(device: torch.device) -> int:
    """The most that was allocated on the GPU at once; on a CPU, the largest resident memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Not ru_maxrss, in which a process inherits the peak of the one that started it.
    status = _STATUS.read_text() if _STATUS.exists() else ""
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    if peak is not None:
        return int(peak[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The kernels disagree about the unit: KiB on Linux, bytes on macOS.
    return largest if sys.platform == "darwin" else largest * 1024
