# SPDX-License-Identifier: Apache-2.0
"""What a run says: one line per step in a file, a bar on a terminal."""

from __future__ import annotations

import io
import logging
import math
import os
import pty
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlrun.console.activity import Activity, Oldest
from rlrun.console.console import Console
from rlrun.console.step_line import collapse_notice, duration, fit, step_fields, trend
from rlrun.console.terminal import columns
from rlrun.run_dir.log_file import LogFile

METRICS = {
    "train/reward_mean": 0.53125,
    "train/loss": -0.00123,
    "train/entropy": 1.25,
    "train/response_tokens_mean": 87.5,
    "age/mean": 0.0,
    "perf/step_s": 3.25,
    "perf/generated_tokens_per_s": 5123.4,
}


def output_of(*steps: dict[str, float | None], total: int | None = 40) -> list[str]:
    file = io.StringIO()
    with Console(file) as console:
        console.begin(total)
        for number, metrics in enumerate(steps, start=1):
            console.step(number, metrics)
    return file.getvalue().splitlines()


def test_a_step_is_one_plain_line() -> None:
    assert output_of(METRICS) == [
        "step  1/40  reward 0.531  eta 2m07s  5123 tok/s  3.25 s/step  87.5 tokens/answer  "
        "entropy 1.25"
    ]


def test_a_step_without_metrics_is_still_a_line() -> None:
    assert output_of({}, total=None) == ["step 1"]
    assert output_of({"train/reward_mean": None}) == ["step  1/40"]


ASYNC = METRICS | {
    "perf/ceiling_efficiency": 0.714,
    "idle/trainer_s": 0.585,
    "idle/trainer_s/waiting_groups": 0.5,
    "idle/trainer_s/age_limit": 0.085,
    "age/mean": 1.9,
    "age/max": 3.0,
}
WAITING = Activity(
    "wait/waiting_groups", 12.4, 19, 13, 16, Oldest("gsm8k-train:1182", "math", 212.3)
)


def test_an_asynchronous_step_says_what_the_trainer_waits_for_and_the_oldest_prompt() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.watch(lambda: WAITING)
        console.begin(200)
        console.step(41, ASYNC)
    assert file.getvalue().splitlines() == [
        "step  41/200  reward 0.531  eta 8m37s  E 0.71  waits 18% for groups  "
        "oldest gsm8k-train:1182 212s"
    ]
    young = replace(WAITING, oldest=Oldest("gsm8k-train:1182", "math", 0.4))
    assert not any(field.startswith("oldest") for field in step_fields(ASYNC, None, None, young))


def test_the_moment_in_words_names_what_is_waited_for_and_fits() -> None:
    assert WAITING.trainer() == "trainer waits for groups, 13 of 16 ready, 12 s"
    assert WAITING.rollouts(200) == (
        "oldest running: prompt gsm8k-train:1182, env math, 212 s; 19 groups running, 13 ready"
    )
    assert WAITING.rollouts(79) == "oldest running: prompt gsm8k-train:1182, env math, 212 s"
    assert WAITING.rollouts(50) == "oldest: gsm8k-train:1182 212s"
    assert all(len(WAITING.rollouts(width)) <= width for width in range(200))
    wide = Activity("", 0.0, 0, 4, 16, Oldest("数学题" * 6, "数", 2.0))
    assert all(columns(wide.rollouts(width)) <= width for width in range(120))
    assert fit("数" * 9, ["数", "a"], 21) == "数" * 9 + "  a"
    assert fit("数" * 9, ["a"], 7) == "数" * 3 + " "
    nothing = Activity("", 0.0, 0, 4, 16, None)
    assert nothing.rollouts(80) == "rollouts: 0 groups running, 4 ready"


def test_a_long_identity_is_told_by_its_end() -> None:
    assert Oldest("generator:addition/train:4495", "", 1.0).short() == "..ddition/train:4495 1s"


def test_the_reward_comes_with_its_trend() -> None:
    lines = output_of(*({"train/reward_mean": 0.1 * n} for n in range(5)))
    assert lines[2] == "step  3/40  reward 0.200"
    assert lines[4] == "step  5/40  reward 0.400 (+0.200)"


@given(
    st.dictionaries(st.sampled_from(sorted(METRICS)), st.one_of(st.none(), st.floats())),
    st.integers(0, 10**7),
    st.one_of(st.none(), st.integers(1, 10**7)),
    st.integers(0, 200),
    st.one_of(st.none(), st.floats()),
    st.one_of(st.none(), st.floats(0, 1e9)),
)
def test_no_line_is_wider_than_allowed(
    metrics: dict[str, float | None],
    step: int,
    total: int | None,
    width: int,
    change: float | None,
    left: float | None,
) -> None:
    line = fit(f"step {step}/{total}", step_fields(metrics, change, left), width)
    assert len(line) <= width and "\n" not in line


@given(st.lists(st.dictionaries(st.sampled_from(sorted(METRICS)), st.floats()), max_size=5))
@settings(max_examples=50, deadline=None)
def test_lines_in_a_file_stay_below_a_hundred_columns(steps: list[dict[str, float]]) -> None:
    lines = output_of(*steps)
    told = [line for line in lines if line.startswith("step")]
    assert len(told) == len(steps)
    assert all(len(line) < 100 and line.isascii() for line in lines)


def test_a_validation_is_in_the_line_of_its_step() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.begin(40)
        console.step(0, {"validation/accuracy": 0.25, "validation/reward_mean": 0.5})
        console.step(10, {"train/reward_mean": 0.5, "validation/reward_mean": 0.5})
    assert file.getvalue().splitlines() == [
        "step  0/40  validation accuracy 0.250",
        "step 10/40  reward 0.500  validation reward 0.500",
    ]


def test_texts_are_literal_and_cannot_control_the_terminal() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.say(["[bold]40 steps[/bold] :smile: in /a/b" + "c" * 120])
        console.notice("a\x1b[2Jb")
        console.warning("w")
    assert file.getvalue().splitlines() == [
        "[bold]40 steps[/bold] :smile: in /a/b" + "c" * 120,
        "note: a\\x1b[2Jb",
        "warning: w",
    ]


def test_warnings_of_the_loggers_come_out_while_it_is_open() -> None:
    file = io.StringIO()
    logger = logging.getLogger("rlrun.somewhere")
    with Console(file):
        logger.warning("disk %s", "full")
        logger.info("not for the console")
    logger.warning("too late")
    assert file.getvalue() == "warning: disk full\n"


def test_the_log_has_once_what_was_said(tmp_path: Path) -> None:
    log = LogFile.attach(tmp_path / "log.txt")
    with Console(io.StringIO()) as console:
        console.say(["going to do it"])
        console.notice("by the way")
        console.warning("look out")
        logging.getLogger("rlrun.somewhere").warning("disk full")
        console.begin(40)
        console.step(1, METRICS)
    log.detach()
    said = [line.split(": ", 1)[1] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert said[:4] == ["going to do it", "note: by the way", "warning: look out", "disk full"]
    assert said[4].startswith("step  1/40  reward 0.531") and len(said) == 5


def test_a_collapse_is_noticed_once() -> None:
    rewards = [0.5] * 12 + [0.1] * 20
    lines = output_of(*({"train/reward_mean": reward} for reward in rewards))
    warnings = [n for n, line in enumerate(lines) if line.startswith("warning: the reward has")]
    assert len(warnings) == 1
    assert 18 <= warnings[0] <= 22


def test_steps_that_change_no_weight_are_noticed_once_in_a_row_of_them() -> None:
    silent = {"train/reward_mean": 0.0, "train/skipped_update": 1.0}
    heard = {"train/reward_mean": 0.1, "train/skipped_update": 0.0}
    lines = output_of(*[silent] * 4, heard, *[silent] * 7, heard, *[silent] * 5)
    told = [n for n, line in enumerate(lines) if line.startswith("warning: nothing was learned")]
    assert [sum(line.startswith("step") for line in lines[:n]) for n in told] == [10, 18]
    assert "same reward (mean 0). Read them with `rlrun view`" in lines[told[0]]


def test_a_collapse_counts_the_steps_before_a_resume() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.begin(40, 19, [0.5] * 10 + [0.1] * 9)
        console.step(20, {"train/reward_mean": 0.1})
    assert "collapsed" in file.getvalue()


@pytest.mark.parametrize(
    ("rewards", "collapsed"),
    [
        ([1.0] * 10 + [0.4] * 9, False),
        ([1.0] * 10 + [0.4] * 10, True),
        ([1.0] * 10 + [0.5] * 10, False),
        ([0.0] * 10 + [-1.0] * 10, False),
        ([-1.0] * 10 + [-3.0] * 10, False),
        ([1.0] * 10 + [9.0] * 50 + [0.1] * 10, True),
    ],
)
def test_a_collapse_is_less_than_half_of_the_beginning(
    rewards: list[float], collapsed: bool
) -> None:
    assert (collapse_notice(rewards) is not None) == collapsed


def test_trend_compares_the_last_steps_with_as_many_before() -> None:
    assert trend([1.0, 2.0, 3.0]) is None
    assert trend([1.0, 1.0, 2.0, 2.0]) == 1.0
    assert trend([9.0] * 30 + [1.0] * 10 + [4.0] * 10) == 3.0


@given(st.floats(0, 1e8))
@example(59.6)
@example(3599.7)
@example(math.inf)
def test_durations_are_short_and_carry(seconds: float) -> None:
    text = duration(seconds)
    assert re.fullmatch(r"unknown|\d+s|\d+m[0-5]\ds|\d+h[0-5]\dm|\d+d(?:[01]\d|2[0-3])h", text)


def test_durations_read_well() -> None:
    assert [duration(s) for s in (45, 185, 7620, 356400)] == ["45s", "3m05s", "2h07m", "4d03h"]


PROGRAM = """
import logging
from rlrun.console.activity import Activity, Oldest
from rlrun.console.console import Console
from rlrun.run_dir.log_file import LogFile
oldest = Oldest("rows:" + "1" * 90, "math", 212.3)
with Console() as console:
    console.say(["40 steps"])
    console.watch(lambda: Activity("wait/waiting_groups", 12.4, 19, 13, 16, oldest))
    console.begin(3)
    for step in (1, 2, 3):
        console.step(
            step,
            {"train/reward_mean": 0.1 * step, "perf/step_s": 2.0, "validation/accuracy": 0.5},
        )
    logging.getLogger("rlrun.x").warning("look out")
    console.finish(["done"])
"""


def on_terminal(**environment: str) -> str:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment},
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    assert child.wait() == 0, child.stderr and child.stderr.read()
    if child.stderr:
        child.stderr.close()
    os.close(ours)
    return output.decode()


def test_a_terminal_has_a_bar_and_everything_else_as_lines() -> None:
    text = on_terminal(NO_COLOR="")
    assert "━" in text and "\x1b[" in text
    assert "step 3/3" in text and "eta 2s" in text
    assert "step 3/3  validation accuracy 0.500" in text and "warning: look out" in text
    assert text.rstrip().endswith("done")


def shown_lines(text: str) -> list[str]:
    """Lines as they were written, without what moves the cursor or sets colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [part for line in plain.split("\n") for part in line.split("\r")]


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_a_terminal_says_what_goes_on_in_lines_that_fit(columns: str) -> None:
    lines = shown_lines(on_terminal(COLUMNS=columns))
    assert max(map(len, lines)) < int(columns)
    assert any(line.startswith("trainer waits for groups, 13 of 16") for line in lines)
    assert any(re.match(r"oldest.*111, env math, 212 s|oldest.*11 212s", line) for line in lines)


def test_no_color_is_honoured() -> None:
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", on_terminal(NO_COLOR=""))
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|38;5;\d+)m", on_terminal(NO_COLOR="1"))


def test_a_dumb_terminal_gets_lines() -> None:
    text = on_terminal(TERM="dumb")
    assert "━" not in text and "\x1b[" not in text.replace("\x1b[?25h", "")
    assert [line for line in text.splitlines() if line.startswith("step 3/3  reward")]


def test_a_full_disk_behind_the_output_does_not_end_a_run() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    program = "import sys; sys.stdout.reconfigure(line_buffering=True)" + PROGRAM
    program += "    open(sys.argv[1], 'w').write('survived')"
    with tempfile.NamedTemporaryFile() as result, open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, result.name], stdout=full, stderr=subprocess.PIPE
        )
        assert done.returncode == 0, done.stderr
        assert result.read() == b"survived"
