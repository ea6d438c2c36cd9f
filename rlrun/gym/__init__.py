# SPDX-License-Identifier: Apache-2.0
"""NeMo Gym beside rlrun: its own virtual environment, and its servers as children of a run."""
