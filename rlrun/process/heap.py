# SPDX-License-Identifier: Apache-2.0
"""Spares the garbage collector the objects that are there for the whole of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 5000
"""More objects made than dropped, until the young ones are looked at: those of some groups rather
than of half a one (700, the default of Python 3.11), which are gone when the group is trained."""


@contextmanager
def long_lived_heap() -> Iterator[None]:
    """Within it the garbage collector passes over whatever exists already, and comes less often.

    The libraries alone bring some 400,000 objects. Rollouts make and drop enough of their own to
    have all of them looked at again and again, which took a third of the controller's time.
    """
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *threshold[1:])
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
