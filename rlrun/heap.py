# SPDX-License-Identifier: Apache-2.0
"""Spares the garbage collector the objects that are there for the whole of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived_heap() -> Iterator[None]:
    """Within it the garbage collector passes over whatever exists already.

    The libraries alone bring some 400,000 objects. Rollouts make and drop enough of their own to
    have all of them looked at again and again, which took a quarter of the controller's time.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
