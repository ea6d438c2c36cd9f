# SPDX-License-Identifier: Apache-2.0
"""Measures rlrun's synchronous step against TRL's GRPOTrainer, side by side.

Both train the embedded model with equal settings: 8 prompts x 8 samples of 64 new tokens,
one AdamW update per step, float32, no KL penalty, the same threads. They take turns, each in a
process of its own; the figure of a turn is the median step after the first few, counted from one
step's metrics to the next: everything that a step does is in it. That no sample ends early is by
giving both an end-of-sequence token that the model hardly ever samples; tokens are counted.

TRL is installed into a virtual environment of its own once, with the torch of constraints.txt.

Example:
    python scripts/bench_trl.py --turns 3 --threads 2
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from rlrun.data.generators.addition import addition_pairs, question
from rlrun.models import resolve_model

TRL = "trl==1.16.*"
PROMPTS, SAMPLES, TOKENS = 8, 8, 64
STEPS, WARM_UP = 16, 4
ROOT = Path(__file__).resolve().parents[1]

REWARD = """
def score(response, answer):
    \"\"\"Differs within nearly every group, so that nearly every sample has a gradient.\"\"\"
    return float(len(set(response.split()))) + (answer in response)
"""

TRL_SIDE = """
import json, sys, time
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from reward import score

settings = json.load(open(sys.argv[1]))
torch.set_num_threads(settings["threads"])
model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(settings["model"])
times, lengths = [], []

class Times(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        times.append(time.time())

def reward(prompts, completions, completion_ids, answer, **kwargs):
    lengths.extend(len(ids) for ids in completion_ids)
    return [score(c[0]["content"], right) for c, right in zip(completions, answer)]

trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward,
    processing_class=tokenizer,
    train_dataset=Dataset.from_list(settings["rows"]),
    args=GRPOConfig(
        output_dir=settings["folder"], use_cpu=True, bf16=False, fp16=False, seed=0,
        per_device_train_batch_size=settings["samples"] * settings["prompts"],
        num_generations=settings["samples"], max_completion_length=settings["tokens"],
        temperature=1.0, top_k=0, top_p=1.0,
        generation_kwargs={"min_new_tokens": settings["tokens"]},
        beta=0.0, num_iterations=1, loss_type="dapo", epsilon=0.2, epsilon_high=0.28,
        learning_rate=3e-4, adam_beta2=0.95, max_grad_norm=1.0, lr_scheduler_type="constant",
        max_steps=settings["steps"], logging_steps=1, save_strategy="no", report_to="tensorboard",
        gradient_checkpointing=False, disable_tqdm=True,
    ),
    callbacks=[Times()],
)
trainer.train()
assert set(lengths) == {settings["tokens"]}, set(lengths)
json.dump(times, open(settings["times"], "w"))
"""


def install_trl(folder: Path) -> Path:
    """The Python of a virtual environment with TRL, made if it is not there."""
    python = folder / "bin" / "python"
    if not (folder / "bin" / "tensorboard").exists():
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", TRL, "transformers==5.19.*"]
        command += ["tensorboard", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run(command, check=True)
    return python


def make_model(folder: Path) -> None:
    """The embedded model whose end of sequence is its padding token, which it does not sample."""
    shutil.copytree(resolve_model("rlrun:tiny"), folder)
    ends = {
        "tokenizer_config.json": ("eos_token", "<|endoftext|>"),
        "generation_config.json": ("eos_token_id", 0),
        "config.json": ("eos_token_id", 0),
    }
    for name, (key, value) in ends.items():
        entries = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(entries | {key: value}))


def run(command: list[str], threads: int) -> None:
    """Runs a side; its output is shown only if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")


def trl_times(python: Path, folder: Path, threads: int) -> list[float]:
    """When TRL's steps ended."""
    rows = [
        {
            "prompt": [{"role": "user", "content": question(a, b)}],
            "answer": str(a + b),
        }
        for a, b in addition_pairs("train")[: PROMPTS * STEPS]
    ]
    settings = {
        "threads": threads,
        "model": str(folder / "model"),
        "rows": rows,
        "folder": str(folder / "trl"),
        "times": str(folder / "times.json"),
        "prompts": PROMPTS,
        "samples": SAMPLES,
        "tokens": TOKENS,
        "steps": STEPS,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "side.py").write_text(TRL_SIDE)
    run([str(python), str(folder / "side.py"), str(folder / "settings.json")], threads)
    times: list[float] = json.loads((folder / "times.json").read_text())
    return times


def rlrun_times(folder: Path, threads: int) -> list[float]:
    """When rlrun's steps ended, by its own records."""
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    overrides = [
        "+recipe=quickstart",
        "env=python",
        f"env.reward_function={folder / 'reward.py'}:score",
        f"policy.model={folder / 'model'}",
        f"run_dir={run_dir}",
        f"num_threads={threads}",
        f"grpo.num_prompts_per_step={PROMPTS}",
        f"grpo.num_generations_per_prompt={SAMPLES}",
        f"grpo.max_num_steps={STEPS}",
        "grpo.val_period=0",
        "grpo.val_at_start=false",
        "grpo.val_at_end=false",
        "checkpointing.enabled=false",
        "checkpointing.metric=null",
        f"generation.max_new_tokens={TOKENS}",
        "policy.max_total_sequence_length=128",
        "policy.scheduler.warmup_steps=0",
    ]
    run([sys.executable, "-m", "rlrun", "train", *overrides], threads)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["step"] > 0]
    for line in steps:
        if line["train/response_tokens_mean"] < 0.99 * TOKENS or line["train/skipped_update"]:
            sys.exit(f"step {line['step']} is not comparable: {line}")
    return [line["time"] for line in steps]


def rate(times: list[float]) -> float:
    """Generated tokens per second of the median step."""
    steps = [after - before for before, after in zip(times, times[1:], strict=False)]
    return PROMPTS * SAMPLES * TOKENS / statistics.median(steps[WARM_UP:])


def main() -> None:
    """Installs, runs and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    cache = Path.home() / ".cache" / "rlrun-bench" / "trl"
    parser.add_argument("--venv", type=Path, default=cache, help="where TRL is installed")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    python = install_trl(arguments.venv)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        (folder / "reward.py").write_text(REWARD)
        for turn in range(arguments.turns):
            theirs.append(rate(trl_times(python, folder, arguments.threads)))
            sys.stdout.write(f"turn {turn + 1}: TRL {theirs[-1]:.0f}")
            sys.stdout.flush()
            ours.append(rate(rlrun_times(folder, arguments.threads)))
            sys.stdout.write(f", rlrun {ours[-1]:.0f} tokens/s\n")
            sys.stdout.flush()
    our_rate, their_rate = statistics.median(ours), statistics.median(theirs)
    sys.stdout.write(
        f"rlrun {our_rate:.0f} tokens/s, TRL {their_rate:.0f} tokens/s, "
        f"ratio {our_rate / their_rate:.2f} ({arguments.threads} threads)\n"
    )


if __name__ == "__main__":
    main()
