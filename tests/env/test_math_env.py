# SPDX-License-Identifier: Apache-2.0
import asyncio
import time

import pytest

from rlrun.env import children as children_module
from rlrun.env.math import MathEnv
from rlrun.types import FailureKind
from tests.env.episodes import episode, row

ENDLESS = "\\boxed{\\sum_{k=1}^{10^{9}} k^{9^{9}}}"


def env(**settings):
    return MathEnv(**({"num_workers": 1, "timeout_s": 5.0, "max_memory_mb": 1024} | settings))


def steps(*episodes, **settings):
    async def main():
        environment = env(**settings).start()
        try:
            return await asyncio.gather(*(environment.step(each) for each in episodes))
        finally:
            await environment.close()
            await environment.close()

    return asyncio.run(main())


def test_reward_is_one_or_zero_with_its_part_and_the_answer_as_read():
    right, wrong, none = steps(
        episode("\\boxed{1/2}", "0.5"), episode("\\boxed{137}", "12"), episode("no idea", "12")
    )
    assert (right.reward, right.rewards, right.extracted) == (1.0, {"correct": 1.0}, "1/2")
    assert (wrong.reward, wrong.rewards, wrong.extracted) == (0.0, {"correct": 0.0}, "137")
    assert (none.reward, none.extracted, none.failure) == (0.0, None, None)


def test_answer_that_hits_the_limit_scores_zero_and_says_so_and_hurts_nobody_else():
    before, bomb, after = steps(
        episode("\\boxed{\\sqrt{12}}", "2\\sqrt{3}"),
        episode(ENDLESS, "5"),
        episode("\\boxed{\\sqrt{12}}", "2\\sqrt{3}"),
        timeout_s=0.5,
    )
    assert (bomb.reward, bomb.verifier_timeout, bomb.failure) == (0.0, True, None)
    assert [step.reward for step in (before, after)] == [1.0, 1.0]
    assert not before.verifier_timeout


def test_verifier_that_cannot_start_gives_no_reward(monkeypatch):
    monkeypatch.setattr(children_module.sys, "executable", "/nowhere/python")
    quick, slow = steps(episode("\\boxed{3}", "3"), episode("\\boxed{\\sqrt{12}}", "2\\sqrt{3}"))
    assert quick.reward == 1.0
    assert slow.reward is None
    assert slow.failure.kind is FailureKind.REWARD_ERROR
    assert "/nowhere/python" in slow.failure.message


def test_unreadable_reference_gives_no_reward():
    (step,) = steps(episode("\\boxed{3}", "\\frac{1}{"))
    assert step.failure.kind is FailureKind.REWARD_ERROR


@pytest.mark.parametrize(
    "answer",
    ["5", "\\dfrac{9}{7}", "1-\\sqrt{6}", "\\text{east}", "(-\\infty, 3]", "3*6\n#### 18", "$x^2$"],
)
def test_readable_references_pass(answer):
    assert env().check_row(row(answer)) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("\\boxed{}", "empty"),
        ("\\frac{1}{", "cannot be read"),
        ("?", "holds nothing"),
        ("x = ", "cannot be read"),
        ("x \\equiv 3 \\pmod 5 \\iff", "cannot be read"),
        ("1" * 3000, "more than 2000 characters"),
        ("She sold ten apples in the morning and then she went home again happily", "prose"),
    ],
)
def test_unreadable_references_are_reported_at_load(answer, reason):
    assert reason in env().check_row(row(answer))


def test_ten_thousand_plain_rows_are_checked_in_about_a_second():
    settings = env()
    rows = [row(f"Then {n} + {n} = {2 * n}.\n#### {2 * n}") for n in range(10_000)]
    start = time.process_time()
    assert not any(settings.check_row(each) for each in rows)
    assert time.process_time() - start < 3


def test_simple_answers_take_microseconds():
    episodes = [episode(f"So it is \\boxed{{{n}}}.", str(n)) for n in range(5_000)]
    start = time.process_time()
    assert all(step.reward == 1.0 for step in steps(*episodes))
    assert time.process_time() - start < 3
