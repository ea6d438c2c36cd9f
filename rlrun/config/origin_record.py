# SPDX-License-Identifier: Apache-2.0
"""Origins as a run directory keeps them, so that a report can say where each value came from."""

from __future__ import annotations

from collections.abc import Mapping

from rlrun.config.origin import Origin, OriginKind
from rlrun.config.values import shown

OriginRecord = dict[str, dict[str, str]]
"""Key to {"value": as written, "from": the layer, "where": file and line, or the flag}."""


def origin_record(origins: Mapping[str, Origin], before: OriginRecord) -> OriginRecord:
    """The record of a configuration.

    Args:
        origins: Of the configuration.
        before: The record from the start of the run; {} at the start. A resume reads all keys from
            config.yaml, and where those came from is in it: only flags of the resume are new.
    """
    return {
        key: before[key]
        if key in before and origin.kind is not OriginKind.FLAG
        else {"value": shown(origin.value), "from": origin.kind.value, "where": origin.where}
        for key, origin in origins.items()
    }
