# SPDX-License-Identifier: Apache-2.0
"""What a run will need, before it starts: memory, time, age. See docs/planning.md."""
