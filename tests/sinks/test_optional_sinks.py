# SPDX-License-Identifier: Apache-2.0
"""wandb and mlflow, without network: what they leave on disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.errors import ConfigError
from rlrun.metrics.logs import MetricsLogger, read_metrics
from rlrun.run_dir.directory import RunDir
from rlrun.sinks.installed import check_sinks_installed
from tests.conftest import environment
from tests.factories import config


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the libraries leave when they are killed goes with the test; sockets are short."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    with tempfile.TemporaryDirectory() as name:
        for variable in ("TMPDIR", "WANDB_CACHE_DIR"):
            monkeypatch.setenv(variable, name)
        yield


def run_of(root: Path) -> RunDir:
    run = RunDir.create(root)
    run.write_config("grpo:\n  seed: 42\n")
    run.write_origins({"grpo.seed": {"value": "42", "from": "flag", "where": "grpo.seed=42"}})
    return run


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_said_with_the_line_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun.sinks.installed.find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        check_sinks_installed(config(f"logging.{name}.enabled=true").logging)
    assert f"pip install 'rlrun[{name}]'" in str(caught.value.problems[0])
    check_sinks_installed(config().logging)


WITHOUT_WANDB = """
import sys
sys.modules["wandb"] = None
from rlrun.cli import main
main()
"""


def test_a_missing_package_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["+recipe=quickstart", "logging.wandb.enabled=true", f"run_dir={run}"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_WANDB, "train", *flags],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'rlrun[wandb]'" in done.stderr
    assert not run.exists()


PROGRAM = """
import sys
from pathlib import Path
from rlrun.config import load
from rlrun.metrics.logs import MetricsLogger
from rlrun.run_dir.directory import RunDir
settings = load(["+recipe=quickstart", "logging.wandb.enabled=true"]).config.logging
log = MetricsLogger(RunDir.read(Path(sys.argv[1])), settings)
log.log(1, {"train/reward_mean": 0.25, "train/loss": float("nan")})
import wandb
run = wandb.run
finish, run.finish = run.finish, lambda **how: (print(how), finish(**how))
log.close(failed=True)
"""


@pytest.mark.timeout(600)
def test_wandb_gets_the_numbers_offline(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    run.close()
    # In a process of its own: the library writes the last of the file when its process ends.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run.root)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "{'exit_code': 1}" in done.stdout
    (file,) = run.root.glob("wandb/offline-run-*/run-*.wandb")
    assert b"train/reward_mean" in file.read_bytes()
    assert len(read_metrics(run.metrics)) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from rlrun.config import load
from rlrun.metrics.logs import MetricsLogger
from rlrun.run_dir.directory import RunDir
settings = load(["+recipe=quickstart", "logging.wandb.enabled=true"]).config.logging
log = MetricsLogger(RunDir.read(Path(sys.argv[1])), settings)
log.log(1, {"train/reward_mean": 0.25})
for process in Path("/proc").iterdir():
    if process.name.isdigit():
        try:
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # one that has just ended, of whomever
            continue
        if int(parent) == os.getpid():
            os.kill(int(process.name), signal.SIGKILL)
            os.waitpid(int(process.name), 0)
if sys.argv[2] == "at a step":
    log.log(2, {"train/reward_mean": 0.5})
log.close()
os._exit(0)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("noticed", ["at a step", "at the end"])
def test_a_run_goes_on_without_the_process_that_wandb_works_in(
    tmp_path: Path, noticed: str
) -> None:
    run = run_of(tmp_path / "run")
    run.close()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(run.root), noticed],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "wandb is switched off" in done.stderr
    assert len(read_metrics(run.metrics)) == 1 + (noticed == "at a step")


@pytest.mark.timeout(600)
def test_mlflow_gets_the_numbers_in_a_file(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    log = MetricsLogger(run, config("logging.mlflow.enabled=true").logging)
    log.log(1, {"train/reward_mean": 0.25, "train/loss": None, "reward/a%b": 1})
    log.log(2, {"train/reward_mean": 0.5})
    log.close()
    log.close()
    run.close()
    base = sqlite3.connect(run.root / "mlflow.db")
    rows = base.execute("select key, value, step from metrics order by step, key").fetchall()
    assert rows == [
        ("reward/a_b", 1.0, 1),
        ("train/reward_mean", 0.25, 1),
        ("train/reward_mean", 0.5, 2),
    ]
    assert base.execute("select key, value from params").fetchall() == [("grpo.seed", "42")]
    assert base.execute("select status from runs").fetchall() == [("FINISHED",)]
    base.close()


def test_mlflow_shows_a_run_that_failed(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    MetricsLogger(run, config("logging.mlflow.enabled=true").logging).close(failed=True)
    run.close()
    base = sqlite3.connect(run.root / "mlflow.db")
    assert base.execute("select status from runs").fetchall() == [("FAILED",)]
    base.close()


def test_a_server_that_is_not_there_switches_the_sink_off_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path / "run")
    settings = config("logging.mlflow.enabled=true", "logging.mlflow.tracking_uri=nowhere:x")
    log = MetricsLogger(run, settings.logging)
    log.log(1, {"train/reward_mean": 0.25})
    log.close()
    run.close()
    assert "mlflow is switched off" in caplog.text
    assert len(read_metrics(run.metrics)) == 1
