# SPDX-License-Identifier: Apache-2.0
"""Imported by the server of forked.py, so that its children need not do again what this does.

Reading the first configuration imports all variants and builds the grammar of overrides. What is
there then is frozen: a child that looked for garbage among it would copy all of it.
"""

import gc

from rlrun.config import load

load(["+recipe=quickstart", "grpo.seed=1"])
gc.collect()
gc.freeze()
