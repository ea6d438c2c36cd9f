# SPDX-License-Identifier: Apache-2.0
"""The process behind rlrun.generation.process: samples from its own copy of the model.

Standard input and output carry the messages; what libraries print goes to standard error, which is
the log. The process ends when its input does, so it does not outlive the one that started it.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
from transformers.utils.logging import disable_progress_bar

from rlrun.errors import GenerationError, RlrunError, TrainingError
from rlrun.generation.continuous_batch import ContinuousBatch
from rlrun.generation.process_pipe import HEADER, Call, Reply, StartUp
from rlrun.generation.sampler import Sampler
from rlrun.generation.static_batch import Cancelled, StaticBatches
from rlrun.interfaces import Precision
from rlrun.learner.attention import use_attention
from rlrun.learner.bfloat16 import suit_precision
from rlrun.learner.model import read_weights, saved_tensors, without_dropout
from rlrun.models.resolve import resolve_model
from rlrun.refit import shared_memory
from rlrun.rendering.renderer import Renderer

FAILURES = (GenerationError, TrainingError, RuntimeError, ValueError, IndexError)
"""What a model or torch raises over a call."""


BEAT_S = 1.0
"""Seconds between two signs of life, at least; there is one after a pass through the model."""


class Inbox:
    """Messages as they arrive; the sender never waits for a computation."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._cancelled: dict[int, threading.Event] = {}

    def start_up(self) -> StartUp:
        """The first message."""
        message = self._next()
        assert isinstance(message, StartUp)
        threading.Thread(target=self._read, daemon=True).start()
        return message

    def take(self, wait: bool) -> Call | None:
        """The next call; None if there is none and ``wait`` is false."""
        try:
            return self._calls.get(block=wait)
        except queue.Empty:
            return None

    def cancelled(self, number: int) -> threading.Event:
        """Set once a call is cancelled."""
        return self._cancelled.setdefault(number, threading.Event())

    def forget(self, number: int) -> None:
        """A call was answered."""
        self._cancelled.pop(number, None)

    def _read(self) -> None:
        while True:
            message = self._next()
            assert isinstance(message, Call)
            if message.kind == "cancel":
                self.cancelled(message.number).set()
            self._calls.put(message)

    def _next(self) -> object:
        header = self._stream.read(HEADER.size)
        if len(header) < HEADER.size:
            # The parent is done or gone; whatever is being sampled is of no use to anybody.
            os._exit(0)
        message: object = pickle.loads(self._stream.read(*HEADER.unpack(header)))
        return message


class Server:
    """Answers calls with one model.

    Args:
        start_up: Which.
        inbox: Where calls come from.
        send: Takes a reply, or None for a sign of life.
    """

    def __init__(
        self, start_up: StartUp, inbox: Inbox, send: Callable[[Reply | None], None]
    ) -> None:
        policy = start_up.policy
        torch.set_num_threads(start_up.num_threads)
        torch.use_deterministic_algorithms(
            start_up.deterministic, warn_only=start_up.device != "cpu"
        )
        disable_progress_bar()
        self.model = read_weights(resolve_model(policy.model), policy.model)
        without_dropout(self.model)
        use_attention(self.model)
        device = torch.device(start_up.device)
        suit_precision(self.model, policy.precision, device)
        torch.nn.Module.to(self.model, device)
        autocast = torch.bfloat16 if policy.precision is Precision.BFLOAT16 else None
        self.sampler = Sampler(self.model, Renderer.load(policy), autocast)
        self.static = StaticBatches(self.sampler, start_up.max_batch_size)
        self.batch = ContinuousBatch(self.sampler, start_up.max_batch_size)
        self.start_up, self.inbox, self.send = start_up, inbox, send
        self.given_up: dict[int, int] = {}
        self._last_beat = 0.0
        self.model.register_forward_hook(self._beat)

    def run(self) -> None:
        """Answers until the input ends."""
        while True:
            call = self.inbox.take(wait=not self.batch.busy)
            while call is not None:
                self._answer(call)
                call = self.inbox.take(wait=False)
            if self.batch.busy:
                self._step()

    def _step(self) -> None:
        try:
            for number, completions in self.batch.step().items():
                self._reply(number, "done", completions)
        except FAILURES as error:
            for number in self.batch.drop_all():
                self._reply(number, "failed", _text(error))

    def _answer(self, call: Call) -> None:
        try:
            match call.kind:
                case "generate" if self.start_up.ordered:
                    self._generate_at_once(call)
                case "generate":
                    self.batch.add(call.number, call.content)
                case "cancel":
                    self._cancel(call.number)
                case "score":
                    self._reply(call.number, "done", self.sampler.score(call.content))
                case "refit":
                    self._refit(call)
        except FAILURES as error:
            self._reply(call.number, "failed", _text(error))

    def _generate_at_once(self, call: Call) -> None:
        cancelled = self.inbox.cancelled(call.number)
        try:
            completions = self.static(call.content, cancelled)
        except Cancelled as error:
            self.given_up[call.number] = error.tokens
        else:
            self._reply(call.number, "done", completions)

    def _cancel(self, number: int) -> None:
        tokens = self.given_up.pop(number, None)
        if tokens is None:
            tokens = self.batch.cancel(number)
        self._reply(number, "cancelled", tokens)

    def _refit(self, call: Call) -> None:
        version, handle = call.content
        shared_memory.load_weights(
            saved_tensors(self.model), dict(shared_memory.read_weights(handle))
        )
        self.sampler.version = version
        if self.start_up.recompute_kv_cache:
            self.batch.reread()
        self._reply(call.number, "done", None)

    def _beat(self, *_: object) -> None:
        now = time.monotonic()
        if now - self._last_beat >= BEAT_S:
            self._last_beat = now
            self.send(None)

    def _reply(self, number: int, kind: Any, content: Any) -> None:
        self.inbox.forget(number)
        self.send(Reply(number, kind, content))


def _text(error: Exception) -> str:
    if isinstance(error, RlrunError):
        return error.what
    return f"{type(error).__name__}: {error}"


def main() -> None:
    """Serves the process that started this one."""
    # A print of a library must not end up among the messages.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(reply: Reply | None) -> None:
        body = b"" if reply is None else pickle.dumps(reply)
        out.write(HEADER.pack(len(body)) + body)
        out.flush()

    inbox = Inbox(os.fdopen(0, "rb", closefd=False))
    start_up = inbox.start_up()
    try:
        server = Server(start_up, inbox, send)
    # Whatever goes wrong at the start is the answer to the call that waits for it.
    except Exception as error:
        send(Reply(-1, "failed", f"the generator process cannot start: {_text(error)}"))
        raise
    try:
        server.run()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
