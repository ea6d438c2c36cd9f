# SPDX-License-Identifier: Apache-2.0
"""A picture of a grid as SVG: mean age to the right, speed-up to the top, a point per plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from xml.sax.saxutils import escape

from rlrun.console.counted import counted
from rlrun.simulate.grid import Row, Synchronous

_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 200, 30, 50
_Scale = Callable[[float], float]
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")


def svg(rows: Sequence[Row], synchronous: Synchronous, advised: Row) -> str:
    """The picture. The advised plan has a ring around it."""
    right = max(1.0, max(row.result.age_mean for row in rows)) * 1.08
    top = max(synchronous.best_speedup, max(row.speedup for row in rows), 1.0) * 1.08

    def x(age: float) -> float:
        return _LEFT + age / right * (_WIDTH - _LEFT - _RIGHT)

    def y(speedup: float) -> float:
        return _HEIGHT - _BOTTOM - speedup / top * (_HEIGHT - _TOP - _BOTTOM)

    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(_name(row), []).append(row)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *_axes(x, y, right, top),
        *_level(x, y, right, 1.0, "synchronous"),
        *_level(x, y, right, synchronous.best_speedup, "no idle time, no waste"),
    ]
    for index, (name, members) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        height = _TOP + 10 + 20 * index
        parts.append(
            f'<circle cx="{_WIDTH - _RIGHT + 20}" cy="{height - 4}" r="4" fill="{colour}"/>'
        )
        parts.append(_text(_WIDTH - _RIGHT + 30, height, name, "start"))
        for row in members:
            cx, cy = x(row.result.age_mean), y(row.speedup)
            plan = row.plan
            parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{colour}"/>')
            label = f"{plan.max_age}/{plan.in_flight_batches}"
            parts.append(_text(cx + 6, cy - 6, label, "start"))
            if row == advised:
                parts.append(
                    f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="8" fill="none" stroke="black"/>'
                )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _name(row: Row) -> str:
    plan, gpus = row.plan, ""
    if plan.generating_gpus is not None:
        gpus = f", {counted(plan.generating_gpus, 'GPU')} to generate"
    return f"{plan.batching}, {plan.on_age_limit}{gpus}"


def _axes(x: _Scale, y: _Scale, right: float, top: float) -> Iterable[str]:
    for value in _ticks(right):
        yield _text(x(value), y(0) + 18, f"{value:g}", "middle")
        yield _line(x(value), y(0), x(value), y(0) + 4, "black")
    for value in _ticks(top):
        yield _text(x(0) - 8, y(value) + 4, f"{value:g}", "end")
        yield _line(x(0), y(value), x(right), y(value), "#e0e0e0")
    yield _line(x(0), y(0), x(right), y(0), "black")
    yield _line(x(0), y(0), x(0), y(top), "black")
    yield _text(x(right / 2), _HEIGHT - 12, "mean age of trained tokens in steps", "middle")
    title = "speed-up over synchronous (labels: max_trajectory_age_steps / batches in flight)"
    yield _text(_LEFT, 18, title, "start")


def _level(x: _Scale, y: _Scale, right: float, value: float, name: str) -> Iterable[str]:
    yield _line(x(0), y(value), x(right), y(value), "black", 'stroke-dasharray="4 4"')
    yield _text(x(right), y(value) - 4, name, "end")


def _ticks(largest: float) -> list[float]:
    step = 10 ** math.floor(math.log10(largest))
    for finer in (2, 2.5, 2):
        if largest / step >= 4:
            break
        step /= finer
    return [step * index for index in range(int(largest / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" {more}/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
