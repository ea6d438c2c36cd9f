# SPDX-License-Identifier: Apache-2.0
"""What the whole suite shares: one thread for torch, quiet libraries, one finished quickstart."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.generation.vllm_session import VLLMSession

# Two tests run at once: where each divides its work among all cores, they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# And Ray's actors, which it starts with the lowest priority, would wait for the other test.
os.environ.setdefault("RAY_worker_niceness", "0")
# How long an example takes, or is drawn, says nothing on a machine that does other things as well.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@dataclass(frozen=True)
class Command:
    """A finished rlrun command."""

    code: int
    out: str
    err: str


def rlrun(*arguments: str, cwd: Path | None = None, timeout: float = 500) -> Command:
    """Runs the command line in a process of its own, as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "rlrun", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return Command(done.returncode, done.stdout, done.stderr)


def environment() -> dict[str, str]:
    """The environment of a child that can import the package from anywhere."""
    root = str(Path(__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


DOCUMENTED = "documented command"
"""Name of a test's property: how a command of a page was run, if not as it stands."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which commands of pages were not run as they stand, and why."""
    told: dict[str, list[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == DOCUMENTED:
                how, _, command = str(value).partition("\n")
                told.setdefault(how, []).append(command)
    if told:
        terminalreporter.section("commands of pages that are not run as they stand")
    for how, commands in told.items():
        terminalreporter.write_line(how)
        for command in commands:
            terminalreporter.write_line(command)


SLOW_FIRST = (
    *("e2e", "cluster", "env", "refit", "generation", "serve", "docs", "faults", "nightly"),
    *("learner", "planning", "simulate", "bad_inputs", "config"),
    *("test_preflight.py", "test_unread_keys.py", "test_hostile_files.py"),
)
"""Folders and files that take long: if they came last, one worker would wait for the other."""

ONE_WORKER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("ray_address", "real_gym"): (
        *("cluster/test_ray_roles.py", "cluster/test_ray_runs.py", "cluster/test_ray_runtime.py"),
        *("env/test_gym_score.py", "env/test_gym_servers.py"),
    ),
    ("vllm",): ("generation/test_vllm.py", "refit/test_refit.py"),
}
"""Files by the fixtures of the session that they share: two workers would each start a cluster, a
dozen servers or an engine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests by what their folders or files take."""
    tests = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(tests).parts[0]
        return SLOW_FIRST.index(name) if name in SLOW_FIRST else len(SLOW_FIRST)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Gives one worker the tests of a file, or of all files that share what starts slowly."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BySharedFixture(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return worker_scope(super()._split_scope(nodeid))

    return BySharedFixture(config, log)


def worker_scope(file: str) -> str:
    """Equal for files that go to one worker."""
    for fixtures, files in ONE_WORKER.items():
        if file.removeprefix("tests/") in files:
            return fixtures[0]
    return file


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Reports go from worker to controller as UTF-8, which broken text in a log is not."""
    return encodable((yield))


def encodable(data: Any) -> Any:
    """The same with every lone surrogate escaped."""
    match data:
        case str():
            return data.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {encodable(key): encodable(value) for key, value in data.items()}
        case list() | tuple():
            return type(data)(encodable(value) for value in data)
    return data


SMALL: Sequence[str] = (
    "+recipe=quickstart",
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=4",
    "grpo.max_num_steps=8",
    "grpo.val_period=4",
    "grpo.max_val_samples=8",
    "checkpointing.save_period=2",
    "num_threads=1",
)
"""A run of a few seconds in which everything happens: validation, checkpoints, retention."""


@pytest.fixture(scope="session")
def quickstart_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a whole quickstart, to look at only."""
    return run_of_all(tmp_path_factory, "quickstart", "+recipe=quickstart")


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of an uninterrupted SMALL, to look at only."""
    return run_of_all(tmp_path_factory, "small", *SMALL)


def run_of_all(factory: pytest.TempPathFactory, name: str, *arguments: str) -> Path:
    """The directory of a run that the first worker to ask for it makes, and all of them read."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    run_dir, finished = base / name / "run", base / name / "finished"
    run_dir.parent.mkdir(exist_ok=True)
    with (base / name / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(run_dir, ignore_errors=True)
            done = rlrun("train", *arguments, f"run_dir={run_dir}")
            assert done.code == 0, done.err
            finished.touch()
    return run_dir


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMSession]:
    """One live vLLM engine for all tests; they leave its weights as they like."""
    pytest.importorskip("vllm", reason="make vllm installs it")
    from transformers import AutoTokenizer

    from rlrun.models.resolve import resolve_model
    from rlrun.rendering.renderer import Renderer
    from tests.generation.vllm_session import start

    renderer = Renderer(AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")))
    session = start(renderer, tmp_path_factory.mktemp("vllm"))
    yield session
    session.stop()
