# SPDX-License-Identifier: Apache-2.0
"""Runs in NeMo Gym's own environment: its parser turns configuration files into servers.

A program of its own that knows nothing of rlrun. Standard input is a JSON object with
"config_paths" and "initial" (keys that win over the files); the last line of standard output is a
JSON object with "config" (resolved, as YAML), "site" (where the package is), "servers" and
"versions" (of Ray and Python).
"""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import nemo_gym
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from omegaconf import DictConfig, OmegaConf

KINDS = ("resources_servers", "responses_api_agents", "responses_api_models")
"""Environment servers only relay, and each would start a Ray cluster of its own."""

MODEL = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"


def main() -> None:
    """Reads, resolves, writes."""
    asked = json.load(sys.stdin)
    paths = list(asked["config_paths"])
    if not any("responses_api_models/" in path for path in paths):
        paths.append(MODEL)
    initial = {
        **asked["initial"],
        "config_paths": paths,
        # Nobody listens there: servers name it and never ask it.
        "head_server": {"host": "127.0.0.1", "port": 1},
        "error_on_agent_without_environment_server": False,
        "dry_run": False,
    }
    config = GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=DictConfig(initial),
            skip_load_from_cli=True,
            skip_load_from_dotenv=True,
        )
    )
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]  # a mapping stays one
    servers = [_server(name, block) for name, block in plain.items() if _is_server(block)]
    found = {
        "config": OmegaConf.to_yaml(config, resolve=True),
        "site": str(Path(nemo_gym.__file__).parent.parent),
        "servers": servers,
        "versions": [metadata.version("ray"), platform.python_version()],
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def _is_server(block: object) -> bool:
    return isinstance(block, dict) and next(iter(block), None) in KINDS


def _server(name: str, block: dict[str, Any]) -> dict[str, Any]:
    kind = next(iter(block))
    implementation = next(iter(block[kind]))
    settings = block[kind][implementation]
    verifier = settings.get("resources_server") or {}
    return {
        "name": name,
        "kind": kind,
        "implementation": implementation,
        "entrypoint": settings["entrypoint"],
        "host": settings["host"],
        "port": settings["port"],
        "resources_server": verifier.get("name"),
    }


if __name__ == "__main__":
    main()
