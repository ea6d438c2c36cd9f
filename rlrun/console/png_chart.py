# SPDX-License-Identifier: Apache-2.0
"""Small line charts side by side, as the bytes of a PNG picture."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from rlrun.console.step_line import number

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 18, 40, 34
_SCALE = 2
"""The picture is drawn so much larger and has so many pixels: sharp on every screen."""

_COLUMNS = 3
_COLOURS = ("#0b6bb8", "#c75000", "#00795a", "#a53e86", "#8a6a00", "#4b5563")
_TEXT, _GRID = "#1a1d21", "#d9dde3"


@dataclass(frozen=True, slots=True)
class Curve:
    """A name and its (step, value) points, in the order of the steps."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: its title and curves."""

    title: str
    curves: Sequence[Curve]


def draw(panels: Sequence[Panel]) -> bytes:
    """The picture: at least one panel, three in a row; a legend if there are several runs."""
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    legend = 30 if len(names) > 1 else 0
    size = (columns * _WIDTH * _SCALE, (rows * _HEIGHT + legend) * _SCALE)
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    left = 16.0
    for index, name in enumerate(names if legend else []):
        pen.rectangle(_box(left, 10, 12, 12), fill=_COLOURS[index % len(_COLOURS)])
        pen.text(_at(left + 18, 16), name, fill=_TEXT, font=_font(13), anchor="lm")
        left += 40 + pen.textlength(name, font=_font(13)) / _SCALE
    for index, panel in enumerate(panels):
        corner = (index % columns * _WIDTH, index // columns * _HEIGHT + legend)
        _panel(pen, panel, corner, {name: _COLOURS[i % 6] for i, name in enumerate(names)})
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _panel(
    pen: ImageDraw.ImageDraw, panel: Panel, corner: tuple[int, int], colours: dict[str, str]
) -> None:
    steps = [step for curve in panel.curves for step, _ in curve.points]
    # Halves, so that no difference is beyond a float.
    values = [value / 2 for curve in panel.curves for _, value in curve.points]
    first = min(steps)
    # One step alone gets an axis, too, however large its number is.
    last = max(max(steps), first + 1, math.nextafter(first, math.inf))
    low, high = min(values), max(values)
    if high - low <= 1e-12 * max(abs(high), 1e-12):
        low, high = low - (abs(low) or 1) * 0.1, high + (abs(high) or 1) * 0.1
    x0, y0 = corner
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(step: float, half: float) -> tuple[float, float]:
        across = (step - first) / (last - first)
        up = (half - low) / (high - low)
        return _at(x0 + _LEFT + across * width, y0 + _TOP + (1 - up) * height)

    pen.text(_at(x0 + 16, y0 + 20), panel.title, fill=_TEXT, font=_font(15), anchor="lm")
    for share in (0, 0.25, 0.5, 0.75, 1):
        half = low + share * (high - low)
        pen.line([place(first, half), place(last, half)], fill=_GRID, width=_SCALE)
        x, y = place(first, half)
        label = number(2 * half) if math.isfinite(2 * half) else ""
        pen.text((x - 8 * _SCALE, y), label, fill=_TEXT, font=_font(11), anchor="rm")
    for step in dict.fromkeys((first, round((first + last) / 2), last)):
        x, y = place(step, low)
        pen.text((x, y + 8 * _SCALE), f"{step:g}", fill=_TEXT, font=_font(11), anchor="mt")
    for curve in panel.curves:
        points = [place(step, value / 2) for step, value in curve.points]
        if len(points) > 1:
            pen.line(points, fill=colours[curve.name], width=2 * _SCALE, joint="curve")
        for x, y in points if len(points) < 14 else []:
            pen.ellipse(
                [x - 3 * _SCALE, y - 3 * _SCALE, x + 3 * _SCALE, y + 3 * _SCALE],
                fill=colours[curve.name],
            )


def _at(x: float, y: float) -> tuple[float, float]:
    return x * _SCALE, y * _SCALE


def _box(x: float, y: float, width: float, height: float) -> list[float]:
    return [x * _SCALE, y * _SCALE, (x + width) * _SCALE, (y + height) * _SCALE]


def _font(size: int) -> Font:
    return ImageFont.load_default(size * _SCALE)
