# SPDX-License-Identifier: Apache-2.0
"""Checks the learner on a GPU in one process, and measures it; under five minutes on one card.

Where vLLM is installed, first a run of its own: two colocated steps, weights by IPC, the engine
asleep while the learner trains.
Numerics on the embedded model: bfloat16 against float32, packed against padded rows, the cut into
microbatches. Memory: that the log-prob pass never holds all logits. Speed: tokens per second and
model FLOPs utilization of an update, for random Qwen3 models of 0.5 and 1.5 billion parameters at
4,096 and 16,384 tokens. Prints a line for each finding and exits with 1 if one fails; ``--json``
prints them as JSON. ``--small`` runs the same on any machine in seconds, with models to match.

Example:
    python scripts/gpu_check.py
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from rlrun.batch import Sample
from rlrun.config import load
from rlrun.derived import sampling_of
from rlrun.learner.learner import Learner
from rlrun.metrics.logs import read_metrics
from rlrun.models.resolve import resolve_model
from rlrun.types import Prompt, Row, StopReason, Trajectory, VersionSpan

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "4090": 165.0}
"""Dense bfloat16 peak by a part of the card's name."""

BF16_TOLERANCE, CUT_TOLERANCE = 0.15, 1e-4
MAX_TOKEN_ERROR = 1.05
"""Of correction/token_mult_prob_error, on policy."""

COLOCATED = (
    "+recipe=quickstart",
    "generation=vllm",
    "generation.refit=ipc",
    # Compiling its graphs would take longer than all else.
    "generation.vllm_kwargs.enforce_eager=true",
    "policy.precision=bfloat16",
    "grpo.max_num_steps=2",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "grpo.val_period=0",
    "checkpointing.enabled=false",
    "checkpointing.metric=null",
)
"""The second step samples with weights that came after a sleep."""


@dataclass(frozen=True)
class Finding:
    """One line: a name, whether it is as it should be, and the figure."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Size:
    """Shape of a random model, and the lengths at which it is measured."""

    name: str
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    lengths: tuple[int, ...]


SIZES = (
    Size("0.5B", 1024, 28, 16, 151_936, (4096, 16_384)),
    Size("1.5B", 1536, 32, 16, 151_936, (4096, 16_384)),
)
SMALL = (Size("tiny", 64, 2, 2, 512, (64, 128)),)


def make_model(folder: Path, size: Size) -> int:
    """Writes a random model; the number of its parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=max(1, size.heads // 2),
        head_dim=size.hidden // size.heads,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")).save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def make_learner(model: str, device: torch.device, length: int, *overrides: str) -> Learner:
    """A learner whose microbatches have ``length`` tokens."""
    config = load(
        [
            "+recipe=quickstart",
            f"policy.model={model}",
            f"policy.max_total_sequence_length={length}",
            f"policy.train_micro_batch_tokens={length}",
            "policy.max_grad_norm=null",
            *overrides,
        ]
    ).config
    return Learner(config.policy, config.loss, sampling_of(config, training=True), device)


def make_samples(lengths: Sequence[int], vocabulary: int) -> list[Sample]:
    """Random trajectories whose prompts are a quarter of them."""
    rng = np.random.default_rng(0)
    return [_sample(i, length, vocabulary, rng) for i, length in enumerate(lengths)]


def _sample(index: int, length: int, vocabulary: int, rng: np.random.Generator) -> Sample:
    prompt = max(1, length // 4)
    sampled = length - prompt
    ids = tuple(rng.integers(3, vocabulary, length).tolist())
    logprobs = np.full(sampled, -3.0, np.float32)
    trajectory = Trajectory(
        sample_index=index,
        token_ids=ids,
        loss_mask=(False,) * prompt + (True,) * sampled,
        generation_logprobs=(0.0,) * prompt + (-3.0,) * sampled,
        weight_versions=(VersionSpan(0, prompt, length),),
        input_length=prompt,
        response="",
        reward=1.0,
        rewards={},
        extracted=None,
        stop_reason=StopReason.STOP,
    )
    return Sample(
        prompt=Prompt(index, 0, Row(str(index), (), "", {}, ""), ids[:prompt]),
        trajectory=trajectory,
        reward=1.0,
        masked=None,
        generation_logprobs=logprobs,
        prev_logprobs=logprobs,
        weights=np.ones_like(logprobs),
        advantage=1.0 if index % 2 else -1.0,
    )


def numerics(device: torch.device) -> Iterator[Finding]:
    """The same numbers however they are computed."""
    samples = make_samples((40, 23, 64, 31), 256)
    ways: dict[str, tuple[int, *tuple[str, ...]]] = {
        "float32": (128, "policy.precision=float32"),
        "bfloat16": (128, "policy.precision=bfloat16"),
        "packed": (128, "policy.precision=float32", "policy.sequence_packing=true"),
        "small microbatches": (64, "policy.precision=float32"),
    }
    found = {}
    for way, (length, *overrides) in ways.items():
        learner = make_learner("rlrun:tiny", device, length, *overrides)
        found[way] = np.concatenate(learner.logprobs(samples).logprobs)
    for way, tolerance in (
        ("bfloat16", BF16_TOLERANCE),
        ("packed", CUT_TOLERANCE),
        ("small microbatches", CUT_TOLERANCE),
    ):
        gap = float(np.abs(found[way] - found["float32"]).max())
        detail = f"log-probs differ by {gap:.2g} nats at most (allowed {tolerance:g})"
        yield Finding(f"{way} against float32", gap <= tolerance, detail)


def memory(device: torch.device, size: Size, folder: Path) -> Iterator[Finding]:
    """A pass for log-probs needs far less than all logits in float32."""
    length = size.lengths[-1]
    learner = make_learner(str(folder), device, length, "policy.precision=bfloat16")
    samples = make_samples((length,), size.vocabulary)
    if device.type != "cuda":
        learner.logprobs(samples)
        yield Finding("memory of the log-prob pass", True, "ran; measured on GPUs only")
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    learner.logprobs(samples)
    peak = torch.cuda.max_memory_allocated(device) - before
    logits = 4 * length * size.vocabulary
    detail = f"{peak / 2**30:.2f} GiB above the weights; all logits are {logits / 2**30:.2f} GiB"
    yield Finding(f"memory of the log-prob pass, {size.name} at {length}", peak < logits, detail)


def speed(device: torch.device, size: Size, folder: Path, parameters: int) -> Iterator[Finding]:
    """Tokens per second of an update: forward, backward, AdamW."""
    for length in size.lengths:
        overrides = ("policy.precision=bfloat16", "policy.activation_checkpointing=true")
        learner = make_learner(str(folder), device, length, *overrides)
        samples = make_samples((length,) * 2, size.vocabulary)
        learner.update([samples], step=1)
        _wait(device)
        started = time.perf_counter()
        learner.update([samples], step=2)
        _wait(device)
        rate = 2 * length / (time.perf_counter() - started)
        # Forward and backward: 6 FLOPs per parameter and token, 12 per layer, width and pair of
        # tokens in causal attention halved (PaLM, arXiv 2204.02311, appendix B).
        flops = rate * (6 * parameters + 6 * size.layers * size.hidden * length)
        detail = f"{rate:,.0f} tokens/s, {flops / 1e12:.3g} TFLOP/s{_utilization(device, flops)}"
        yield Finding(f"update of {size.name} at {length} tokens", rate > 0, detail)
        del learner
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _utilization(device: torch.device, flops: float) -> str:
    if device.type != "cuda":
        return ""
    name = torch.cuda.get_device_name(device)
    peak = next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
    return f" on {name}" + ("" if peak is None else f", MFU {flops / peak / 1e12:.1%}")


def colocated(folder: Path) -> Finding:
    """Steps of learner and engine on one GPU."""
    command = [sys.executable, "-m", "rlrun", "train", *COLOCATED, f"run_dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return Finding("vLLM beside the learner", False, f"exit {done.returncode}: {lines[-1]}")
    return engine_steps(folder)


def engine_steps(folder: Path) -> Finding:
    """What the steps of a run with engines say of them."""
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if line["step"] > 0]
    gap = max(line["refit/probe_max_abs_diff"] for line in lines)
    seconds = max(line["refit/seconds"] for line in lines)
    error = max(line["correction/token_mult_prob_error"] for line in lines)
    detail = (
        f"{len(lines)} steps, refits of {seconds:.3f} s at most, then log-probs of the engine "
        f"differed by {gap:.2g} nats at most; token error {error:.4f} (allowed {MAX_TOKEN_ERROR:g})"
    )
    return Finding("vLLM beside the learner", error < MAX_TOKEN_ERROR, detail)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check(small: bool) -> Iterator[Finding]:
    """All findings, as they come."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield Finding("device", small or device.type == "cuda", str(device))
    with tempfile.TemporaryDirectory() as name:
        if device.type == "cuda" and importlib.util.find_spec("vllm") is not None:
            # Before this process takes any of the GPU.
            yield colocated(Path(name) / "run")
        yield from numerics(device)
        for size in SMALL if small else SIZES:
            folder = Path(name) / size.name
            parameters = make_model(folder, size)
            yield from memory(device, size, folder)
            yield from speed(device, size, folder, parameters)


def main() -> int:
    """Prints the findings; 1 if one of them fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small models, on any device")
    parser.add_argument("--json", action="store_true", help="a JSON line for each finding")
    arguments = parser.parse_args()
    failed = 0
    for finding in check(arguments.small):
        failed += not finding.passed
        line = f"{'pass' if finding.passed else 'FAIL':<5}{finding.name}: {finding.detail}"
        sys.stdout.write((json.dumps(asdict(finding)) if arguments.json else line) + "\n")
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
