# SPDX-License-Identifier: Apache-2.0
"""HTTP to Gym's servers: total times, bounded retries, bounded bodies, and errors that have a kind.

Retried are connections that fail and answers of 5xx, 408 and 429, not before the time that a
Retry-After asks for: an episode is begun anew by each /run. Other refusals (422 for a row that the
agent does not take) are final.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any

import aiohttp

from rlrun.strict_json import NameTwice, read_json
from rlrun.types import FailureKind

log = logging.getLogger(__name__)

MAX_WAIT_S = 30.0
AGAIN = frozenset({408, 429, 500, 502, 503, 504, 520})
DOWN = frozenset({502, 503, 504})
"""Answers of what stands before a server that is not there."""

POLICY_FAILED = "generation_failed"
"""What our HTTP server says of an engine that failed; agents quote it in their own 500."""

SHOWN = 500


class RequestFailed(Exception):
    """A request came to nothing.

    Args:
        kind: Of the failure.
        message: With the address and what was answered.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class _TryAgain(Exception):
    """A try failed in a way that another one may not.

    Args:
        failure: What it came to.
        after_s: How long the server asks to be left alone.
    """

    def __init__(self, failure: RequestFailed, after_s: float = 0.0) -> None:
        self.failure, self.after_s = failure, after_s


class GymClient:
    """Requests of one run; made in its event loop.

    Args:
        max_retries: Further tries.
        retry_wait_s: Before the first of them; doubled each time.
        max_body_mib: Of an answer.
    """

    def __init__(self, max_retries: int, retry_wait_s: float, max_body_mib: int) -> None:
        self._max_retries, self._retry_wait_s = max_retries, retry_wait_s
        self._max_bytes = max_body_mib * 2**20
        # Sessions of Gym's servers are cookies: one jar for all episodes would mix them up.
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()

    async def post(
        self, url: str, body: Mapping[str, Any], timeout_s: float | None, seed: int = 0
    ) -> object:
        """The decoded answer.

        Args:
            url: Where to.
            body: Sent as JSON.
            timeout_s: For all tries together; None is no limit.
            seed: Of the spread of the waits.

        Raises:
            RequestFailed: There is no usable answer.
        """
        return await self._request("POST", url, body, timeout_s, seed)

    async def get(self, url: str, timeout_s: float) -> object:
        """As ``post``, without a body."""
        return await self._request("GET", url, None, timeout_s, 0)

    async def is_ready(self, url: str, timeout_s: float) -> bool:
        """Whether a server says that it is ready; one try."""
        try:
            async with asyncio.timeout(timeout_s), self._session.get(f"{url}/readyz") as answer:
                # A server that has no such route is there all the same.
                return answer.status in (200, 404)
        except (aiohttp.ClientError, OSError):
            return False

    async def _request(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        timeout_s: float | None,
        seed: int,
    ) -> object:
        spread = random.Random(seed)
        last = ""
        try:
            async with asyncio.timeout(timeout_s) as limit:
                for attempt in range(self._max_retries + 1):
                    try:
                        return await self._once(method, url, body)
                    except _TryAgain as error:
                        last = error.failure.message
                        if attempt == self._max_retries:
                            raise error.failure from None
                        after_s = error.after_s
                    wait = self._retry_wait_s * 2**attempt * spread.uniform(0.75, 1.25)
                    wait = min(max(wait, after_s), MAX_WAIT_S)
                    log.info("%s; tried again in %.3g s", last, wait)
                    await asyncio.sleep(wait)
        except TimeoutError:
            if not limit.expired():
                raise
            after = f"; before: {last}" if last else ""
            message = f"{url}: no answer within {timeout_s:g} s{after}"
            raise RequestFailed(FailureKind.TIMEOUT, message) from None
        raise AssertionError("the last try returns or raises")

    async def _once(self, method: str, url: str, body: Mapping[str, Any] | None) -> object:
        try:
            async with self._session.request(method, url, json=body) as answer:
                status, content = answer.status, await self._read(url, answer)
                after_s = asked_wait(answer.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, OSError) as error:
            message = f"{url}: {type(error).__name__}: {error}"
            raise _TryAgain(RequestFailed(FailureKind.ENV_DOWN, message)) from error
        if status == 200:
            return _decoded(url, content)
        text = content.decode(errors="replace")
        message = f"{url}: status {status}: {text[:SHOWN]}"
        if POLICY_FAILED in text:
            # The engine's own rules say whether it is tried again; here that would only wait.
            raise RequestFailed(FailureKind.ENGINE_LOST, message)
        kind = FailureKind.ENV_DOWN if status in DOWN else FailureKind.ENV_ERROR
        failure = RequestFailed(kind, message)
        raise _TryAgain(failure, after_s) if status in AGAIN else failure

    async def _read(self, url: str, answer: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in answer.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > self._max_bytes:
                answer.close()
                raise RequestFailed(
                    FailureKind.ENV_ERROR,
                    f"{url}: the answer has more than env.max_body_mib={self._max_bytes >> 20}",
                )
        return b"".join(parts)


def asked_wait(text: str) -> float:
    """Seconds that a Retry-After says; a date, which servers of agents do not give, says none."""
    return float(text) if text.isdecimal() else 0.0


def _decoded(url: str, content: bytes) -> object:
    try:
        # Numbers that are none are told where they are used: not all of them matter.
        decoded: object = read_json(content, only_finite=False)
    except NameTwice as error:
        raise RequestFailed(FailureKind.ENV_ERROR, f"{url}: in the answer, {error}") from error
    except (ValueError, RecursionError) as error:
        message = f"{url}: the answer is no JSON: {error}; it begins with {content[:80]!r}"
        raise RequestFailed(FailureKind.ENV_ERROR, message) from error
    return decoded
