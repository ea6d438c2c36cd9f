# SPDX-License-Identifier: Apache-2.0
"""Is a response's final answer the reference answer? The layered verifier and its settings.

First layer, in the calling thread: extraction, reading, exact rational comparison (bounded, tens of
microseconds). Second layer, only for what that cannot decide: the same comparison in a child
process with high-precision and symbolic arithmetic under hard limits.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from rlrun.env.answers.compare import same_text
from rlrun.env.answers.exact import ExactDecider
from rlrun.env.answers.extract import find_answer, gold_answer
from rlrun.env.answers.nodes import Undecided
from rlrun.env.answers.reader import read_gold
from rlrun.env.answers.shapes import Answer, Listing, Order, Text, Unparsed
from rlrun.env.children import Children, ChildrenDown
from rlrun.interfaces import Env, setting
from rlrun.types import EnvStep, Failure, FailureKind, Row

logger = logging.getLogger(__name__)

_MAX_GOLD_WORDS = 12


@dataclass(kw_only=True, slots=True)
class VerifyingEnv(Env):
    """Settings of an environment that compares a final answer with ``row.answer``."""

    max_reward: ClassVar[float | None] = 1.0

    num_workers: int = setting(ge=1)
    timeout_s: float = setting(gt=0)
    max_memory_mb: int = setting(ge=256)

    def check_row(self, row: Row) -> str | None:
        """Why the reference answer cannot be compared with anything, or None."""
        return unreadable_gold(row.answer)

    def verifier(self) -> Verifier:
        """A verifier with these limits."""
        return Verifier(self.num_workers, self.timeout_s, self.max_memory_mb)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier says about one response.

    Attributes:
        correct: Whether the final answer is the reference answer.
        extracted: The final answer as it stands in the response; None if there is none.
        error: The verifier itself failed; ``correct`` then says nothing.
        timeout: The answer made the verifier hit a limit, and is not correct.
    """

    correct: bool
    extracted: str | None
    error: str | None = None
    timeout: bool = False


@lru_cache(maxsize=8192)
def unreadable_gold(gold: str) -> str | None:
    """Why a reference answer cannot be compared with anything, or None. Starts no process.

    Remembered: many rows share an answer, and a row's is met once per sample.
    """
    answer = read_gold(gold_answer(gold))
    if answer is None:
        return "the reference answer is empty"
    if isinstance(answer, Unparsed):
        return f"the reference answer {gold[:80]!r} cannot be read: {answer.reason}"
    if answer == Text(""):
        return f"the reference answer {gold[:80]!r} holds nothing that can be compared"
    if _words(answer) > _MAX_GOLD_WORDS:
        return f"the reference answer {gold[:80]!r} is prose, not a final answer"
    return None


def _words(answer: Answer) -> int:
    """Number of words in text that nothing but the same text equals."""
    if isinstance(answer, Listing) and answer.order is Order.LIST:
        return sum(_words(item) for item in answer.items)
    return len(answer.words.split()) if isinstance(answer, Text) else 0


class Verifier:
    """Compares final answers; safe to use from many threads and from an event loop.

    Args:
        num_workers: Child processes for what exact arithmetic cannot decide; none is started
            before it is needed.
        timeout_s: CPU seconds per answer in a child.
        max_memory_mb: Address space of a child.
    """

    def __init__(self, num_workers: int, timeout_s: float, max_memory_mb: int) -> None:
        self._children = Children(num_workers, timeout_s, max_memory_mb)
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="verifier")

    def verify(self, response: str, gold: str) -> Verdict:
        """The verdict on a response; blocks while a child works on it."""
        reference, answer, verdict = self._quick(response, gold)
        return verdict or self._slow(reference, answer)

    async def averify(self, response: str, gold: str) -> Verdict:
        """``verify`` without blocking the event loop."""
        reference, answer, verdict = self._quick(response, gold)
        if verdict is not None:
            return verdict
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._slow, reference, answer)

    @staticmethod
    def _quick(response: str, gold: str) -> tuple[str, str, Verdict | None]:
        """The reference and the answer as texts, and the verdict if it needs no child."""
        problem = unreadable_gold(gold)
        reference = gold_answer(gold)
        answer = find_answer(response).text
        if problem is not None:
            return reference, answer or "", Verdict(False, answer, problem)
        if answer is None:
            return reference, "", Verdict(False, None)
        try:
            return reference, answer, Verdict(same_text(reference, answer, ExactDecider()), answer)
        except Undecided:
            return reference, answer, None

    def _slow(self, gold: str, answer: str) -> Verdict:
        try:
            reply = self._children.ask({"gold": gold, "answer": answer})
        except ChildrenDown as problem:
            return Verdict(False, answer, str(problem))
        limit = reply.limit if reply.fields is None else str(reply.fields.get("limit", ""))
        if limit:
            logger.info("an answer made the verifier stop (%s): %.200s", limit, answer)
            return Verdict(False, answer, timeout=True)
        if reply.fields is None:
            return Verdict(False, answer, "the verifier gave no reply")
        if "unreadable" in reply.fields:
            return Verdict(False, answer, str(reply.fields["unreadable"]))
        return Verdict(reply.fields["equal"] is True, answer)

    def close(self) -> None:
        """Ends the children. May be called twice."""
        self._children.close()
        self._threads.shutdown(wait=True, cancel_futures=True)


_shared: list[Verifier] = []
_shared_lock = threading.Lock()


def verify(response: str, gold: str) -> Verdict:
    """The verdict of a verifier that the whole process shares; for scripts and reward functions."""
    with _shared_lock:
        if not _shared:
            _shared.append(Verifier(num_workers=2, timeout_s=5.0, max_memory_mb=1024))
            atexit.register(_shared[0].close)
    return _shared[0].verify(response, gold)


def as_step(verdict: Verdict) -> EnvStep:
    """The end of an episode with a binary reward; a failed verifier gives no reward."""
    if verdict.error is not None:
        failure = Failure(FailureKind.REWARD_ERROR, verdict.error)
        return EnvStep(failure=failure, extracted=verdict.extracted)
    reward = float(verdict.correct)
    return EnvStep(
        reward=reward,
        rewards={"correct": reward},
        extracted=verdict.extracted,
        verifier_timeout=verdict.timeout,
    )
