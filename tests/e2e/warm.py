# SPDX-License-Identifier: Apache-2.0
"""Imported by the server of forked.py, so that its children need not do again what this does.

Reading the first configuration imports all variants and builds the grammar of overrides; commands
and what they write with are imported where they are used. What is there then is frozen: a child
that looked for garbage among it would copy all of it.
"""

import gc
import tempfile
from pathlib import Path

import typer

from rlrun.cli import app
from rlrun.config import load
from rlrun.sinks.tensorboard import TensorBoardSink

load(["+recipe=quickstart", "grpo.seed=1"])
typer.main.get_command(app).make_context("rlrun", ["train", "+recipe=quickstart"])
with tempfile.TemporaryDirectory() as folder:
    TensorBoardSink(Path(folder), 1).close()
gc.collect()
gc.freeze()
