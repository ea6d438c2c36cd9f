# SPDX-License-Identifier: Apache-2.0
"""How long what a run trained is kept: files of trained/ beyond the newest ones are removed.

Which steps were removed is written down first, so that an audit can tell a file that was removed
from one that is lost.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from rlrun.atomic import storage_error, write_file
from rlrun.errors import StorageError
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.json_line import parse_object

_log = logging.getLogger(__name__)

_FIELD = "up_to_step"


def keep_newest(run_dir: RunDir, keep: int) -> None:
    """Removes the files of trained/ except for those of the newest steps.

    A file that cannot be removed is a warning, and is tried again after the next step.

    Args:
        run_dir: Of the run.
        keep: How many stay; at least 1.

    Raises:
        StorageError: It cannot be written down what is removed.
    """
    old = run_dir.trained_steps()[:-keep]
    if not old:
        return
    write_file(_record(run_dir), json.dumps({_FIELD: old[-1]}) + "\n")
    for step in old:
        path = run_dir.trained_file(step)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be removed: %s", path, error.strerror)


def removed_up_to(run_dir: RunDir) -> int:
    """The last step whose file ``keep_newest`` has removed; 0 if it has removed none.

    Raises:
        StorageError: What is written down makes no sense.
    """
    path = _record(run_dir)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise storage_error(path, "read", error) from error
    last = parse_object(str(path), raw).get(_FIELD)
    if not isinstance(last, int) or isinstance(last, bool) or last < 1:
        raise StorageError(str(path), f"{_FIELD} is no step", "Restore the file from a copy")
    return last


def _record(run_dir: RunDir) -> Path:
    return run_dir.trained / "removed.json"
