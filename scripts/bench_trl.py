# SPDX-License-Identifier: Apache-2.0
"""Measures rlrun's step against TRL's GRPOTrainer, side by side.

Both train the same model with equal settings: 8 prompts x 8 samples, one AdamW update per step,
float32, no KL penalty. They take turns, each in a process of its own; the figure of a turn is
tokens over time after the first few steps, counted from one step's end to the next: everything
that a step does is in it.

The lengths are either exactly 64 new tokens (the embedded model, with an end-of-sequence token that
it hardly ever samples), or with --long-tail geometric with mean 128 and a cap of 480: a model of 4
layers with random weights and a vocabulary of 128, each of which is as likely as the other.

``--threads`` are what a side uses at a time; an asynchronous rlrun divides them between generator
and learner. TRL is installed into a virtual environment of its own once, with the torch of
constraints.txt.

Example:
    python scripts/bench_trl.py --turns 3 --threads 2
    python scripts/bench_trl.py --turns 3 --threads 2 --long-tail --schedule async
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
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

from rlrun.data.generators.addition import addition_pairs, question
from rlrun.models.resolve import resolve_model

TRL = "trl==1.16.*"
PROMPTS, SAMPLES = 8, 8
STEPS, WARM_UP = 16, 4
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long answers are: at most ``cap`` tokens, exactly so many if ``fixed``."""

    cap: int
    fixed: bool


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
        times.append((time.time(), sum(lengths)))

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
        generation_kwargs={"min_new_tokens": settings["tokens"]} if settings["fixed"] else {},
        beta=0.0, num_iterations=1, loss_type="dapo", epsilon=0.2, epsilon_high=0.28,
        learning_rate=3e-4, adam_beta2=0.95, max_grad_norm=1.0, lr_scheduler_type="constant",
        max_steps=settings["steps"], logging_steps=1, save_strategy="no", report_to="tensorboard",
        gradient_checkpointing=False, disable_tqdm=True,
    ),
    callbacks=[Times()],
)
trainer.train()
assert not settings["fixed"] or set(lengths) == {settings["tokens"]}, set(lengths)
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


def make_random_model(folder: Path) -> None:
    """Four layers that say nothing, over 128 characters of which one ends the sequence."""
    specials = ["<pad>", "<end>", "<user>", "<answer>", "?!"]
    alphabet = [chr(code) for code in range(32, 127)]
    names = [*specials, *alphabet, *(f"<{i}>" for i in range(128 - len(specials) - len(alphabet)))]
    tokenizer = Tokenizer(
        models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="?!")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(specials)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="?!"
    )
    wrapped.chat_template = (
        "{% for m in messages %}<user>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<answer>{% endif %}"
    )
    set_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=128,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            eos_token_id=1,
            pad_token_id=0,
        )
    )
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)


def run(command: list[str], threads: int) -> None:
    """Runs a side; its output is shown only if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")


def trl_times(
    python: Path, folder: Path, threads: int, lengths: Lengths
) -> list[tuple[float, float]]:
    """When TRL's steps ended, and the tokens generated until then."""
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
        "tokens": lengths.cap,
        "fixed": lengths.fixed,
        "steps": STEPS,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "side.py").write_text(TRL_SIDE)
    run([str(python), str(folder / "side.py"), str(folder / "settings.json")], threads)
    return [(time, tokens) for time, tokens in json.loads((folder / "times.json").read_text())]


def rlrun_times(
    folder: Path,
    threads: int,
    lengths: Lengths,
    schedule: str,
    generation: str = "transformers",
    steps: int = STEPS,
) -> list[tuple[float, float]]:
    """When rlrun's steps ended, by its own records, and the tokens trained until then."""
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    overrides = [
        "+recipe=quickstart",
        f"grpo={schedule}",
        f"generation={generation}",
        "env=python",
        f"env.reward_function={folder / 'reward.py'}:score",
        f"policy.model={folder / 'model'}",
        f"run_dir={run_dir}",
        f"num_threads={threads if schedule == 'sync' else max(1, threads // 2)}",
        f"grpo.num_prompts_per_step={PROMPTS}",
        f"grpo.num_generations_per_prompt={SAMPLES}",
        f"grpo.max_num_steps={steps}",
        "grpo.val_period=0",
        "grpo.val_at_start=false",
        "grpo.val_at_end=false",
        "checkpointing.enabled=false",
        "checkpointing.metric=null",
        f"generation.max_new_tokens={lengths.cap}",
        f"policy.max_total_sequence_length={lengths.cap + 64}",
        "policy.scheduler.warmup_steps=0",
    ]
    run([sys.executable, "-m", "rlrun", "train", *overrides], threads)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["step"] > 0]
    for line in trained:
        short = lengths.fixed and line["train/response_tokens_mean"] < 0.99 * lengths.cap
        if short or line["train/skipped_update"]:
            sys.exit(f"step {line['step']} is not comparable: {line}")
    tokens, ends = 0.0, []
    for line in trained:
        tokens += line["train/response_tokens_mean"] * PROMPTS * SAMPLES
        ends.append((line["time"], tokens))
    return ends


def rate(ends: list[tuple[float, float]], lengths: Lengths) -> float:
    """Tokens per second: of the median step where all are alike, else of all steps together."""
    ends = ends[WARM_UP:]
    if lengths.fixed:
        pairs = zip(ends, ends[1:], strict=False)
        return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)
    return (ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0])


def main() -> None:
    """Installs, runs and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    cache = Path.home() / ".cache" / "rlrun-bench" / "trl"
    parser.add_argument("--venv", type=Path, default=cache, help="where TRL is installed")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--long-tail", action="store_true", help="lengths differ widely")
    parser.add_argument("--schedule", choices=["sync", "async"], default="sync")
    parser.add_argument("--generation", choices=["transformers", "vllm"], default="transformers")
    arguments = parser.parse_args()
    lengths = Lengths(480, fixed=False) if arguments.long_tail else Lengths(64, fixed=True)
    threads = arguments.threads
    python = install_trl(arguments.venv)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (make_random_model if arguments.long_tail else make_model)(folder / "model")
        (folder / "reward.py").write_text(REWARD)
        for turn in range(arguments.turns):
            theirs.append(rate(trl_times(python, folder, threads, lengths), lengths))
            sys.stdout.write(f"turn {turn + 1}: TRL {theirs[-1]:.0f}")
            sys.stdout.flush()
            ends = rlrun_times(folder, threads, lengths, arguments.schedule, arguments.generation)
            ours.append(rate(ends, lengths))
            sys.stdout.write(f", rlrun {ours[-1]:.0f} tokens/s\n")
            sys.stdout.flush()
    our_rate, their_rate = statistics.median(ours), statistics.median(theirs)
    sys.stdout.write(
        f"rlrun {our_rate:.0f} tokens/s, TRL {their_rate:.0f} tokens/s, "
        f"ratio {our_rate / their_rate:.2f} ({threads} threads, {arguments.schedule}, "
        f"{arguments.generation})\n"
    )


if __name__ == "__main__":
    main()
