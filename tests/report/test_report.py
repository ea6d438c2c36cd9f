# SPDX-License-Identifier: Apache-2.0
"""The report as data and as a file: what it says, what it keeps out, how large it gets."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.errors import StorageError
from rlrun.metrics.logs import read_metrics
from rlrun.models.embedded import embedded_folder
from rlrun.report import write_report
from rlrun.report.page import as_script
from rlrun.report.rollouts import middle_out, pick_rollouts, spread
from rlrun.report.run_data import MOST_POINTS, collect, read_config, read_timeline
from rlrun.report.time_use import NOTABLE, levers, time_use
from rlrun.report.token_text import TokenText
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import write_lines
from tests.conftest import rlrun
from tests.report.run_factory import (
    HOSTILE,
    make_run,
    metrics_line,
    timeline_line,
    trained_line,
)


class Page(HTMLParser):
    """Elements of a page, and the data in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][1].get("id") == "data":
            self.data += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "run")


def test_the_page_has_the_run_and_no_element_of_its_texts(run: Path) -> None:
    path = write_report([run])
    assert path == run / "report.html"
    text = path.read_text()
    page = Page(text)
    tags = [tag for tag, _ in page.tags]
    assert not {"img", "iframe", "link", "b", "i"} & set(tags)
    assert tags.count("script") == 7
    data = json.loads(page.data)
    assert data["runs"][0]["rollouts"]["validation"][0]["response"] == HOSTILE
    assert text.isascii() or "\ud800" not in text


def test_the_page_loads_nothing(run: Path) -> None:
    text = write_report([run]).read_text()
    outside = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    links = re.findall(r"(?:src|href)=[\"']?([^\"'> ]+)", outside)
    assert all(link.startswith("#") for link in links)
    assert set(re.findall(r"https?://[^\"'\s)]+", outside)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_data_in_a_script_is_the_data_and_never_ends_it(data: object) -> None:
    text = as_script(data)
    assert text.isascii() and not set("<>&") & set(text)
    assert json.loads(text) == data


def test_five_hundred_steps_stay_under_five_megabytes(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", steps=3, groups=3, samples=6, tokens=1500)
    run = RunDir.read(root)
    lines = [metrics_line(step, True) for step in range(1, 501)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    times = [timeline_line(step, 64, 16) for step in range(1, 501)]
    run.timeline.write_text("".join(json.dumps(line) + "\n" for line in times))
    big = run.trained_file(3).read_bytes()
    for step in range(4, 501, 20):
        run.trained_file(step).write_bytes(big.replace(b'"step":3', b'"step":%d' % step))
    size = write_report([root]).stat().st_size
    assert 3_000_000 < size < 5_000_000
    assert write_report([root, root]).stat().st_size < 5_000_000


def test_long_runs_are_thinned_and_keep_their_ends_and_validations(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    run = RunDir.read(root)
    lines = [metrics_line(step, False) for step in range(1, 2001)]
    lines[777]["validation/reward_mean"] = 0.25
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = collect(run, "run", 1.0)
    assert len(data["steps"]) in (MOST_POINTS, MOST_POINTS + 1)
    assert {1, 778, 2000} <= set(data["steps"])
    assert all(len(values) == len(data["steps"]) for values in data["metrics"].values())


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        run.write_config("a: 1\n")
        assert "not started yet" in write_report([run.root]).read_text()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    timeline = RunDir.read(root).timeline
    timeline.write_text('{"step": 1, "start": 0, "seconds": 1, "lanes": {"a": [["x", 1]]}}\n')
    with pytest.raises(StorageError, match=r"timeline\.jsonl:1"):
        write_report([root])
    timeline.write_text('{"step": 1, "torn')
    assert read_timeline(timeline) == []
    trained = RunDir.read(root).trained_file(2)
    line = trained_line(2, 1, 0, "x", 30)
    write_lines(trained, [line | {"prev_logprobs": [0.0]}])
    with pytest.raises(StorageError, match=r"step_000002\.jsonl:1.*different lengths"):
        write_report([root])


def test_several_runs_are_told_apart_by_name(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run", seed="7")
    path = write_report([first, second])
    assert path == first / "compare.html"
    data = json.loads(Page(path.read_text()).data)
    assert [run["name"] for run in data["runs"]] == ["a/run", "b/run"]


def test_origins_are_those_of_the_flags_and_files(run: Path, tmp_path: Path) -> None:
    rows = {row[0]: row[1:] for row in read_config(RunDir.read(run))}
    assert rows["grpo.seed"] == ["42", "flag", "grpo.seed=42"]
    with RunDir.create(tmp_path / "old") as old:
        old.write_config("defaults:\n- _self_\ngrpo:\n  seed: 1\n  deep:\n    key: [2]\nlast: x\n")
        assert read_config(old) == [
            ["grpo.seed", "1", "", "config.yaml:4"],
            ["grpo.deep.key", "[2]", "", "config.yaml:6"],
            ["last", "x", "", "config.yaml:7"],
        ]


# --- rollouts -------------------------------------------------------------------------------------


def test_a_rollout_is_told_token_by_token(run: Path) -> None:
    picked = pick_rollouts(RunDir.read(run), 10**6)["trained"]
    one = next(r for r in picked if r["step"] == 5 and r["sample"] == 2)
    policy, environment, again = one["turns"]
    assert (policy["sampled"], environment["sampled"], again["sampled"]) == (True, False, True)
    assert policy["versions"] == [[3, 0, 15]] and again["versions"] == [[4, 0, 13]]
    assert policy["ratios"][0] == pytest.approx(1.105, abs=0.001)
    assert len(policy["tokens"]) == 15 and one["advantage"] in (-0.5, 0.5)
    whys = {why for r in picked if r["step"] == 5 for why in r["why"].split(", ")}
    assert {"lowest reward", "highest reward", "longest", "most off-policy"} <= whys


def test_rollouts_keep_to_their_room(run: Path) -> None:
    everything = pick_rollouts(RunDir.read(run), 10**7)
    little = pick_rollouts(RunDir.read(run), 30_000)
    assert 0 < len(little["trained"]) < len(everything["trained"])
    assert len(json.dumps(little)) < 36_000


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=60).map(sorted))
def test_steps_are_taken_from_both_ends_and_the_middle(steps: list[int]) -> None:
    order = spread(steps)
    assert sorted(order) == steps
    if len(steps) > 2:
        assert order[:3] == [steps[-1], steps[0], steps[(len(steps) - 1) // 2]]


@given(st.text(max_size=60), st.integers(2, 40))
def test_the_middle_of_long_texts_is_left_out(text: str, most: int) -> None:
    shown = middle_out(text, most)
    assert shown == text or (len(text) > most and shown.startswith(text[: most // 2]))


@given(st.text(max_size=80))
def test_pieces_of_tokens_make_up_the_text(text: str) -> None:
    from tokenizers import Tokenizer

    path = embedded_folder("rlrun:tiny") / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = TokenText(tokenizer).pieces(ids)
    assert pieces is not None and len(pieces) == len(ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)


def test_without_a_tokenizer_there_are_token_ids(run: Path, tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    config = RunDir.read(root).config
    config.write_text(config.read_text().replace("rlrun:tiny", "some/model"))
    picked = pick_rollouts(RunDir.read(root), 10**6)["trained"][0]
    assert re.fullmatch(r"\d+ ", picked["turns"][0]["tokens"][0])
    assert picked["response"] == HOSTILE


# --- where the time went --------------------------------------------------------------------------


def test_parts_of_the_time_add_up() -> None:
    lines = [metrics_line(step, True) for step in (1, 2)]
    use = time_use(lines, [timeline_line(1, 2), timeline_line(2, 2)])
    assert use.total == 20.0 and sum(use.parts.values()) == pytest.approx(20.0)
    assert list(use.parts)[0] == "waiting for groups" and use.parts["other"] == pytest.approx(1.0)
    assert use.environment_alone == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("changes", "asynchronous", "title"),
    [
        ({}, False, "Let generation and training overlap"),
        ({}, True, "Loosen the coupling"),
        ({"idle/generator_s": 0.1}, True, "Give generation more"),
        (
            {"idle/generator_s": 6.0, "idle/trainer_s/waiting_groups": 0.2},
            True,
            "Give the learner more",
        ),
        ({"idle/trainer_s/age_limit": 9.0, "perf/step_s": 20.0}, True, "Raise the age bound"),
        ({"tokens/zero_signal": 2000.0, "idle/generator_s": 0.0}, True, "Choose prompts"),
        ({"tokens/stale": 2000.0, "idle/generator_s": 0.0}, True, "Stop throwing"),
        ({"refit/seconds": 30.0, "perf/step_s": 40.0}, True, "Make refits cheaper"),
        ({"perf/checkpoint_s": 90.0}, True, "Save less often"),
    ],
)
def test_the_first_lever_is_the_one_that_could_save_most(
    changes: dict[str, float], asynchronous: bool, title: str
) -> None:
    lines = [metrics_line(step, asynchronous) | changes for step in (1, 2)]
    if "tokens/zero_signal" in changes or "tokens/stale" in changes:
        for line in lines:
            line["tokens/generated"] = 2200.0
            line["idle/trainer_s/waiting_groups"] = 1.0
    use = time_use(lines, [])
    found = levers(lines, use, "runs/x")
    assert found[0].title.startswith(title), [lever.title for lever in found]
    assert [lever.seconds for lever in found] == sorted((x.seconds for x in found), reverse=True)
    assert all(lever.seconds >= NOTABLE * use.total for lever in found)


def test_what_agents_wait_for_is_the_generator_where_an_engine_works() -> None:
    line = timeline_line(1, 2)
    line["lanes"] = {
        "trainer": [["wait/waiting_groups", 0, 9]],
        "generator": [],
        "environment": [["rollouts", 0, 9]],
        "engine/engine 0 of 2": [["requests", 0, 3]],
        "engine/engine 1 of 2": [["requests", 2, 8]],
    }
    assert time_use([metrics_line(1, True)], [line]).environment_alone == pytest.approx(1.0)


def test_a_run_without_steps_has_no_levers() -> None:
    use = time_use([], [])
    assert levers([], use, "x") == [] and use.total == 0


# --- the command ----------------------------------------------------------------------------------


def test_a_run_leaves_a_report_and_a_timeline(small_run: Path) -> None:
    assert (small_run / "report.html").stat().st_size > 50_000
    lines = read_timeline(small_run / "timeline.jsonl")
    steps = [line["step"] for line in read_metrics(small_run / "metrics.jsonl") if line["step"]]
    assert [line["step"] for line in lines] == steps
    for line in lines:
        assert {what for what, _, _ in line["lanes"]["trainer"]} >= {"logprobs", "update", "refit"}
        assert len(line["groups"]) == 4 and line["stragglers"]
        assert line["stragglers"][0]["environment"] == "math"
    assert any(what == "validation" for line in lines for what, _, _ in line["lanes"]["trainer"])
    rows = {row[0]: row[1:] for row in read_config(RunDir.read(small_run))}
    assert rows["grpo.num_prompts_per_step"] == ["4", "flag", "grpo.num_prompts_per_step=4"]


def test_the_command_names_the_file(small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    done = rlrun("report", str(small_run), "--out", str(out))
    assert (done.code, done.out) == (0, f"{out}\n") and out.exists()
    done = rlrun("report", str(tmp_path))
    assert done.code == 7 and "holds no run" in done.err
