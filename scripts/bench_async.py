# SPDX-License-Identifier: Apache-2.0
"""How near an asynchronous run on two pinned cores comes to its ceiling, and to the simulator.

1. Two synchronous runs at once, one on each core, so that both cores are loaded: what one of them
   needs to generate a batch and to train it gives the ceiling, max(generation, training).
2. One asynchronous run, its generator on the one core and its learner on the other.
3. ``rlrun simulate`` from the first run, with the age and the batches in flight of the second.

Prints the seconds per step of all three. Everything takes turns, ``--turns`` times; figures are
medians. Steps should take 3 s or more, which ``--prompts`` decides. The machine must be idle.

The learner's core carries the controller and the rewards as well, which the ceiling knows nothing
of: they cost by sample, the ceiling by token. The embedded model answers with some thirteen tokens,
which shows the controller at its worst; with ``--long-tail`` it is the model of
scripts/bench_trl.py with random weights, whose answers are of geometric length, mean 128 and at
most 480.

Example:
    python scripts/bench_async.py --turns 2 --prompts 160
    python scripts/bench_async.py --turns 2 --prompts 12 --long-tail
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_trl import REWARD, make_random_model

from rlrun.metrics.logs import read_metrics

ROOT = Path(__file__).resolve().parents[1]
GENERATOR_CORE, LEARNER_CORE = 0, 1
WARM_UP = 3
"""Steps that are not counted: an asynchronous run is in its rhythm only then."""


def start(run_dir: Path, core: int, options: argparse.Namespace, *more: str) -> Any:
    """Starts a run on a core, and everything that it starts."""
    command = [
        *(sys.executable, "-m", "rlrun", "train", "+recipe=quickstart", "num_threads=1"),
        f"grpo.num_prompts_per_step={options.prompts}",
        f"grpo.max_num_steps={options.steps}",
        f"generation.temperature={options.temperature}",
        f"generation.max_new_tokens={options.max_new_tokens}",
        f"policy.max_total_sequence_length={options.max_new_tokens + 64}",
        "policy.optimizer.lr=1e-9",  # lengths stay what they are
        "grpo.val_period=0",
        "grpo.val_at_start=false",
        "grpo.val_at_end=false",
        "checkpointing.enabled=false",
        "checkpointing.metric=null",
        f"run_dir={run_dir}",
        *_workload(run_dir.parent, options.long_tail),
        *more,
    ]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


def _workload(folder: Path, long_tail: bool) -> list[str]:
    """Another model, and rewards that differ within its groups, if lengths are to differ."""
    if not long_tail:
        return []
    if not (folder / "model").exists():
        make_random_model(folder / "model")
        (folder / "reward.py").write_text(REWARD)
    reward = f"env.reward_function={folder / 'reward.py'}:score"
    return [f"policy.model={folder / 'model'}", "env=python", reward]


def finish(process: Any) -> None:
    """Waits for a run that must end well."""
    if process.wait() != 0:
        sys.exit(f"{' '.join(process.args)} ended with {process.returncode}")


def generator_of(pid: int) -> int | None:
    """The generator process of a run, once there is one."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_generator = b"process_child" in status.read_bytes()
            parent = (status.parent / "stat").read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if is_generator and int(parent) == pid:
            return int(status.parent.name)
    return None


def pin(pid: int, core: int) -> None:
    """Moves a process with all its threads to a core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def steps(run_dir: Path) -> Iterator[dict[str, float]]:
    """The metrics of the steps that count."""
    for line in read_metrics(run_dir / "metrics.jsonl"):
        if line["step"] > WARM_UP:
            yield line


def synchronous(folder: Path, options: argparse.Namespace) -> tuple[float, float, Path]:
    """Seconds of generating and of training a batch while both cores do both."""
    run_dirs = [folder / "sync-0", folder / "sync-1"]
    runs = [start(run_dir, core, options) for core, run_dir in enumerate(run_dirs)]
    for run in runs:
        finish(run)
    lines = [line for run_dir in run_dirs for line in steps(run_dir)]
    generation = statistics.median(line["perf/generation_s"] for line in lines)
    training = statistics.median(
        line["perf/step_s"] - line["perf/exposed_generation_s"] for line in lines
    )
    return generation, training, run_dirs[0]


def asynchronous(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Mean seconds per step of a run whose generator has a core of its own, and its ratios."""
    run_dir = folder / "async"
    age = f"grpo.max_trajectory_age_steps={options.age}"
    flight = f"grpo.max_num_in_flight_batches_in_generation={options.in_flight}"
    run = start(run_dir, LEARNER_CORE, options, "grpo=async", age, flight)
    while (generator := generator_of(run.pid)) is None and run.poll() is None:
        time.sleep(0.05)
    while generator is not None and run.poll() is None and not any(run_dir.glob("trained/*")):
        pin(generator, GENERATOR_CORE)  # threads that it starts later too
        time.sleep(0.2)
    finish(run)
    lines = list(steps(run_dir))
    # Groups finish in bursts: the mean step is the rate, the median is not.
    ratios = ("perf/ceiling_efficiency", "perf/speedup_over_sync", "age/mean")
    means = {
        name: statistics.fmean(line[name] for line in lines if name in line) for name in ratios
    }
    return means | {"step": statistics.fmean(line["perf/step_s"] for line in lines)}


def simulated(run_dir: Path, options: argparse.Namespace) -> float:
    """Seconds per step that the simulator foretells from a synchronous run."""
    command = [sys.executable, "-m", "rlrun", "simulate", "--from", str(run_dir), "--json"]
    command += ["--age", str(options.age), "--in-flight", str(options.in_flight)]
    command += ["--batching", "fifo", "--on-age-limit", "hold"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)["rows"]
    return float(row["result"]["step_s"])


def main() -> None:
    """Runs the turns and prints the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=64, help="per step, 8 samples each")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--age", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--temperature", default="1.0", help="above 1 lengths differ more")
    parser.add_argument("--max-new-tokens", type=int, help="480 with --long-tail, else 64")
    parser.add_argument("--long-tail", action="store_true", help="lengths differ widely")
    options = parser.parse_args()
    if options.max_new_tokens is None:
        options.max_new_tokens = 480 if options.long_tail else 64
    found = []
    for turn in range(options.turns):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            generation, training, run_dir = synchronous(folder, options)
            foretold = simulated(run_dir, options)
            ours = asynchronous(folder, options)
            ceiling = max(generation, training)
            found.append((ceiling / ours["step"], foretold / ours["step"]))
            sys.stdout.write(
                f"turn {turn + 1}: generation {generation:.2f} s, training {training:.2f} s, "
                f"async step {ours['step']:.2f} s, simulated {foretold:.2f} s; "
                f"E {ours['perf/ceiling_efficiency']:.2f}, over sync "
                f"{ours['perf/speedup_over_sync']:.2f}, age {ours['age/mean']:.1f}\n"
            )
            sys.stdout.flush()
    of_ceiling, agreement = (statistics.median(column) for column in zip(*found, strict=True))
    sys.stdout.write(f"{of_ceiling:.0%} of the ceiling; simulated / real {agreement:.2f}\n")


if __name__ == "__main__":
    main()
