# SPDX-License-Identifier: Apache-2.0
"""A user's own class or function by import path, and what is said of its errors."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from rlrun.types import Failure, FailureKind


class Unresolved(Exception):  # becomes a problem of the configuration
    """An import path leads nowhere.

    Attributes:
        what: What is wrong with it.
        remedy: What to do.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}. {remedy}")


def resolve(path: str) -> object:
    """The object that an import path names.

    Args:
        path: "package.module:name" (the current folder is searched last) or "folder/file.py:name".

    Raises:
        Unresolved: The path is malformed, or its module or name does not exist or fails to import.
    """
    source, separator, name = path.rpartition(":")
    if not separator or not source or not name.isidentifier():
        raise Unresolved(
            f"{path!r} is not an import path",
            "Write package.module:name or path/to/file.py:name",
        )
    module = _from_file(Path(source)) if source.endswith(".py") else _from_name(source)
    if name not in vars(module):
        raise Unresolved(f"{source} has no {name!r}", _near(name, list(vars(module))))
    return vars(module)[name]


def _near(name: str, names: list[str]) -> str:
    public = sorted(n for n in names if not n.startswith("_"))
    close = difflib.get_close_matches(name, public, n=3)
    if close:
        return f"Did you mean {' or '.join(close)}"
    return f"It has: {', '.join(public[:10])}" if public else "It defines no public name"


def _from_file(path: Path) -> ModuleType:
    try:
        exists = path.is_file()
    except OSError as error:
        what = f"{path} cannot be looked up: {error.strerror}"
        raise Unresolved(what, "Give the path of a file") from error
    if not exists:
        files = [file.name for file in path.parent.glob("*.py") if file.is_file()]
        raise Unresolved(f"there is no file {path}", _near(path.name, files))
    key = f"{path.resolve()}:{path.stat().st_mtime_ns}"
    module_name = f"rlrun_user_{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise Unresolved(f"{path} is not a Python file", "Give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up while they are made
    try:
        spec.loader.exec_module(module)
    except BaseException as problem:  # user code may also call sys.exit
        del sys.modules[module_name]
        raise _failed(str(path), problem) from problem
    return module


def _from_name(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        missing = problem.name or ""
        if name == missing or name.startswith(missing + "."):
            raise Unresolved(f"there is no module {missing}", _siblings(missing)) from problem
        raise _failed(name, problem) from problem
    except BaseException as problem:  # user code may also call sys.exit
        raise _failed(name, problem) from problem


def _failed(source: str, problem: BaseException) -> Unresolved:
    return Unresolved(
        f"importing {source} fails with {_text(problem)}",
        "Make it importable; python -c 'import ...' shows the traceback",
    )


def _siblings(missing: str) -> str:
    package, _, name = missing.rpartition(".")
    own = vars(sys.modules[package]).get("__path__") if package in sys.modules else None
    places = [os.getcwd()] if own is None else list(own)
    found = [module.name for module in pkgutil.iter_modules(places)]
    return f"{_near(name, found)} (looked in {places[0]} and where Python finds packages)"


def shown(value: object) -> str:
    """The beginning of how a value is written, as a message has it; its repr may fail, too."""
    try:
        return f"{value!r:.100}"
    except Exception:  # noqa: BLE001 - user code, or an integer of too many digits
        return f"a value of type {type(value).__name__}"


def told(problem: BaseException) -> str:
    """An error with the place in the code that raised it."""
    text = _text(problem)
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return text
    return f"{text} ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


def _text(problem: BaseException) -> str:
    name = type(problem).__name__
    try:
        return f"{name}: {problem}"
    except Exception:  # noqa: BLE001 - user code
        return name


def is_failure(value: object) -> bool:
    """Whether it is a Failure that can be counted and told."""
    return (
        isinstance(value, Failure)
        and isinstance(value.kind, FailureKind)
        and isinstance(value.message, str)
    )


def is_cancellation(problem: BaseException) -> bool:
    """Whether rlrun ends the task, rather than user code raising CancelledError by itself."""
    task = asyncio.current_task()
    cancelled = isinstance(problem, asyncio.CancelledError)
    return cancelled and task is not None and task.cancelling() > 0
