# SPDX-License-Identifier: Apache-2.0
"""``rlrun gym setup``: the virtual environment that NeMo Gym's servers run in, by pip alone.

It is apart because nemo-gym pins packages (openai) that others want newer. Its wheel asks for
Python 3.13.14 or newer, a security floor; its code runs on 3.11 and 3.12 too, hence the flag.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rlrun.errors import EnvironmentDown, StorageError

NEMO_GYM = "nemo-gym==0.7.0"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
READY = ".ready"


def set_up(folder: Path, python: str | None, say: Callable[[str], None]) -> None:
    """Makes the environment, or leaves it as it is where it is complete and of this version.

    Args:
        folder: Where to.
        python: Interpreter to make it with; None for that of rlrun.
        say: Told what is done.

    Raises:
        StorageError: The folder holds something else.
        EnvironmentDown: A package cannot be installed.
    """
    wanted = f"{NEMO_GYM}\n{REQUIREMENTS.read_text()}"
    ready = folder / READY
    if ready.is_file() and ready.read_text() == wanted:
        say(f"{folder} has {NEMO_GYM}")
        return
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        what = "is not empty and no virtual environment"
        raise StorageError(str(folder), what, "Name another folder with --venv")
    say(f"{folder}: {NEMO_GYM} and what its servers need, about two minutes and 1 GB")
    _run([python or sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    _run([*pip, "--requirement", str(REQUIREMENTS)])
    _run([*pip, "--no-deps", "--ignore-requires-python", NEMO_GYM])
    ready.write_text(wanted)
    say(f"{folder} is ready: env=gym env.venv={folder}")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise EnvironmentDown(command[0], f"cannot be run: {error}", "Name another --python") from (
            error
        )
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise EnvironmentDown(
            "rlrun gym setup",
            f"{' '.join(command[:5])} ... ended with {done.returncode}: {last}",
            "Correct what pip says and run it again",
        )
