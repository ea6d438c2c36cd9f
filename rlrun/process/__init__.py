# SPDX-License-Identifier: Apache-2.0
"""What the process of a run computes on, and what ends it."""
