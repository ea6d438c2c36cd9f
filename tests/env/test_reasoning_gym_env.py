# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
import time
from dataclasses import replace

import pytest

pytest.importorskip("reasoning_gym")

from rlrun.data.reasoning_gym import PAYLOAD_FIELD, reasoning_gym_store
from rlrun.env.reasoning_gym import ReasoningGymEnv, extract_answer
from rlrun.env.reasoning_gym_worker import check_formula, eval_plain, score
from rlrun.errors import DataError
from rlrun.interfaces import Episode
from rlrun.types import FailureKind, Prompt, Row, StopReason


def env(**settings):
    defaults = {
        "partial_credit": False,
        "timeout_s": 200.0,
        "max_memory_mb": 512,
        "num_workers": 1,
    }
    return ReasoningGymEnv(**(defaults | settings))


def make_rows(name, size=2, **options):
    store = reasoning_gym_store(name, size, 7, options)
    return [
        Row(
            f"r:{n}",
            ({"role": "user", "content": record["problem"]},),
            record["answer"] or "",
            {PAYLOAD_FIELD: record[PAYLOAD_FIELD]},
            f"r:{n}",
        )
        for n, record in enumerate(scanned.record for scanned in store.scan())
    ]


def episode(row, response):
    return Episode(Prompt(0, 0, row, (1,)), 0, (), response, 1, StopReason.STOP)


def steps(settings, *pairs, together=False):
    async def run():
        environment = settings.start()
        try:
            jobs = [environment.step(episode(row, response)) for row, response in pairs]
            if together:
                return await asyncio.gather(*jobs)
            return [await job for job in jobs]
        finally:
            await environment.close()
            await environment.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Answer: 5", "5"),
        ("Answer: 4\nNo. Answer:  5 \n", "5"),
        ("<answer>4</answer> <answer>\n5\n</answer> Answer: 6", "5"),
        ("<answer>4 <answer>5</answer>", "5"),
        ("<answer>4 Answer: 5", "5"),
        ("</answer>4<answer> 5", "</answer>4<answer> 5"),
        ("  5\n", "5"),
        ("", ""),
    ],
)
def test_answer_is_tagged_or_marked_or_everything(response, answer):
    assert extract_answer(response) == answer


def test_extraction_takes_linear_time():
    # Quadratic time would be hours.
    start = time.process_time()
    extract_answer("<answer>" * 200_000)
    extract_answer("</answer>" * 200_000)
    assert time.process_time() - start < 20


def test_only_a_full_score_is_a_reward():
    row = make_rows("chain_sum")[0]
    right, long, wrong, empty = steps(
        env(),
        (row, f"Answer: {row.answer}"),
        (row, f"The answer is {row.answer}"),
        (row, "Answer: x"),
        (row, ""),
    )
    assert [step.reward for step in (right, long, wrong, empty)] == [1.0, 0.0, 0.0, 0.0]
    assert 0 < long.rewards["score"] < 1
    assert right.extracted == row.answer
    (partial,) = steps(env(partial_credit=True), (row, f"The answer is {row.answer}"))
    assert partial.reward == long.rewards["score"]


def test_answer_that_makes_the_verifier_raise_is_wrong():
    row = make_rows("prime_factorization")[0]
    broken, right = steps(env(), (row, "zzz"), (row, row.answer))
    assert (broken.reward, broken.failure) == (0.0, None)
    assert right.reward == 1.0


def test_verifier_that_cannot_score_the_reference_is_a_failure():
    row = make_rows("prime_factorization")[0]
    task = row.payload[PAYLOAD_FIELD]
    damaged = {**task, "entry": {"question": "?", "answer": "2 x 3"}}
    (step,) = steps(env(), (replace(row, payload={PAYLOAD_FIELD: damaged}), "7"))
    assert step.reward is None
    assert step.failure.kind is FailureKind.REWARD_ERROR
    assert "ValueError" in step.failure.message


def test_answer_that_hangs_the_verifier_is_wrong_and_counted_and_hurts_nobody_else():
    row = make_rows("spiral_matrix")[0]
    start = time.perf_counter()
    bomb, right = steps(env(timeout_s=5.0), (row, "9**9**9"), (row, row.answer), together=True)
    assert (bomb.reward, bomb.verifier_timeout, bomb.failure) == (0.0, True, None)
    assert (right.reward, right.verifier_timeout) == (1.0, False)
    assert time.perf_counter() - start < 300  # and not for ever


def test_answers_are_never_run_as_code(tmp_path):
    target = tmp_path / "written"
    attack = f'__import__("pathlib").Path("{target}").write_text("x")'
    chars = "+".join(f"chr({ord(c)})" for c in f'open("{target}","w")')
    pairs = [
        (make_rows(name)[0], text)
        for name in ("spiral_matrix", "string_insertion", "puzzle24", "simple_integration")
        for text in (attack, f"exec({chars})", f"eval({chars})")
    ]
    assert all(step.reward == 0.0 for step in steps(env(), *pairs))
    assert not target.exists()


def test_concurrent_answers_get_their_own_scores():
    rows = make_rows("chain_sum", 12)
    pairs = [(row, row.answer if n % 3 else "0x") for n, row in enumerate(rows)]
    rewards = [step.reward for step in steps(env(num_workers=2), *pairs, together=True)]
    assert rewards == [float(n % 3 > 0) for n in range(12)]


def test_data_sets_without_a_reference_are_scored_by_their_verifier():
    row = make_rows("graph_color")[0]
    assert row.answer == ""
    (step,) = steps(env(), (row, "{}"))
    assert (step.reward, step.failure) == (0.0, None)


def test_processes_end_with_the_environment():
    async def run():
        environment = env().start()
        row = make_rows("chain_sum")[0]
        await environment.step(episode(row, row.answer))
        pids = [worker._process.pid for worker in environment._pool._all]
        await environment.close()
        return pids

    pids = asyncio.run(run())
    assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_rows_of_other_sources_are_refused():
    row = Row("f:1", ({"role": "user", "content": "x"},), "1", {}, "f:1")
    assert "not a row of reasoning-gym" in env().check_row(row)
    assert env().check_row(make_rows("chain_sum")[0]) is None


def test_a_memory_error_counts_as_a_limit():
    def scorer(answer, entry):
        raise MemoryError

    assert score(scorer, "x", {"answer": "y"})["verdict"] == "limit"


@pytest.mark.parametrize("text", ["x**2/2 + C", "sin(2*x)*exp(x)", "1.5*x - .5", "(a + 24) * 3"])
def test_formulas_pass(text):
    check_formula(text)


@pytest.mark.parametrize(
    "text",
    [
        "exec(x)",
        "x.args",
        "'x'",
        "f[0]",
        "__import__",
        "lambda: 0",
        "x=1",
        "\u212f",
        "a" * 50_000 + "!",
    ],
)
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(ValueError):
        check_formula(text)


def test_plain_evaluation_knows_literals_and_arithmetic_alone():
    assert eval_plain("[[1, 2], ['a']]") == [[1, 2], ["a"]]
    assert eval_plain("(0xff << 2) - 3") == 1017
    for text in ("open('x')", "().__class__", "[].append(1)", "a"):
        with pytest.raises(ValueError):
            eval_plain(text)


def test_same_settings_give_the_same_rows():
    assert make_rows("chain_sum", 5) == make_rows("chain_sum", 5)


def test_options_reach_the_generator_and_are_checked():
    for row in make_rows("chain_sum", 5, min_terms=2, max_terms=2, min_digits=1, max_digits=1):
        assert len(row.messages[0]["content"].split("=")[0].split()[-3:]) == 3
    with pytest.raises(DataError, match="Did you mean min_terms"):
        make_rows("chain_sum", min_term=2)
    with pytest.raises(DataError, match="keys of their own"):
        make_rows("chain_sum", size=2, **{"sead": 1})
    with pytest.raises(DataError, match="refused .*max_terms must be >= min_terms"):
        make_rows("chain_sum", min_terms=9)
    with pytest.raises(DataError, match="Near names: .*chain_sum"):
        make_rows("chainsum")


def test_verifier_that_rewards_nonsense_is_said():
    (notice,) = reasoning_gym_store("game_of_life_halting", 3, 7, {}).notices
    assert "'zzz' right in 3 of 3 rows" in notice
    assert reasoning_gym_store("chain_sum", 3, 7, {}).notices == ()
