# SPDX-License-Identifier: Apache-2.0
"""The child process of ScorerPool: runs reasoning-gym verifiers on answers nobody may trust.

Several verifiers hand the answer to ``eval`` or to sympy's parser, which evaluates it as Python.
Here ``eval`` reads literals and plain arithmetic only, sympy's parser formulas of known functions
only, and the process can neither write files nor start others nor grow beyond its memory limit.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pickle
import re
import resource
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from rlrun.env.confine import confine

_ARITHMETIC = re.compile(r"(0[xX][0-9a-fA-F]++|[0-9]|[-+*/%&|^~<>()., \n])*+")
# Integral is not among them: an integral left standing is no answer to an integration.
_FUNCTIONS = """
    Abs Add E I Integer Mul Pow Rational acos acosh acot acsc asec asin asinh atan atan2 atanh cos
    cosh cot coth csc erf exp fresnelc fresnels ln log pi sec sech sin sinh sqrt tan tanh
""".split()
_NAME = re.compile(r"[A-Za-z_]\w*")
_FORMULA = re.compile(r"([A-Za-z][A-Za-z0-9]*+|[0-9]++\.?[0-9]*+|\.[0-9]++|[-+*/^(), \n])*+")


def main(max_memory_mb: int) -> None:
    """Answers requests from standard input until it ends."""
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    # Verifiers may print; standard output belongs to the replies.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")
    guard_parser()
    package = importlib.import_module("reasoning_gym")
    guard_eval()
    limit_process(max_memory_mb)
    _send(replies, {"verdict": "scored"})
    datasets: dict[str, Any] = {}
    while (request := _receive(requests)) is not None:
        if "open" in request:
            reply = _open(package, datasets, request)
        else:
            dataset = datasets[request["score"]]
            reply = score(dataset.score_answer, request["answer"], request["entry"])
        _send(replies, reply)


def _open(package: Any, datasets: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        dataset = package.create_dataset(request["name"], **request["config"])
    except Exception as error:  # noqa: BLE001 (the boundary to a third-party verifier)
        return _reply("broken", message=f"{type(error).__name__}: {error}")
    datasets[request["open"]] = dataset
    return _reply("scored")


def score(
    scorer: Callable[[str | None, Mapping[str, Any]], float], answer: str, entry: Mapping[str, Any]
) -> dict[str, Any]:
    """A reply {"verdict", "score", "message"} to an answer.

    A verifier that raises on the answer is asked for the reference: if it raises there as well it
    is broken, otherwise the answer is at fault and wrong.
    """
    try:
        return _reply("scored", float(scorer(answer, entry)))
    except MemoryError:
        return _reply("limit")
    except Exception as error:  # noqa: BLE001 (the boundary to a third-party verifier)
        message = f"{type(error).__name__}: {error}"
    try:
        scorer(entry["answer"], entry)
    except Exception:  # noqa: BLE001 (the boundary to a third-party verifier)
        return _reply("broken", message=message)
    return _reply("scored", 0.0, message)


def guard_parser() -> None:
    """Makes sympy's parser refuse what is not a formula; before reasoning_gym imports it."""
    parser = importlib.import_module("sympy.parsing.sympy_parser")
    sympy = importlib.import_module("sympy")
    unguarded = parser.parse_expr

    def parse_expr(text: str, *args: Any, **kwargs: Any) -> Any:
        check_formula(text)
        return unguarded(text, *args, **kwargs)

    vars(parser)["parse_expr"] = parse_expr
    vars(sympy)["parse_expr"] = parse_expr
    vars(importlib.import_module("sympy.parsing"))["parse_expr"] = parse_expr


def check_formula(text: str) -> None:
    """Raises ValueError unless a text consists of numbers, operators and known functions."""
    if not _FORMULA.fullmatch(text):
        raise ValueError("not a formula")
    for name in _NAME.findall(text):
        if len(name) > 1 and name not in _FUNCTIONS:
            raise ValueError(f"unknown name {name} in a formula")


def guard_eval() -> None:
    """Replaces ``eval`` and ``exec`` in all modules of reasoning_gym."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "reasoning_gym":
            vars(module)["eval"] = eval_plain
            vars(module)["exec"] = _refuse_exec


def eval_plain(text: str, *_: Any) -> Any:
    """The value of a Python literal or of plain arithmetic.

    Raises:
        ValueError: Anything else.
        SyntaxError: Not Python.
    """
    try:
        return ast.literal_eval(text)
    except ValueError:
        if not _ARITHMETIC.fullmatch(text):
            raise
        return eval(text, {"__builtins__": {}})  # numbers and operators alone


def _refuse_exec(*_: Any) -> None:
    raise ValueError("a verifier may not execute code")


def limit_process(max_memory_mb: int) -> None:
    """No files, no children, no core dumps, and bounded memory from here on."""
    if sys.platform == "linux":
        # Elsewhere the system neither says how much is mapped nor enforces the limit.
        with open("/proc/self/statm", encoding="ascii") as statm:
            present = int(statm.read().split()[0]) * resource.getpagesize()
        limit = present + max_memory_mb * 2**20
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    confine()


def _reply(verdict: str, score: float = 0.0, message: str = "") -> dict[str, Any]:
    return {"verdict": verdict, "score": score, "message": message[:1000]}


def _send(replies: Any, reply: Mapping[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")


def _receive(requests: BinaryIO) -> Any:
    head = requests.read(8)
    if len(head) < 8:
        return None
    return pickle.loads(requests.read(struct.unpack("<Q", head)[0]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
