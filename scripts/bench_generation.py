# SPDX-License-Identifier: Apache-2.0
"""Measures generation=transformers against transformers' own ``generate`` on the same requests.

``python scripts/bench_generation.py [--threads N]``. Two workloads on the embedded model: questions
answered as in a training step, and completions of forced, long-tailed lengths. Figures are useful
tokens per second (those before the end of each completion); compare them within one run only.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from threading import Event

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from rlrun.data.generators.addition import addition_pairs, question
from rlrun.generation.sampler import Sampler
from rlrun.generation.static_batch import StaticBatches
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.types import GenerationRequest, Sampling

NUM_PROMPTS, NUM_SAMPLES = 16, 8
REPEATS = 3

log = logging.getLogger("bench_generation")


def make_requests(renderer: Renderer, limits: Sequence[int]) -> list[GenerationRequest]:
    """NUM_SAMPLES samples each of NUM_PROMPTS questions, with the given limits."""
    prompts = [
        renderer.prompt_ids([{"role": "user", "content": question(a, b)}])
        for a, b in addition_pairs("train")[:NUM_PROMPTS]
        for _ in range(NUM_SAMPLES)
    ]
    return [
        GenerationRequest(prompt, limit, seed, Sampling(1.0))
        for seed, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]


def library_generate(
    model: PreTrainedModel, renderer: Renderer, requests: list[GenerationRequest]
) -> int:
    """Answers the requests with transformers' loop; the number of useful tokens."""
    padded = renderer.tokenizer.pad(
        {"input_ids": [list(request.token_ids) for request in requests]}, return_tensors="pt"
    )
    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=max(request.max_new_tokens for request in requests),
        eos_token_id=list(renderer.eos_ids),
        pad_token_id=renderer.pad_id,
    )
    rows = model.generate(**padded, generation_config=config)  # type: ignore[operator]  # typed as any module
    useful = 0
    for row, request in zip(
        rows[:, padded["input_ids"].shape[1] :].tolist(), requests, strict=True
    ):
        ends = [i + 1 for i, token in enumerate(row) if token in renderer.eos_ids]
        useful += min([len(row), request.max_new_tokens, *ends])
    return useful


def measure(answer: Callable[[], int]) -> tuple[float, float]:
    """Useful tokens per second and seconds of a call, medians after a call to warm up."""
    answer()
    rates, seconds = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        tokens = answer()
        seconds.append(time.perf_counter() - started)
        rates.append(tokens / seconds[-1])
    return statistics.median(rates), statistics.median(seconds)


def main() -> int:
    """Reads the command line; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    folder = resolve_model("rlrun:tiny")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    count = NUM_PROMPTS * NUM_SAMPLES
    rng = random.Random(0)
    tailed = [min(480, max(1, round(rng.lognormvariate(3.7, 1.0)))) for _ in range(count)]
    workloads = {
        "questions": (Renderer(tokenizer), [28] * count),
        # The embedded model does not sample its pad token: as the end it ends nothing.
        "long tail": (Renderer(tokenizer, eos_ids=(tokenizer.pad_token_id,)), tailed),
    }
    for name, (renderer, limits) in workloads.items():
        requests = make_requests(renderer, limits)
        batches = StaticBatches(Sampler(model, renderer, None), None)

        def ours(
            batches: StaticBatches = batches,
            requests: list[GenerationRequest] = requests,
        ) -> int:
            return sum(len(c.token_ids) for c in batches(requests, Event()))

        def theirs(
            renderer: Renderer = renderer, requests: list[GenerationRequest] = requests
        ) -> int:
            return library_generate(model, renderer, requests)

        (our_rate, our_seconds), (their_rate, their_seconds) = measure(ours), measure(theirs)
        log.info(
            "%s: rlrun %.0f tokens/s (%.3f s), generate %.0f tokens/s (%.3f s), ratio %.2f",
            name,
            our_rate,
            our_seconds,
            their_rate,
            their_seconds,
            our_rate / their_rate,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
