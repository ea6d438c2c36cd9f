# SPDX-License-Identifier: Apache-2.0
"""The checkpoint store: complete or absent, verified, and only what is to be kept."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.checkpoint.store import CheckpointStore, load_checkpoint, saved_steps
from rlrun.config.schema import Checkpointing, Layout
from rlrun.errors import ConfigError, StorageError

METRIC = "validation/accuracy"


def keeping(
    top_k: int | None = None, metric: str | None = METRIC, higher: bool = True
) -> Checkpointing:
    return Checkpointing(
        enabled=True,
        layout=Layout.WHOLE,
        save_period=2,
        keep_top_k=top_k,
        metric=metric,
        higher_is_better=higher,
        checkpoint_must_save_by=None,
    )


def writes(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        (folder / "policy" / "weights").write_text(text * 100)
        (folder / "state.json").write_text(json.dumps(text))

    return write


def save_all(store: CheckpointStore, values: dict[int, float | None]) -> None:
    for step, value in values.items():
        store.save(step, writes(str(step)), {} if value is None else {METRIC: value})


def test_a_saved_checkpoint_is_loaded_with_its_metrics(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c", keeping())
    path = store.save(10, writes("ten"), {METRIC: 0.5, "train/loss": math.nan})
    assert path == tmp_path / "c" / "step_000010"
    loaded = store.load()
    assert (loaded.step, loaded.path) == (10, path)
    assert loaded.metrics == {METRIC: 0.5, "train/loss": None}
    files = json.loads((path / "manifest.json").read_text())["files"]
    assert set(files) == {"policy/weights", "state.json"}
    assert files["policy/weights"]["size"] == 300
    assert os.listdir(tmp_path / "c") == ["step_000010"]


def test_the_latest_is_found_by_number_among_other_names(tmp_path: Path) -> None:
    for name in (
        "step_5",
        "step_10",
        "step_9",
        "step_7_tmp",
        "tmp_step_11",
        "step_10-hf",
        "step_٣",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step_12").write_text("a file")
    assert saved_steps(tmp_path) == [5, 9, 10]
    assert CheckpointStore(tmp_path, keeping()).latest() == 10
    assert saved_steps(tmp_path / "missing") == []


def test_a_step_without_the_metric_ranks_last_and_does_not_switch_it_off(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping(2))
    save_all(store, {2: None, 4: 0.7, 6: None, 8: 0.6})
    assert saved_steps(tmp_path) == [4, 8]


@pytest.mark.parametrize("higher", [True, False])
def test_a_metric_that_is_not_finite_is_never_the_best(tmp_path: Path, higher: bool) -> None:
    store = CheckpointStore(tmp_path, keeping(1, higher=higher))
    save_all(store, {2: math.nan, 4: 0.5, 6: math.inf, 8: -math.inf, 10: math.nan})
    assert saved_steps(tmp_path) == [4, 10]


def test_the_latest_is_kept_though_it_is_not_the_best(tmp_path: Path) -> None:
    save_all(CheckpointStore(tmp_path, keeping(1)), {2: 0.9, 4: 0.5})
    assert saved_steps(tmp_path) == [2, 4]


def test_top_none_keeps_all_and_top_zero_the_latest(tmp_path: Path) -> None:
    save_all(CheckpointStore(tmp_path / "all", keeping(None)), {1: 0.1, 2: 0.2, 3: 0.0})
    assert saved_steps(tmp_path / "all") == [1, 2, 3]
    save_all(CheckpointStore(tmp_path / "one", keeping(0)), {1: 0.9, 2: 0.2, 3: 0.0})
    assert saved_steps(tmp_path / "one") == [3]


def test_a_save_below_existing_steps_and_a_failing_removal_do_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path, keeping(None))
    save_all(store, {4: 0.1, 8: 0.9})
    store.save(6, writes("6"), {METRIC: 0.5})
    assert saved_steps(tmp_path) == [4, 6, 8]

    rename, failures = Path.rename, [OSError(16, "Device or resource busy")]

    def busy_once(self: Path, target: Path) -> Path:
        if self.name == "step_000004" and failures:
            raise failures.pop()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", busy_once)
    store = CheckpointStore(tmp_path, keeping(1))
    store.save(10, writes("10"), {METRIC: 0.2})
    assert saved_steps(tmp_path) == [4, 8, 10]
    assert "step_000004 cannot be removed" in caplog.text
    store.save(12, writes("12"), {METRIC: 0.2})
    assert saved_steps(tmp_path) == [8, 12]


def test_a_half_removed_checkpoint_is_never_seen_and_goes_at_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path, keeping(0))
    store.save(1, writes("1"), {})
    with monkeypatch.context() as patch:

        def fails(path: Path) -> None:
            raise OSError(5, "Input/output error")

        patch.setattr(shutil, "rmtree", fails)
        store.save(2, writes("2"), {})
    assert saved_steps(tmp_path) == [2]
    assert "cannot be removed" in caplog.text
    store.save(3, writes("3"), {})
    assert os.listdir(tmp_path) == ["step_000003"]


@given(
    saves=st.lists(
        st.tuples(st.integers(1, 12), st.one_of(st.none(), st.sampled_from([0.0, 0.5, 0.9]))),
        min_size=1,
        max_size=8,
    ),
    top_k=st.one_of(st.none(), st.integers(0, 3)),
    higher=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_retention_is_latest_and_best(
    tmp_path_factory: pytest.TempPathFactory,
    saves: list[tuple[int, float | None]],
    top_k: int | None,
    higher: bool,
) -> None:
    root = tmp_path_factory.mktemp("c")
    store = CheckpointStore(root, keeping(top_k, higher=higher))
    kept: dict[int, float | None] = {}
    for step, value in saves:
        save_all(store, {step: value})
        kept[step] = value
        if top_k is not None:
            # Brute force: a step stays if fewer than top_k others beat it.
            def beats(a: int, b: int) -> bool:
                x, y = kept[a], kept[b]  # noqa: B023 (used at once)
                if x is None or y is None or x == y:
                    return (x is not None, a) > (y is not None, b)
                return (x > y) == higher

            kept = {
                s: v
                for s, v in kept.items()
                if s in (max(kept), step) or sum(beats(o, s) for o in kept if o != s) < top_k
            }
        assert saved_steps(root) == sorted(kept)
        assert store.load().step == max(kept)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping())
    store.save(3, writes("old"), {})
    store.save(3, writes("new"), {})
    assert json.loads((store.load(3).path / "state.json").read_text()) == "new"
    assert os.listdir(tmp_path) == ["step_000003"]


def test_a_failing_save_leaves_all_earlier_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping())
    store.save(3, writes("old"), {})

    def fails(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    for step in (3, 4):
        with pytest.raises(StorageError, match=r"No space left on device. Free disk space"):
            store.save(step, fails, {})
    assert os.listdir(tmp_path) == ["step_000003"]
    assert json.loads((store.load().path / "state.json").read_text()) == "old"


def test_a_full_disk_is_a_storage_error_and_the_former_checkpoint_is_whole(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
import torch
from rlrun.checkpoint.store import CheckpointStore
from rlrun.config.schema import Checkpointing
from rlrun.errors import StorageError
from rlrun.checkpoint.training_state import save_tensors
store = CheckpointStore(Path(sys.argv[1]), Checkpointing(enabled=True, layout="whole",
    save_period=1, keep_top_k=0, metric=None, higher_is_better=True, checkpoint_must_save_by=None))
def write(size):
    return lambda folder: save_tensors(folder / "w.safetensors", {"w": torch.zeros(size)})
store.save(1, write(10), {})
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    store.save(2, write(5000), {})
except StorageError as error:
    sys.exit(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert "File too large" in done.stderr and "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["step_000001"]
    assert load_checkpoint(tmp_path).step == 1


@given(place=st.floats(0, 1, exclude_max=True), change=st.sampled_from(["flip", "cut", "append"]))
@settings(max_examples=60, deadline=None)
def test_any_damage_is_noticed_and_the_one_before_is_taken(
    tmp_path_factory: pytest.TempPathFactory, place: float, change: str
) -> None:
    root = tmp_path_factory.mktemp("c")
    store = CheckpointStore(root, keeping())
    save_all(store, {1: 0.1, 2: 0.2})
    files = sorted(p for p in (root / "step_000002").rglob("*") if p.is_file())
    total = sum(p.stat().st_size for p in files)
    offset = int(place * total)
    for path in files:
        content = path.read_bytes()
        if offset < len(content):
            break
        offset -= len(content)
    if change == "flip":
        damaged = content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]
    else:
        damaged = content[:offset] if change == "cut" else content + b"x"
    path.write_bytes(damaged)
    if path.name == "manifest.json" and _says_the_same(damaged, content):
        return
    assert store.load().step == 1
    with pytest.raises(StorageError, match="step 2: "):
        store.load(2)


def _says_the_same(damaged: bytes, content: bytes) -> bool:
    try:
        return bool(json.loads(damaged) == json.loads(content))
    except ValueError:
        return False


def test_a_fallback_is_said_aloud_with_file_and_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path, keeping())
    save_all(store, {1: 0.1, 2: 0.2})
    (tmp_path / "step_000002" / "policy" / "weights").unlink()
    assert store.load().step == 1
    assert "step_000002 is damaged: policy/weights is missing" in caplog.text


def test_without_a_whole_checkpoint_the_error_lists_each_damage(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping())
    with pytest.raises(StorageError, match="holds no checkpoint"):
        store.load()
    save_all(store, {1: 0.1, 2: 0.2})
    for step in (1, 2):
        (tmp_path / f"step_00000{step}" / "manifest.json").unlink()
    with pytest.raises(StorageError, match=r"step 2: .*missing; step 1: .*missing"):
        store.load()
    with pytest.raises(StorageError, match="no checkpoint of step 7; it has 1, 2"):
        store.load(7)


def test_a_renamed_checkpoint_is_damaged(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping())
    save_all(store, {1: 0.1})
    (tmp_path / "step_000001").rename(tmp_path / "step_000005")
    with pytest.raises(StorageError, match="it was saved as step 1; its folder was step_000001"):
        store.load()


def test_a_replacement_that_was_killed_between_its_renames_is_undone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping())
    save_all(store, {1: 0.1})
    (tmp_path / "step_000001").rename(tmp_path / ".step_000001.replaced")
    (tmp_path / ".step_000001.saving.tmp").mkdir()
    assert CheckpointStore(tmp_path, keeping()).load().step == 1
    assert os.listdir(tmp_path) == ["step_000001"]
    # Killed after the second rename instead: the new one counts.
    shutil.copytree(tmp_path / "step_000001", tmp_path / ".step_000001.replaced")
    assert CheckpointStore(tmp_path, keeping()).load().step == 1
    assert os.listdir(tmp_path) == ["step_000001"]


def test_a_metric_that_does_not_exist_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"validation/acuracy is not a metric; did you mean validation/accuracy"
    ):
        CheckpointStore(tmp_path / "c", keeping(metric="validation/acuracy"))
    assert not (tmp_path / "c").exists()


def test_a_metric_that_the_first_save_lacks_is_noticed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path / "typo", keeping(metric="reward/formt"))
    for step in (1, 2):
        store.save(step, writes("x"), {"reward/format": 0.5})
    assert [record.getMessage() for record in caplog.records] == [
        "checkpoint step_000001 has no value of checkpointing.metric=reward/formt; it ranks below "
        "all that have one. Is its name right?"
    ]
    caplog.clear()
    CheckpointStore(tmp_path / "period", keeping()).save(1, writes("x"), {"reward/format": 0.5})
    assert "Let checkpointing.save_period be a multiple of grpo.val_period." in caplog.text
    caplog.clear()
    failed = {"validation/failed_samples": 4.0}
    CheckpointStore(tmp_path / "failed", keeping()).save(1, writes("x"), failed)
    assert "did all of its samples fail?" in caplog.text
    caplog.clear()
    CheckpointStore(tmp_path / "known", keeping()).save(1, writes("x"), {METRIC: math.nan})
    CheckpointStore(tmp_path / "none", keeping(metric=None)).save(1, writes("x"), {})
    assert not caplog.records


SAVER = """
import itertools, random, sys
from pathlib import Path
from rlrun.checkpoint.store import CheckpointStore
from rlrun.config.schema import Checkpointing
root = Path(sys.argv[1])
store = CheckpointStore(root, Checkpointing(enabled=True, layout="whole",
    save_period=1, keep_top_k=1, metric="train/loss", higher_is_better=False,
    checkpoint_must_save_by=None))
def write(folder):
    for name in "abc":
        (folder / name).write_bytes(random.randbytes(50_000))
# Every other save replaces the one before.
for number in itertools.count(2 * (store.latest() or 0)):
    store.save(1 + number // 2, write, {"train/loss": random.random()})
    if number % 2:
        print(1 + number // 2, flush=True)
"""


def test_a_store_whose_process_is_killed_anywhere_loads(tmp_path: Path) -> None:
    generator, last = random.Random(3), 0
    for _ in range(20):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(generator.uniform(0, 0.03))
        child.send_signal(signal.SIGKILL)
        child.wait()
        last = max(int(step) for step in [first, *child.stdout.read().split()])
        child.stdout.close()
        store = CheckpointStore(tmp_path, keeping(1))
        assert store.load(store.latest()).step >= last
        assert not list(tmp_path.glob(".*"))
    assert last >= 20


def test_what_is_begun_is_there_once_it_is_finished_and_not_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping())
    written = threading.Event()

    def begin(folder: Path) -> Callable[[], None]:
        def wait() -> None:
            assert written.wait(60)
            writes("late")(folder)

        return wait

    store.begin(2, begin, {METRIC: 0.5})
    assert saved_steps(tmp_path) == []
    written.set()
    store.finish()
    assert load_checkpoint(tmp_path).metrics == {METRIC: 0.5}
    assert (tmp_path / "step_000002/policy/weights").read_text() == "late" * 100
    store.finish()  # once is enough


def test_the_next_save_waits_for_the_one_that_was_begun(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping(top_k=0))
    store.begin(2, lambda folder: lambda: writes("two")(folder), {})
    store.save(4, writes("four"), {})
    assert saved_steps(tmp_path) == [4]


def test_a_failure_in_the_background_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keeping())
    store.save(2, writes("two"), {})

    def begin(folder: Path) -> Callable[[], None]:
        def wait() -> None:
            (folder / "half").write_text("half")
            raise OSError(28, "No space left on device")

        return wait

    store.begin(4, begin, {})
    with pytest.raises(StorageError, match="No space left"):
        store.save(6, writes("six"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step_000002"]


BEGINNER = """
import sys, threading
from pathlib import Path
from rlrun.checkpoint.store import CheckpointStore
from rlrun.config.schema import Checkpointing
store = CheckpointStore(Path(sys.argv[1]), Checkpointing(enabled=True, layout="sharded",
    save_period=1, keep_top_k=0, metric=None, higher_is_better=True, checkpoint_must_save_by=None))
store.save(1, lambda folder: (folder / "weights").write_text("whole"), {})
def begin(folder):
    (folder / "weights").write_text("ha")
    def wait():
        print("writing", flush=True)
        threading.Event().wait()
    return wait
store.begin(2, begin, {})
threading.Event().wait()  # the step after it is being trained
"""


def test_a_process_killed_while_it_writes_in_the_background_leaves_the_one_before(
    tmp_path: Path,
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", BEGINNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert len(list(tmp_path.glob(".step_000002*"))) == 1, "it was being written"
    store = CheckpointStore(tmp_path, keeping(0))
    loaded = store.load()
    assert (loaded.step, (loaded.path / "weights").read_text()) == (1, "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    store.save(2, writes("two"), {})
    assert saved_steps(tmp_path) == [2]
