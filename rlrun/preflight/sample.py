# SPDX-License-Identifier: Apache-2.0
"""One sample as the model will see it, prompt and response, with what is trained of it."""

from __future__ import annotations

from itertools import groupby

from rlrun.console.counted import counted
from rlrun.inputs import Inputs
from rlrun.preflight.lines import CheckLine, Piece, Verdict
from rlrun.rendering.renderer import Renderer

SHOWN_TOKENS = 600
"""Of a long prompt, tokens that are shown at either end."""


def rendered_sample(inputs: Inputs) -> CheckLine:
    """The first prompt, and its reference answer in the place of a response."""
    renderer, prompt = inputs.renderer, inputs.stream.prompt_at(0)
    answer = prompt.row.answer or "(the response)"
    response = tuple(renderer.tokenizer(answer, add_special_tokens=False)["input_ids"])
    response += renderer.eos_ids[:1]
    tokens = (*prompt.token_ids, *response)
    mask = (False,) * len(prompt.token_ids) + (True,) * len(response)
    length = counted(len(prompt.token_ids), "token")
    return CheckLine(
        "sample",
        Verdict.PASS,
        f"{prompt.row.where} as the model reads it: {length}, none of them "
        f"trained, and every token of the response, here {len(response)} of the reference answer",
        sample=tuple(pieces(renderer, tokens, mask)),
    )


def pieces(
    renderer: Renderer, token_ids: tuple[int, ...], loss_mask: tuple[bool, ...]
) -> list[Piece]:
    """Text of the tokens, cut where the loss mask changes, long prompts without their middle.

    Args:
        renderer: Knows the tokenizer.
        token_ids: Of one trajectory.
        loss_mask: True at trained tokens.
    """
    found = []
    for trained, run in groupby(zip(token_ids, loss_mask, strict=True), key=lambda pair: pair[1]):
        ids = [token for token, _ in run]
        text = renderer.decode(ids, skip_special=False)
        if not trained and len(ids) > 2 * SHOWN_TOKENS:
            begin = renderer.decode(ids[:SHOWN_TOKENS], skip_special=False)
            end = renderer.decode(ids[-SHOWN_TOKENS:], skip_special=False)
            text = f"{begin}\n... {len(ids) - 2 * SHOWN_TOKENS} tokens ...\n{end}"
        found.append(Piece(text, trained))
    return found
