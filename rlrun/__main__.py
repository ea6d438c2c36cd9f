# SPDX-License-Identifier: Apache-2.0
"""Allows ``python -m rlrun``."""

from rlrun.cli import main

main()
