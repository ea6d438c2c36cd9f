# SPDX-License-Identifier: Apache-2.0
"""What Gym costs: one task trained through its servers and with a reward function of our own.

``python scripts/bench_gym.py [--tokens N] [--prompts N] [--steps N] [--rounds N] [--venv FOLDER]
[OVERRIDE ...]``, after ``rlrun gym setup``, on idle cores; about four minutes. Both runs have the
same model, rows, sizes and sampling, and take turns in every round; overrides (``grpo=async``) go
to both. The embedded model's answers would end after some twenty tokens, which real ones do not:
here each has exactly ``--tokens``, and ``--tokens 0`` lets them end. Told are the medians over
steps, the first one left out, of generated tokens per second, and the latency of a turn.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from rlrun.metrics.logs import read_metrics
from rlrun.models.resolve import resolve_model

RATE = "perf/generated_tokens_per_s"
LATENCY = "agent/string_match_simple_agent/turn_seconds"
PROMPT_TOKENS = 36
"""At most that many in the rows' prompts."""

log = logging.getLogger("bench_gym")


def save_endless_policy(folder: Path) -> None:
    """The embedded model with an end of sequence that it hardly ever samples."""
    disable_progress_bar()
    embedded = resolve_model("rlrun:tiny")
    tokenizer = AutoTokenizer.from_pretrained(embedded)
    model = AutoModelForCausalLM.from_pretrained(embedded)
    tokenizer.eos_token = tokenizer.pad_token
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def sizes(tokens: int, policy: Path) -> list[str]:
    """Overrides that give every answer that many tokens."""
    if not tokens:
        return []
    length = PROMPT_TOKENS + tokens
    return [
        f"policy.model={policy}",
        f"generation.max_new_tokens={tokens}",
        f"policy.max_total_sequence_length={length}",
        f"policy.train_micro_batch_tokens={max(4096, length)}",
    ]


def run(variant: str, arguments: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Metrics of a run's steps but the first."""
    recipe = "gym_quickstart" if variant == "env=gym" else "quickstart"
    own = ["env=gym", f"env.venv={arguments.venv}"] if variant == "env=gym" else ["env=python"]
    if variant == "env=python":
        own.append("env.reward_function=rlrun.env.last_number:reward")
    command = [
        *(sys.executable, "-m", "rlrun", "train", f"+recipe={recipe}", f"run_dir={folder}"),
        *own,
        f"grpo.num_prompts_per_step={arguments.prompts}",
        f"grpo.max_num_steps={arguments.steps}",
        *("grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false"),
        *("checkpointing.enabled=false", "checkpointing.metric=null", "num_threads=1"),
        *sizes(arguments.tokens, folder.parent / "policy"),
        *arguments.overrides,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{variant}: {done.stderr}")
    return read_metrics(folder / "metrics.jsonl")[1:]


def main() -> None:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256, help="of each answer; 0 lets them end")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step, 8 samples each")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--venv", type=Path, default=Path(".gym-venv"))
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rates: dict[str, list[float]] = {"env=gym": [], "env=python": []}
    latencies: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        save_endless_policy(Path(scratch) / "policy")
        for number in range(arguments.rounds):
            for variant, found in rates.items():
                lines = run(variant, arguments, Path(scratch) / f"{variant[4:]}-{number}")
                found += [line[RATE] for line in lines]
                latencies += [line[LATENCY] for line in lines if LATENCY in line]
    medians = {variant: statistics.median(found) for variant, found in rates.items()}
    for variant, median in medians.items():
        log.info("%-10s %8.0f generated tokens/s", variant, median)
    log.info("share of env=python: %.0f %%", 100 * medians["env=gym"] / medians["env=python"])
    log.info("seconds per turn, queueing included: %.3f", statistics.median(latencies))


if __name__ == "__main__":
    main()
