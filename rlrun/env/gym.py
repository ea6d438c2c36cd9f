# SPDX-License-Identifier: Apache-2.0
"""``env=gym``: NeMo Gym servers, over HTTP. The settings; the client is in gym_environment.py.

Nothing here imports NeMo Gym: its servers run in an environment of their own, started by the run
(rlrun/gym/) or by somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rlrun.interfaces import Env, Environment, component, setting
from rlrun.serve.address import is_loopback
from rlrun.strict_json import NameTwice, read_json
from rlrun.types import Row

ROW_FIELD = "responses_create_params"

AUDIO_FIELDS = ("audio_data", "audio_path", "audio_paths")
"""Entries of a row's metadata that Gym's model server puts into the prompt as sound."""


@component("env/gym")
@dataclass(kw_only=True, slots=True)
class GymEnv(Env):
    """Which agents there are, and how patient the run is with them."""

    config_paths: list[str]
    config_overrides: dict[str, Any]
    venv: str
    agents: dict[str, str]
    head_server: str | None
    verifiers: dict[str, str]
    default_agent: str | None
    start_timeout_s: float = setting(gt=0)
    control_timeout_s: float = setting(gt=0)
    max_retries: int = setting(ge=0)
    retry_wait_s: float = setting(gt=0)
    max_body_mib: int = setting(ge=1)
    max_sample_attempts: int = setting(ge=1)
    min_group_samples: int | None = setting(ge=1)
    max_agent_failures: int = setting(ge=1)
    agent_pause_s: float = setting(gt=0)
    max_concurrent_episodes: int | None = setting(ge=1)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """There must be agents, and their addresses must be such."""
        there = self.config_paths or self.agents or self.verifiers
        if not there and self.head_server is None:
            yield (
                ("config_paths", "agents", "head_server"),
                "no agents: config_paths=[], agents={} and head_server=null",
                "Name Gym's configuration files in env.config_paths, or servers that run already",
            )
        if self.config_overrides and not self.config_paths:
            yield (
                ("config_overrides", "config_paths"),
                "config_overrides are for servers that the run starts, and config_paths=[]",
                "Remove env.config_overrides, or name the files in env.config_paths",
            )
        urls = {f"agents.{name}": url for name, url in self.agents.items()}
        urls |= {f"verifiers.{name}": url for name, url in self.verifiers.items()}
        if self.head_server is not None:
            urls["head_server"] = self.head_server
        for key, url in urls.items():
            if not str(url).startswith(("http://", "https://")):
                yield (key.partition(".")[0],), f"{key}={url!r} is no URL", "Write http://HOST:PORT"

    def check_row(self, row: Row) -> str | None:
        """Why a row cannot be sent to an agent, or None."""
        if ROW_FIELD not in row.payload:
            return f"the row has no {ROW_FIELD}: env=gym takes rows of NeMo Gym"
        agent = agent_of(row.payload, self.default_agent)
        if agent is None:
            return "agent_ref.name is missing, and env.default_agent=null"
        if "/" in agent or "\n" in agent:
            return f"agent {agent!r:.80} has a name that no metric can have"
        params = row.payload[ROW_FIELD]
        if not isinstance(params, Mapping):
            return f"{ROW_FIELD} is {params!r:.80}, not an object"
        limit = params.get("max_output_tokens")
        if limit is not None and (type(limit) is not int or limit < 1):
            return f"{ROW_FIELD}.max_output_tokens is {limit!r:.80}, not a whole number above 0"
        return _metadata_problem(params.get("metadata"))

    @property
    def announcement(self) -> str:
        """Which servers are started or waited for."""
        if self.config_paths:
            return f"starting the NeMo Gym servers of {', '.join(self.config_paths)}"
        awaited = [*self.agents, *(["the head server"] if self.head_server else [])]
        return f"waiting up to {self.start_timeout_s:g} s for NeMo Gym's {', '.join(awaited)}"

    @property
    def agents_ask(self) -> bool:
        """They do."""
        return True

    @property
    def peer(self) -> str | None:
        """See ``Env.peer``: where agents are that somebody else runs."""
        urls = [*self.agents.values(), *([self.head_server] if self.head_server else [])]
        hosts = (urlsplit(url).hostname for url in urls)
        return next((host for host in hosts if host and not is_loopback(host)), None)

    def scored_needed(self, num_samples: int) -> int:
        """As ``min_group_samples`` says."""
        return min(num_samples, self.min_group_samples or num_samples)

    def start(self) -> Environment:
        """The client; its servers are started when it is opened."""
        from rlrun.env.gym_environment import GymEnvironment

        return GymEnvironment(self)


def agent_of(payload: Mapping[str, Any], default: str | None) -> str | None:
    """Name of the agent that a row is for."""
    reference = payload.get("agent_ref")
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return name if isinstance(name, str) and name else default


def _metadata_problem(metadata: object) -> str | None:
    """What Gym's model server could not take from a row's metadata, or None."""
    name = f"{ROW_FIELD}.metadata"
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        return f"{name} is {metadata!r:.80}, not an object"
    for key, value in metadata.items():
        if not isinstance(value, str):
            return f"{name}.{key} is {value!r:.80}, not a text"
        if key in AUDIO_FIELDS and value:
            return f"{name}.{key} names audio, and rlrun trains on text only"
    extra = metadata.get("extra_body")
    try:
        if extra is None or isinstance(read_json(extra, only_finite=False), dict):
            return None
    except NameTwice as error:
        return f"{name}.extra_body: {error}"
    except (ValueError, RecursionError):
        pass  # Said below, as of what is JSON but no object.
    return f"{name}.extra_body is {extra!r:.80}, not the text of a JSON object"
