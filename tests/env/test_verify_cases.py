# SPDX-License-Identifier: Apache-2.0
import json
from contextlib import suppress
from pathlib import Path

import pytest

from rlrun.env.answers.compare import same_text
from rlrun.env.answers.exact import ExactDecider
from rlrun.env.answers.extract import gold_answer
from rlrun.env.answers.nodes import Undecided
from rlrun.env.verifier import Verifier, unreadable_gold

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "verify_cases.jsonl").read_text().splitlines()
]
TAGS = sorted({case["tag"] for case in CASES})


@pytest.fixture(scope="module")
def verifier():
    verifier = Verifier(num_workers=1, timeout_s=5.0, max_memory_mb=1024)
    yield verifier
    verifier.close()


def test_cases_are_many_and_of_both_kinds():
    assert len(CASES) > 1000
    for tag in TAGS:
        verdicts = [case["correct"] for case in CASES if case["tag"] == tag]
        assert min(verdicts.count(True), verdicts.count(False)) >= 5, tag


@pytest.mark.parametrize("tag", TAGS)
def test_every_case_is_right(verifier, tag):
    wrong = []
    for case in CASES:
        if case["tag"] == tag:
            verdict = verifier.verify(case["response"], case["gold"])
            if (verdict.correct, verdict.error, verdict.timeout) != (case["correct"], None, False):
                wrong.append((case, verdict))
    assert wrong == []


def test_every_reference_of_the_cases_is_readable():
    assert [c["gold"] for c in CASES if unreadable_gold(c["gold"]) is not None] == []


@pytest.mark.parametrize("tag", ["frac", "sign", "set", "alg"])
def test_equality_does_not_depend_on_which_side_is_the_reference(verifier, tag):
    one_sided = []
    for case in CASES:
        response = case["response"]
        if case["tag"] != tag or not response.startswith("\\boxed{") or "=" in response:
            continue
        answer = response.removeprefix("\\boxed{").removesuffix("}")
        if "=" in case["gold"] or unreadable_gold(answer) is not None:
            continue
        turned = verifier.verify(f"\\boxed{{{case['gold']}}}", answer)
        if turned.correct != case["correct"]:
            one_sided.append((case, turned))
    assert one_sided == []


@pytest.mark.parametrize("setting", ["{}", " ${}$. ", "\\displaystyle {}", "**{}**"])
def test_the_reference_itself_is_right_however_it_is_set(setting):
    wrong = []
    golds = {gold_answer(case["gold"]) for case in CASES}
    for gold in golds - {"0^0", "\\frac{1}{0}"}:  # which have no value
        answer = setting.replace("{}", gold)
        with suppress(Undecided):
            if not same_text(gold, answer, ExactDecider()):
                wrong.append(answer)
    assert wrong == []
