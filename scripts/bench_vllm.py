# SPDX-License-Identifier: Apache-2.0
"""Measures generation=vllm: against bare vLLM, other generators, TRL, and a bare training step.

``python scripts/bench_vllm.py [--threads N] [--model NAME]``, after ``make vllm``, on idle cores,
takes about six minutes, half of them for TRL (``--without-trl``). Figures are medians of tokens per
second of variants that take turns.

Generation is measured on two workloads of forced lengths: equal ones, and a log-normal long tail
(mean about 66, longest 480). Bare vLLM is an engine of its own with the same arguments, driven by
vLLM's documented calls alone. A whole step (sample, score, update, refit, probe, records) is
compared with what it cannot do without: bare vLLM for its samples, and a forward and backward pass
and an optimizer step of plain torch on them. TRL is that of scripts/bench_trl.py on its long tail.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import torch
from bench_trl import PROMPTS, REWARD, SAMPLES, STEPS, Lengths, make_model, rate, rlrun_times
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from rlrun.config import load
from rlrun.data.generators.addition import addition_pairs, question
from rlrun.generation.sampler import Sampler
from rlrun.generation.static_batch import StaticBatches
from rlrun.generation.vllm import VLLMGeneration
from rlrun.generation.vllm_log import EngineLog, environment
from rlrun.interfaces import GeneratorInputs
from rlrun.learner.model import saved_tensors
from rlrun.models.resolve import resolve_model
from rlrun.refit.probe import Probe
from rlrun.rendering.renderer import Renderer
from rlrun.types import GenerationRequest, Sampling

if TYPE_CHECKING:
    from rlrun.generation.vllm_generator import VLLMGenerator

COUNT = 128
EQUAL = 64
LONGEST = 480
ROUNDS = 3
CONTEXT = 512

log = logging.getLogger("bench_vllm")

Answer = Callable[[Sequence[GenerationRequest]], Awaitable[int]]


def requests_of(renderer: Renderer, lengths: Sequence[int]) -> list[GenerationRequest]:
    """Eight samples each of as many questions as it takes."""
    pairs = addition_pairs("train")
    return [
        GenerationRequest(
            renderer.prompt_ids([{"role": "user", "content": question(*pairs[i // 8])}]),
            length,
            i,
            Sampling(1.0),
        )
        for i, length in enumerate(lengths)
    ]


def bare_engine(settings: VLLMGeneration, inputs: GeneratorInputs) -> Answer:
    """An engine without anything of rlrun: its linear layers are packed, its prefixes unsalted."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args = settings.engine_args(inputs, colocated=False)
    del args["worker_extension_cls"]
    engine_log = EngineLog(None)
    with engine_log.capture(), environment(engine_log.environment):
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**args))
    numbers = iter(range(10**9))

    async def one(request: GenerationRequest) -> int:
        params = SamplingParams(
            temperature=request.sampling.temperature,
            seed=request.seed,
            max_tokens=request.max_new_tokens,
            logprobs=0,
            ignore_eos=True,
            detokenize=False,
        )
        prompt = {"prompt_token_ids": list(request.token_ids)}
        tokens = 0
        async for output in llm.generate(prompt, params, f"bare-{next(numbers)}"):
            tokens = len(output.outputs[0].token_ids)
        return tokens

    async def answer(requests: Sequence[GenerationRequest]) -> int:
        return sum(await asyncio.gather(*map(one, requests)))

    return answer


def our_engine(generator: VLLMGenerator) -> Answer:
    """The generation slot: one call per group of eight, as rollouts make them."""

    async def answer(requests: Sequence[GenerationRequest]) -> int:
        groups = [requests[i : i + 8] for i in range(0, len(requests), 8)]
        found = await asyncio.gather(*map(generator.generate, groups))
        return sum(len(one.token_ids) for completions in found for one in completions)

    return answer


def static_batches(model: PreTrainedModel, renderer: Renderer) -> Answer:
    """What generation=transformers does: all requests of a step in one batch."""
    batches = StaticBatches(Sampler(model, renderer, None), None)

    async def answer(requests: Sequence[GenerationRequest]) -> int:
        found = await asyncio.to_thread(batches, requests, Event())
        return sum(len(one.token_ids) for one in found)

    return answer


def library_batches(model: PreTrainedModel, renderer: Renderer) -> Answer:
    """A static batch by transformers' own ``generate``, which goes on to its longest row."""

    async def answer(requests: Sequence[GenerationRequest]) -> int:
        rows = [list(request.token_ids) for request in requests]
        padded = renderer.tokenizer.pad({"input_ids": rows}, return_tensors="pt")
        config = GenerationConfig(
            do_sample=True,
            top_k=0,
            max_new_tokens=max(request.max_new_tokens for request in requests),
            eos_token_id=list(renderer.eos_ids),
            pad_token_id=renderer.pad_id,
        )
        await asyncio.to_thread(model.generate, **padded, generation_config=config)  # type: ignore[arg-type]  # typed as any module
        return sum(request.max_new_tokens for request in requests)

    return answer


async def compare(
    name: str, answers: dict[str, Answer], requests: list[GenerationRequest]
) -> dict[str, float]:
    """Logs the rates of all variants on one workload."""
    rates: dict[str, list[float]] = {variant: [] for variant in answers}
    for round_number in range(ROUNDS + 1):
        for variant, answer in answers.items():
            started = time.perf_counter()
            tokens = await answer(requests)
            if round_number:  # The first one warms up.
                rates[variant].append(tokens / (time.perf_counter() - started))
    medians = {variant: statistics.median(values) for variant, values in rates.items()}
    figures = ", ".join(f"{variant} {rate:.0f}" for variant, rate in medians.items())
    ours = medians["rlrun"]
    ratios = ", ".join(f"{ours / rate:.2f} of {v}" for v, rate in medians.items() if v != "rlrun")
    log.info("%s, tokens/s: %s; rlrun is %s", name, figures, ratios)
    return medians


async def refits(generator: VLLMGenerator, probe: Probe, busy: list[GenerationRequest]) -> None:
    """Logs how long refits and probes take, idle and while requests run."""
    for name, running in (("idle", []), ("with running requests", busy)):
        task = asyncio.create_task(generator.generate(running))
        await asyncio.sleep(0.3)
        seconds: dict[str, list[float]] = {"refit": [], "probe": []}
        for version in range(1, 6):
            started = time.perf_counter()
            await generator.refit(version)
            seconds["refit"].append(time.perf_counter() - started)
            started = time.perf_counter()
            await probe.check(version)
            seconds["probe"].append(time.perf_counter() - started)
            if task.done() and running:
                break
        await task
        refit, check = (statistics.median(values) for values in seconds.values())
        log.info("%s: refit %.4f s, probe %.4f s (%d times)", name, refit, check, version)


def bare_pass(model: PreTrainedModel, renderer: Renderer) -> float:
    """Seconds of an update of a step's samples by plain torch, in one batch."""
    copy = deepcopy(model)
    optimizer = torch.optim.AdamW(copy.parameters(), lr=1e-5, fused=True)
    prompt = requests_of(renderer, [EQUAL])[0].token_ids
    rows = torch.randint(4, 200, (PROMPTS * SAMPLES, len(prompt) + EQUAL))
    rows[:, : len(prompt)] = torch.tensor(prompt)
    seconds = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        logits = copy(input_ids=rows).logits[:, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(-1, rows[:, len(prompt) :, None])
        (-logprobs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(copy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def whole_step(threads: int) -> float:
    """Seconds of the median step of a run with generation=vllm on the embedded model."""
    lengths = Lengths(EQUAL, fixed=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        (folder / "reward.py").write_text(REWARD)
        ends = rlrun_times(folder, threads, lengths, "sync", "vllm", STEPS)
    return PROMPTS * SAMPLES * EQUAL / rate(ends, lengths)


def against_trl(threads: int) -> str:
    """The last line of the comparison with TRL."""
    script = Path(__file__).with_name("bench_trl.py")
    options = ["--turns", "1", "--threads", str(threads), "--long-tail", "--generation", "vllm"]
    done = subprocess.run(
        [sys.executable, str(script), *options], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


async def bench(model_name: str) -> tuple[float, float]:
    """Generation and refits; seconds of what a step cannot do without: bare vLLM, a bare pass."""
    overrides = [f"policy.model={model_name}", f"policy.max_total_sequence_length={CONTEXT}"]
    config = load(
        [
            "+recipe=quickstart",
            "generation=vllm",
            *overrides,
        ]
    ).config
    settings = config.generation
    assert isinstance(settings, VLLMGeneration)
    folder = resolve_model(model_name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # A token that is hardly ever sampled: lengths are forced.
    renderer = Renderer(tokenizer, eos_ids=(tokenizer.pad_token_id,))
    inputs = GeneratorInputs(
        model=model,
        weights=lambda: iter(saved_tensors(model).items()),
        policy=config.policy,
        renderer=renderer,
        concurrent=True,
        ordered=False,
        recompute_kv_cache=False,
        deterministic=True,
        num_threads=1,
        folder=Path(tempfile.mkdtemp()),
    )
    log.info(settings.announcement(inputs))
    generator = await settings.start(inputs)
    try:
        await generator.refit(0)
        answers = {"rlrun": our_engine(generator), "bare vLLM": bare_engine(settings, inputs)}
        answers["transformers"] = static_batches(model, renderer)
        answers["transformers' generate"] = library_batches(model, renderer)
        equal = requests_of(renderer, [EQUAL] * COUNT)
        await compare("equal lengths", answers, equal)
        rng = random.Random(0)
        lengths = [max(1, round(rng.lognormvariate(3.7, 1.0))) for _ in range(COUNT)]
        await compare(
            "long tail", answers, requests_of(renderer, [min(LONGEST, n) for n in lengths])
        )
        probe = Probe(
            generator,
            Sampler(model, renderer, None).score,
            token_ids=equal[0].token_ids,
            max_tokens=CONTEXT,
            precision=config.policy.precision,
        )
        await refits(generator, probe, requests_of(renderer, [400] * 64))
        samples = requests_of(renderer, [EQUAL] * PROMPTS * SAMPLES)
        bare = {"rlrun": answers["rlrun"], "bare vLLM": answers["bare vLLM"]}
        rates = await compare("the samples of a step", bare, samples)
        return len(samples) * EQUAL / rates["bare vLLM"], bare_pass(model, renderer)
    finally:
        await generator.close()


def main() -> int:
    """Reads the command line; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="rlrun:tiny")
    parser.add_argument("--without-trl", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generation, update = asyncio.run(bench(arguments.model))
    step = whole_step(arguments.threads)
    log.info(
        "a whole step of %d samples: %.3f s; bare vLLM %.3f s and a bare update %.3f s, together "
        "%.3f s; it takes %.2f of that",
        PROMPTS * SAMPLES,
        step,
        generation,
        update,
        generation + update,
        step / (generation + update),
    )
    if not arguments.without_trl:
        log.info("long tail, against TRL: %s", against_trl(arguments.threads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
