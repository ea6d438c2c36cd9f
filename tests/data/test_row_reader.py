# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from rlrun.data import row_reader
from rlrun.errors import DataError
from rlrun.types import Prompt

ROW = {"problem": "1+1", "answer": "2"}


def lines(*records):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def content(loaded, index=0):
    return loaded.rows[index].messages[-1]["content"]


@pytest.mark.parametrize(
    "record",
    [
        {"problem": "1+1", "answer": "2"},
        {"prompt": "1+1", "answer": "2"},
        {"messages": [{"role": "user", "content": "1+1"}], "answer": "2"},
        {"prompt": [{"role": "user", "content": "1+1"}], "answer": 2},
    ],
)
def test_every_row_shape_gives_the_same_conversation(load, record):
    row = load(lines(record)).rows[0]
    assert row.messages == ({"role": "user", "content": "1+1"},)
    assert row.answer == "2"


def test_further_fields_are_the_payload(load):
    row = load(lines({**ROW, "id": "x7", "level": 3, "ratio": 0.5})).rows[0]
    assert row.payload == {"id": "x7", "level": 3, "ratio": 0.5}
    assert type(row.payload["ratio"]) is float


@pytest.mark.parametrize(
    ("literal", "answer"),
    [
        ("0", "0"),
        ("-5", "-5"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("0.1", "0.1"),
        ("2.50", "2.50"),
        ("0.12345678901234567890123", "0.12345678901234567890123"),
        ("1e3", "1000"),
        ("-1.5E-3", "-0.0015"),
        ('" 1,000 "', "1,000"),
    ],
)
def test_number_answers_are_converted_exactly(load, literal, answer):
    assert load(b'{"problem":"x","answer":%b}' % literal.encode()).rows[0].answer == answer


BAD_ROWS = [
    ({"problem": "", "answer": "2"}, "empty problem"),
    ({"problem": " \n", "answer": "2"}, "empty problem"),
    ({"answer": "2"}, "missing problem"),
    ({"problem": None, "answer": "2"}, "missing problem: field 'problem' is null"),
    ({"problem": 5, "answer": "2"}, "bad problem"),
    ({"problem": "x", "prompt": "y", "answer": "2"}, "several problems"),
    ({"problem": "1+1"}, "missing answer"),
    ({"problem": "1+1", "answer": None}, "missing answer: field 'answer' is null"),
    ({"problem": "1+1", "answer": ""}, "empty answer"),
    ({"problem": "1+1", "answer": "  "}, "empty answer"),
    ({"problem": "1+1", "answer": True}, "bad answer"),
    ({"problem": "1+1", "answer": ["2"]}, "bad answer"),
    ({"problem": "1+1", "answer": {"value": 2}}, "bad answer"),
    ({"problem": "1+1", "answer": "unreadable"}, "refused by the environment"),
]


@pytest.mark.parametrize(("record", "reason"), BAD_ROWS)
def test_unusable_row_is_named_and_counted(load, tmp_path, record, reason):
    data = lines(ROW, record, ROW)
    with pytest.raises(DataError) as caught:
        load(data, refused=("unreadable",))
    assert f"{tmp_path / 'rows.jsonl'}:2 {reason}" in str(caught.value)
    loaded = load(data, refused=("unreadable",), skip=True)
    assert len(loaded.rows) == 2
    kind = reason.partition(":")[0]
    assert {name: skipped.count for name, skipped in loaded.skipped.items()} == {kind: 1}


def test_all_bad_rows_are_reported_at_once_up_to_twenty(load):
    with pytest.raises(DataError) as caught:
        load(lines(ROW, *[{"answer": "2"}] * 30, *[{"problem": "x"}] * 3))
    message = str(caught.value)
    assert "33 of 34 rows cannot be used (30 missing problem, 3 missing answer)" in message
    assert message.count("rows.jsonl:") == 1 + 20
    assert "and 13 more" in message
    assert caught.value.exit_code == 3


def test_nothing_left_is_an_error_even_when_skipping(load):
    with pytest.raises(DataError, match="no row is left; 2 of 2 rows"):
        load(lines({"problem": ""}, {"answer": "2"}), skip=True)
    with pytest.raises(DataError, match="there are no rows"):
        load(b"\n \r\n", skip=True)


def test_rows_of_equal_text_are_rows_of_their_own(load):
    loaded = load(lines(ROW, ROW))
    prompts = [Prompt(n, 0, row, (1,)) for n, row in enumerate(loaded.rows)]
    assert len({prompt.group_id for prompt in prompts}) == 2


def test_skipped_examples_are_five_at_most(load):
    skipped = load(lines(ROW, *[{"answer": "2"}] * 9), skip=True).skipped["missing problem"]
    assert (skipped.count, len(skipped.examples)) == (9, 5)


SOLUTIONS = [
    {"question": "How many?", "answer": "He has 3 #### boxes of 4 = <<3*4=12>>12.\n#### 12"},
    {"question": "How much?", "answer": "It costs $1,000 more.\n#### 1,000"},
    {"question": "How cold?", "answer": "It falls.\n#### -5"},
]


def test_worked_solutions_load_by_configuration_alone(load):
    loaded = load(
        lines(*SOLUTIONS), prompt_field="question", answer_field="answer", answer_pattern="####"
    )
    assert [row.answer for row in loaded.rows] == ["12", "1,000", "-5"]
    assert content(loaded) == "How many?"


def test_an_answer_inside_of_another_field_is_named_with_dots(load):
    scorer = {"style": "rule", "ground_truth": "72"}
    record = {"prompt": [{"role": "user", "content": "How many?"}], "reward_model": scorer}
    row = load(lines(record), answer_field="reward_model.ground_truth").rows[0]
    assert row.answer == "72" and row.payload == {"reward_model": scorer}
    # A field that has the dots in its own name is meant first.
    both = {**record, "reward_model.ground_truth": "8"}
    assert load(lines(both), answer_field="reward_model.ground_truth").rows[0].answer == "8"
    for name in ("reward_model.truth", "reward_model.style.name", "prompt.ground_truth"):
        with pytest.raises(DataError, match=f"no field '{name}'"):
            load(lines(record), answer_field=name)


def test_a_problem_inside_of_another_field_is_named_with_dots(load):
    record = {"extra_info": {"question": "How many?", "index": 3}, "answer": "72"}
    row = load(lines(record), prompt_field="extra_info.question").rows[0]
    assert row.messages[0]["content"] == "How many?"
    assert row.payload == {"extra_info": record["extra_info"]}
    for name in ("extra_info.questoin", "extra_info.question.text", "answer.question"):
        with pytest.raises(DataError, match=f"no field '{name}'"):
            load(lines(record), prompt_field=name)


def test_pattern_with_a_group_is_a_regular_expression_whose_last_match_counts(load):
    record = {"problem": "x", "answer": r"first \boxed{1}, then \boxed{2}"}
    assert load(lines(record), answer_pattern=r"\\boxed\{(.*?)\}").rows[0].answer == "2"


@pytest.mark.parametrize("pattern", ["answer (", "a.b", "x(y"])
def test_pattern_without_a_group_is_plain_text(load, pattern):
    record = {"problem": "x", "answer": f"aXb {pattern} 7"}
    assert load(lines(record), answer_pattern=pattern).rows[0].answer == "7"


@pytest.mark.parametrize("skip", [False, True])
def test_pattern_of_exponential_time_is_an_error_and_no_skip(load, monkeypatch, skip):
    monkeypatch.setattr(row_reader, "PATTERN_SECONDS", 0.05)
    record = {"problem": "x", "answer": "a" * 60 + "!"}
    with pytest.raises(DataError, match=r"rows\.jsonl:1: answer_pattern='.*takes more than"):
        load(lines(record), answer_pattern=r"(?:a|a)*([bc])", skip=skip)


def test_row_without_the_pattern_is_bad(load):
    with pytest.raises(DataError, match=r"rows\.jsonl:1 answer pattern not found"):
        load(lines({"problem": "x", "answer": "12"}), answer_pattern="####")
    with pytest.raises(DataError, match="empty answer"):
        load(lines({"problem": "x", "answer": "12 ####  "}), answer_pattern="####")


def test_template_keeps_braces_and_inserts_the_problem_once(load):
    record = {"problem": r"\frac{1}{2} {problem} {}", "answer": "1"}
    loaded = load(lines(record), prompt_template=r"Put it in \boxed{}. {problem} {0}")
    assert content(loaded) == r"Put it in \boxed{}. \frac{1}{2} {problem} {} {0}"


@pytest.mark.parametrize("template", ["no place", "{problem} {problem}", "{}"])
def test_template_needs_exactly_one_place(load, template):
    with pytest.raises(DataError, match="exactly once"):
        load(lines(ROW), prompt_template=template)


def test_system_prompt_comes_first_and_never_twice(load):
    loaded = load(lines(ROW), system_prompt="Be brief.")
    assert [message["role"] for message in loaded.rows[0].messages] == ["system", "user"]
    own = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    with pytest.raises(DataError, match="several system prompts"):
        load(lines({"messages": own, "answer": "1"}), system_prompt="Be brief.")


def test_rows_without_answers_are_asked_for_by_an_empty_field_name(load):
    row = load(lines({"problem": "Write a poem", "topic": "sea"}), answer_field="").rows[0]
    assert (row.answer, row.payload) == ("", {"topic": "sea"})


def test_limit_takes_the_first_usable_rows(load):
    data = lines({"problem": ""}, *[{"problem": str(n), "answer": "1"} for n in range(9)])
    loaded = load(data, limit=3, skip=True)
    assert [row.row_id for row in loaded.rows] == [f"rows.jsonl:{n}" for n in (2, 3, 4)]
    assert "only 9 usable rows" in load(data, limit=20, skip=True).notices[-1]


def test_checksum_follows_content_and_settings_but_not_line_ends(load):
    data = lines(ROW, {"problem": "2+2", "answer": "4"})
    checksum = load(data).checksum
    assert load(data.replace(b"\n", b"\r\n")).checksum == checksum
    assert load(data.replace(b"4", b"5")).checksum != checksum
    assert load(data, prompt_template="Say: {problem}").checksum != checksum
    assert load(data, limit=1).checksum != checksum


def test_rows_are_a_sequence(load):
    rows = load(lines(*[{"problem": "x", "answer": n} for n in range(5)])).rows
    assert [row.answer for row in rows] == list("01234")
    assert [row.answer for row in rows[1:4:2]] == ["1", "3"]
    assert rows[-1] == rows[4]
    with pytest.raises(IndexError):
        rows[5]
