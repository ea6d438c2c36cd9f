# SPDX-License-Identifier: Apache-2.0
"""The check for GPUs runs, small, on the CPU."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys

from rlrun.config import load
from rlrun.generation.vllm import VLLMGeneration
from rlrun.refit.transfer import RefitKind
from tests.conftest import environment
from tests.factories import ROOT


def test_the_gpu_check_passes_on_a_cpu_when_it_is_small() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--small", "--json"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    findings = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert {"device", "bfloat16 against float32", "packed against float32"} <= findings.keys()
    assert "tokens/s" in findings["update of tiny at 128 tokens"]["detail"]


def test_the_run_beside_the_learner_is_valid() -> None:
    names = runpy.run_path(str(ROOT / "scripts/gpu_check.py"))
    run = load(list(names["COLOCATED"])).config
    assert isinstance(run.generation, VLLMGeneration)
    assert run.generation.refit is RefitKind.IPC and run.generation.num_engines == 1


def test_a_finding_that_fails_ends_it_with_1() -> None:
    program = (
        "import runpy, sys; sys.argv = ['gpu_check']\n"
        "import torch; torch.cuda.is_available = lambda: False\n"
        f"names = runpy.run_path({str(ROOT / 'scripts/gpu_check.py')!r})\n"
        "check = lambda small: iter([names['Finding']('device', False, 'cpu')])\n"
        "names['main'].__globals__['check'] = check\n"
        "sys.exit(names['main']())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "FAIL device: cpu\n")
