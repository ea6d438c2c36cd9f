# SPDX-License-Identifier: Apache-2.0
"""``rlrun gym serve``: the servers of a recipe without its run, until somebody ends them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rlrun.config import load_section
from rlrun.console.counted import counted
from rlrun.env.gym import GymEnv
from rlrun.env.gym_client import GymClient
from rlrun.env.gym_directory import initial_config
from rlrun.errors import ConfigError, EnvironmentDown, Problem, StorageError
from rlrun.gym.servers import Servers
from rlrun.interfaces import PolicyAddress
from rlrun.process.temporary import LOGS, TemporaryFolder
from rlrun.run_dir.json_line import is_text, parse_object
from rlrun.serve.sampled import SampledLog

POLL_S = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    overrides: Sequence[str],
    config_dir: Path | None,
    run_dir: Path | None,
    say: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Starts the servers of ``env.config_paths`` and keeps them until SIGINT or SIGTERM.

    Args:
        overrides: As for ``rlrun train``; of them env counts.
        config_dir: A folder with further recipes.
        run_dir: Whose policy the agents ask; None for servers that only verify.
        say: Told for people what is done.
        tell: Told for programs, as JSON, where the agents are.

    Raises:
        ConfigError: The environment is not env=gym with config_paths.
        EnvironmentDown: The run does not serve, or the servers do not start.
    """
    env = load_section("env", overrides, config_dir)
    if not isinstance(env, GymEnv) or not env.config_paths:
        what = "there are no servers to start: env.config_paths is not set"
        raise ConfigError([Problem("env", what, "Add env=gym env.config_paths=[...]")])
    asyncio.run(_serve(env, run_dir, say, tell))


async def _serve(
    env: GymEnv,
    run_dir: Path | None,
    say: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    serving, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert serving is not None

    def end() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)  # A second one ends it at once.
        serving.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, end)
    # How ``end`` ends it.
    with suppress(asyncio.CancelledError):
        await _keep(env, run_dir, say, tell)


async def _keep(
    env: GymEnv,
    run_dir: Path | None,
    say: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Starts the servers and keeps them until it is cancelled, from the first moment on."""
    policy = None if run_dir is None else await _policy_of(run_dir, env.start_timeout_s, say)
    folder, temporary = None if policy is None else policy.folder, None
    if folder is None:
        temporary = TemporaryFolder(LOGS)
        folder = temporary.path
    client = GymClient(env.max_retries, env.retry_wait_s, env.max_body_mib)
    try:
        servers = await Servers.start(
            env.venv,
            env.config_paths,
            initial_config(env.config_overrides, policy),
            client=client,
            folder=folder,
            timeout_s=env.start_timeout_s,
        )
        try:
            agents = {name: server.url for name, server in servers.plan.agents().items()}
            tell(json.dumps({"agents": agents, "verifiers": servers.plan.verifiers()}))
            ready = counted(len(servers.plan.servers), "server")
            say(f"{ready} ready, logs in {folder}; Ctrl-C ends all")
            await asyncio.Event().wait()
        finally:
            ended = servers.any_ended
            await servers.close()
            if temporary is not None and not ended:
                temporary.remove()
    finally:
        await client.close()


async def _policy_of(run_dir: Path, timeout_s: float, say: Callable[[str], None]) -> PolicyAddress:
    """Where the policy of a run answers; waits until it does."""
    path = run_dir / "http_server.json"
    if not path.is_file():
        say(f"waiting for the run to serve its policy (for {path}), {timeout_s:g} s at most")
    try:
        async with asyncio.timeout(timeout_s):
            while not path.is_file():
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        what = f"the run serves no policy within {timeout_s:g} s (no {path})"
        remedy = "Start it with generation.expose_http_server=true"
        raise EnvironmentDown(str(run_dir), what, remedy) from None
    told = parse_object(str(path), path.read_bytes())
    urls, key, model = told.get("base_urls"), told.get("api_key"), told.get("model")
    parses = told.get("parses_reasoning")
    if not (isinstance(urls, list) and urls and all(map(is_text, [*urls, key, model]))):
        what = "does not say address, key and model of a run's server"
        raise StorageError(str(path), what, "Resume the run, which writes it anew")
    return PolicyAddress(
        base_urls=tuple(urls),
        api_key=str(key),
        model=str(model),
        parses_reasoning=bool(parses),
        sampled=SampledLog(),
        folder=run_dir / "gym",
    )
