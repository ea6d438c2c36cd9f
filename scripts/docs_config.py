# SPDX-License-Identifier: Apache-2.0
"""Writes docs/configuration.md, the table of all keys; with --check, says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from rlrun.config.reference import configuration_page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"


def main(arguments: list[str]) -> int:
    """0, or 1 if --check finds that the page differs from what conf/ says."""
    text = configuration_page()
    if arguments == ["--check"]:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not current:
            sys.stderr.write(f"{PAGE}: is out of date. Run scripts/docs_config.py.\n")
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
