# SPDX-License-Identifier: Apache-2.0
import asyncio
import re
import threading
import time
from dataclasses import replace

import pytest

from rlrun.env.python import PythonEnv
from rlrun.env.user_code import Unresolved, resolve
from rlrun.errors import EnvironmentDown
from rlrun.interfaces import Environment
from rlrun.types import EnvStep, FailureKind
from tests.docs.commands import python_block
from tests.env.episodes import episode

CODE = """
import asyncio, threading, time
from rlrun.interfaces import Environment
from rlrun.types import EnvStep, Failure

FREE = threading.Event()
GO_ON = {"role": "user", "content": "go on"}

class Stop(BaseException): pass

def length(response, answer): return len(response)
def parts(response, answer): return {"format": 0.25, "correct": 0.5}
def total(response, answer): return {"reward": 0.125, "correct": 1.0}
def fields(response, answer, **row): return row["bonus"]
def one_field(response, answer, bonus): return bonus
async def later(response, answer):
    await asyncio.sleep(0.01)
    return 1.0
def returns_coroutine(response, answer): return later(response, answer)
def raises(response, answer): raise ValueError("no such unit")
def raises_base(response, answer):
    if response == "2": raise Stop("limit")
    return 1.0
def others(responses, answer): return [float(responses.count(one)) for one in responses]
async def all_later(responses, answer, bonus):
    await asyncio.sleep(0.01)
    return [{"reward": bonus, "a": 1}, None]
def too_few(responses, answer): return [1.0]
def no_list(responses, answer): return 1.0
def all_raise(responses, answer): raise ValueError("no such unit")
def both(response, responses, answer): return 1.0
def interrupts(response, answer): raise KeyboardInterrupt
def exits(response, answer): raise SystemExit(0)
def cancels(response, answer): raise asyncio.CancelledError
def closes(response, answer): raise GeneratorExit
async def exits_later(response, answer): raise SystemExit(0)
async def cancels_later(response, answer): raise asyncio.CancelledError
def hangs(response, answer): time.sleep(60)
async def hangs_async(response, answer): await asyncio.sleep(60)
async def blocks(response, answer):
    if response == "quick": return 1.0
    FREE.wait(60)
async def blocks_all(responses, answer): FREE.wait(60)
def times_out(response, answer): raise TimeoutError("upstream")
def none(response, answer): return None
def nan(response, answer): return float("nan")
def text(response, answer): return "1.0"
def no_parts(response, answer): return {}
def bad_part(response, answer): return {"a": 1.0, "b": None}
def huge(response, answer): return 10**400
def unwritable(response, answer): return 10**5000
def no_sum(response, answer): return {"a": 1e308, "b": 1e308}
def silent(response, answer):
    class Silent(Exception):
        def __str__(self): return None
    raise Silent
def where(response, answer): return float(threading.current_thread() is threading.main_thread())
def no_arguments(): return 1.0
not_callable = 3

WRONG = {
    "text": {"reward": "1"},
    "huge": {"reward": 10**400},
    "parts": {"reward": 1.0, "rewards": {"a": "x"}},
    "no parts": {"reward": 1.0, "rewards": None},
    "number": {"reward": 1.0, "rewards": {1: 1.0}},
    "said": {"messages": "go on"},
    "words": {"messages": ("go on",)},
    "no role": {"messages": ({"content": "x"},)},
    "content": {"messages": ({"role": "user", "content": 5},)},
    "calls": {"messages": ({"role": "assistant", "content": "", "tool_calls": ["f"]},)},
    "read": {"reward": 1.0, "extracted": 5},
    "why": {"failure": "down"},
    "kind": {"failure": Failure("down", "why")},
}

class Echo(Environment):
    def __init__(self, bonus=0.0): self.bonus, self.closed = bonus, False
    async def step(self, episode):
        if episode.response == "more": return EnvStep(messages=(GO_ON,))
        if episode.response == "boom": raise RuntimeError("no simulator")
        if episode.response == "base": raise Stop()
        if episode.response == "exit": raise SystemExit(0)
        if episode.response == "cancel": raise asyncio.CancelledError
        if episode.response == "hang": await asyncio.sleep(60)
        if episode.response == "block": FREE.wait(60)
        if episode.response == "both": return EnvStep(messages=({"role": "user"},), reward=1.0)
        if episode.response == "nan": return EnvStep(reward=float("nan"))
        if episode.response == "other": return 1.0
        if episode.response == "neither": return EnvStep()
        if episode.response in WRONG: return EnvStep(**WRONG[episode.response])
        return EnvStep(reward=self.bonus)
    async def close(self): self.closed = True

class Abstract(Environment): pass
class NotOne: pass
"""


@pytest.fixture
def code(tmp_path):
    file = tmp_path / "my_code.py"
    file.write_text(CODE)
    return file


def env(**settings):
    defaults = {"environment": None, "reward_function": None, "options": {}}
    return PythonEnv(**(defaults | {"timeout_s": 200.0, "num_threads": 4} | settings))


def steps(settings, *episodes):
    async def main():
        environment = settings.start()
        try:
            return [await environment.step(each) for each in episodes]
        finally:
            await environment.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "reward", "parts"),
    [
        ("length", 3.0, {}),
        ("parts", 0.75, {"format": 0.25, "correct": 0.5}),
        ("total", 0.125, {"correct": 1.0}),
        ("fields", 7.0, {}),
        ("one_field", 7.0, {}),
        ("later", 1.0, {}),
        ("returns_coroutine", 1.0, {}),
        ("where", 0.0, {}),
    ],
)
def test_reward_functions(code, name, reward, parts):
    settings = env(reward_function=f"{code}:{name}")
    assert list(settings.problems()) == []
    (step,) = steps(settings, episode("abc", "2", bonus=7, answer_note="x"))
    assert (step.reward, {k: v for k, v in step.rewards.items() if k != "reward"}) == (
        reward,
        parts,
    )


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("raises", FailureKind.REWARD_ERROR, "ValueError: no such unit"),
        ("times_out", FailureKind.REWARD_ERROR, "TimeoutError: upstream"),
        ("none", FailureKind.REWARD_ERROR, "None"),
        ("nan", FailureKind.REWARD_ERROR, "nan"),
        ("text", FailureKind.REWARD_ERROR, "'1.0'"),
        ("no_parts", FailureKind.REWARD_ERROR, "empty"),
        ("huge", FailureKind.REWARD_ERROR, "reward=1000"),
        ("unwritable", FailureKind.REWARD_ERROR, "a value of type int"),
        ("no_sum", FailureKind.REWARD_ERROR, "has no sum"),
        ("silent", FailureKind.REWARD_ERROR, "Silent"),
        ("bad_part", FailureKind.REWARD_ERROR, "b=None"),
        ("one_field", FailureKind.REWARD_ERROR, "bonus"),
    ],
)
def test_whatever_goes_wrong_is_a_failure_and_never_zero(code, name, kind, told):
    (step,) = steps(env(reward_function=f"{code}:{name}"), episode("abc", "2"))
    assert step.reward is None
    assert step.failure.kind is kind
    assert told in step.failure.message


def group(settings, *responses, answer="2"):
    async def main():
        environment = settings.start()
        episodes = [episode(response, answer, bonus=7.0) for response in responses]
        return await environment.step_group(episodes)

    assert list(settings.problems()) == []
    return asyncio.run(main())


def test_a_function_of_responses_scores_a_group(code):
    found = group(env(reward_function=f"{code}:others"), "a", "b", "a")
    assert [step.reward for step in found] == [2.0, 1.0, 2.0]
    first, second = group(env(reward_function=f"{code}:all_later"), "a", "b")
    assert (first.reward, first.rewards) == (7.0, {"a": 1.0})
    assert second.reward is None and "None" in second.failure.message
    (alone,) = steps(env(reward_function=f"{code}:others"), episode("a"))
    assert alone.reward == 1.0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("too_few", "1 rewards of 2"),
        ("no_list", "1.0, not a list of rewards"),
        ("all_raise", "ValueError: no such unit"),
    ],
)
def test_a_function_that_does_not_score_its_group_fails_all_of_it(code, name, told):
    found = group(env(reward_function=f"{code}:{name}"), "a", "b")
    assert [step.reward for step in found] == [None, None]
    assert all(told in step.failure.message for step in found)


def test_the_documented_function_of_a_group_values_rare_answers(tmp_path):
    path = tmp_path / "my_rewards.py"
    path.write_text(python_block("def rare_answers"))
    settings = env(reward_function=f"{path}:rare_answers")
    found = group(settings, "Answer: 2", "so Answer: 2", "Answer: 3", "2")
    assert [step.reward for step in found] == [1 / 3, 1 / 3, 0.0, 1 / 3]


def test_error_names_the_line_that_raised_it(code):
    (step,) = steps(env(reward_function=f"{code}:raises"), episode("abc"))
    line = next(n for n, text in enumerate(CODE.splitlines(), 1) if text.startswith("def raises("))
    assert f"{code}:{line}" in step.failure.message


def test_exception_outside_exception_is_contained(code):
    first, second, third = steps(
        env(reward_function=f"{code}:raises_base"), episode("1"), episode("2"), episode("3")
    )
    assert (first.reward, third.reward) == (1.0, 1.0)
    assert second.failure.kind is FailureKind.REWARD_ERROR and "Stop" in second.failure.message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("interrupts", "KeyboardInterrupt"),
        ("exits", "SystemExit"),
        ("cancels", "CancelledError"),
        ("closes", "GeneratorExit"),
        ("exits_later", "SystemExit"),
        ("cancels_later", "CancelledError"),
    ],
)
def test_reward_function_cannot_stop_the_run(code, name, told):
    (step,) = steps(env(reward_function=f"{code}:{name}"), episode("1"))
    assert step.failure.kind is FailureKind.REWARD_ERROR and told in step.failure.message


@pytest.mark.parametrize(
    ("key", "name", "response"),
    [("reward_function", "hangs_async", "1"), ("environment", "Echo", "hang")],
)
def test_cancelled_step_is_cancelled(code, key, name, response):
    async def main():
        environment = env(**{key: f"{code}:{name}"}).start()
        task = asyncio.create_task(environment.step(episode(response)))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())


def test_constructor_and_close_cannot_exit(code):
    text = CODE.replace("self.closed = True", "raise SystemExit(0)")
    code.write_text(text + "class Exits(Echo):\n    def __init__(self): raise SystemExit(0)\n")
    with pytest.raises(EnvironmentDown, match="SystemExit"):
        env(environment=f"{code}:Exits").start()
    with pytest.raises(EnvironmentDown, match="SystemExit"):
        steps(env(environment=f"{code}:Echo"), episode("end"))


@pytest.mark.parametrize("name", ["hangs", "hangs_async"])
def test_hanging_function_is_a_timeout_and_blocks_nobody(code, name):
    start = time.monotonic()
    settings = env(reward_function=f"{code}:{name}", timeout_s=0.2, num_threads=1)
    found = steps(settings, *(episode(str(n)) for n in range(3)))
    assert [step.failure.kind for step in found] == [FailureKind.TIMEOUT] * 3
    assert time.monotonic() - start < 50  # each of them hangs for 60
    assert all(t.daemon for t in threading.enumerate() if t.name == "reward function")


def user_threads():
    return [thread for thread in threading.enumerate() if thread.name == "user code"]


@pytest.mark.parametrize(
    ("key", "name", "response"),
    [
        ("reward_function", "blocks", "1"),
        ("reward_function", "blocks_all", "1"),
        ("environment", "Echo", "block"),
    ],
)
def test_async_code_that_blocks_is_a_timeout_that_names_its_line(code, key, name, response):
    settings = env(**{key: f"{code}:{name}"}, timeout_s=2.0, num_threads=1)
    before = user_threads()

    async def main():
        environment = settings.start()
        failed = await environment.step(episode(response))
        # Nothing holds up what comes after it.
        after = await environment.step(episode("end" if key == "environment" else "quick"))
        await environment.close()
        return failed, after

    try:
        failed, after = asyncio.run(main())
    finally:
        resolve(f"{code}:FREE").set()
    assert failed.failure.kind is FailureKind.TIMEOUT
    line = re.search(rf"{code}:(\d+) blocks the event loop", failed.failure.message)
    assert "FREE.wait" in CODE.splitlines()[int(line[1]) - 1]
    if name != "blocks_all":
        assert after.reward is not None
    own = [thread for thread in user_threads() if thread not in before]
    for thread in own:
        thread.join(120)
    assert not any(thread.is_alive() for thread in own)


def test_a_checkpoint_does_not_wait_for_code_that_blocks_and_has_no_state(code):
    code.write_text(
        "import threading\n"
        "from rlrun.interfaces import Environment\n"
        "FREE, BLOCKS = threading.Event(), threading.Event()\n"
        "class Blocking(Environment):\n"
        "    async def step(self, episode):\n"
        "        BLOCKS.set()\n"
        "        FREE.wait()\n"
        "    async def close(self): pass\n"
    )

    async def main():
        environment = env(environment=f"{code}:Blocking", timeout_s=0.2).start()
        step = asyncio.create_task(environment.step(episode("1")))
        await asyncio.to_thread(resolve(f"{code}:BLOCKS").wait)
        assert environment.state() == {}
        assert (await step).failure.kind is FailureKind.TIMEOUT

    try:
        asyncio.run(main())
    finally:
        resolve(f"{code}:FREE").set()


def test_what_async_code_shares_belongs_to_one_loop_and_thread(code):
    code.write_text(
        "import asyncio, sqlite3\n"
        "from rlrun.interfaces import Environment\n"
        "from rlrun.types import EnvStep\n"
        "class Store(Environment):\n"
        "    def __init__(self):\n"
        "        self.loop, self.store = asyncio.get_running_loop(), sqlite3.connect(':memory:')\n"
        "    async def open(self, policy): self.lock = asyncio.Lock()\n"
        "    async def step(self, episode):\n"
        "        async with self.lock:\n"
        "            await asyncio.sleep(0)\n"
        "            (n,) = self.store.execute('select 1').fetchone()\n"
        "        return EnvStep(reward=float(n == (self.loop is asyncio.get_running_loop())))\n"
        "    async def close(self): self.store.close()\n"
    )

    async def main():
        environment = env(environment=f"{code}:Store").start()
        await environment.open(None)
        found = await asyncio.gather(*(environment.step(episode(str(n))) for n in range(3)))
        await environment.close()
        return found

    assert [step.reward for step in asyncio.run(main())] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        ("numpy.float32(0.5)", 0.5),
        ("numpy.array(0.5)", 0.5),
        ("numpy.bool_(True)", 1.0),
        ("torch.tensor([0.5], requires_grad=True)", 0.5),
        ("decimal.Decimal('0.5')", 0.5),
        ("numpy.ones(2)", None),
        ("numpy.array('0.5')", None),
        ("decimal.Decimal('sNaN')", None),
        ("numpy.complex64(1)", None),
    ],
)
def test_numbers_of_any_library_are_numbers(code, returned, reward):
    code.write_text(
        f"import decimal, numpy, torch\ndef f(response, answer): return {returned}\n"
        f"def g(responses, answer): return [{returned} for _ in responses]\n"
    )
    (step,) = steps(env(reward_function=f"{code}:f"), episode("1"))
    assert step.reward == reward and type(step.reward) is type(reward)
    (step,) = group(env(reward_function=f"{code}:g"), "1")
    assert step.reward == reward and type(step.reward) is type(reward)


@pytest.mark.parametrize("returned", ["numpy.arange(2)", "torch.arange(2.0)"])
def test_an_array_is_a_list_of_rewards(code, returned):
    code.write_text(f"import numpy, torch\ndef g(responses, answer): return {returned}\n")
    found = group(env(reward_function=f"{code}:g"), "1", "2")
    assert [step.reward for step in found] == [0.0, 1.0]
    (step,) = group(env(reward_function=f"{code}:g"), "1")
    assert "2 rewards of 1" in step.failure.message


def test_a_row_without_what_a_reward_function_needs_is_refused(code):
    code.write_text(
        "def f(response, answer, unit, scale=1, **row): return 1.0\n"
        "def g(responses, answer): return 1.0\n"
    )
    row = episode("1").prompt.row
    needy = env(reward_function=f"{code}:f")
    assert needy.check_row(row) == f"{code}:f needs the field 'unit'"
    assert needy.check_row(replace(row, payload={"unit": None})) is None
    assert env(reward_function=f"{code}:g").check_row(row) is None
    assert env(environment=f"{code}:Echo").check_row(row) is None


def test_user_environment_gets_its_options_and_answers(code):
    settings = env(environment=f"{code}:Echo", options={"bonus": 0.5})
    assert list(settings.problems()) == []
    more, end = steps(settings, episode("more"), episode("end"))
    assert more.messages == ({"role": "user", "content": "go on"},)
    assert end == EnvStep(reward=0.5)


@pytest.mark.parametrize(
    ("response", "kind", "told"),
    [
        ("boom", FailureKind.ENV_ERROR, "RuntimeError: no simulator"),
        ("base", FailureKind.ENV_ERROR, "Stop"),
        ("exit", FailureKind.ENV_ERROR, "SystemExit"),
        ("cancel", FailureKind.ENV_ERROR, "CancelledError"),
        ("hang", FailureKind.TIMEOUT, "0.3 s"),
        ("both", FailureKind.ENV_ERROR, "exactly one"),
        ("neither", FailureKind.ENV_ERROR, "exactly one"),
        ("nan", FailureKind.ENV_ERROR, "nan"),
        ("other", FailureKind.ENV_ERROR, "not an EnvStep"),
        ("text", FailureKind.ENV_ERROR, "reward='1'"),
        ("huge", FailureKind.ENV_ERROR, "reward=1000"),
        ("parts", FailureKind.ENV_ERROR, "rewards={'a': 'x'}"),
        ("no parts", FailureKind.ENV_ERROR, "rewards=None"),
        ("number", FailureKind.ENV_ERROR, "rewards={1: 1.0}"),
        ("said", FailureKind.ENV_ERROR, "messages='go on'"),
        ("words", FailureKind.ENV_ERROR, "messages=('go on',)"),
        ("no role", FailureKind.ENV_ERROR, "messages=({'content'"),
        ("content", FailureKind.ENV_ERROR, "messages=({'role'"),
        ("calls", FailureKind.ENV_ERROR, "messages=({'role'"),
        ("read", FailureKind.ENV_ERROR, "extracted=5"),
        ("why", FailureKind.ENV_ERROR, "failure='down'"),
        ("kind", FailureKind.ENV_ERROR, "failure=Failure("),
    ],
)
def test_faults_of_a_user_environment_are_failures(code, response, kind, told):
    limit = 0.3 if response == "hang" else 200.0
    (step,) = steps(env(environment=f"{code}:Echo", timeout_s=limit), episode(response))
    assert step.failure.kind is kind and told in step.failure.message


def test_closing_closes_the_users_environment(code):
    async def main():
        environment = env(environment=f"{code}:Echo").start()
        await environment.close()
        return environment._inner.closed

    assert asyncio.run(main())


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("{'a': object()}", "not JSON serializable"),
        ("{'a': float('nan')}", "not JSON compliant"),
        ("5", "not a mapping"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_state_that_no_checkpoint_can_hold_is_told(code, state, told):
    code.write_text(CODE + f"class Kept(Echo):\n    def state(self): return {state}\n")

    async def main():
        env(environment=f"{code}:Kept").start().state()

    with pytest.raises(EnvironmentDown, match=rf"{told}[\s\S]*Check its state\(\)"):
        asyncio.run(main())


def problem(**settings):
    ((keys, what, remedy),) = env(**settings).problems()
    return keys, f"{what}. {remedy}"


def test_exactly_one_import_path(code):
    assert problem()[0] == ("environment", "reward_function")
    both = problem(environment=f"{code}:Echo", reward_function=f"{code}:length")
    assert both[0] == ("environment", "reward_function")


def test_options_without_an_environment_are_refused(code):
    keys, text = problem(reward_function=f"{code}:length", options={"a": 1})
    assert keys == ("options", "reward_function") and "env.options" in text


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("my_code.py:lenght", "Did you mean length"),
        ("my_cod.py:length", "my_code.py"),
        ("my_code.py", "not an import path"),
        ("my_code:no thing", "not an import path"),
        ("no_such_module_at_all:f", "no module no_such_module_at_all"),
        ("rlrun.env.mth:MathEnv", "Did you mean math"),
        ("my_code.py:not_callable", "not a function"),
        ("my_code.py:no_arguments", "fn(response, answer, **row)"),
        ("my_code.py:both", "both response and responses"),
        ("my_code.py:Echo", "not a function"),
        ("my_code:length:more", "no module"),
        ("x" * 300 + ".py:f", "cannot be looked up: File name too long"),
        ("broken.py:f", "SyntaxError"),
        ("raising.py:f", "ZeroDivisionError"),
        ("needs.py:f", "no_such_dependency"),
        ("leaving.py:f", "SystemExit"),
        ("leaving_by_name:f", "SystemExit"),
        ("interrupting.py:f", "KeyboardInterrupt"),
    ],
)
def test_import_path_that_leads_nowhere_is_found_early(code, monkeypatch, path, told):
    (code.parent / "broken.py").write_text("def f(:\n")
    (code.parent / "raising.py").write_text("1 / 0\n")
    (code.parent / "needs.py").write_text("import no_such_dependency\n")
    (code.parent / "leaving.py").write_text("raise SystemExit(0)\n")
    (code.parent / "leaving_by_name.py").write_text("import sys\nsys.exit()\n")
    (code.parent / "interrupting.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.chdir(code.parent)
    keys, text = problem(reward_function=path)
    assert keys == ("reward_function",)
    assert told in text
    with pytest.raises(EnvironmentDown):
        env(reward_function=path).start()


@pytest.mark.parametrize("name", ["NotOne", "Abstract", "length", "not_callable"])
def test_environment_must_be_a_complete_subclass(code, name):
    keys, _ = problem(environment=f"{code}:{name}")
    assert keys == ("environment",)


def test_constructor_that_refuses_its_options_is_told(code):
    with pytest.raises(EnvironmentDown, match="bonu"):
        env(environment=f"{code}:Echo", options={"bonu": 1}).start()


def test_module_of_the_current_folder_is_found(code, monkeypatch):
    (code.parent / "my_unique_rewards.py").write_text("def f(response, answer): return 1\n")
    monkeypatch.chdir(code.parent)
    assert resolve("my_unique_rewards:f")("", "") == 1


def test_file_is_loaded_once(code):
    assert resolve(f"{code}:Echo") is resolve(f"{code}:Echo")
    assert issubclass(resolve(f"{code}:Echo"), Environment)


def test_unresolved_says_what_and_what_to_do():
    with pytest.raises(Unresolved) as caught:
        resolve("json:lods")
    assert "lods" in caught.value.what and "loads" in caught.value.remedy


def test_row_fields_cannot_replace_response_and_answer(code):
    clash = episode("abc", "2", bonus=1)
    clash.prompt.row.payload.update({"response": "other", "answer": "other"})
    (step,) = steps(env(reward_function=f"{code}:length"), clash)
    assert step.reward == 3.0


@pytest.mark.parametrize(
    ("tools", "told"),
    [("'add'", "tools='add'"), ("('add', 'ad')", "'ad' in tools"), ("5", "tools=5")],
)
def test_tools_of_a_dialogue_must_be_its_methods(tmp_path, tools, told):
    path = tmp_path / "tools.py"
    path.write_text(
        "from rlrun.env.dialogue import Dialogue\n"
        f"class Talk(Dialogue):\n    tools = {tools}\n"
        "    def act(self, said): return said\n    def add(self, a): return a\n"
    )
    keys, text = problem(environment=f"{path}:Talk")
    assert keys == ("environment",) and told in text
