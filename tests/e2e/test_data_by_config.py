# SPDX-License-Identifier: Apache-2.0
"""Rows of one's own by configuration alone: worked solutions as JSONL and Parquet, and bad rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlrun.run_dir.records import read_trained, read_validation
from tests.e2e.forked import forked

ROWS = [
    {
        "question": "A baker fills 48 rolls into bags of 2. Three bags tear. How many are left?",
        "answer": "There are 48/2=<<48/2=24>>24 bags.\n24-3=<<24-3=21>>21 are left.\n#### 21",
    },
    {
        "question": "Mona reads 6 pages on each of 3 days. How many pages is that?",
        "answer": "She reads 6*3=<<6*3=18>>18 pages.\n#### 18",
    },
    {
        "question": "A shop sells 3 lamps at $400 each. What does it take in?",
        "answer": "It takes in 3*400=$<<3*400=1200>>1,200.\n#### 1,200",
    },
    {
        "question": "Tom has 50 cents and spends half of them. How many {cents} are left?",
        "answer": "Half of 50 is 50*.5=<<50*.5=25>>25.\n#### 25",
    },
]
ANSWERS = {"21", "18", "1,200", "25"}
TEMPLATE = "{problem}\nPut the answer in \\boxed{}."

FIELDS = ("prompt_field=question", "answer_field=answer", "answer_pattern='####'")
BASE = (
    "+recipe=quickstart",
    "data=default",
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=2",
    "policy.max_total_sequence_length=256",
)
WITHOUT_VALIDATION = (
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "checkpointing.metric=null",
)


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sources(path: Path) -> list[str]:
    """The overrides that read a file of worked solutions for training and validation."""
    settings = [f"source={path}", *FIELDS, f"prompt_template='{TEMPLATE}'"]
    return [f"data.{part}.{one}" for part in ("train", "validation") for one in settings]


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("solutions") / "rows.jsonl", ROWS)


def test_check_shows_counts_the_prompt_as_the_model_reads_it_and_rewards(jsonl: Path) -> None:
    done = forked("check", *BASE, *sources(jsonl))
    assert (done.code, done.err) == (0, "")
    assert "4 training prompts, 4 validation prompts" in done.out
    sample = re.search(
        r"<\|im_start\|>user\n(.*)\n(.*)<\|im_end\|>\n<\|im_start\|>assist", done.out
    )
    assert sample is not None
    assert sample[1] in {row["question"] for row in ROWS}
    assert sample[2] == "Put the answer in \\boxed{}."
    reward = re.search(r"answer '(.*)' scores 1.0, a wrong one scores 0.0", done.out)
    assert reward is not None and reward[1] in ANSWERS


def test_parquet_is_checked_like_jsonl(jsonl: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    done = forked("check", *BASE, *sources(path))
    assert done.code == 0, done.out
    assert done.out.replace(str(path), str(jsonl)) == forked("check", *BASE, *sources(jsonl)).out


def test_a_run_trains_on_them_and_scores_the_extracted_answer(jsonl: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = forked("train", *BASE, *sources(jsonl), "grpo.max_num_steps=1", f"run_dir={run_dir}")
    assert done.code == 0, done.err
    trained = list(read_trained(run_dir / "trained/step_000001.jsonl"))
    assert {row["prompt_id"] for row in trained} == {f"rows.jsonl:{n}" for n in range(1, 5)}
    assert not any("<<" in row["prompt"] or "####" in row["prompt"] for row in trained)
    validated = list(read_validation(run_dir / "validation/step_000001.jsonl"))
    assert [row["answer"] for row in validated] == ["21", "18", "1,200", "25"]


def test_what_the_verifier_says_of_such_answers(tmp_path: Path) -> None:
    """The mark, a box, a sentence and the grouping of thousands are all read."""
    responses = [
        ("48/2=<<48/2=24>>24\n#### 24", "24", 1.0),
        ("It takes in \\boxed{1200}", "1,200", 1.0),
        ("The answer is $1,200.00.", "1,200", 1.0),
        ("#### 1,300", "1,200", 0.0),
        ("24 or 25", "24", 0.0),
    ]
    path = tmp_path / "responses.jsonl"
    path.write_text("".join(json.dumps({"response": r, "gold": g}) + "\n" for r, g, _ in responses))
    done = forked("score", str(path))
    assert [json.loads(line)["reward"] for line in done.out.splitlines()] == [
        reward for _, _, reward in responses
    ]


# --- bad rows -------------------------------------------------------------------------------------

GOOD = b'{"problem": "What is 1 + 1?", "answer": "2"}'
BAD_LINES = [
    (b'{"problem": "x"', "JSON"),
    (b'{"problem": "", "answer": "2"}', "empty problem"),
    (b'{"answer": "2"}', "missing problem"),
    (b'{"problem": "1+1"}', "missing answer"),
    (b'{"problem": "1+1", "answer": ""}', "empty answer"),
    (b'{"problem": "1+1", "answer": true}', "bad answer"),
    (b'{"problem": "1+1", "answer": NaN}', "NaN"),
    (b'{"problem": "1+1", "answer": "2", "answer": "3"}', "answer"),
    (b'["1+1", "2"]', "object"),
    (b'{"problem": "\xff", "answer": "2"}', "UTF-8"),
    (b'{"problem": "1+1", "prompt": "1+2", "answer": "2"}', "several problems"),
    (b'{"problem": "1+1", "answer": "\\\\frac{1}{"}', "environment"),
    (
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": '
        b'{"url": "http://example.org/a.png"}}]}], "answer": "2"}',
        "text only",
    ),
]


def check_rows(source: Path, *overrides: str, command: str = "check") -> tuple[int, str]:
    arguments = [*BASE, *WITHOUT_VALIDATION, f"data.train.source={source}", *overrides]
    done = forked(command, *arguments, cwd=source.parent)
    return done.code, done.out + done.err


@pytest.fixture
def bad_file(tmp_path: Path) -> Path:
    """Every kind of bad row, a good row before each."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(GOOD + b"\n" + line + b"\n" for line, _ in BAD_LINES))
    return path


@pytest.mark.parametrize("command", ["check", "train"])
def test_bad_rows_are_named_by_file_and_line_before_anything_starts(
    bad_file: Path, command: str
) -> None:
    code, said = check_rows(bad_file, command=command)
    assert code == 3
    assert f"{len(BAD_LINES)} of {2 * len(BAD_LINES)} rows cannot be used" in said
    for number, (_, reason) in enumerate(BAD_LINES):
        (line,) = [text for text in said.splitlines() if f"{bad_file}:{2 * number + 2} " in text]
        assert reason in line


def test_skipping_bad_rows_counts_them_by_reason(bad_file: Path) -> None:
    code, said = check_rows(bad_file, "data.on_bad_row=skip")
    assert code == 0
    assert f"{len(BAD_LINES)} training prompts" in said
    notes = [line for line in said.splitlines() if re.search("rows? skipped", line)]
    counts = [int(re.search(r"(\d+) rows? skipped", line)[1]) for line in notes]  # type: ignore[index]
    assert sum(counts) == len(BAD_LINES)
    assert any("empty answer" in line and f"{bad_file}:10" in line for line in notes)


def test_a_file_without_a_usable_row_is_an_error_even_if_bad_rows_are_skipped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line, _ in BAD_LINES))
    code, said = check_rows(path, "data.on_bad_row=skip")
    assert code == 3
    assert "no row is left" in said


def test_line_ends_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(GOOD + b"\r\n\r\n" + GOOD.replace(b"1 + 1", b"2 + 0"))
    code, said = check_rows(path)
    assert code == 0
    assert "2 training prompts" in said
    assert "\r" not in said


def test_prompts_that_are_too_long_for_all_are_an_error_with_the_number(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [json.loads(GOOD)] * 3)
    code, said = check_rows(path, "data.max_prompt_tokens=1")
    assert code == 3
    assert "0 of 3 prompts left" in said


def test_a_field_that_no_row_has_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    code, said = check_rows(path, "data.train.prompt_field=questions")
    assert code == 3
    assert "'questions'" in said and "question" in said and f"{path}:1 " in said
