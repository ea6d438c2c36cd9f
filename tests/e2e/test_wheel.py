# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed: commands work from any folder with what is inside it alone.

Third-party packages are those of the environment that runs the tests, put on the path behind the
installed wheel; ``make check-wheel`` installs them anew as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.factories import ROOT

PARTS = ("rlrun", "conf", "recipes", "setup.py", "pyproject.toml", "README.md", "LICENSE")


def run(*command: str, cwd: Path) -> Command:
    """A command without the checkout on its path."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    return Command(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, folder / "source" / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, folder / "source" / part)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    done = run(*pip, "--wheel-dir", "dist", "./source", cwd=folder)
    assert done.code == 0, done.err
    (path,) = (folder / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder of programs of an environment that holds the wheel alone."""
    folder = wheel.parent.parent / "venv"
    venv.create(folder, with_pip=False)
    programs = folder / "bin"
    pip = (sys.executable, "-m", "pip", "--python", str(programs / "python"))
    done = run(*pip, "install", "--no-deps", "--no-index", str(wheel), cwd=folder)
    assert done.code == 0, done.err
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder that has nothing to do with the checkout."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def test_the_package_is_the_installed_one(installed: Path, elsewhere: Path) -> None:
    program = "import rlrun.config, sys; print(rlrun.config.conf_dir()); print(sys.path)"
    done = run(str(installed / "python"), "-c", program, cwd=elsewhere)
    conf, path = done.out.splitlines()
    assert conf.startswith(str(installed.parent))
    assert str(ROOT) not in path.replace(sysconfig.get_path("purelib"), "")


def test_its_requirements_are_complete_and_fit_together(installed: Path, elsewhere: Path) -> None:
    done = run(
        sys.executable, "-m", "pip", "--python", str(installed / "python"), "check", cwd=elsewhere
    )
    assert not [line for line in done.out.splitlines() if line.startswith("rlrun ")], done.out


def test_it_lists_its_recipes_and_resolves_one(installed: Path, elsewhere: Path) -> None:
    listed = run(str(installed / "rlrun"), "recipes", cwd=elsewhere)
    assert listed.code == 0 and "quickstart" in listed.out
    resolved = run(str(installed / "rlrun"), "config", "+recipe=quickstart", cwd=elsewhere)
    assert resolved.code == 0 and "num_prompts_per_step: 16" in resolved.out


def test_it_trains_in_the_folder_that_it_is_called_from(installed: Path, elsewhere: Path) -> None:
    done = run(
        str(installed / "rlrun"),
        "train",
        "+recipe=quickstart",
        "grpo.max_num_steps=2",
        "grpo.num_prompts_per_step=4",
        "grpo.max_val_samples=8",
        cwd=elsewhere,
    )
    assert (done.code, done.err) == (0, "")
    (run_dir,) = (elsewhere / "runs" / "quickstart").iterdir()
    assert json.loads((run_dir / "status.json").read_text())["step"] == 2
    assert (run_dir / "checkpoints" / "step_000002" / "manifest.json").is_file()
    assert "curves-body" in (run_dir / "report.html").read_text()
    audited = run(str(installed / "rlrun"), "audit", str(run_dir), cwd=elsewhere)
    assert audited.code == 0, audited.out
