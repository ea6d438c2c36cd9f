# SPDX-License-Identifier: Apache-2.0
"""What a turn through Gym costs where sampling costs nothing, and whom.

``python scripts/bench_gym_turn.py [--tokens N] [--episodes N] [--in-flight N ...]
[--venv FOLDER]``, after ``rlrun gym setup``, on idle cores; under a minute. Real servers of
string_match run episodes of one turn; the policy behind rlrun's HTTP server gives any answer at
once. Told are, for each number of episodes in flight, episodes per second, seconds of an episode,
and the milliseconds of CPU that an episode costs each server of Gym, and rlrun (client, HTTP server
and books together).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.config import load
from rlrun.derived import rollout_settings
from rlrun.gym.supervisor import descendants
from rlrun.inputs import read_inputs
from rlrun.interfaces import AgentEnvironment, Generator
from rlrun.rollout import Job
from rlrun.rollout.agents import AgentRollout
from rlrun.serve.start import new_api_key, start_server
from rlrun.types import Completion, GenerationRequest, Prompt, StopReason, VersionSpan

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 16
"""Episodes before the measured ones: first requests import and connect."""

log = logging.getLogger("bench_gym_turn")


@dataclass(eq=False)
class AtOnce(Generator):
    """Answers with the same tokens, which cost nothing to sample."""

    token_ids: tuple[int, ...]
    lockstep: bool = False

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """The tokens, as often as asked."""
        count = len(self.token_ids)
        logprobs = tuple(-0.1 - index / 977 for index in range(count))
        spans = (VersionSpan(0, 0, count),)
        return [Completion(self.token_ids, logprobs, StopReason.LENGTH, spans) for _ in requests]

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Nobody asks."""
        raise NotImplementedError

    async def refit(self, version: int) -> None:
        """There are no weights."""

    async def close(self) -> None:
        """Holds nothing."""


def cpu_seconds() -> dict[str, float]:
    """CPU time so far of this process and of each server that it started, by name."""
    found = {"rlrun": time.process_time()}
    for pid in descendants(os.getpid()):
        process = Path(f"/proc/{pid}")
        told = (process / "environ").read_bytes().split(b"\0")
        names = [one.partition(b"=")[2] for one in told if one.startswith(b"NEMO_GYM_CONFIG_PATH=")]
        if names:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            spent = (int(fields[11]) + int(fields[12])) / TICKS
            found[names[0].decode()] = found.get(names[0].decode(), 0.0) + spent
    return found


async def episodes(rollout: AgentRollout, prompts: Sequence[Prompt], in_flight: int) -> float:
    """Runs one episode of each prompt; the sum of their seconds."""
    slots, seconds = asyncio.Semaphore(in_flight), 0.0

    async def one(prompt: Prompt) -> None:
        nonlocal seconds
        async with slots:
            started = time.monotonic()
            (group,) = await rollout.run([Job(prompt, 1)])
            seconds += time.monotonic() - started
        (trajectory,) = group.trajectories
        if trajectory.failure is not None:
            raise SystemExit(f"an episode failed: {trajectory.failure.message}")

    await asyncio.gather(*map(one, prompts))
    return seconds


async def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Starts everything, measures and tells."""
    length = 64 + arguments.tokens
    config = load(
        [
            *("+recipe=gym_quickstart", f"env.venv={arguments.venv}"),
            f"generation.max_new_tokens={arguments.tokens}",
            f"policy.max_total_sequence_length={length}",
            f"policy.train_micro_batch_tokens={max(4096, length)}",
        ]
    ).config
    inputs = read_inputs(config, log.info)
    text = inputs.renderer.tokenizer("7" * arguments.tokens, add_special_tokens=False)
    generator = AtOnce(tuple((text["input_ids"] * arguments.tokens)[: arguments.tokens]))
    server = await start_server(
        config, generator, inputs.renderer, api_key=new_api_key(), shares_weights=False
    )
    server.release()
    environment = config.env.start()
    assert isinstance(environment, AgentEnvironment)
    try:
        await environment.open(server.address(folder))
        rollout = AgentRollout(
            environment, inputs.renderer, rollout_settings(config, training=True), "training"
        )
        position = 0
        for in_flight in (WARM_UP, *arguments.in_flight):
            count = WARM_UP if position == 0 else arguments.episodes
            prompts = [inputs.stream.prompt_at(position + index) for index in range(count)]
            before, started = cpu_seconds(), time.monotonic()
            seconds = await episodes(rollout, prompts, in_flight)
            took, after = time.monotonic() - started, cpu_seconds()
            if position:
                costs = "  ".join(
                    f"{name} {1000 * (after[name] - before[name]) / count:.1f}" for name in after
                )
                log.info(
                    "%4d in flight: %6.1f episodes/s, %.3f s each; ms of CPU: %s",
                    *(in_flight, count / took, seconds / count, costs),
                )
            position += count
    finally:
        await environment.close()
        await server.close()


def main() -> None:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--episodes", type=int, default=256, help="per measurement")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--venv", type=Path, default=Path(".gym-venv"))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(arguments, Path(folder)))


if __name__ == "__main__":
    main()
