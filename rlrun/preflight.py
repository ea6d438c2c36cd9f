# SPDX-License-Identifier: Apache-2.0
"""What can be known of a run before it starts. Nothing is left out: what cannot be told is said."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlrun.config import Loaded
from rlrun.config.schema import RunConfig
from rlrun.derived import plan_in_words
from rlrun.errors import DataError, RlrunError
from rlrun.inputs import Inputs, read_inputs
from rlrun.interfaces import Environment, Episode
from rlrun.models import read_model_config
from rlrun.types import EnvStep, Failure, FailureKind, Prompt, StopReason

ENV_TIMEOUT_S = 30.0
BYTES_PER_PARAMETER = 16
"""float32 weights, gradients and AdamW's two moments."""
WRONG_ANSWER = "rlrun check: surely not the answer"


class Verdict(StrEnum):
    """What a finding says."""

    PASS = "pass"
    FAIL = "fail"
    UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One finding.

    Attributes:
        name: What was looked at.
        verdict: What came out.
        detail: The values found, or why nothing can be said.
        remedy: What to do; "" where there is nothing to do.
        exit_code: Of the command, if this is the first failure.
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""
    exit_code: int = 0

    def refused(self, strict: bool) -> bool:
        """Whether the command ends with an error for this."""
        return self.verdict is Verdict.FAIL or (strict and self.verdict is Verdict.UNVERIFIED)

    def to_json(self) -> dict[str, Any]:
        """JSON-able fields."""
        return asdict(self)


def render(lines: list[CheckLine]) -> str:
    """The findings for people, a block each."""
    blocks = []
    for line in lines:
        text = f"{line.verdict.value:<10} {line.name}: {line.detail}"
        blocks.append(text + (f"\n{'':<10} -> {line.remedy}" if line.remedy else ""))
    return "\n".join(blocks)


def preflight(loaded: Loaded) -> list[CheckLine]:
    """Looks at everything that a run needs without starting it."""
    config = loaded.config
    findings = _Findings()
    findings.add("configuration", f"{len(loaded.origins)} values, all known and consistent")
    with findings.of("run directory"):
        findings.add("run directory", _run_dir(config))
    inputs: Inputs | None = None
    with findings.of("tokenizer and data"):
        notices: list[str] = []
        inputs = read_inputs(config, notices.append)
        findings.add("tokenizer and data", _data(inputs))
        for notice in notices:
            findings.add("note", notice)
    if inputs is not None:
        for text in plan_in_words(config, inputs.stream):
            findings.add("plan", text)
        prompt = inputs.stream.prompt_at(0)
        findings.add("sample", _sample(inputs, prompt))
        with findings.of("environment"):
            findings.extend(asyncio.run(_rewards(config, prompt)))
    with findings.of("model"):
        findings.extend(_model(config))
    return findings.lines


class _Findings:
    """Collects findings; an error ends a part, not the whole."""

    def __init__(self) -> None:
        self.lines: list[CheckLine] = []

    def add(self, name: str, detail: str) -> None:
        self.lines.append(CheckLine(name, Verdict.PASS, detail))

    def extend(self, lines: list[CheckLine]) -> None:
        self.lines += lines

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        try:
            yield
        except RlrunError as error:
            detail = f"{error.where}: {error.what}"
            self.lines.append(CheckLine(name, Verdict.FAIL, detail, error.remedy, error.exit_code))


def _run_dir(config: RunConfig) -> str:
    """A place for the run that can be written to."""
    from rlrun.errors import StorageError

    if config.run_dir is None:
        parent = Path("runs")
    else:
        parent = Path(config.run_dir)
        if (parent / "config.yaml").exists():
            raise StorageError(
                str(parent), "holds a run already", f"rlrun resume {parent}, or another run_dir"
            )
    shown = parent.absolute()
    existing = next(path for path in (shown, *shown.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise StorageError(str(existing), "cannot be written to", "Choose another run_dir")
    return f"{shown} can be written"


def _data(inputs: Inputs) -> str:
    text = f"{inputs.stream.len_per_epoch} training prompts"
    if inputs.validation is not None:
        text += f", {len(inputs.validation.rows)} validation prompts"
    return text


def _sample(inputs: Inputs, prompt: Prompt) -> str:
    """The first prompt as the model will read it."""
    text = inputs.renderer.decode(prompt.token_ids, skip_special=False)
    return (
        f"{prompt.row.where} as the model reads it ({len(prompt.token_ids)} tokens, none of them "
        f"trained; everything after is):\n{text}"
    )


async def _rewards(config: RunConfig, prompt: Prompt) -> list[CheckLine]:
    """Rewards of a right and of a wrong answer to a real prompt."""
    environment = config.env.start()
    try:
        answer = prompt.row.answer
        right = await _score(environment, prompt, f"\\boxed{{{answer}}}\nAnswer: {answer}")
        wrong = await _score(environment, prompt, f"\\boxed{{{WRONG_ANSWER}}}")
    finally:
        await environment.close()
    return [_judge(right, wrong, answer)]


async def _score(environment: Environment, prompt: Prompt, response: str) -> EnvStep:
    episode = Episode(
        prompt=prompt,
        sample_index=0,
        messages=({"role": "assistant", "content": response},),
        response=response,
        turn=1,
        stop_reason=StopReason.STOP,
    )
    try:
        async with asyncio.timeout(ENV_TIMEOUT_S):
            return await environment.step(episode)
    except TimeoutError:
        message = f"no answer within {ENV_TIMEOUT_S:g} s"
        return EnvStep(failure=Failure(FailureKind.TIMEOUT, message))


def _judge(right: EnvStep, wrong: EnvStep, answer: str) -> CheckLine:
    for step in (right, wrong):
        if step.failure is not None:
            return CheckLine(
                "environment",
                Verdict.FAIL,
                f"scoring failed ({step.failure.kind}): {step.failure.message}",
                "Correct the environment or reward function",
                exit_code=4,
            )
    if right.reward is None or wrong.reward is None:
        return CheckLine(
            "environment", Verdict.UNVERIFIED, "it answers with another turn instead of a reward"
        )
    detail = f"answer {answer!r} scores {right.reward}, a wrong one scores {wrong.reward}"
    if right.reward > wrong.reward:
        return CheckLine("environment", Verdict.PASS, detail)
    return CheckLine(
        "environment",
        Verdict.UNVERIFIED,
        detail + ", so the reference answer alone earns nothing",
        "Expected where rewards depend on format or more than the answer; otherwise check env",
    )


def _model(config: RunConfig) -> list[CheckLine]:
    """Size of the model and memory for training it, from its configuration alone."""
    import torch
    from transformers import AutoModelForCausalLM

    from rlrun.learner.bfloat16 import precision_notice
    from rlrun.learner.lora import adapter_size

    model_config = read_model_config(config.policy.model)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model_config)
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        what = f"cannot be built from its config.json: {str(error).splitlines()[0]}"
        raise DataError(f"policy.model={config.policy.model}", what, "Choose another") from error
    parameters = sum(parameter.numel() for parameter in model.parameters())
    copies = 1 + (config.loss.reference_policy_kl_penalty > 0) / 4
    needed = parameters * BYTES_PER_PARAMETER * copies
    detail = f"{type(model).__name__}, {parameters:,} parameters"
    if config.policy.lora.enabled:
        adapters = adapter_size(model, config.policy.lora)
        # Frozen weights have neither gradients nor moments, and are the reference themselves.
        needed = parameters * BYTES_PER_PARAMETER / 4 + adapters * BYTES_PER_PARAMETER
        detail += f"; {adapters:,} more are trained as adapters, these are frozen"
    lines = [CheckLine("model", Verdict.PASS, detail)]
    notice = precision_notice(config.policy.precision, torch.device(_device(config)))
    if notice is not None:
        lines.append(CheckLine("note", Verdict.PASS, notice))
    lines.append(_memory(config, needed))
    return lines


def _device(config: RunConfig) -> str:
    import torch

    return "cuda" if config.cluster.device != "cpu" and torch.cuda.is_available() else "cpu"


def _memory(config: RunConfig, needed: float) -> CheckLine:
    import torch

    if _device(config) == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        place = "GPU"
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        place = "CPU"
    detail = (
        f"weights, gradients and optimizer need {needed / 2**30:.2f} GiB of "
        f"{total / 2**30:.1f} GiB on the {place}, activations apart"
    )
    if needed > total:
        return CheckLine("memory", Verdict.FAIL, detail, "Choose a smaller model", exit_code=2)
    return CheckLine("memory", Verdict.PASS, detail)
