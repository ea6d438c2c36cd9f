# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import json
import sys

import pytest

from rlrun.env.calculator import CalculatorEnv
from rlrun.env.math import MathEnv
from rlrun.env.python import PythonEnv
from rlrun.env.reasoning_gym import ReasoningGymEnv
from rlrun.errors import DataError
from rlrun.evaluation.score import score_file
from rlrun.evaluation.stored import score

LIMITS = {"num_workers": 1, "timeout_s": 0.5, "max_memory_mb": 1024}
MATH = MathEnv(**LIMITS)


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scored(path, env=MATH):
    out = io.StringIO()
    counts = score_file(path, env, out)
    return counts, [json.loads(line) for line in out.getvalue().splitlines()]


def test_rows_come_out_in_input_order_with_the_four_fields(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"id": "a", "response": "\\boxed{\\sqrt{12}}", "gold": "2\\sqrt{3}"},
        {"id": "b", "response": "\\boxed{4}", "gold": "5"},
        {"response": "no idea", "gold": 5},
        {"id": 7, "response": "\\boxed{0.5}", "gold": 0.5},
    )
    counts, rows = scored(path)
    assert rows == [
        {"id": "a", "reward": 1.0, "extracted": "\\sqrt{12}", "error": None},
        {"id": "b", "reward": 0.0, "extracted": "4", "error": None},
        {"id": 3, "reward": 0.0, "extracted": None, "error": None},
        {"id": 7, "reward": 1.0, "extracted": "0.5", "error": None},
    ]
    assert (counts.rows, counts.reward_sum, counts.failed, counts.limited) == (4, 2.0, 0, 0)


def test_limits_and_failures_are_errors_and_failures_have_no_reward(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"response": "\\boxed{\\sum_{k=1}^{10^{9}} k^{9^{9}}}", "gold": "5"},
        {"response": "\\boxed{5}", "gold": "\\frac{1}{"},
        {"response": "\\boxed{5}", "gold": "5"},
    )
    counts, (bomb, unreadable, right) = scored(path)
    assert bomb["reward"] == 0.0 and "limit" in bomb["error"]
    assert unreadable["reward"] is None and "cannot be read" in unreadable["error"]
    assert right == {"id": 3, "reward": 1.0, "extracted": "5", "error": None}
    assert (counts.failed, counts.limited) == (1, 1)


def test_stored_rollouts_are_scored_by_their_answer(tmp_path):
    stored = {"prompt_id": "rows:4", "group_id": "0/rows:4", "sample_index": 2, "reward": 0.0}
    path = write(
        tmp_path / "step_000001.jsonl", {**stored, "response": "\\boxed{3}", "answer": "3"}
    )
    assert scored(path)[1][0] == {
        "id": "0/rows:4/2",
        "reward": 1.0,
        "extracted": "3",
        "error": None,
    }


def test_gold_wins_over_answer(tmp_path):
    path = write(tmp_path / "a.jsonl", {"response": "\\boxed{3}", "gold": "3", "answer": "4"})
    assert scored(path)[1][0]["reward"] == 1.0


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        ("1e22", "1" + "0" * 22),
        ("1e-7", "0.0000001"),
        ("12345678901234567890.5", "12345678901234567890.5"),
        ("0.30000000000000000001", "0.30000000000000000001"),
    ],
)
@pytest.mark.parametrize("field", ["gold", "answer"])
def test_a_number_as_reference_is_the_one_that_is_written(tmp_path, field, number, answer):
    path, shorter = tmp_path / "a.jsonl", answer[:-1]
    lines = [
        f'{{"response": "\\\\boxed{{{said}}}", "{field}": {number}}}' for said in (answer, shorter)
    ]
    path.write_text("\n".join(lines))
    assert [row["reward"] for row in scored(path)[1]] == [1.0, 0.0]


def test_blank_lines_crlf_and_byte_order_mark(tmp_path):
    path = tmp_path / "a.jsonl"
    line = b'{"response": "\\\\boxed{3}", "gold": "3"}'
    path.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n" + line)
    assert [row["id"] for row in scored(path)[1]] == [1, 3]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"gold": "3"}', 'there is no "response"'),
        (b'{"response": 3, "gold": "3"}', "response=3"),
        (b'{"response": "3"}', '"gold"'),
        (b'{"response": "3", "gold": null}', "gold=null"),
        (b'{"response": "3", "gold": true}', "gold=true"),
        (b'{"response": "3", "gold": 1e-500}', "1e-500"),
        (b'{"response": "\xff", "gold": "3"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"response": "3", "gold": NaN}', "NaN"),
        (b'{"response": "3", "gold": "3", "other": [-Infinity]}', "-Infinity"),
        (b'{"response": "3", "gold": "3", "other": 1e400}', "1e400 is out of range"),
        (b'{"response": "3", "gold": "3", "gold": "4"}', "field 'gold' occurs more than once"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_line_is_named_after_what_came_before_it_is_written(tmp_path, line, told):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"response": "\\\\boxed{3}", "gold": "3"}\n' + line + b"\n")
    out = io.StringIO()
    with pytest.raises(DataError) as caught:
        score_file(path, MATH, out)
    assert caught.value.where == f"{path}:2" and told in str(caught.value)
    assert caught.value.exit_code == 3
    assert json.loads(out.getvalue())["reward"] == 1.0


def test_all_bad_lines_are_told_at_once_and_nothing_behind_the_first_is_scored(tmp_path):
    path, good = tmp_path / "a.jsonl", b'{"response": "\\\\boxed{3}", "gold": "3"}\n'
    path.write_bytes(good * 70 + b"{\n" + good + b'{"gold": "3"}\n' + good + b"[1]\n" * 30)
    out = io.StringIO()
    with pytest.raises(DataError) as caught:
        score_file(path, MATH, out)
    assert [json.loads(line)["id"] for line in out.getvalue().splitlines()] == [*range(1, 71)]
    assert caught.value.exit_code == 3
    first, *listed, more = str(caught.value).splitlines()
    assert first.startswith(f"{path}: 32 lines are not rows")
    assert more == "  ... and 12 more."
    assert len(listed) == 20
    assert listed[0].startswith(f"  {path}:71: not JSON")
    assert listed[1] == f'  {path}:73: there is no "response". Give the text to score.'
    assert listed[2].startswith(f"  {path}:75: not a JSON object")


def test_what_comes_before_a_bad_line_is_written_before_the_rest_is_read():
    """Reading leaves the event loop no time, and time limits go on."""
    out = io.StringIO()

    class Source:
        def open(self, mode):
            return contextlib.nullcontext(self.lines())

        def lines(self):
            yield b'{"response": "\\\\boxed{3}", "gold": "3"}\n'
            yield b"{"
            assert json.loads(out.getvalue())["reward"] == 1.0
            yield b"["

    with pytest.raises(DataError, match="2 lines are not rows"):
        score_file(Source(), MATH, out)


def test_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        score_file(tmp_path / "none.jsonl", MATH, io.StringIO())


def test_reward_function_needs_no_gold_and_sees_the_other_fields(tmp_path):
    code = tmp_path / "code.py"
    code.write_text("def f(response, answer, **row): return row['bonus'] + len(response)\n")
    env = PythonEnv(
        environment=None,
        reward_function=f"{code}:f",
        options={},
        timeout_s=200.0,
        num_threads=2,
    )
    path = write(tmp_path / "a.jsonl", {"response": "abc", "bonus": 0.5}, {"response": "abc"})
    first, second = scored(path, env)[1]
    assert first["reward"] == 3.5
    assert second["reward"] is None and "KeyError" in second["error"]


def test_response_that_ends_in_a_call_has_no_reward(tmp_path):
    path = write(tmp_path / "a.jsonl", {"response": "<calc>1+1</calc>", "gold": "2"})
    (row,) = scored(path, CalculatorEnv(**LIMITS))[1]
    assert row["reward"] is None and "call" in row["error"]


def test_file_is_a_stream(tmp_path):
    class Watched(io.StringIO):
        lines = 0

        def write(self, text):
            Watched.lines += text.count("\n")
            return len(text)

    class Source:
        """Fails if more than a window of rows is read ahead of what is written."""

        read = 0

        def open(self, mode):
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def __iter__(self):
            for _ in range(2_000):
                Source.read += 1
                assert Source.read - Watched.lines <= 100
                yield b'{"response": "\\\\boxed{3}", "gold": "3"}\n'

    assert score_file(Source(), MATH, Watched()).rows == 2_000


@pytest.mark.parametrize("payload", [{}, {"reasoning_gym": 5}, {"reasoning_gym": {}}])
def test_row_that_an_environment_cannot_score_is_named_though_it_has_a_gold(tmp_path, payload):
    path = write(tmp_path / "a.jsonl", {"response": "3", "gold": "3", **payload})
    with pytest.raises(DataError, match="not a row of reasoning-gym") as caught:
        score_file(path, ReasoningGymEnv(partial_credit=False, **LIMITS), io.StringIO())
    assert caught.value.where == f"{path}:1"


def test_reference_that_makes_the_verifier_hit_its_limit_is_counted(tmp_path):
    bomb = "\\sum_{k=1}^{10^{9}} k^{9^{9}}"
    path = write(tmp_path / "a.jsonl", {"response": "\\boxed{5}", "gold": bomb})
    counts, (row,) = scored(path)
    assert row["reward"] == 0.0 and "limit" in row["error"]
    assert (counts.failed, counts.limited) == (0, 1)


def test_what_user_code_prints_stays_out_of_the_results(tmp_path, capsys):
    code = tmp_path / "loud.py"
    code.write_text(
        "print('imported')\ndef f(response, answer):\n    print('scored')\n    return 1.0\n"
    )
    path = write(tmp_path / "a.jsonl", {"response": "a"}, {"response": "b"})
    score(path, ["env=python", f"env.reward_function={code}:f"], None, sys.stdout)
    out, err = capsys.readouterr()
    assert [json.loads(line)["reward"] for line in out.splitlines()] == [1.0, 1.0]
    assert "imported" in err and err.count("scored") == 2
