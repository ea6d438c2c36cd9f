# SPDX-License-Identifier: Apache-2.0
"""The memory of a process is its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlrun.learner import memory
from rlrun.learner.memory import peak_memory_bytes

CPU = torch.device("cpu")


def test_on_a_cpu_it_is_the_largest_resident_memory() -> None:
    resident = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert 0.9 * int(resident[0]) * 1024 < peak_memory_bytes(CPU) < 2 * int(resident[0]) * 1024


def test_a_process_does_not_inherit_the_peak_of_the_one_that_started_it() -> None:
    large = torch.ones(2**27)  # half a GiB
    code = "import sys, torch; from rlrun.learner.memory import *; "
    code += "print(peak_memory_bytes(torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2**29 < peak_memory_bytes(CPU) and large[0] == 1


def test_where_the_kernel_does_not_tell_it_is_what_getrusage_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "gone")
    assert 2**26 < peak_memory_bytes(CPU) < 2**40


def test_on_a_gpu_it_is_what_was_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    assert peak_memory_bytes(torch.device("cuda")) == 3 * 2**30
