# SPDX-License-Identifier: Apache-2.0
"""``rlrun eval``: accuracy and pass@k of a model, or of a run's checkpoint, on validation data.

Nothing of training is started. What validation in training samples, and from which seeds, is what
is sampled here: a run's checkpoint has the accuracy that its validation had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.utils.logging import disable_progress_bar

from rlrun.config.schema import RunConfig
from rlrun.console.console import Console
from rlrun.console.counted import counted
from rlrun.derived import generator_inputs, longest_prompt, sampling_of, thread_counts
from rlrun.errors import ConfigError, Problem, StorageError
from rlrun.evaluation.report import EvalReport, report_of
from rlrun.evaluation.validation import Evaluation, Evaluator
from rlrun.inputs import read_rows
from rlrun.interfaces import Generator
from rlrun.learner.model import saved_tensors
from rlrun.models.saved_policy import SavedPolicy, find_policy
from rlrun.process.compute import compute
from rlrun.process.machine import cores_to_take, device_of, set_up_torch
from rlrun.process.open_files import raise_limit
from rlrun.prompts import ValidationPrompts
from rlrun.refit.probe import Probe
from rlrun.rendering.renderer import Renderer
from rlrun.rollout_choice import make_rollout
from rlrun.run_dir.records import validation_line, write_lines

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlrun.serve.server import PolicyServer


def evaluate(
    name: str,
    overrides: Sequence[str],
    console: Console,
    *,
    config_dir: Path | None = None,
    step: int | None = None,
    samples: int | None = None,
    out: Path | None = None,
) -> EvalReport:
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
    raise_limit()
    renderer = Renderer.load(config.policy)
    prepared = read_rows(config, renderer, longest_prompt(config), training=False)
    for notice in prepared.notices:
        console.notice(notice)
    prompts = ValidationPrompts(prepared.rows, renderer.prompt_ids, config.grpo.max_val_samples)
    console.say(
        [f"evaluating {name} on {counted(len(prompts), 'prompt')} x {counted(count, 'sample')}"]
    )
    if count > 1 and sampling_of(config, training=False).temperature == 0:
        console.notice("at temperature 0 all samples of a prompt are the same")
    evaluation = asyncio.run(_run(policy, renderer, prompts, count, console))
    if out is not None:
        _write(out, policy.step, evaluation, renderer)
    return report_of(policy, evaluation, count)


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
        generator = await _start_generator(config, model, renderer, console)
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
        await environment.open(None if server is None else server.address(None))
        rollout = make_rollout(config, renderer, generator, environment, training=False)
        return await Evaluator(rollout, prompts, config.grpo.val_batch_size, samples).run()
    finally:
        if server is not None:
            await server.close()
        if generator is not None:
            await generator.close()
        await environment.close()


async def _start_generator(
    config: RunConfig, model: PreTrainedModel, renderer: Renderer, console: Console
) -> Generator:
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
    return await config.generation.start(inputs)


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
