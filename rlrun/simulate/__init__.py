# SPDX-License-Identifier: Apache-2.0
"""`rlrun simulate`: the run's own scheduler on a virtual clock.

workload.py says how long answers are and what things cost, generators.py is a pool of engines,
clock.py drives the scheduler, grid.py compares plans and gives advice. Nothing here imports torch.
"""
