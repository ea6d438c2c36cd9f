# SPDX-License-Identifier: Apache-2.0
"""`rlrun simulate`."""

from __future__ import annotations

import typer

from rlrun.commands import simulate_options as given
from rlrun.commands.arguments import AsJson


def simulate(
    from_run: given.FromRun = None,
    mean_seconds: given.MeanSeconds = None,
    train_seconds: given.TrainSeconds = None,
    mean_tokens: given.MeanTokens = None,
    max_tokens: given.MaxTokens = None,
    samples_per_prompt: given.SamplesPerPrompt = None,
    sequence_rate: given.SequenceRate = None,
    half_speed_at: given.HalfSpeedAt = None,
    max_sequences: given.MaxSequences = None,
    train_rate: given.TrainRate = None,
    log_sd: given.LogSd = None,
    prompt_correlation: given.PromptCorrelation = None,
    prompts_per_step: given.PromptsPerStep = None,
    gpus: given.Gpus = None,
    generating_gpus: given.GeneratingGpus = None,
    refit_seconds: given.RefitSeconds = None,
    validation_seconds: given.ValidationSeconds = None,
    validation_period: given.ValidationPeriod = None,
    age: given.Age = "1,2,4,8",
    in_flight: given.InFlight = "1,2,4,8",
    batching: given.BatchingNames = "fifo",
    on_age_limit: given.OnAgeLimit = "hold,mask,expire",
    max_expiries: given.MaxExpiries = 2,
    in_flight_weight_updates: given.InFlightWeightUpdates = True,
    steps: given.Steps = 100,
    seed: given.Seed = 0,
    as_json: AsJson = False,
    plot: given.Plot = None,
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
    # First, before there are other names: Options has the same ones.
    told = {name: value for name, value in locals().items() if name not in ("as_json", "plot")}
    from rlrun.simulate.command import simulate_command
    from rlrun.simulate.options import Options

    typer.echo(simulate_command(Options(**told), as_json=as_json, plot=plot))
