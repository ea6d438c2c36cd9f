# SPDX-License-Identifier: Apache-2.0
"""Reads the fields of a request's JSON object one by one; what nobody has read is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun.run_dir.json_line import is_number
from rlrun.serve.errors import ApiError, bad_request
from rlrun.strict_json import NameTwice, read_json

WITHOUT_EFFECT = frozenset(
    {
        "cache_salt",
        "metadata",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that say nothing about what is to be sampled."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "stop_token_ids": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}
"""Fields that are supported only where they change nothing: with these values, or null."""


class Fields:
    """The fields of one request. Null is the same as absent.

    Raises:
        ApiError: The body is no JSON object (400), or an object in it has a name twice (422).
    """

    def __init__(self, body: bytes) -> None:
        try:
            # Numbers that are none are refused by the field that they are given for.
            values = read_json(body, only_finite=False)
        except NameTwice as error:
            # No 400: a client of NeMo Gym takes one that says max_tokens for a full context.
            raise ApiError(422, f"In the body, {error}. Give it once", param=error.name) from error
        except (ValueError, RecursionError) as error:
            raise bad_request(f"The body is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise bad_request("The body is not a JSON object")
        self._values = {name: value for name, value in values.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def any(self, name: str) -> Any:
        """The value as it is, or None."""
        return self._values.pop(name, None)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._values.pop(name, default)
        if not isinstance(value, bool):
            raise bad_request(f"{name} is {value!r}, which is neither true nor false", name)
        return value

    def integer(self, name: str) -> int | None:
        """A whole number, or None."""
        value = self._values.pop(name, None)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise bad_request(f"{name} is {value!r}, which is no whole number", name)
        return value

    def number(self, name: str) -> float | None:
        """A finite number, or None."""
        value = self._values.pop(name, None)
        if value is None:
            return None
        if isinstance(value, bool) or not is_number(value):
            raise bad_request(f"{name} is {value!r:.80}, which is no finite number", name)
        return float(value)

    def text(self, name: str) -> str | None:
        """A text, or None."""
        value = self._values.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise bad_request(f"{name} is {value!r}, which is no text", name)
        if value is not None and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise bad_request(f"{name} is {value!r}, which is not Unicode", name)
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """An object; an empty one if absent."""
        value = self._values.pop(name, {})
        if not isinstance(value, dict):
            raise bad_request(f"{name} is not an object", name)
        return value

    def objects(self, name: str) -> list[dict[str, Any]]:
        """A list of objects; an empty one if absent."""
        value = self._values.pop(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise bad_request(f"{name} is not a list of objects", name)
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A text or a list of texts, or None."""
        value = self._values.pop(name, None)
        if value is None:
            return None
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise bad_request(f"{name} is neither a text nor a list of texts", name)
        return tuple(values)

    def token_ids(self, name: str, vocabulary: int) -> tuple[int, ...] | None:
        """Token ids that the model knows, or None."""
        return token_ids(self._values.pop(name, None), name, vocabulary)

    def finish(self) -> None:
        """Refuses what is left, unless it changes nothing.

        Raises:
            ApiError: A field is unknown, or has a value that cannot be honoured (400).
        """
        for name, value in self._values.items():
            if name in WITHOUT_EFFECT:
                continue
            if name not in NEUTRAL:
                raise bad_request(f"There is no parameter {name!r}. Leave it out", name)
            if value not in NEUTRAL[name]:
                raise bad_request(f"{name}={value!r} is not supported. Leave it out", name)


def token_ids(value: object, name: str, vocabulary: int) -> tuple[int, ...] | None:
    """Token ids below ``vocabulary``, or None for null.

    Raises:
        ApiError: It is something else (400).
    """
    if value is None:
        return None
    # Out of range, they would index beyond the model's embeddings.
    if not isinstance(value, list) or not all(
        type(token) is int and 0 <= token < vocabulary for token in value
    ):
        raise bad_request(f"{name} is not a list of token ids from 0 to {vocabulary - 1}", name)
    return tuple(value)
