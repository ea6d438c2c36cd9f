# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("page", ["guarantees", "security", "determinism"])
def test_every_test_that_a_promise_names_exists(page: str) -> None:
    named = NAMED.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert named
    for file, test in named:
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), (file, test)


def test_every_guarantee_names_its_test() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    promises = page.split("\n## ")[0]  # the tables further down hold figures of scripts
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert rows
    assert all(NAMED.search(row.split("|")[-2]) for row in rows)
