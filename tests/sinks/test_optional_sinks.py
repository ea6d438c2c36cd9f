# SPDX-License-Identifier: Apache-2.0
"""wandb and mlflow, without network: the real packages where they are installed, else stand-ins.

The stand-ins have the calls that the sinks make and leave files of the same kind, so that the tests
look at what is on disk and not at calls.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.errors import ConfigError
from rlrun.logs import MetricsLogger, read_metrics
from rlrun.run_dir import RunDir
from rlrun.sinks.installed import check_sinks_installed
from tests.conftest import environment, rlrun
from tests.factories import config

WANDB = """
from pathlib import Path
class Error(Exception): pass
class Settings(dict):
    def __init__(self, **settings): super().__init__(settings)
class Run:
    def __init__(self, path): self.path = path
    def log(self, values, step):
        if any(value > 1e9 for value in values.values()): raise Error("too large for the server")
        with self.path.open("a") as file: file.write(f"{step} {values}")
    def finish(self): pass
def init(project, group, name, dir, mode, config, settings):
    assert mode == "offline" and config["grpo"] and settings["silent"]
    folder = Path(dir) / "wandb" / "offline-run-1"
    folder.mkdir(parents=True)
    return Run(folder / "run-1.wandb")
"""

MLFLOW = {
    "__init__.py": "",
    "exceptions.py": "class MlflowException(Exception): pass\n",
    "entities.py": """
from dataclasses import dataclass
@dataclass
class Param:
    key: str
    value: str
@dataclass
class Metric:
    key: str
    value: float
    timestamp: int
    step: int
""",
    "tracking.py": """
import re, sqlite3
from types import SimpleNamespace
from mlflow.exceptions import MlflowException
class MlflowClient:
    def __init__(self, tracking_uri):
        if not tracking_uri.startswith("sqlite:///"): raise MlflowException("no server there")
        self.base = sqlite3.connect(tracking_uri.removeprefix("sqlite:///"))
        self.base.execute("create table metrics (key, value, step)")
        self.base.execute("create table params (key, value)")
        self.base.execute("create table runs (status)")
    def get_experiment_by_name(self, name): return None
    def create_experiment(self, name): return "1"
    def create_run(self, experiment, run_name, tags):
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))
    def log_batch(self, run_id, metrics=(), params=()):
        for m in metrics:
            if not re.fullmatch(r"[\\w. :/-]+", m.key): raise MlflowException("Invalid name")
            self.base.execute("insert into metrics values (?, ?, ?)", (m.key, m.value, m.step))
        for p in params: self.base.execute("insert into params values (?, ?)", (p.key, p.value))
        self.base.commit()
    def set_terminated(self, run_id):
        self.base.execute("insert into runs values ('FINISHED')")
        self.base.commit()
""",
}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder from which wandb and mlflow can be imported where they are not installed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "packages"
    folder.mkdir()
    if importlib.util.find_spec("wandb") is None:
        (folder / "wandb.py").write_text(WANDB)
    if importlib.util.find_spec("mlflow") is None:
        (folder / "mlflow").mkdir()
        for name, text in MLFLOW.items():
            (folder / "mlflow" / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return folder


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


def test_a_missing_package_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("wandb is installed here")
    run = tmp_path / "run"
    done = rlrun("train", "+recipe=quickstart", "logging.wandb.enabled=true", f"run_dir={run}")
    assert done.code == 2
    assert "pip install 'rlrun[wandb]'" in done.err
    assert not run.exists()


PROGRAM = """
import sys
from pathlib import Path
from rlrun.config import load
from rlrun.logs import MetricsLogger
from rlrun.run_dir import RunDir
settings = load(["+recipe=quickstart", "logging.wandb.enabled=true"]).config.logging
log = MetricsLogger(RunDir.read(Path(sys.argv[1])), settings)
log.log(1, {"train/reward_mean": 0.25, "train/loss": float("nan")})
log.close()
"""


@pytest.mark.timeout(300)
def test_wandb_gets_the_numbers_offline(tmp_path: Path, packages: Path) -> None:
    run = run_of(tmp_path / "run")
    run.close()
    paths = os.pathsep.join([str(packages), environment()["PYTHONPATH"]])
    # In a process of its own: the library writes the last of the file when its process ends.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run.root)],
        env=environment() | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (file,) = run.root.glob("wandb/offline-run-*/run-*.wandb")
    assert b"train/reward_mean" in file.read_bytes()
    assert len(read_metrics(run.metrics)) == 1


@pytest.mark.timeout(300)
def test_mlflow_gets_the_numbers_in_a_file(tmp_path: Path, packages: Path) -> None:
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


def test_a_server_that_is_not_there_switches_the_sink_off_and_training_goes_on(
    tmp_path: Path, packages: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path / "run")
    settings = config("logging.mlflow.enabled=true", "logging.mlflow.tracking_uri=nowhere:x")
    log = MetricsLogger(run, settings.logging)
    log.log(1, {"train/reward_mean": 0.25})
    log.close()
    run.close()
    assert "mlflow is switched off" in caplog.text
    assert len(read_metrics(run.metrics)) == 1
