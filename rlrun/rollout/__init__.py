# SPDX-License-Identifier: Apache-2.0
"""From prompts to trajectory groups: turn by turn (turns.py), or by agents that ask (agents.py)."""

from rlrun.rollout.job import Job, RolloutRunner, RolloutSettings
from rlrun.rollout.turns import Rollout

__all__ = ["Job", "Rollout", "RolloutRunner", "RolloutSettings"]
