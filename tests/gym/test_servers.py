# SPDX-License-Identifier: Apache-2.0
"""What Gym's servers are told of a run's Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rlrun.gym import servers
from rlrun.gym.servers import RAY_ADDRESS, Plan, resolve_for_ray

OURS = (metadata.version("ray"), platform.python_version())


@pytest.mark.parametrize(
    ("versions", "joins"),
    [(OURS, True), (("2.1.0", OURS[1]), False), ((OURS[0], "3.9.1"), False)],
)
def test_a_ray_of_another_version_is_not_joined_and_that_is_said(
    versions: tuple[str, str],
    joins: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[Mapping[str, Any]] = []

    async def resolve(venv: str, paths: Sequence[str], initial: Mapping[str, Any]) -> Plan:
        asked.append(initial)
        return Plan((), "", Path(), Path(), versions)

    monkeypatch.setattr(servers, "resolve", resolve)
    with caplog.at_level(logging.WARNING):
        asyncio.run(resolve_for_ray(".gym-venv", [], {RAY_ADDRESS: "10.0.0.1:6379", "a": 1}))
    assert (RAY_ADDRESS in asked[-1]) == joins
    assert asked[-1]["a"] == 1
    assert ("start their own" in caplog.text) != joins


def test_without_a_cluster_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(venv: str, paths: Sequence[str], initial: Mapping[str, Any]) -> Plan:
        return Plan((), "", Path(), Path(), ("0", "0"))

    def no_ray(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(servers, "resolve", resolve)
    monkeypatch.setattr(metadata, "version", no_ray)
    assert asyncio.run(resolve_for_ray(".gym-venv", [], {})).versions == ("0", "0")
