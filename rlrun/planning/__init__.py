# SPDX-License-Identifier: Apache-2.0
"""What a run will need before it starts: memory by part, time by part, age. See docs/planning.md."""
