# SPDX-License-Identifier: Apache-2.0
"""Decides what nightly files assert, whatever state a run's files are in."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from rlrun.errors import CheckFailed, RlrunError
from rlrun.nightly.assertions import Assertion
from rlrun.nightly.evidence import Evidence, Verdict
from rlrun.nightly.reports import CaseResult
from rlrun.nightly.spec import ParitySpec


def decide(assertion: Assertion, evidence: Evidence) -> Verdict:
    """Whether an assertion holds; a damaged file of a run is that run's failure."""
    try:
        return assertion.decide(evidence)
    except RlrunError as error:
        # The other assertions still count.
        return Verdict(False, str(error))


def compare(parity: ParitySpec, evidence: Mapping[str, Evidence]) -> CaseResult:
    """Whether two runs of the nightly reached the same.

    Args:
        parity: What is asked of them.
        evidence: By the name of a run; those that did not complete are missing.
    """
    name = f"parity-{parity.name}"
    if not all(run in evidence for run in parity.runs):
        return CaseResult(name, [], {"parity": None})
    means: list[float] = []
    for run in parity.runs:
        values: list[float] = []
        for seed in evidence[run].runs:
            try:
                logged = seed.series(parity.metric, parity.from_step)
            except CheckFailed as error:
                return CaseResult(name, [], {"parity": Verdict(False, f"{run}, {error}")})
            if not logged:
                text = f"{run}, seed {seed.seed} never logged {parity.metric}"
                return CaseResult(name, [], {"parity": Verdict(False, text)})
            values.append(parity.statistic.of(logged))
        means.append(statistics.fmean(values))
    found = means[1] - means[0]
    text = (
        f"{parity.statistic} of {parity.metric}, mean over the seeds: "
        f"{means[0]:.4g} ({parity.runs[0]}) and {means[1]:.4g} ({parity.runs[1]}), "
        f"difference {found:+.4g}; at most {parity.within:g} either way"
    )
    verdict = Verdict(abs(found) <= parity.within, text, found)
    return CaseResult(name, [], {"parity": verdict})
