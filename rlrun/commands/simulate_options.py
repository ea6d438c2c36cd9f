# SPDX-License-Identifier: Apache-2.0
"""The options of `rlrun simulate`, by what they are about; simulate/options.py checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# --- what takes how long: a run, or numbers -------------------------------------------------------

FromRun = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUN_DIR", help="Lengths and times as this run had them."),
]
MeanSeconds = Annotated[
    float | None, typer.Option(help="Mean seconds that a prompt's group takes.")
]
TrainSeconds = Annotated[
    float | None, typer.Option(help="Seconds of training per step (with --mean-seconds).")
]
MeanTokens = Annotated[
    float | None, typer.Option(help="Mean tokens of an answer, before --max-tokens.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Longest answer in tokens.")]
SamplesPerPrompt = Annotated[int | None, typer.Option(help="Answers per prompt [default: 8]")]
SequenceRate = Annotated[
    float | None, typer.Option(help="Tokens per second of an answer alone on a generator.")
]
HalfSpeedAt = Annotated[
    float | None,
    typer.Option(help="Answers on a generator at which each has half that speed."),
]
MaxSequences = Annotated[
    int | None, typer.Option(help="Answers that a generator decodes at once; others wait.")
]
TrainRate = Annotated[
    float | None,
    typer.Option(help="Tokens per second that a GPU trains, all forward passes included."),
]
LogSd = Annotated[
    float | None,
    typer.Option(help="Standard deviation of the logarithm of lengths [default: 0.5]"),
]
PromptCorrelation = Annotated[
    float | None,
    typer.Option(
        help="Share of its variance that belongs to the prompt: 1 takes as long at every attempt, "
        "0 is drawn anew [default: 0.5]"
    ),
]
RefitSeconds = Annotated[
    float | None, typer.Option(help="Seconds in which a refit stops everything.")
]
ValidationSeconds = Annotated[
    float | None, typer.Option(help="Seconds of a validation, which pauses training.")
]
ValidationPeriod = Annotated[
    int | None, typer.Option(help="Steps from one validation to the next.")
]

# --- the run and its machines ---------------------------------------------------------------------

PromptsPerStep = Annotated[
    int | None, typer.Option(help="Prompts per step [default: 32, or the run's]")
]
Gpus = Annotated[
    int | None,
    typer.Option(
        help="GPUs to share out between generation and training; unset: a machine for each."
    ),
]
GeneratingGpus = Annotated[
    str | None,
    typer.Option(help="How many of them generate, a list [default: the fastest of all]"),
]

# --- what is compared -----------------------------------------------------------------------------

Age = Annotated[str, typer.Option(help="Values of max_trajectory_age_steps.")]
InFlight = Annotated[
    str,
    typer.Option(
        help="Values of max_num_in_flight_batches_in_generation; those above the age are left out."
    ),
]
BatchingNames = Annotated[str, typer.Option("--batching", help="Of fifo, in_order, freshest.")]
OnAgeLimit = Annotated[str, typer.Option(help="Of hold, mask, expire; the first is preferred.")]
MaxExpiries = Annotated[
    int, typer.Option(help="Expiries of a prompt after which it is waited for.")
]
InFlightWeightUpdates = Annotated[
    bool,
    typer.Option(help="Whether generation goes on with new weights; if not, a refit waits for it."),
]

# --- how it is simulated and told -----------------------------------------------------------------

Steps = Annotated[int, typer.Option(help="Steps that are measured.")]
Seed = Annotated[int, typer.Option(help="Of all draws.")]
Plot = Annotated[
    Path | None, typer.Option(help="Draw the grid there, as SVG; a file there is replaced.")
]
