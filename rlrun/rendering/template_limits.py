# SPDX-License-Identifier: Apache-2.0
"""Bounds on what a chat template may compute: it is a program, and may come with a model.

transformers compiles templates in jinja's sandbox, which bounds a single ``range`` and nothing
else: loops within loops, recursive macros, and powers of numbers go on for ever. Here the sandbox
compiles every body of a loop or macro such that it counts its rounds, which matters only within
``bounded_rendering``, and looks at the size of every product and power before it computes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_ROUNDS = 1_000_000
"""Of all loops and macros together; a conversation of a thousand messages takes some thousand."""

MAX_SECONDS = 30.0
MAX_LENGTH = 10_000_000
"""Characters or items of a product."""

MAX_BITS = 4096
"""Of a power of integers."""


@dataclass(slots=True)
class _Budget:
    """What a rendering has left."""

    rounds: int
    deadline: float


_BUDGET: ContextVar[_Budget | None] = ContextVar("budget of a rendering", default=None)


@contextmanager
def bounded_rendering() -> Iterator[None]:
    """Within it a template that goes beyond the limits raises SecurityError."""
    token = _BUDGET.set(_Budget(MAX_ROUNDS, time.monotonic() + MAX_SECONDS))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def count_round() -> None:
    """Called by compiled templates at the beginning of each round.

    Raises:
        SecurityError: It is one too many.
    """
    budget = _BUDGET.get()
    if budget is None:
        return
    budget.rounds -= 1
    if budget.rounds < 0:
        raise SecurityError(f"its loops and macros take more than {MAX_ROUNDS:,} rounds")
    if time.monotonic() > budget.deadline:
        raise SecurityError(f"it takes more than {MAX_SECONDS:g} s")


def product(left: Any, right: Any) -> Any:
    """``left * right``, unless it is a text or list that is too long.

    Raises:
        SecurityError: It is.
    """
    for times, sequence in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(sequence, str | bytes | list | tuple):
            if times * len(sequence) > MAX_LENGTH:
                raise SecurityError(f"it makes a text or list longer than {MAX_LENGTH:,}")
    return left * right


def power(base: Any, exponent: Any) -> Any:
    """``base ** exponent``, unless it is an integer that is too large.

    Raises:
        SecurityError: It is.
    """
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent * base.bit_length() > MAX_BITS:
            raise SecurityError(f"it computes {str(base):.20} ** {str(exponent):.20}")
    return base**exponent


class _Counting(CodeGenerator):
    """Compiles templates whose rounds are counted."""

    def visit_Template(  # noqa: N802 (the base class calls it so)
        self, node: nodes.Template, frame: Frame | None = None
    ) -> None:
        """Puts a call to ``count_round`` in front of the body of every loop and macro."""
        for inner in node.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(inner, nodes.For | nodes.Macro | nodes.CallBlock)
            name = nodes.ImportedName(f"{__name__}.{count_round.__name__}")
            call = nodes.ExprStmt(nodes.Call(name, [], [], None, None))
            inner.body.insert(0, call.set_lineno(inner.lineno))
        super().visit_Template(node, frame)


def install() -> None:
    """Makes sandboxes of this process compile so from now on; may be called again."""
    sandbox = ImmutableSandboxedEnvironment
    sandbox.code_generator_class = _Counting
    sandbox.default_binop_table = {**sandbox.default_binop_table, "*": product, "**": power}
    # Looked at whenever they are computed, and never computed while a template is compiled.
    sandbox.intercepted_binops = frozenset({"*", "**"})
