# SPDX-License-Identifier: Apache-2.0
"""What is installed has everything that a checkout has."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rlrun.config import conf_dir

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("rlrun", "conf", "recipes", "setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of the wheel, built from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / part, source / part)
    (source / "rlrun" / "assets" / "sub").mkdir(parents=True, exist_ok=True)
    (source / "rlrun" / "assets" / "sub" / "probe.bin").write_bytes(b"x")
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    subprocess.run(
        [sys.executable, "-c", build], cwd=source, check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_ships_configuration_recipes_and_assets(installed: Path) -> None:
    def names(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml")}

    assert names(installed / "rlrun" / "conf") == names(conf_dir())
    assert names(installed / "rlrun" / "recipes") == names(ROOT / "recipes")
    assert (installed / "rlrun" / "py.typed").is_file()
    assert (installed / "rlrun" / "assets" / "sub" / "probe.bin").is_file()
    packages = {path.parent for path in (ROOT / "rlrun").rglob("__init__.py")}
    for package in packages:
        assert (installed / package.relative_to(ROOT) / "__init__.py").is_file()


def test_an_installed_package_finds_its_recipes_from_any_folder(
    installed: Path, tmp_path: Path
) -> None:
    program = (
        "from rlrun.config import conf_dir, load\n"
        "loaded = load(['+recipe=quickstart'])\n"
        "print(conf_dir(), loaded.origins['grpo.max_num_steps'].where)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert run.stderr == ""
    assert run.stdout.split()[0] == str(installed / "rlrun" / "conf")
    assert run.stdout.split()[1].startswith("recipes/quickstart.yaml:")


def test_a_checkout_reads_its_own_folders() -> None:
    assert conf_dir() == ROOT / "conf"
