# SPDX-License-Identifier: Apache-2.0
import pytest

from rlrun.console.counted import counted


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ("step",), "0 steps"),
        (1, ("step",), "1 step"),
        (2, ("step",), "2 steps"),
        (1.0, ("minute",), "1 minute"),
        (0.5, ("minute",), "0.5 minutes"),
        (1, ("batch", "batches"), "1 batch"),
        (3, ("batch", "batches"), "3 batches"),
    ],
)
def test_one_is_singular_and_all_else_plural(
    count: float, words: tuple[str, ...], said: str
) -> None:
    assert counted(count, *words, form="g") == said
