# SPDX-License-Identifier: Apache-2.0
"""A small agent of env=gym in a process of its own, for runs that are to lose it.

It asks the policy of the run that wrote the address file, once per episode, and gives the reward 1
if the number behind the last "Answer:" is the expected one. The file is read at each episode, since
a resumed run serves its policy elsewhere.

Example:
    python scripts/_gym_agent.py PORT RUN_DIR/http_server.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

AGENT = "string_match_simple_agent"
"""The name that rows of data=gym_addition ask for."""


async def ready(request: web.Request) -> web.Response:
    """Says that it is there."""
    return web.json_response({})


class Agent:
    """Runs episodes.

    Args:
        address: File with the address of the policy.
    """

    def __init__(self, address: Path) -> None:
        self._address = address

    async def run(self, request: web.Request) -> web.Response:
        """One episode of one turn."""
        row = await request.json()
        try:
            policy = json.loads(self._address.read_text())
            status, answer = await self._ask(policy, row["responses_create_params"])
        except (OSError, aiohttp.ClientError) as error:
            return web.json_response({"detail": f"no policy: {error}"}, status=503)
        if status != 200:
            return web.json_response({"detail": json.dumps(answer)}, status=500)
        message = answer["choices"][0]["message"]
        said = message["content"]
        item = {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": said}],
        }
        item |= {name: message[name] for name in message if name.endswith(("_ids", "_log_probs"))}
        right = said.rpartition("Answer:")[2].strip() == row["expected_answer"]
        response = {"output": [item], "incomplete_details": None}
        return web.json_response({**row, "response": response, "reward": float(right)})

    async def _ask(self, policy: dict[str, Any], params: dict[str, Any]) -> tuple[int, Any]:
        body = {
            "model": policy["model"],
            "messages": params["input"],
            "temperature": params["temperature"],
            "top_p": params["top_p"],
            "max_tokens": params["max_output_tokens"],
            **json.loads(params["metadata"]["extra_body"]),
        }
        key = {"Authorization": f"Bearer {policy['api_key']}"}
        url = f"{policy['base_urls'][0]}/chat/completions"
        async with (
            aiohttp.ClientSession(headers=key) as session,
            session.post(url, json=body) as answer,
        ):
            return answer.status, await answer.json()


def main() -> None:
    """Serves until it is ended."""
    port, address = int(sys.argv[1]), Path(sys.argv[2])
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/readyz", ready)
    app.router.add_post("/run", Agent(address).run)
    web.run_app(app, host="127.0.0.1", port=port, print=None, reuse_address=True)


if __name__ == "__main__":
    main()
