# SPDX-License-Identifier: Apache-2.0
"""What a client is told when its request is refused, in the form of the OpenAI API."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """Ends a request.

    NeMo Gym takes a status of 400 whose text holds "context length" or "max_tokens" for a full
    context, which it scores as an empty answer. No other refusal may use these words.

    Args:
        status: HTTP status.
        message: What is wrong and what to do, for people.
        param: The field of the request that it is about.
        code: A word that programs tell errors apart by.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        self.status, self.message, self.param, self.code = status, message, param, code
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """The client asked for something that cannot be."""
    return ApiError(400, message, param=param)


def context_full(context: int, prompt_tokens: int) -> ApiError:
    """There is no room for a single token; in the words that clients of vLLM look for."""
    message = (
        f"This model's maximum context length is {context} tokens. However, the messages are "
        f"{prompt_tokens} tokens, which leaves no room for an answer. Please shorten them."
    )
    return ApiError(400, message, param="messages", code="context_length_exceeded")
