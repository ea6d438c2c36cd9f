# SPDX-License-Identifier: Apache-2.0
"""Run directories for the report, made without training."""

from __future__ import annotations

import json
import random
from pathlib import Path

from rlrun.models.embedded import embedded_folder
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import TrainedLine, ValidationLine, write_lines
from rlrun.run_dir.status import RunState

HOSTILE = (
    "</script><script>window.owned=1</script><img src=x onerror=window.owned=1>"
    "<!-- <calc>1+1</calc> \u202eevil\u202c \x1b[2J \ud800 \u2028 {{ 7*7 }} 🙂 漢字 ]]>&lt;"
)

HOSTILE_TOKEN = 280
"""The first id that the embedded model's tokenizer does not have."""


def trained_line(step: int, position: int, sample: int, response: str, tokens: int) -> TrainedLine:
    reward = float((position + sample + step) % 2)
    total = 4 + tokens
    half = 4 + tokens // 2
    return {
        "step": step,
        "target_step": None,
        "prompt_id": f"rows:{position}",
        "group_id": f"0/rows:{position}",
        "sample_index": sample,
        "agent_ref": {"name": "<b>agent</b>"} if position == 0 else None,
        "prompt": f"What is {position} + 1? {HOSTILE if position == 0 else ''}",
        "response": response,
        "token_ids": [*(5 + (n * 7 + sample) % 200 for n in range(total - 1)), HOSTILE_TOKEN],
        "token_loss_mask": [0] * 4 + [1] * (half - 4) + [0] * 2 + [1] * (total - half - 2),
        "sample_loss_mask": 1,
        "advantages": [0.0] * 4 + [reward - 0.5] * tokens,
        "generation_logprobs": [0.0] * 4 + [-0.5] * tokens,
        "prev_logprobs": [0.0] * 4 + [-0.5 + 0.1 * (sample - 1)] * tokens,
        "weight_versions": [[max(0, step - 2), 4, half], [step - 1, half, total]],
        "reward": reward,
        "rewards": {"correct": reward, "<i>form</i>": 0.5},
        "unfiltered_reward": reward,
        "input_length": 4,
        "total_length": total,
        "truncated": False,
        "stop_reason": "stop",
    }


def validation_line(step: int, position: int) -> ValidationLine:
    return {
        "step": step,
        "prompt_id": f"validation:{position}",
        "sample_index": 0,
        "prompt": "What is 1 + 1?",
        "response": HOSTILE,
        "reward": float(position % 2),
        "rewards": {"correct": float(position % 2)},
        "extracted": None if position % 2 else HOSTILE,
        "stop_reason": "stop",
        "truncated": False,
        "answer": HOSTILE,
    }


def metrics_line(step: int, asynchronous: bool) -> dict[str, float]:
    draw = random.Random(step)
    values = {
        "train/reward_mean": min(1.0, 0.2 + step / 600 + draw.uniform(-0.05, 0.05)),
        "train/loss": draw.uniform(-0.1, 0.1),
        "train/entropy": 1 / (1 + step / 50),
        "train/grad_norm": draw.uniform(0.1, 1),
        "train/response_tokens_mean": 100.0 + step,
        "rollout/response_tokens_max": 300.0 + step,
        "correction/ess": 0.9,
        "correction/mismatch_kl": 0.001 * draw.random(),
        "reward/correct": 0.5,
        "age/mean": 1.5,
        "age/max": 3.0,
        "tokens/generated": 1000.0 * step,
        "tokens/trained": 900.0 * step,
        "tokens/zero_signal": 100.0 * step,
        "perf/step_s": 10.0,
        "perf/logprobs_s": 2.0,
        "perf/update_s": 3.0,
        "idle/trainer_s": 4.0,
        "idle/trainer_s/waiting_groups": 4.0,
        "idle/generator_s": 1.0,
        "refit/seconds": 0.5,
    }
    if asynchronous:
        values["perf/ceiling_efficiency"] = 0.6
    return {"step": step, "time": 1e9 + 10 * step, **values}


def timeline_line(step: int, groups: int, engines: int = 1) -> dict[str, object]:
    def group(position: int) -> dict[str, object]:
        return {
            "position": position,
            "attempt": 0,
            "prompt_id": f"rows:{position}",
            "environment": "math",
            "start": 0.1,
            "end": 2.0 + position % 20 / 10,
            "outcome": "finished" if position % 9 else "failed",
            "tokens": 800,
            "longest": 120,
            "turns": 1,
            "env_s": 0.2,
        }

    ended = [group(position) for position in range(groups)]
    lanes = {
        "trainer": [["wait/waiting_groups", 0.0, 4.0], ["logprobs", 4, 6], ["update", 6.1, 9.1]],
        "generator": [["rollouts", 0.1, 3.0], ["rollouts", 3.2, 4.0]],
        "environment": [["rollouts", 3.0, 3.2]],
    }
    for number in range(engines):
        busy = [["requests", 0.1 + n * 0.4, 0.3 + n * 0.4 + number % 3 / 20] for n in range(10)]
        lanes[f"engine/engine {number} of {engines}"] = busy
    return {
        "step": step,
        "start": 1e9 + 10 * step,
        "seconds": 10.0,
        "lanes": lanes,
        "groups": ended,
        "stragglers": [group(19) | {"cause": "long_answer", "held_trainer_s": 3.9}],
    }


def make_run(
    root: Path,
    *,
    steps: int = 6,
    groups: int = 4,
    samples: int = 4,
    tokens: int = 30,
    asynchronous: bool = True,
    seed: str = "42",
    engines: int = 1,
) -> Path:
    """A run that ended, with hostile texts wherever a model, row or environment writes."""
    with RunDir.create(root) as run:
        run.write_config(f"grpo:\n  seed: {seed}\npolicy:\n  model: rlrun:tiny\n")
        run.write_origins(
            {
                "grpo.seed": {"value": seed, "from": "flag", "where": f"grpo.seed={seed}"},
                "grpo.max_num_steps": {"value": "6", "from": "default", "where": "conf/x.yaml:1"},
                "data.train.system_prompt": {"value": HOSTILE, "from": "recipe", "where": HOSTILE},
            }
        )
        run.write_status(RunState.DONE, step=steps, reason=HOSTILE, exit_code=0)
        lines = [metrics_line(step, asynchronous) for step in range(1, steps + 1)]
        lines[-1]["validation/accuracy"] = lines[-1]["validation/reward_mean"] = 0.5
        run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        times = [timeline_line(step, groups, engines) for step in range(1, steps + 1)]
        run.timeline.write_text("".join(json.dumps(line) + "\n" for line in times))
        for step in range(1, steps + 1):
            trained = (
                trained_line(step, position, sample, HOSTILE, tokens)
                for position in range(groups)
                for sample in range(samples)
            )
            write_lines(run.trained_file(step), trained)
        write_lines(run.validation_file(steps), (validation_line(steps, n) for n in range(4)))
    return root


def use_tokenizer_that_writes_hostile_text(root: Path) -> None:
    """A checkpoint whose tokenizer has a hostile text as a token."""
    folder = root / "checkpoints" / "step_000001" / "policy"
    folder.mkdir(parents=True)
    text = (embedded_folder("rlrun:tiny") / "tokenizer.json").read_text()
    tokenizer = json.loads(text)
    tokenizer["added_tokens"].append(
        {
            "id": HOSTILE_TOKEN,
            "content": "</script><b>owned</b>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
