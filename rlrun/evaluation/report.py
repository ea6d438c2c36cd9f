# SPDX-License-Identifier: Apache-2.0
"""What ``rlrun eval`` found, and how it tells it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TextIO

from rich.table import Table

from rlrun.console.counted import counted
from rlrun.console.terminal import plain_console
from rlrun.derived import sampling_of
from rlrun.errors import EnvironmentDown
from rlrun.evaluation.pass_at_k import METHOD, PassAtK, estimates
from rlrun.evaluation.validation import Evaluation, accuracy_of, is_scored, why_unscored
from rlrun.models.saved_policy import SavedPolicy
from rlrun.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class EvalReport:
    """What an evaluation found. Lengths in tokens; shares from 0 to 1.

    Attributes:
        model: What was evaluated.
        step: The step of a run's checkpoint; None for a model.
        prompts: Prompts that were asked.
        samples_per_prompt: Samples of each.
        samples: Samples with a reward that measures something; all means are over them.
        failed_samples: Samples without one, or with one that measures nothing, as the environment
            says; they are in no mean.
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


def report_of(policy: SavedPolicy, evaluation: Evaluation, samples: int) -> EvalReport:
    """What an evaluation with so many samples per prompt found.

    Raises:
        EnvironmentDown: No sample could be scored.
    """
    metrics, config = evaluation.metrics, policy.config
    if "validation/accuracy" not in metrics:
        what = why_unscored([t for group in evaluation.groups for t in group.trajectories])
        raise EnvironmentDown("environment", what, "Correct the environment or reward function")
    sampling = sampling_of(config, training=False)
    return EvalReport(
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
    scored = [t for t in group.trajectories if is_scored(t)]
    return len(scored), sum(accuracy_of(t) > 0 for t in scored)


def print_report(report: EvalReport, file: TextIO) -> None:
    """The report as a table for people."""
    console = plain_console(file)
    of_step = "" if report.step is None else f", step {report.step}"
    failed = "no failures"
    if report.failed_samples:
        failed = f"{counted(report.failed_samples, 'sample')} failed or flagged, left out"
    console.tell(
        f"{report.model}{of_step}: {counted(report.prompts, 'prompt')} x "
        f"{counted(report.samples_per_prompt, 'sample')}, {failed}",
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
