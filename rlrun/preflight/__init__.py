# SPDX-License-Identifier: Apache-2.0
"""What can be known of a run before it starts; what cannot be determined is called unverified."""

from rlrun.preflight.check import preflight
from rlrun.preflight.lines import (
    CheckLine,
    Verdict,
    exit_code,
    problem_lines,
    render,
    to_json,
)

__all__ = [
    "CheckLine",
    "Verdict",
    "exit_code",
    "preflight",
    "problem_lines",
    "render",
    "to_json",
]
