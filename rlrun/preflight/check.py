# SPDX-License-Identifier: Apache-2.0
"""Looks at everything that a run needs, in the order in which it would need it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from rlrun.atomic import storage_error
from rlrun.config import Loaded
from rlrun.config.paths import expand, is_file
from rlrun.config.schema import RunConfig
from rlrun.config.unread import said, unread_keys
from rlrun.console.counted import counted
from rlrun.data.load import load_rows
from rlrun.derived import plan_in_words
from rlrun.errors import StorageError
from rlrun.inputs import Inputs, check_installed, read_prompts
from rlrun.preflight.environment import look_at_environment
from rlrun.preflight.lines import CheckLine, Findings
from rlrun.preflight.plan import look_at_model
from rlrun.preflight.sample import rendered_sample
from rlrun.rendering.renderer import Renderer


def preflight(loaded: Loaded) -> list[CheckLine]:
    """Looks at everything without starting the run."""
    config, findings = loaded.config, Findings()
    findings.add("configuration", f"{len(loaded.origins)} values, all known and consistent")
    for where, what, remedy in unread_keys(loaded):
        findings.fail("configuration", said(where, what), remedy)
    with findings.of("run directory"):
        findings.add("run directory", _run_dir(config))
    for check in check_installed(config):
        with findings.of("installation"):
            check()
    inputs = _inputs(config, findings)
    if inputs is not None:
        for text in plan_in_words(config, inputs.stream):
            findings.add("plan", text)
        findings.lines.append(rendered_sample(inputs))
    with findings.of("environment"):
        prompt = None if inputs is None else inputs.stream.prompt_at(0)
        findings.lines += asyncio.run(look_at_environment(config, prompt))
    with findings.of("model"):
        look_at_model(config, findings)
    return findings.lines


def _inputs(config: RunConfig, findings: Findings) -> Inputs | None:
    with findings.of("tokenizer and data"):
        notices: list[str] = []
        inputs = read_prompts(config, notices.append)
        text = counted(inputs.stream.len_per_epoch, "training prompt")
        if inputs.validation is not None:
            text += f", {counted(len(inputs.validation.rows), 'validation prompt')}"
        findings.add("tokenizer and data", text)
        for notice in notices:
            findings.add("note", notice)
        return inputs
    _look_further(config, findings)
    return None


def _look_further(config: RunConfig, findings: Findings) -> None:
    """What else is wrong with tokenizer and data, of which the first error was told."""
    more = Findings()
    with more.of("tokenizer and data"):
        Renderer.load(config.policy)
    for source in (config.data.train, config.data.validation):
        if source.source is not None:
            with more.of("tokenizer and data"):
                load_rows(
                    source, config.env, on_bad_row=config.data.on_bad_row, base_dir=Path.cwd()
                )
    told = {line.detail for line in findings.lines}
    findings.lines += [line for line in more.lines if line.detail not in told]


def _run_dir(config: RunConfig) -> str:
    """A place for the run that can be written to."""
    if config.run_dir is None:
        parent = Path("runs")
    else:
        parent = expand(config.run_dir)
        if is_file(parent / "config.yaml"):
            raise StorageError(
                str(parent), "holds a run already", f"rlrun resume {parent}, or another run_dir"
            )
    shown = parent.absolute()
    try:
        existing = next(path for path in (shown, *shown.parents) if path.exists())
    except OSError as error:
        raise storage_error(shown, "look up", error) from error
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise StorageError(str(existing), "cannot be written to", "Choose another run_dir")
    return f"{shown} can be written"
