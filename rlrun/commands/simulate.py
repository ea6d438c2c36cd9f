# SPDX-License-Identifier: Apache-2.0
"""`rlrun simulate`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlrun.commands.arguments import AsJson


def simulate(
    from_run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN_DIR", help="Lengths and times as this run had them."),
    ] = None,
    mean_seconds: Annotated[
        float | None, typer.Option(help="Mean seconds that a prompt's group takes.")
    ] = None,
    train_seconds: Annotated[
        float | None, typer.Option(help="Seconds of training per step (with --mean-seconds).")
    ] = None,
    mean_tokens: Annotated[
        float | None, typer.Option(help="Mean tokens of an answer, before --max-tokens.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.")] = None,
    samples_per_prompt: Annotated[
        int | None, typer.Option(help="Answers per prompt [default: 8]")
    ] = None,
    sequence_rate: Annotated[
        float | None, typer.Option(help="Tokens per second of an answer alone on a generator.")
    ] = None,
    half_speed_at: Annotated[
        float | None,
        typer.Option(help="Answers on a generator at which each has half that speed."),
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option(help="Answers that a generator decodes at once; others wait.")
    ] = None,
    train_rate: Annotated[
        float | None,
        typer.Option(help="Tokens per second that a GPU trains, all forward passes included."),
    ] = None,
    log_sd: Annotated[
        float | None,
        typer.Option(help="Standard deviation of the logarithm of lengths [default: 0.5]"),
    ] = None,
    prompt_correlation: Annotated[
        float | None,
        typer.Option(
            help="Share of its variance that belongs to the prompt: 1 takes as long at every "
            "attempt, 0 is drawn anew [default: 0.5]"
        ),
    ] = None,
    prompts_per_step: Annotated[
        int | None, typer.Option(help="Prompts per step [default: 32, or the run's]")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            help="GPUs to share out between generation and training; unset: a machine for each."
        ),
    ] = None,
    generating_gpus: Annotated[
        str | None,
        typer.Option(help="How many of them generate, a list [default: the fastest of all]"),
    ] = None,
    refit_seconds: Annotated[
        float | None, typer.Option(help="Seconds in which a refit stops everything.")
    ] = None,
    validation_seconds: Annotated[
        float | None, typer.Option(help="Seconds of a validation, which pauses training.")
    ] = None,
    validation_period: Annotated[
        int | None, typer.Option(help="Steps from one validation to the next.")
    ] = None,
    age: Annotated[str, typer.Option(help="Values of max_trajectory_age_steps.")] = "1,2,4,8",
    in_flight: Annotated[
        str,
        typer.Option(
            help="Values of max_num_in_flight_batches_in_generation; those above the age are "
            "left out."
        ),
    ] = "1,2,4,8",
    batching: Annotated[str, typer.Option(help="Of fifo, in_order, freshest.")] = "fifo",
    on_age_limit: Annotated[
        str, typer.Option(help="Of hold, mask, expire; the first is preferred.")
    ] = "hold,mask,expire",
    max_expiries: Annotated[
        int, typer.Option(help="Expiries of a prompt after which it is waited for.")
    ] = 2,
    in_flight_weight_updates: Annotated[
        bool,
        typer.Option(
            help="Whether generation goes on with new weights; if not, a refit waits for it."
        ),
    ] = True,
    steps: Annotated[int, typer.Option(help="Steps that are measured.")] = 100,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 0,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the grid there, as SVG; a file there is replaced.")
    ] = None,
) -> None:
    """Foresee what async training would bring, and which age and in-flight limit to take.

    The scheduler of the real run is driven on a virtual clock, for every combination of the listed
    values. Lengths and times come from a run, or are log-normal: in seconds per group, or in tokens
    per answer with the speed r1 / (1 + c / c0) of an answer among c (--sequence-rate is r1,
    --half-speed-at is c0).

    Example: rlrun simulate --from runs/quickstart/20261129-120000

    Example: rlrun simulate --mean-seconds 60 --log-sd 1 --train-seconds 60 --plot grid.svg

    Example: rlrun simulate --mean-tokens 2000 --max-tokens 16000 --sequence-rate 60
    --half-speed-at 64 --train-rate 4000 --gpus 8
    """
    from rlrun.simulate.command import simulate_command
    from rlrun.simulate.options import Options

    options = Options(
        from_run=from_run,
        mean_seconds=mean_seconds,
        train_seconds=train_seconds,
        mean_tokens=mean_tokens,
        max_tokens=max_tokens,
        samples_per_prompt=samples_per_prompt,
        sequence_rate=sequence_rate,
        half_speed_at=half_speed_at,
        max_sequences=max_sequences,
        train_rate=train_rate,
        log_sd=log_sd,
        prompt_correlation=prompt_correlation,
        prompts_per_step=prompts_per_step,
        gpus=gpus,
        generating_gpus=generating_gpus,
        refit_seconds=refit_seconds,
        validation_seconds=validation_seconds,
        validation_period=validation_period,
        age=age,
        in_flight=in_flight,
        batching=batching,
        on_age_limit=on_age_limit,
        max_expiries=max_expiries,
        in_flight_weight_updates=in_flight_weight_updates,
        steps=steps,
        seed=seed,
    )
    typer.echo(simulate_command(options, as_json=as_json, plot=plot))
