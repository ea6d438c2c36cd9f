# SPDX-License-Identifier: Apache-2.0
"""`rlrun plot`: curves as text and as a picture."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rlrun.console.plot import plot_runs
from rlrun.console.png_chart import Curve, Panel, draw
from rlrun.errors import ConfigError, StorageError
from rlrun.metrics.registry import is_declared
from rlrun.run_dir.directory import RunDir
from tests.conftest import rlrun
from tests.report.run_factory import make_run, metrics_line


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("plot") / "run")


def shown(*roots: Path, metrics: tuple[str, ...] = (), png: bool = False) -> str:
    file = io.StringIO()
    plot_runs(roots, metrics=metrics, png=png, out=None, file=file)
    return file.getvalue()


def test_curves_are_drawn_in_the_terminal(run: Path) -> None:
    text = shown(run)
    assert "train/reward_mean" in text and "correction/ess" in text
    assert len(shown(run, metrics=("age/max",)).splitlines()) == 2
    assert "run" in shown(run, run, metrics=("age/max",)).splitlines()[0].split()


def test_a_curve_is_a_line_of_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = [make_run(tmp_path / name, steps=70) for name in ("synchronous", "asynchronous")]
    for roots in ([runs[0]], runs):
        lines = shown(*roots).splitlines()
        assert all(is_declared(line.split()[0]) for line in lines[1:])
        assert 75 <= max(map(len, lines)) <= 80


def test_a_picture_has_a_panel_per_metric_and_all_runs(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", steps=40)
    done = rlrun("plot", str(run), str(other), "--png", "-m", "age/max", "-m", "train/loss")
    assert (done.code, done.out.strip()) == (0, str(run / "plot.png"))
    with Image.open(run / "plot.png") as image:
        assert image.format == "PNG" and image.size == (2 * 520 * 2, (300 + 30) * 2)
        colours = {colour for _, colour in image.getcolors(1 << 24) or []}
    assert {(11, 107, 184), (199, 80, 0)} <= colours


def test_what_cannot_be_drawn_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean train/loss"):
        shown(run, metrics=("train/los",))
    with pytest.raises(StorageError, match="no value of perf/peak_memory_gib"):
        shown(run, metrics=("perf/peak_memory_gib",))
    with RunDir.create(tmp_path / "new") as new:
        new.write_config("a: 1\n")
    with pytest.raises(StorageError, match="has no step yet"):
        shown(new.root)
    assert rlrun("plot", str(run), "--out", "x.png").code == 2


def test_values_that_are_null_are_left_out(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    lines = [metrics_line(1, True) | {"train/loss": None}, metrics_line(2, True)]
    RunDir.read(root).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "train/loss" in shown(root, metrics=("train/loss",))


points = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30)


@given(points)
@settings(max_examples=20, deadline=None)
def test_any_finite_numbers_can_be_drawn(values: list[float]) -> None:
    curve = Curve("a", [(float(step), value) for step, value in enumerate(values)])
    assert draw([Panel("x", [curve])]).startswith(b"\x89PNG")
