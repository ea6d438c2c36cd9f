# SPDX-License-Identifier: Apache-2.0
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.env.answers.extract import find_answer, gold_answer
from rlrun.env.verifier import verify


def test_last_box_wins():
    assert find_answer(r"\boxed{26} no, \boxed{31}.").text == "31"


def test_whole_answer_is_recorded():
    verdict = verify(r"So \boxed{137}.", "12")
    assert (verdict.correct, verdict.extracted) == (False, "137")


def test_box_wins_over_later_phrase_and_later_fbox():
    assert find_answer(r"\boxed{5}. The answer is 6. \fbox{7}").text == "5"


def test_text_after_reasoning_counts_alone():
    assert find_answer(r"<think>\boxed{5}</think> \boxed{8}").text == "8"
    assert find_answer(r"<think>\boxed{5}</think> That is all.").text is None


def test_answer_inside_open_reasoning_does_not_count():
    assert find_answer(r"<think>so \boxed{5}").text is None
    assert find_answer("<think>The answer is 5.").text is None


def test_unclosed_last_box_is_no_answer():
    found = find_answer(r"\boxed{5} then \boxed{\frac{1}{2}")
    assert (found.text, found.reason) == (None, "the last box is not closed")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The answer is 42.", "42"),
        ("The answer is $\\frac{1}{2}$, I think.", "\\frac{1}{2}"),
        ("Answer: 3.5 apples", "3.5 apples"),
        ("**Final Answer:** 73", "73"),
        ("Final Answer\n\n73", "73"),
        ("so\n#### 1,234", "1,234"),
        ("The final answer is \\(x=2\\). Good.", "x=2"),
        ("<answer> 7 </answer>", "7"),
        ("The answer is 7 because it is prime.", "7"),
        ("First.\n12", "12"),
        ("The answer is 1. No, the answer is 2.", "2"),
    ],
)
def test_phrases_without_a_box(response, answer):
    assert find_answer(response).text == answer


@pytest.mark.parametrize(
    "response",
    [
        "It has 4 sides.",
        "We get 3 and then 4",
        "maybe 4 or so",
        "Thus x = 4",
        "So y is\nWe get x = 4.",
    ],
)
def test_numbers_in_prose_are_no_answer(response):
    assert find_answer(response).text is None


def test_reference_may_be_a_worked_solution():
    assert gold_answer("3 * 6 = 18\n#### 18") == "18"
    assert gold_answer(r"It is \boxed{5}.") == "5"
    assert gold_answer(r"\frac{1}{2}") == r"\frac{1}{2}"


_braces = st.recursive(
    st.text(alphabet="ab1+ \\{\\}", max_size=4).map(lambda s: s.replace("{", "").replace("}", "")),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    max_leaves=12,
)


@given(inside=_braces, before=st.text(alphabet="xy {}\\", max_size=20))
def test_last_box_is_found_whatever_braces_it_holds(inside, before):
    inside = inside.replace("\\", "\\alpha ")
    expected = inside.strip() or None
    assert find_answer(f"{before} \\boxed{{{inside}}} end").text == expected


@given(st.text(max_size=300))
def test_extraction_never_raises(response):
    found = find_answer(response)
    assert (found.text is None) == bool(found.reason)


@pytest.mark.parametrize(
    "response",
    [
        "\\boxed{" * 200_000,
        "\\boxed{" + "{" * 1_000_000,
        "<answer>" * 100_000,
        "answer" + " " * 1_000_000,
        "answer is " * 100_000,
        "<think>" * 100_000,
        "$" * 1_000_000,
        "**" * 500_000,
        "\\" * 1_000_000,
        "\n" * 1_000_000,
        "The answer is " + "(" * 1_000_000,
    ],
    ids=lambda response: response[:12].strip(),
)
def test_time_is_linear_in_the_length(response):
    start = time.process_time()
    find_answer(response)
    assert time.process_time() - start < 2.0


def test_boxes_that_a_word_or_comma_joins_are_one_answer():
    assert find_answer(r"\boxed{2}, \boxed{3} and \boxed{5}.").text == "2, 3, 5"
    assert find_answer(r"\boxed{2}, so \boxed{3}").text == "3"
    assert find_answer(r"\boxed{2}, \boxed{2}").text == "2"
    assert find_answer(r"\boxed{4, \boxed{5}} \boxed{6}").text == "6"
    assert find_answer(r"\boxed{4, \boxed{5}}").text == r"4, \boxed{5}"
