# SPDX-License-Identifier: Apache-2.0
"""Arguments of vLLM's engine: which exist, which rlrun gives itself, and what they are by default.

Which exist, and what they may be, is read from the source of the installed vLLM, since importing it
takes seconds and torch, and a configuration must be checked without either.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlrun.config.suggest import nearest
from rlrun.generation.vllm_values import ConfigSource, is_number

ARGUMENT_CLASSES = ("EngineArgs", "AsyncEngineArgs")

OWNED: Mapping[str, str] = {
    "model": "policy.model",
    "tokenizer": "policy.tokenizer",
    "skip_tokenizer_init": "policy.tokenizer",
    "dtype": "policy.precision",
    "max_model_len": "policy.max_total_sequence_length",
    "seed": "grpo.seed",
    "tensor_parallel_size": "generation.tensor_parallel_size",
    "pipeline_parallel_size": "generation.tensor_parallel_size",
    "prefill_context_parallel_size": "generation.tensor_parallel_size",
    "data_parallel_size": "generation.num_engines",
    "nnodes": "generation.num_engines",
    "device_ids": "generation.num_engines",
    "distributed_executor_backend": "generation.tensor_parallel_size",
    "weight_transfer_config": "generation.refit",
    "worker_cls": "generation.refit",
    "worker_extension_cls": "generation.refit",
    "enable_sleep_mode": "generation.refit",
    "logprobs_mode": "generation.temperature",
    "generation_config": "generation.temperature",
    "override_generation_config": "generation.temperature",
}
"""Arguments that follow from the run, and the key that decides them."""

CPU_KV_CACHE_BYTES = 2**30
CPU_BLOCK_TOKENS = 32
"""Tokens per block of the KV cache on a CPU: vLLM's own 128 would hardly ever share a prefix of
short prompts, and its attention wants a multiple of 32."""
MAX_NUM_SEQS = 256
"""Requests that run at once, as far as the cache has room."""
SHARE = "gpu_memory_utilization"
COLOCATED_MEMORY = 0.5
"""Share of a GPU that an engine takes which has it together with the learner."""


def is_installed() -> bool:
    """Whether there is a vLLM to be imported."""
    spec = importlib.util.find_spec("vllm")
    # A mere folder of that name has no origin.
    return spec is not None and spec.origin is not None


def known_args() -> frozenset[str]:
    """The arguments of the installed vLLM's engine; empty where that cannot be told."""
    return frozenset(_arguments())


def wrong_kwargs(kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with generation.vllm_kwargs, name by name, each with a remedy."""
    known = _arguments() if kwargs else {}
    for name, value in kwargs.items():
        if name in OWNED:
            yield (
                f"vllm_kwargs.{name} is decided by {OWNED[name]}",
                f"Set {OWNED[name]} instead",
            )
        elif name == SHARE and not (is_number(value) and 0 < value <= 1):
            # The plan of a run counts with it, wherever that is made.
            yield f"vllm_kwargs.{name}={value!r} is no share", "Give a number above 0, at most 1"
        elif name in known:
            wrong = ConfigSource(_package() / "config").problem(known[name], name, value)
            if wrong is not None:
                yield f"vllm_kwargs.{wrong[0]}", wrong[1]
        elif known:
            near = nearest(name, sorted(known.keys() - OWNED.keys()))
            meant = f"; did you mean {near[0]}" if near else ""
            yield (
                f"vllm_kwargs.{name} is no argument of the installed vLLM's engine{meant}",
                "See the fields of vllm.engine.arg_utils.AsyncEngineArgs",
            )


def _package() -> Path:
    """The folder of the installed vLLM; one that does not exist if there is none."""
    spec = importlib.util.find_spec("vllm")
    return Path() / "no vllm" if spec is None or spec.origin is None else Path(spec.origin).parent


@cache
def _arguments() -> Mapping[str, ast.AnnAssign]:
    """The arguments in the source, by name; none where it cannot be read."""
    try:
        source = (_package() / "engine" / "arg_utils.py").read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError):
        return {}
    return {
        field.target.id: field
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in ARGUMENT_CLASSES
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def default_args(*, on_cpu: bool, colocated: bool, state_space: bool) -> dict[str, Any]:
    """Arguments that generation.vllm_kwargs may replace.

    Args:
        on_cpu: Where the engine runs.
        colocated: The learner has the same GPU.
        state_space: The model has layers with a state instead of a cache.
    """
    args: dict[str, Any] = {"disable_log_stats": True, "max_num_seqs": MAX_NUM_SEQS}
    if on_cpu:
        args |= {
            "enforce_eager": True,
            # The engine ends where a seeded request's prompt is read in pieces.
            "enable_chunked_prefill": False,
            "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
            "block_size": CPU_BLOCK_TOKENS,
        }
        if state_space:
            # Their states can be shared only at the ends of pieces that prompts are read in.
            args["enable_prefix_caching"] = False
    if colocated:
        args[SHARE] = COLOCATED_MEMORY
    return args
