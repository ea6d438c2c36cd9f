# SPDX-License-Identifier: Apache-2.0
"""What the programs that build the embedded models share: teaching, writing, comparing.

One thread and fixed seeds make the result reproducible on machines with the same vector
instructions and versions of torch, tokenizers and transformers; elsewhere the last bits of the
weights differ.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the customary name)
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

ASSETS = Path(__file__).resolve().parent.parent / "rlrun" / "assets"
CONTEXT = 2048
LOGGED = 50
"""Steps between two lines of the log."""

log = logging.getLogger("pretraining")


class Examples(NamedTuple):
    """Right-padded token ids [B, T], and the same with -100 where nothing is learnt."""

    tokens: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True)
class Course:
    """How a model is taught: AdamW, linear warm-up, then cosine decay to a share of the rate."""

    steps: int
    warmup_steps: int
    peak_lr: float
    final_factor: float

    def lr(self, step: int) -> float:
        """The learning rate of a step, from 1."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        factor = self.final_factor + (1 - self.final_factor) * cosine
        return self.peak_lr * factor * min(1.0, step / self.warmup_steps)


def padded(pairs: Sequence[tuple[list[int], list[int]]], pad: int) -> Examples:
    """Prompts and responses as token ids in one array; only the responses are learnt."""
    width = max(len(before) + len(after) for before, after in pairs)
    tokens = torch.full((len(pairs), width), pad)
    targets = torch.full((len(pairs), width), -100)
    for row, (before, after) in enumerate(pairs):
        end = len(before) + len(after)
        tokens[row, :end] = torch.tensor(before + after)
        targets[row, len(before) : end] = torch.tensor(after)
    return Examples(tokens, targets)


def teach(model: PreTrainedModel, batches: Iterator[Examples], course: Course) -> None:
    """Next-token training, a batch per step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=course.peak_lr, betas=(0.9, 0.98))
    model.train()
    for step in range(1, course.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = course.lr(step)
        tokens, targets = next(batches)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOGGED == 0:
            log.info("step %d of %d, loss %.3f", step, course.steps, loss.item())
    model.train(False)


def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The complete model folder; what else is in it stays."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every built file, by name; a hand-written README is not one of them."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != "README.md"
    }


def check(build: Callable[[Path], None], shipped: Path) -> int:
    """Builds afresh and compares with the shipped folder; the exit code."""
    temporary = Path(tempfile.mkdtemp())
    try:
        build(temporary)
        built, there = digests(temporary), digests(shipped)
    finally:
        shutil.rmtree(temporary)
    differing = sorted(n for n in built.keys() | there.keys() if built.get(n) != there.get(n))
    for name in differing:
        log.error("%s differs: built %s, shipped %s", name, built.get(name), there.get(name))
    if not differing:
        log.info("all %d files equal the shipped ones", len(there))
    return 1 if differing else 0


def command_line(build: Callable[[Path], None], shipped: Path, description: str | None) -> int:
    """Builds or compares, as the command line says; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", nargs="?", type=Path, help="folder to write, default: the shipped")
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if arguments.check:
        return check(build, shipped)
    folder: Path = arguments.out or shipped
    build(folder)
    for name, digest in digests(folder).items():
        log.info("%s  %s", digest, name)
    return 0
