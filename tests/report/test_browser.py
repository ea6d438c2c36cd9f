# SPDX-License-Identifier: Apache-2.0
"""The report in a browser: it draws itself without a complaint, opens rollouts, runs nothing else.

Needs Chromium, which `make test` installs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.report import write_report
from tests.report.run_factory import make_run, use_tokenizer_that_writes_hostile_text

sync_api = pytest.importorskip("playwright.sync_api", reason="make setup installs it")

PATIENCE_MS = 300_000
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="make browser installs Chromium"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("browser")
    first = make_run(folder / "first", steps=60, engines=3)
    use_tokenizer_that_writes_hostile_text(first)
    second = make_run(folder / "second", steps=3, asynchronous=False, seed="7", engines=24)
    return {
        "one": write_report([first]),
        "two": write_report([first, second]),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        options = {"executable_path": CHROMIUM, "args": ["--no-sandbox"], "timeout": PATIENCE_MS}
        chromium = playwright.chromium.launch(**options)
        yield chromium
        chromium.close()


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def page(
    browser: sync_api.Browser, complaints: list[str], request: pytest.FixtureRequest
) -> Iterator[sync_api.Page]:
    """A page that notes whatever the browser says about it and whatever it tries to load."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith("file:") else complaints.append(r.url))
    yield page
    assert complaints == []
    assert page.evaluate("typeof window.owned") == "undefined"
    page.close()


def show(page: sync_api.Page, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_selector("#rollouts-body button")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_drawn_in_both_colour_schemes(
    page: sync_api.Page, reports: dict[str, Path], scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    show(page, reports["one"])
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    assert page.locator("#curves-body svg").count() >= 10
    assert page.locator("#timeline-body svg rect").count() > 30
    assert page.get_by_text("First lever").is_visible()
    assert page.locator("#overview").get_by_text("Token ledger").is_visible()
    # Every chart has a line, and no number in the page is none.
    assert page.evaluate(
        "[...document.querySelectorAll('#curves-body svg')].every(s => s.querySelector('path'))"
    )
    assert "NaN" not in page.content() and "undefined" not in page.locator("main").inner_text()


def test_rollouts_open_and_show_hostile_text_as_text(
    page: sync_api.Page, reports: dict[str, Path]
) -> None:
    show(page, reports["one"])
    entries = page.locator("#rollouts-body .list button")
    entries.nth(3).click()
    assert entries.nth(3).get_attribute("aria-pressed") == "true"
    detail = page.locator("#rollouts-body .browser > div")
    assert "policy, turn 2" in detail.inner_text() and "environment" in detail.inner_text()
    assert page.locator("#rollouts-body .tok").count() > 10
    page.get_by_label("weight version").check()
    title = page.locator("#rollouts-body .tok").first.get_attribute("title") or ""
    assert "ratio" in title and "age 1" in title
    page.get_by_label("Filter rollouts").fill("owned</b>")
    assert page.locator("#rollouts-body .tok").last.inner_text() == "</script><b>owned</b>"
    page.get_by_label("Filter rollouts").fill("no such text")
    assert "Nothing matches" in page.locator("#rollouts-body").inner_text()
    page.get_by_label("Filter rollouts").fill("")
    page.get_by_label("Kind of rollouts").select_option("validation")
    shown = page.locator("#rollouts-body .text").nth(1).inner_text()
    assert shown.startswith("</script><script>window.owned=1</script><img")
    assert "\\u202eevil\\u202c" in shown and "\\ud800" in shown and "\\u001b[2J" in shown


def test_the_keyboard_is_enough(page: sync_api.Page, reports: dict[str, Path]) -> None:
    show(page, reports["one"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    chart = page.locator("#curves-body svg").first
    chart.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    legend = page.locator("#curves-body .chart-legend").first
    assert "at 59" in legend.inner_text()
    page.keyboard.press("Home")
    assert "at 1" in legend.inner_text()
    page.keyboard.press("Escape")
    assert " at " not in legend.inner_text()
    entries = page.locator("#rollouts-body .list button")
    entries.first.focus()
    page.keyboard.press("ArrowDown")
    assert entries.nth(1).get_attribute("aria-pressed") == "true"
    page.keyboard.press("End")
    assert entries.last.get_attribute("aria-pressed") == "true"


def test_the_timeline_moves_and_says_what_was_waited_for(
    page: sync_api.Page, reports: dict[str, Path]
) -> None:
    show(page, reports["one"])
    timeline = page.locator("#timeline-body")
    assert timeline.locator("#tl-from").input_value() == "56"
    timeline.get_by_role("button", name="earlier").click()
    assert timeline.locator("#tl-from").input_value() == "51"
    timeline.locator("rect[aria-label*='waits for groups']").first.focus()
    assert "step 51, trainer: waits for groups, 4.00 s" in timeline.inner_text()
    assert timeline.get_by_text("long answer").first.is_visible()
    timeline.get_by_role("button", name="all").click()
    assert timeline.locator("svg rect").count() > 300


def test_every_engine_has_a_lane_with_a_name_or_a_thin_row(
    page: sync_api.Page, reports: dict[str, Path]
) -> None:
    show(page, reports["two"])
    names = page.locator("#timeline-body text.lane-name")
    assert names.all_text_contents()[:6] == [
        *("trainer", "generators", "engine 0", "engine 1", "engine 2", "environment"),
    ]
    spans = page.locator("#timeline-body rect[aria-label*='engine 2: answers requests']")
    spans.first.hover()
    assert "engine 2: answers requests, " in page.locator("#timeline-body").inner_text()
    page.locator("#run-select").select_option(label="second")
    assert "24 engines" in names.all_text_contents()
    assert not any(name.startswith("engine ") for name in names.all_text_contents())
    assert page.locator("#timeline-body rect[aria-label*='engine 23: ']").count() > 3


def test_runs_are_compared(page: sync_api.Page, reports: dict[str, Path]) -> None:
    show(page, reports["two"])
    assert page.get_by_text("Side by side").is_visible()
    rows = page.locator("#config-body tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [["grpo.seed", "42", "7"]]
    assert page.locator("#curves-body .chart-legend").first.locator("span.swatch").count() == 2
    page.locator("#run-select").select_option(label="second")
    assert "Let generation and training overlap" in page.locator("#overview").inner_text()


def test_a_narrow_window_needs_no_sideways_scrolling(
    page: sync_api.Page, reports: dict[str, Path]
) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    show(page, reports["one"])
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
