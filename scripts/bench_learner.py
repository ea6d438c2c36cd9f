# SPDX-License-Identifier: Apache-2.0
"""Measures the learner against plain loops, side by side, in time and in peak memory.

Both loops go through fixed microbatches of eight rows in stream order, padded on the right.
``plain`` is what one writes first: an attention mask, and all logits of the microbatch; ``rows``
has the learner's log-probs of the trained tokens only. All do the same update (log-probs before it,
then forward, backward, AdamW) on the same samples, whose lengths are log-normal. Prints ratios to
``plain``; above 1 is better. With --memory it shows what one pass for log-probs needs at several
vocabularies and lengths.

Examples:
    python scripts/bench_learner.py --vocabulary 2048 --threads 2
    python scripts/bench_learner.py --memory
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from rlrun.batch import Sample
from rlrun.config import load
from rlrun.derived import sampling_of
from rlrun.learner.learner import Learner
from rlrun.learner.logprobs import TokenValues
from rlrun.learner.rows import TokenRows
from rlrun.models.resolve import resolve_model
from rlrun.types import Prompt, Row, StopReason, Trajectory, VersionSpan

REPEATS = 3
MEDIAN, LOG_SD, LONGEST = 100, 0.8, 1000
LogprobsOf = Callable[[Learner, list[Sample]], torch.Tensor]
WAYS = ("plain", "rows", "padded", "packed")


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


def make_samples(count: int, vocabulary: int, length: int | None = None) -> list[Sample]:
    """Prompts of 16 tokens and responses of log-normal length, log-sd LOG_SD (or all alike)."""
    rng = np.random.default_rng(0)
    samples = []
    for i in range(count):
        drawn = rng.lognormal(np.log(MEDIAN), LOG_SD)
        prompt, response = 16, length or int(np.clip(drawn, 4, LONGEST))
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
            "policy.max_total_sequence_length=4096",
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


def plain_logprobs(learner: Learner, part: list[Sample]) -> torch.Tensor:
    """Log-probs of the sampled tokens by way of all logits."""
    rows = padded(part)
    lengths = torch.tensor([len(s.trajectory.token_ids) for s in part])
    mask = (torch.arange(rows.token_ids.shape[1]) < lengths[:, None]).long()
    logits = learner.model(input_ids=rows.token_ids, attention_mask=mask).logits
    logprobs = logits.float().log_softmax(-1).flatten(0, 1)
    chosen: torch.Tensor = logprobs[rows.predecessors, rows.targets]
    return chosen


def row_logprobs(learner: Learner, part: list[Sample]) -> torch.Tensor:
    """The same by the learner's own way."""
    values: TokenValues = learner.forward(padded(part))
    return values.logprobs


def padded(part: list[Sample]) -> TokenRows:
    """Rows in the order that they come in."""
    ids, masks = [s.trajectory.token_ids for s in part], [s.trajectory.loss_mask for s in part]
    return TokenRows.padded(ids, masks, torch.device("cpu"))


def loop_update(learner: Learner, samples: list[Sample], logprobs: LogprobsOf) -> None:
    """The learner's work in a loop over microbatches of eight rows."""
    total = sum(s.trajectory.num_sampled for s in samples)
    parts = [samples[i : i + 8] for i in range(0, len(samples), 8)]
    with torch.no_grad():
        for part in parts:
            logprobs(learner, part)
    learner.optimizer.zero_grad()
    for part in parts:
        advantages = torch.cat([torch.full((s.trajectory.num_sampled,), s.advantage) for s in part])
        (-(logprobs(learner, part) * advantages).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_(learner.model.parameters(), 1.0)
    learner.optimizer.step()


def measure(arguments: argparse.Namespace) -> None:
    """One way, in this process: prints seconds per update and peak memory above the start."""
    torch.set_num_threads(arguments.threads)
    way: str = arguments.one
    learner = make_learner(Path(arguments.folder), way == "packed")
    samples = make_samples(arguments.samples, arguments.vocabulary, arguments.length)
    loops: dict[str, LogprobsOf] = {"plain": plain_logprobs, "rows": row_logprobs}
    before = learner.peak_memory_bytes()
    seconds = []
    for _ in range(1 if arguments.memory else REPEATS):
        started = time.perf_counter()
        if arguments.memory and way == "plain":
            with torch.no_grad():
                plain_logprobs(learner, samples)
        elif arguments.memory:
            learner.logprobs(samples)
        elif way in loops:
            loop_update(learner, samples, loops[way])
        else:
            learner_update(learner, samples)
        seconds.append(time.perf_counter() - started)
    peak = learner.peak_memory_bytes()
    tokens = sum(s.trajectory.num_sampled for s in samples)
    result = {"rate": tokens / min(seconds), "peak_mib": (peak - before) / 2**20}
    sys.stdout.write(json.dumps(result))


def in_process(way: str, folder: str, **options: object) -> dict[str, float]:
    """Measures one way in a process of its own."""
    command = [sys.executable, __file__, "--one", way, "--folder", folder]
    for name, value in options.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def compare_memory(threads: int) -> None:
    """Peak memory of a pass for log-probs over one microbatch of four rows."""
    for vocabulary in (2048, 16384, 65536):
        with tempfile.TemporaryDirectory() as folder:
            make_model(Path(folder), vocabulary)
            for length in (128, 512, 1000):
                options = {"vocabulary": vocabulary, "length": length, "threads": threads}
                ours, plain = (
                    in_process(way, folder, samples=4, memory=True, **options)["peak_mib"]
                    for way in ("padded", "plain")
                )
                sys.stdout.write(
                    f"vocabulary {vocabulary:>6}, 4 x {length:>4} tokens: "
                    f"learner {ours:6.0f} MiB, all logits {plain:6.0f} MiB\n"
                )


def main() -> None:
    """Runs each way in a process of its own and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure(arguments)
        return
    if arguments.memory:
        compare_memory(arguments.threads)
        return
    options = {name: vars(arguments)[name] for name in ("vocabulary", "samples", "threads")}
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), arguments.vocabulary)
        results = {way: in_process(way, folder, **options) for way in WAYS}
    plain = results["plain"]
    for way, result in results.items():
        faster, smaller = result["rate"] / plain["rate"], plain["peak_mib"] / result["peak_mib"]
        sys.stdout.write(
            f"{way:<7} {result['rate']:7.0f} tokens/s ({faster:.2f}x)"
            f"  peak {result['peak_mib']:6.0f} MiB ({smaller:.2f}x)\n"
        )


if __name__ == "__main__":
    main()
