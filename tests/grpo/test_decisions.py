# SPDX-License-Identifier: Apache-2.0
"""What a run that its scheduler gives up says, and with which exit code."""

from __future__ import annotations

import pytest

from rlrun.grpo.decisions import error_of
from rlrun.scheduler.decisions import Fail
from rlrun.types import FailureKind

SAMPLING = (
    "step 1: 9 groups were generated and only 1 of the 4 that it needs are left "
    "(dynamic_sampling_max_gen_batches=2)"
)


@pytest.mark.parametrize(
    ("fail", "code", "text"),
    [
        (Fail("3 failures", f"{FailureKind.ENV_DOWN}: gone"), 4, "The original error: env_down"),
        (Fail("3 failures", f"{FailureKind.REWARD_ERROR}: NaN"), 5, "Correct the environment or"),
        (Fail("no progress", ""), 5, "rollout: no progress."),
        (Fail(SAMPLING, ""), 5, "set grpo.use_dynamic_sampling=false."),
    ],
)
def test_the_error_has_the_cause_and_what_to_do(fail: Fail, code: int, text: str) -> None:
    error = error_of(fail)
    assert error.exit_code == code
    assert text in str(error)
