# SPDX-License-Identifier: Apache-2.0
"""Measures the learner against a plain loop, side by side, in time and in peak memory.

The plain loop is what one writes first: right-padded rows, all logits of the microbatch, one
backward pass. Both do the same update (log-probs before it, then forward, backward, AdamW) on the
same samples. Prints ratios; above 1 the learner is better.

Example:
    python scripts/bench_learner.py --vocabulary 32000 --threads 1
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from rlrun.batch import Sample
from rlrun.config import load
from rlrun.derived import sampling_of
from rlrun.learner.learner import Learner
from rlrun.learner.rows import TokenRows
from rlrun.models import resolve_model
from rlrun.types import Prompt, Row, StopReason, Trajectory, VersionSpan

REPEATS = 3


def make_model(folder: Path, vocabulary: int) -> None:
    """A small model with random weights and a large head, where memory goes."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")).save_pretrained(folder)


def make_samples(count: int, vocabulary: int) -> list[Sample]:
    """Prompts of 20 to 60 tokens and responses with a long tail, up to 400."""
    rng = np.random.default_rng(0)
    samples = []
    for i in range(count):
        prompt, response = int(rng.integers(20, 60)), int(min(400, 8 + rng.exponential(80)))
        ids = tuple(rng.integers(3, vocabulary, prompt + response).tolist())
        trajectory = Trajectory(
            sample_index=i,
            token_ids=ids,
            loss_mask=(False,) * prompt + (True,) * response,
            generation_logprobs=(0.0,) * prompt + (-3.0,) * response,
            weight_versions=(VersionSpan(0, prompt, prompt + response),),
            input_length=prompt,
            response="",
            reward=1.0,
            rewards={},
            extracted=None,
            stop_reason=StopReason.STOP,
        )
        logprobs = np.full(response, -3.0, np.float32)
        row = Row(str(i), (), "", {}, "")
        samples.append(
            Sample(
                prompt=Prompt(i, 0, row, ids[:prompt]),
                trajectory=trajectory,
                reward=1.0,
                masked=None,
                generation_logprobs=logprobs,
                prev_logprobs=logprobs,
                weights=np.ones_like(logprobs),
                advantage=float(rng.normal()),
            )
        )
    return samples


def make_learner(folder: Path, packing: bool) -> Learner:
    """The learner under test."""
    config = load(
        [
            "+recipe=quickstart",
            f"policy.model={folder}",
            "policy.max_total_sequence_length=512",
            f"policy.sequence_packing={str(packing).lower()}",
            "policy.train_micro_batch_tokens=4096",
            "policy.logprob_chunk_tokens=512",
        ]
    ).config
    sampling = sampling_of(config, training=True)
    return Learner(config.policy, config.loss, sampling, torch.device("cpu"))


def learner_update(learner: Learner, samples: list[Sample]) -> None:
    """The learner's own way."""
    learner.logprobs(samples)
    learner.update([samples], step=1)


def plain_update(learner: Learner, samples: list[Sample]) -> None:
    """The same work with all logits of fixed microbatches of eight rows in stream order."""
    model = learner.model
    total = sum(s.trajectory.num_sampled for s in samples)

    def token_logprobs(part: list[Sample]) -> torch.Tensor:
        rows = TokenRows.padded(
            [s.trajectory.token_ids for s in part],
            [s.trajectory.loss_mask for s in part],
            torch.device("cpu"),
        )
        logits = model(input_ids=rows.token_ids, attention_mask=rows.attention_mask).logits
        logprobs = logits.float().log_softmax(-1).flatten(0, 1)
        chosen: torch.Tensor = logprobs[rows.predecessors, rows.targets]
        return chosen

    parts = [samples[i : i + 8] for i in range(0, len(samples), 8)]
    with torch.no_grad():
        for part in parts:
            token_logprobs(part)
    learner.optimizer.zero_grad()
    for part in parts:
        advantages = torch.cat([torch.full((s.trajectory.num_sampled,), s.advantage) for s in part])
        (-(token_logprobs(part) * advantages).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    learner.optimizer.step()


def measure(arguments: argparse.Namespace) -> None:
    """One way, in this process: prints seconds per update and peak memory above the start."""
    torch.set_num_threads(arguments.threads)
    learner = make_learner(Path(arguments.folder), arguments.one == "packed")
    samples = make_samples(arguments.samples, arguments.vocabulary)
    update = plain_update if arguments.one == "plain" else learner_update
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        update(learner, samples)
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(json.dumps({"seconds": min(seconds), "peak_mib": (peak - before) / 1024}))


def main() -> None:
    """Runs each way in a process of its own and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", choices=["plain", "padded", "packed"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), arguments.vocabulary)
        results = {}
        for way in ("plain", "padded", "packed"):
            command = [sys.executable, __file__, "--one", way, "--folder", folder]
            for name in ("vocabulary", "samples", "threads"):
                command += [f"--{name}", str(vars(arguments)[name])]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results[way] = json.loads(done.stdout.strip().splitlines()[-1])
    plain = results["plain"]
    for way, result in results.items():
        seconds, peak = result["seconds"], result["peak_mib"]
        faster, smaller = plain["seconds"] / seconds, plain["peak_mib"] / peak
        sys.stdout.write(
            f"{way:<7} {seconds:6.2f} s/update ({faster:.2f}x)"
            f"  peak {peak:7.0f} MiB ({smaller:.2f}x)\n"
        )


if __name__ == "__main__":
    main()
