# SPDX-License-Identifier: Apache-2.0
"""``rlrun eval``: accuracy and pass@k of a model, or of a run's checkpoint, on validation data.

Nothing of training is started. What validation in training samples, and from which seeds, is what
is sampled here: a run's checkpoint has the accuracy that its validation had.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from rlrun.compute import compute
from rlrun.config.schema import RunConfig
from rlrun.console import Console
from rlrun.derived import generator_inputs, longest_prompt, sampling_of, thread_counts
from rlrun.errors import ConfigError, EnvironmentDown, Problem, StorageError
from rlrun.evaluate import Evaluation, Evaluator, accuracy_of
from rlrun.inputs import read_rows
from rlrun.interfaces import Generator
from rlrun.learner.model import saved_tensors
from rlrun.machine import cores_to_take, device_of, set_up_torch
from rlrun.pass_at_k import METHOD, PassAtK, estimates
from rlrun.prompts import ValidationPrompts, validation_prompts
from rlrun.records import validation_line, write_lines
from rlrun.refit.probe import Probe
from rlrun.renderer import Renderer
from rlrun.rollout_choice import make_rollout
from rlrun.saved_policy import SavedPolicy, find_policy
from rlrun.terminal import plain_console
from rlrun.types import TrajectoryGroup

if TYPE_CHECKING:
    from rlrun.serve.server import PolicyServer


@dataclass(frozen=True, slots=True)
class Report:
    """What an evaluation found. Lengths in tokens; shares from 0 to 1.

    Attributes:
        model: What was evaluated.
        step: The step of a run's checkpoint; None for a model.
        prompts: Prompts that were asked.
        samples_per_prompt: Samples of each.
        samples: Samples with a reward; all means are over them.
        failed_samples: Samples without one, which are in no mean.
        accuracy: Mean of the reward part "correct", or of the reward; as validation/accuracy.
        reward_mean: As validation/reward_mean.
        response_tokens_mean: Mean length of the responses.
        truncated_fraction: Share of responses that a limit cut.
        sampling: Temperature, filters, limit and seed.
        pass_at_k: A sample is right if its accuracy is above 0.
        interval: How the intervals were computed.
    """

    model: str
    step: int | None
    prompts: int
    samples_per_prompt: int
    samples: int
    failed_samples: int
    accuracy: float
    reward_mean: float
    response_tokens_mean: float
    truncated_fraction: float
    sampling: dict[str, float | int | None]
    pass_at_k: list[PassAtK]
    interval: str = METHOD

    def to_json(self) -> dict[str, Any]:
        """JSON-able fields."""
        return asdict(self)


def evaluate(
    name: str,
    overrides: Sequence[str],
    console: Console,
    *,
    config_dir: Path | None = None,
    step: int | None = None,
    samples: int | None = None,
    out: Path | None = None,
) -> Report:
    """Evaluates a model or a run.

    Args:
        name: A run directory, a model's folder, a name of the hub or of an embedded model.
        overrides: For a model what it is evaluated with; for a run what differs from its own.
        console: Is told what is done.
        config_dir: A folder with further recipes and choices of groups.
        step: Of the run's checkpoint; None for the newest whole one.
        samples: Per prompt; None for grpo.val_num_generations_per_prompt.
        out: A file for the samples, in the format of validation/*.jsonl; replaced if it exists.

    Raises:
        ConfigError: There is no validation data, or the settings do not fit.
        DataError: There is no such run or model, or a row cannot be used.
        EnvironmentDown: No sample could be scored.
        StorageError: The checkpoint is damaged, or ``out`` cannot be written.
    """
    disable_progress_bar()
    policy = find_policy(name, overrides, config_dir=config_dir, step=step)
    config = policy.config
    _check(config, out)
    count = samples or config.grpo.val_num_generations_per_prompt
    set_up_torch(config)
    renderer = Renderer.load(config.policy)
    prepared = read_rows(config, renderer, longest_prompt(config), training=False)
    for notice in prepared.notices:
        console.notice(notice)
    prompts = validation_prompts(prepared.rows, renderer.prompt_ids, config.grpo.max_val_samples)
    console.say([f"evaluating {name} on {len(prompts)} prompts x {count} samples"])
    if count > 1 and sampling_of(config, training=False).temperature == 0:
        console.notice("at temperature 0 all samples of a prompt are the same")
    evaluation = asyncio.run(_run(policy, renderer, prompts, count, console))
    if out is not None:
        _write(out, policy.step, evaluation, renderer)
    return _report(policy, evaluation, count)


def _check(config: RunConfig, out: Path | None) -> None:
    """Finds before anything is sampled what would make it useless."""
    if config.data.validation.source is None:
        key = "data.validation.source"
        what = f"{key} is null, so there is nothing to evaluate on"
        raise ConfigError([Problem(key, what, f"Give {key}=FILE.jsonl, or data=NAME", (key,))])
    config.generation.check_installed()
    if out is None:
        return
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise StorageError(
            str(out), "is a folder, or in no folder", "Give --out a file in a folder that exists"
        )


async def _run(
    policy: SavedPolicy,
    renderer: Renderer,
    prompts: ValidationPrompts,
    samples: int,
    console: Console,
) -> Evaluation:
    from rlrun.generation.sampler import Sampler

    config = policy.config
    environment = config.env.start()
    generator: Generator | None = None
    server: PolicyServer | None = None
    try:
        model, adapter = await compute(policy.load, device_of(config))
        if adapter is not None:
            adapter.merge()
        inputs = generator_inputs(
            config,
            model=model,
            weights=lambda: iter(saved_tensors(model).items()),
            renderer=renderer,
            num_threads=thread_counts(config, cores_to_take())[1],
            folder=None,
            trained=False,
        )
        announcement = config.generation.announcement(inputs)
        if announcement:
            console.say([announcement])
        generator = await config.generation.start(inputs)
        await generator.refit(policy.step)
        # Engines with weights of their own must have those of the policy; others need no proof.
        await Probe(
            generator,
            Sampler(model, renderer, None).score,
            token_ids=prompts[0].token_ids,
            max_tokens=config.policy.max_total_sequence_length,
            precision=config.policy.precision,
        ).check(policy.step)
        server = await _serve(policy, generator, renderer)
        if config.env.announcement:
            console.say([config.env.announcement])
        await environment.open(None if server is None else server.address(_log_folder()))
        rollout = make_rollout(config, renderer, generator, environment, training=False)
        return await Evaluator(rollout, prompts, config.grpo.val_batch_size, samples).run()
    finally:
        if server is not None:
            await server.close()
        if generator is not None:
            await generator.close()
        await environment.close()


async def _serve(
    policy: SavedPolicy, generator: Generator, renderer: Renderer
) -> PolicyServer | None:
    """The HTTP server, if agents are to ask it."""
    if not policy.config.generation.expose_http_server:
        return None
    from rlrun.serve.start import new_api_key, start_server

    server = await start_server(
        policy.config,
        generator,
        renderer,
        api_key=new_api_key(),
        step=policy.step,
        shares_weights=False,
    )
    server.release()
    return server


def _log_folder() -> Path:
    """For the logs of servers; of no interest unless something goes wrong, and then named."""
    return Path(tempfile.mkdtemp(prefix="rlrun-gym-"))


def _write(out: Path, step: int, evaluation: Evaluation, renderer: Renderer) -> None:
    lines = (
        validation_line(
            step,
            group.prompt,
            trajectory,
            renderer.decode(group.prompt.token_ids, skip_special=False),
        )
        for group in evaluation.groups
        for trajectory in group.trajectories
    )
    write_lines(out, lines)


def _report(policy: SavedPolicy, evaluation: Evaluation, samples: int) -> Report:
    metrics, config = evaluation.metrics, policy.config
    if "validation/accuracy" not in metrics:
        raise EnvironmentDown(
            "environment",
            f"not one of {int(metrics['validation/failed_samples'])} samples could be scored; "
            f"the first failure: {_first_failure(evaluation.groups)}",
            "Correct the environment or reward function",
        )
    sampling = sampling_of(config, training=False)
    return Report(
        model=policy.name,
        step=None if policy.checkpoint is None else policy.step,
        prompts=len(evaluation.groups),
        samples_per_prompt=samples,
        samples=int(metrics["validation/samples"]),
        failed_samples=int(metrics["validation/failed_samples"]),
        accuracy=metrics["validation/accuracy"],
        reward_mean=metrics["validation/reward_mean"],
        response_tokens_mean=metrics["validation/response_tokens_mean"],
        truncated_fraction=metrics["validation/truncated_fraction"],
        sampling={
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_new_tokens": config.generation.max_new_tokens,
            "seed": config.grpo.seed,
        },
        pass_at_k=estimates([count_right(group) for group in evaluation.groups]),
    )


def count_right(group: TrajectoryGroup) -> tuple[int, int]:
    """Scored samples of a prompt, and how many of them have an accuracy above 0."""
    scored = [t for t in group.trajectories if t.reward is not None]
    return len(scored), sum(accuracy_of(t) > 0 for t in scored)


def _first_failure(groups: Sequence[TrajectoryGroup]) -> str:
    failures = (t.failure for group in groups for t in group.trajectories)
    return next((failure.message for failure in failures if failure is not None), "unknown")


def print_report(report: Report, file: TextIO) -> None:
    """The report as a table for people."""
    console = plain_console(file)
    of_step = "" if report.step is None else f", step {report.step}"
    failed = "no failures"
    if report.failed_samples:
        failed = f"{report.failed_samples} samples failed and are left out"
    console.tell(
        f"{report.model}{of_step}: {report.prompts} prompts x {report.samples_per_prompt} samples, "
        f"{failed}",
        "bold",
    )
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("metric", "value", "95 % interval", "prompts"):
        table.add_column(title, justify="left" if title == "metric" else "right")
    for one in report.pass_at_k:
        ends = f"{one.low:.3f} to {one.high:.3f}"
        table.add_row(f"pass@{one.k}", f"{one.value:.3f}", ends, str(one.prompts))
    for title, value in (
        ("accuracy", f"{report.accuracy:.3f}"),
        ("mean reward", f"{report.reward_mean:.3f}"),
        ("mean response tokens", f"{report.response_tokens_mean:.1f}"),
        ("truncated", f"{report.truncated_fraction:.3f}"),
    ):
        table.add_row(title, value, "", "")
    console.print(table)
    settings = ", ".join(
        f"{name} {'null' if value is None else value}" for name, value in report.sampling.items()
    )
    console.tell(f"{report.interval}; sampled with {settings}", "dim")
