# SPDX-License-Identifier: Apache-2.0
"""From a configuration to a running server, and the file that tells clients of it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from rlrun.atomic import write_file
from rlrun.cluster.ray import RayCluster
from rlrun.config.schema import RunConfig
from rlrun.derived import sampling_of
from rlrun.errors import ConfigError, Problem
from rlrun.interfaces import Generator
from rlrun.models.resolve import read_model_config
from rlrun.rendering.renderer import Renderer
from rlrun.seeds import seed_of
from rlrun.serve.address import default_host
from rlrun.serve.choose import check_serving, choose_reasoning_parser, choose_tool_parser
from rlrun.serve.request import Limits
from rlrun.serve.server import PolicyServer, ServerSettings

KEY_BYTES = 32


def new_api_key() -> str:
    """A random key for the servers of one run."""
    return secrets.token_urlsafe(KEY_BYTES)


async def start_server(
    config: RunConfig,
    generator: Generator,
    renderer: Renderer,
    *,
    api_key: str,
    step: int = 0,
    ray_address: str | None = None,
    shares_weights: bool,
) -> PolicyServer:
    """Serves a generator of a run as ``generation.http`` says.

    Args:
        config: Of the run.
        generator: What answers.
        renderer: Of the policy.
        api_key: Of the run.
        step: That the run stands at; after a resume it makes the draws differ.
        ray_address: Of the Ray cluster that the run is on.
        shares_weights: See ServerSettings.

    Raises:
        ConfigError: The settings do not fit, or the address cannot be listened on.
    """
    check_serving(config.generation)
    http, limits = config.generation.http, limits_of(config, renderer)
    names = [config.policy.model]
    if http.served_model_name is not None:
        names.insert(0, http.served_model_name)
    settings = ServerSettings(
        host=http.host or _host_for(peer_of(config, ray_address)),
        port=http.port,
        api_key=api_key,
        names=tuple(dict.fromkeys(names)),
        limits=limits,
        seed=seed_of("server", config.grpo.seed, step),
        shares_weights=shares_weights,
    )
    return await PolicyServer.start(
        settings,
        generator,
        renderer,
        choose_tool_parser(http, renderer.tokenizer),
        choose_reasoning_parser(http, renderer.tokenizer),
    )


def peer_of(config: RunConfig, ray_address: str | None) -> str | None:
    """Another machine that clients may be on; None if all are on this one.

    Args:
        config: Of the run.
        ray_address: Of the Ray cluster that the run is on.
    """
    if config.env.peer is not None:
        return config.env.peer
    if isinstance(config.cluster, RayCluster) and config.cluster.num_nodes > 1 and ray_address:
        return ray_address.rpartition(":")[0].strip("[]")
    return None


def _host_for(peer: str | None) -> str:
    try:
        return default_host(peer)
    except OSError as error:
        key = "generation.http.host"
        what = f"{key}=null, and no address of this machine is found that {peer} could ask: {error}"
        remedy = f"Set {key} to one"
        raise ConfigError([Problem(key, what, remedy, (key,))]) from error


def limits_of(config: RunConfig, renderer: Renderer) -> Limits:
    """What requests are checked against."""
    entries = read_model_config(config.policy.model).get_text_config(decoder=True)
    profiles = [sampling_of(config, training=training) for training in (True, False)]
    return Limits(
        sampling=tuple(dict.fromkeys(profiles)),
        max_new_tokens=config.generation.max_new_tokens,
        context=config.policy.max_total_sequence_length,
        vocabulary=int(entries.to_dict().get("vocab_size", len(renderer.tokenizer))),
        has_tool_parser=config.generation.http.tool_parser is not None,
    )


def write_address(path: Path, server: PolicyServer, api_key: str) -> None:
    """Tells the owner's other programs where the server is, and its key.

    Agents must know as well whether reasoning is set apart from the answer.

    Raises:
        StorageError: The file cannot be written.
    """
    content = {
        "base_urls": list(server.base_urls),
        "api_key": api_key,
        "model": server.model,
        "parses_reasoning": server.parses_reasoning,
    }
    write_file(path, json.dumps(content, indent=2) + "\n", private=True)
