# SPDX-License-Identifier: Apache-2.0
"""A run that answers over HTTP while it trains, and trains what it would have trained."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

from tests.conftest import SMALL
from tests.e2e.forked import Started, forked
from tests.e2e.test_resume import start, wait_until

QUESTION: Any = [{"role": "user", "content": "What is 37 + 45?"}]
TIMING = ("time", "perf/", "idle/", "refit/seconds")


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.startswith(TIMING)} for line in lines]


def test_a_run_serves_its_policy_and_trains_as_without(small_run: Path, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", range(8)
    address = run / "http_server.json"
    process = start(run, "generation.expose_http_server=true", held_after=steps)
    wait_until(address.exists, process)
    assert stat.S_IMODE(address.stat().st_mode) == 0o600
    told = json.loads(address.read_text())
    versions = []
    with openai.OpenAI(
        base_url=told["base_urls"][0], api_key=told["api_key"], max_retries=0
    ) as client:
        for step in steps:
            # While it trains, and once it waits.
            versions += ask_until(lambda step=step: process.is_held(step), process, client, told)
            assert versions[-1] == step
            process.go_on(step)
        versions += ask_until(lambda: process.poll() is not None, process, client, told)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert f"HTTP server: {told['base_urls'][0]}" in out
    assert told["api_key"] not in out
    assert not any(
        told["api_key"] in file.read_text(errors="replace")
        for file in run.rglob("*")
        if file.is_file()
    )
    assert not address.exists()
    assert versions == sorted(versions)
    assert metrics(run) == metrics(small_run)


def ask_until(
    true: Callable[[], bool], process: Started, client: openai.OpenAI, told: dict[str, Any]
) -> list[int]:
    """Weight versions of the answers that the run gave until something held, and of one more."""
    versions = []
    last = False
    while not last:
        last = true()
        try:
            answer = client.chat.completions.create(model=told["model"], messages=QUESTION)
        except (openai.APIConnectionError, openai.InternalServerError):
            # The server ends before the run does, and not before the last step.
            assert process.is_held(7)
            continue
        extra = answer.choices[0].message.model_extra
        assert extra is not None
        (span,) = extra["weight_versions"]
        versions.append(span[0])
    return versions


def test_a_parser_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ("generation.expose_http_server=true", "generation.http.tool_parser=hermess")
    for command in ("train", "check"):
        done = forked(command, *SMALL, f"run_dir={run}", *flags)
        assert done.code == 2
        assert "hermess" in done.err + done.out and "qwen3_coder" in done.err + done.out
    assert not run.exists()
