# SPDX-License-Identifier: Apache-2.0
"""From the data of runs to the text of the page.

Everything that a model, an environment or a data row wrote is in one block of JSON, in which no
character can end the block, and the page puts it on the screen as text only. A policy in the page
forbids it to load anything from anywhere.
"""

from __future__ import annotations

import importlib.resources
import json
import time
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from rlrun.console.terminal import visible
from rlrun.report.charts import CHARTS

_SCRIPTS = ("base.js", "charts.js", "overview.js", "timeline.js", "rollouts.js", "config.js")


def render(runs: Sequence[dict[str, Any]]) -> str:
    """The page.

    Args:
        runs: As ``run_data.collect`` makes them.
    """
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read), autoescape=True, undefined=jinja2.StrictUndefined
    )
    title = " and ".join(visible(run["name"]) for run in runs)
    data = {
        "runs": runs,
        "charts": [chart.to_json() for chart in CHARTS],
        "generated": time.strftime("%Y-%m-%d %H:%M"),
    }
    template = environment.get_template("report.html.j2")
    return template.render(
        title=title,
        style=Markup(_read("report.css")),  # ships with the package
        scripts=[Markup(_read(name)) for name in _SCRIPTS],  # likewise
        data=Markup(as_script(data)),  # escaped there
    )


def as_script(data: object) -> str:
    """JSON that can stand in a script element, whatever the texts in it are.

    Only ASCII comes out: half surrogate pairs and the like are escapes. The characters that HTML
    gives a meaning to (and could end the element with) are escapes, too.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _read(name: str) -> str:
    return (importlib.resources.files("rlrun.report") / "assets" / name).read_text("utf-8")
