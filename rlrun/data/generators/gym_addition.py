# SPDX-License-Identifier: Apache-2.0
"""The additions of ``addition`` as rows of NeMo Gym, for its server string_match.

The server reads what follows the last "Answer:" and compares it with the sum.
"""

from __future__ import annotations

from typing import Any

from rlrun.data.generators.addition import addition_pairs, question

AGENT = {"type": "responses_api_agents", "name": "string_match_simple_agent"}


def records(split: str) -> list[dict[str, Any]]:
    """Rows with what the policy is asked, which agent asks it, and what its verifier compares."""
    return [
        {
            "responses_create_params": {"input": [{"role": "user", "content": question(a, b)}]},
            "agent_ref": AGENT,
            "expected_answer": str(a + b),
            "extraction_mode": "final_answer",
            "case_sensitive": True,
        }
        for a, b in addition_pairs(split)
    ]
