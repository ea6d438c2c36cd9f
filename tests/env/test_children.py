# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rlrun.env import children as children_module
from rlrun.env.children import Children, ChildrenDown
from rlrun.env.verifier import Verdict, Verifier, verify

SURD = {"gold": "2\\sqrt{3}", "answer": "\\sqrt{12}"}
WRONG = {"gold": "2\\sqrt{3}", "answer": "\\sqrt{13}"}
ENDLESS = {"gold": "5", "answer": "\\sum_{k=1}^{10^{9}} k^{9^{9}}"}
LARGE = {"gold": "5", "answer": "\\sum_{k=1}^{1} 2^{2^{40}}"}


@pytest.fixture
def pool():
    pools = []

    def make(num_workers=1, timeout_s=5.0, max_memory_mb=1024):
        pools.append(Children(num_workers, timeout_s, max_memory_mb))
        return pools[-1]

    yield make
    for each in pools:
        each.close()


def child_pids():
    """Worker processes that this process has started and that still run."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if b"rlrun.env.answers.worker" in command and int(parent) == os.getpid():
            pids.append(int(entry.name))
    return pids


def pids_of(children):
    """Of a pool; a verifier that another test has used may have processes of its own."""
    return [child.process.pid for child in children._all]


def test_no_process_starts_before_it_is_needed():
    before = child_pids()
    verifier = Verifier(1, 5.0, 1024)
    assert verifier.verify("\\boxed{\\frac{1}{2}}", "0.5").correct
    assert child_pids() == before
    verifier.close()


def test_child_replies(pool):
    children = pool()
    assert children.ask(SURD).fields == {"equal": True}
    assert children.ask(WRONG).fields == {"equal": False}


def test_answer_that_takes_for_ever_costs_itself_alone(pool):
    children = pool(timeout_s=0.5)
    start = time.monotonic()
    reply = children.ask(ENDLESS)
    assert reply.fields is None and "CPU" in reply.limit
    assert time.monotonic() - start < 120
    assert children.ask(SURD).fields == {"equal": True}


def test_answer_that_needs_too_much_memory_costs_itself_alone(pool):
    children = pool(timeout_s=20.0, max_memory_mb=256)
    reply = children.ask(LARGE)
    assert reply.fields is not None and reply.fields["limit"] == "out of memory"
    assert children.ask(SURD).fields == {"equal": True}


def test_time_limit_counts_cpu_time_not_waiting(pool):
    children = pool(timeout_s=0.5)
    children.ask(SURD)
    (pid,) = pids_of(children)
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(1.5, os.kill, (pid, signal.SIGCONT))
    timer.start()
    assert children.ask(SURD).fields == {"equal": True}
    timer.join()


def test_child_killed_between_jobs_is_replaced(pool):
    children = pool()
    children.ask(SURD)
    for pid in pids_of(children):
        os.kill(pid, signal.SIGKILL)
    assert children.ask(SURD).fields == {"equal": True}


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kill_when_busy(pid, idle_at):
    while cpu_seconds(pid) < idle_at + 0.2:
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)


def test_job_of_a_child_killed_from_outside_is_done_again(pool):
    children = pool(timeout_s=2.0)
    children.ask(SURD)
    (pid,) = pids_of(children)
    killer = threading.Thread(target=kill_when_busy, args=(pid, cpu_seconds(pid)), daemon=True)
    killer.start()
    reply = children.ask(ENDLESS)
    killer.join(120)
    assert not killer.is_alive()
    # The second child was left alone and met the limit: the answer's own fault.
    assert "CPU" in reply.limit


def test_job_whose_children_are_all_killed_is_a_failure_not_a_wrong_answer():
    verifier = Verifier(1, 20.0, 1024)
    verifier.verify("\\boxed{\\sqrt{12}}", "2\\sqrt{3}")

    def kill_all():
        deadline = time.monotonic() + 300
        while not done.is_set() and time.monotonic() < deadline:
            for pid in child_pids():
                with suppress(ProcessLookupError):  # it has ended, and was waited for
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    done = threading.Event()
    killer = threading.Thread(target=kill_all, daemon=True)
    killer.start()
    verdict = verifier.verify(f"\\boxed{{{ENDLESS['answer']}}}", "5")
    done.set()
    killer.join()
    assert verdict.error is not None and not verdict.timeout
    assert verifier.verify("\\boxed{\\sqrt{12}}", "2\\sqrt{3}") == Verdict(True, "\\sqrt{12}")
    verifier.close()


def test_child_that_cannot_start_is_a_failure(monkeypatch, pool):
    monkeypatch.setattr(children_module.sys, "executable", "/nowhere/python")
    with pytest.raises(ChildrenDown, match="cannot be started"):
        pool().ask(SURD)


def test_child_that_ends_at_its_start_tells_why(monkeypatch, pool, tmp_path):
    (tmp_path / "rlrun").mkdir()
    (tmp_path / "rlrun" / "__init__.py").write_text("raise RuntimeError('broken installation')")
    monkeypatch.setattr(children_module, "_ROOT", tmp_path)
    with pytest.raises(ChildrenDown, match="did not start.*broken installation") as told:
        pool().ask(SURD)
    assert "Traceback" not in str(told.value)


@pytest.mark.parametrize("gold", ["7", "2\\sqrt{3}"])
def test_any_thread_may_verify(gold):
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(verify(f"\\boxed{{{gold}}}", gold)))
    thread.start()
    thread.join()
    assert verdicts == [Verdict(True, gold)]


def test_eight_threads_at_once():
    verifier = Verifier(2, 5.0, 1024)
    jobs = [
        (f"\\boxed{{\\sqrt{{{n}}}}}", f"\\frac{{{n}}}{{\\sqrt{{{n + n % 2}}}}}")
        for n in range(2, 42)
    ]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda job: verifier.verify(*job).correct, jobs))
    assert verdicts == [n % 2 == 0 for n in range(2, 42)]
    assert len(child_pids()) >= 1
    verifier.close()


def test_event_loop_goes_on_while_a_child_works():
    async def main():
        verifier = Verifier(1, 2.0, 1024)
        slow = asyncio.create_task(verifier.averify(f"\\boxed{{{ENDLESS['answer']}}}", "5"))
        ticks = 0
        while not slow.done():
            assert (await verifier.averify("\\boxed{3}", "3")).correct
            ticks += 1
            await asyncio.sleep(0.01)
        verdict = await slow
        verifier.close()
        return verdict, ticks

    verdict, ticks = asyncio.run(main())
    assert verdict == Verdict(False, ENDLESS["answer"], timeout=True)
    assert ticks > 5


def test_closing_ends_children_and_waiting_callers(pool):
    children = pool(timeout_s=60.0)
    children.ask(SURD)
    outcomes = []

    def wait():
        try:
            children.ask(ENDLESS)
        except ChildrenDown as problem:
            outcomes.append(str(problem))

    before = set(pids_of(children))
    waiters = [threading.Thread(target=wait) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.3)
    children.close()
    children.close()
    for waiter in waiters:
        waiter.join(120)
    assert outcomes == ["the verifier is closed"] * 2
    assert before and not any(map(is_running, before))


def test_children_end_with_a_parent_that_is_killed():
    script = textwrap.dedent(
        """
        import sys, time
        from rlrun.env.children import Children
        pool = Children(1, 2.0, 1024)
        pool.ask({"gold": "2\\\\sqrt{3}", "answer": "\\\\sqrt{12}"})
        print(next(iter(pool._idle)).process.pid, flush=True)
        pool.ask({"gold": "5", "answer": "\\\\sum_{k=1}^{10^{9}} k^{9^{9}}"})
        """
    )
    root = Path(children_module.__file__).parent.parent.parent
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 120
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def test_keyboard_interrupt_reaches_the_caller():
    script = textwrap.dedent(
        """
        import os, signal, threading
        from rlrun.env.verifier import verify
        signal.signal(signal.SIGINT, signal.default_int_handler)  # some parents ignore it
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            verify("\\\\boxed{\\\\sum_{k=1}^{10^{9}} k^{9^{9}}}", "5")
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    root = Path(children_module.__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout == "interrupted\n"


def test_torch_is_not_imported():
    code = "import sys, rlrun.env.math, rlrun.env.python, rlrun.env.calculator\n"
    code += "import rlrun.evaluation.score\n"
    code += "print([m for m in ('torch', 'sympy', 'mpmath') if m in sys.modules])"
    root = Path(children_module.__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout == "[]\n"
