# SPDX-License-Identifier: Apache-2.0
"""The small runs that faults are done to: what they consist of, and the files that they read."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rlrun.data.generators.addition import addition_pairs, question

ROWS, EPOCHS, SAMPLES, PROMPTS = 12, 2, 2, 3
"""Rows of an epoch, epochs, samples of a group, groups of a step."""

SIZES = (
    f"grpo.num_prompts_per_step={PROMPTS}",
    f"grpo.num_generations_per_prompt={SAMPLES}",
    "grpo.max_num_steps=null",
    f"grpo.max_num_epochs={EPOCHS}",
    "checkpointing.save_period=2",
)

LOCAL = ("sync", "async", "sync gym", "async gym")
ENGINES = (
    *("sync vllm", "async vllm"),
    *("sync ray", "async ray", "async ray vllm"),
    "async gym servers",
)
"""Settings that need vLLM, Ray or an environment with nemo-gym."""

REWARDS = '''"""A reward function that fails for some answers."""


def fragile(response, answer):
    if len(response) % 4 == 0:
        return float("nan")
    return float(answer.split()[0] in response)
'''


def write_files(folder: Path) -> None:
    """Rows whose answers only a verifier's child can compare, and a reward function."""
    rows = [
        {"problem": question(a, b), "answer": f"{a + b} + \\sin(0)"}
        for a, b in addition_pairs("train")[:ROWS]
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARDS)


def flags_of(setting: str, folder: Path) -> tuple[str, ...]:
    """The command line of a setting, as far as it is the same under all faults."""
    words = setting.split()
    flags = [f"grpo={words[0]}"]
    if "gym" in words:
        recipe, rows = "gym_quickstart", [f"data.train.limit={ROWS}"]
    else:
        recipe = "quickstart"
        rows = [f"data.train={{source: {folder / 'rows.jsonl'}, split: null}}"]
    if "servers" in words:
        flags.append(f"env.venv={os.environ.get('RLRUN_GYM_VENV', '.gym-venv')}")
    if "vllm" in words:
        flags.append("generation=vllm")
    if "ray" in words:
        flags.append("cluster=ray")
    return (f"+recipe={recipe}", *flags, *rows, *SIZES)
