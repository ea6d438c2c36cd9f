# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: help, errors, exit codes, machine-readable output."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.cli import command_names
from rlrun.config import list_recipes
from rlrun.run_dir.records import read_trained, read_validation
from tests.conftest import environment, rlrun
from tests.e2e.forked import forked

COMMANDS = command_names()
BAD = ("+recipe=quickstart", "grpo.num_prompts=3", "++loss.clipp=2", "policy.max_grad_norm=abc")


IMPORTS = "import asyncio, decimal, email.message, http.client, pydoc, unittest.mock"
USUAL_S = 0.1
"""CPU seconds that Python takes for them on a machine on which what is promised was measured."""


def usual_seconds(*arguments: str) -> float:
    """What a command takes on an idle machine of the usual speed: of CPU, the quickest of three.

    On a busy machine, wall time says more of the others; and this one may be slow.
    """
    times, theirs = [], []
    for _ in range(3):
        before = children_cpu_seconds()
        rlrun(*arguments)
        between = children_cpu_seconds()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        times.append(between - before)
        theirs.append(children_cpu_seconds() - between)
    return min(times) * min(1.0, USUAL_S / min(theirs))


def children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def imported_by(*arguments: str) -> set[str]:
    """Top-level packages that a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rlrun", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line]
    return {name.partition(".")[0] for name in names}


# --- help -----------------------------------------------------------------------------------------


def test_help_comes_in_under_half_a_second() -> None:
    assert usual_seconds("--help") < 0.5


def test_help_names_every_command() -> None:
    done = rlrun("--help")
    assert done.code == 0
    listed = {line.split()[0] for line in done.out.partition("Commands:")[2].splitlines() if line}
    assert listed == set(COMMANDS)
    assert "..." not in done.out.partition("Commands:")[2]
    promised = ("train", "resume", "check", "config", "recipes", "score", "view", "audit")
    assert listed >= set(promised)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    done = rlrun(command, "--help")
    assert done.code == 0
    assert f"Example: rlrun {command}" in done.out


def test_rlrun_alone_shows_what_there_is() -> None:
    done = rlrun()
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: rlrun ")


# --- errors ---------------------------------------------------------------------------------------


def test_a_bad_configuration_is_refused_in_under_two_seconds() -> None:
    assert usual_seconds("check", *BAD) < 2.0


def test_a_bad_configuration_is_refused_before_torch_is_imported() -> None:
    imported = imported_by("check", *BAD)
    assert "rlrun" in imported and "omegaconf" in imported
    assert not {"torch", "transformers", "numpy"} & imported


def test_all_mistakes_are_listed_at_once_with_where_they_come_from() -> None:
    done = rlrun("check", *BAD)
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["error", flag] for flag in BAD[1:]]
    assert "grpo.num_prompts_per_step" in lines[0]


@pytest.mark.parametrize("command", ["train", "check", "config"])
def test_the_same_mistake_is_the_same_error_in_every_command(command: str) -> None:
    assert rlrun(command, *BAD) == rlrun("check", *BAD)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("train", "+recipe=quikstart"), 2, "quickstart"),
        (("train", "+recipe=gone.yaml"), 2, "gone.yaml"),
        (("train",), 2, "policy.model"),
        (("train", "+recipe=quickstart", "loss=dapoo"), 2, "dapo"),
        (("recipes", "quikstart"), 2, "quickstart"),
        (("config", "--diff", "quickstart", "quikstart"), 2, "quickstart"),
        (("nonsense",), 2, "nonsense"),
        (("reports", "gone"), 2, "'report', 'export'? rlrun --help"),
        (("compare", "gone"), 2, "rlrun report RUN_DIR RUN_DIR compares"),
        (("train", "--fast"), 2, "rlrun train --help"),
        (("resume",), 2, "rlrun resume --help"),
        (("eval",), 2, "rlrun eval --help"),
        (("view", "gone", "--step", "one"), 2, "--step"),
        (("score", "gone.jsonl"), 3, "gone.jsonl"),
        (("resume", "gone"), 7, "gone"),
        (("view", "gone"), 7, "gone"),
        (("audit", "gone"), 7, "gone"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_its_exit_code(
    arguments: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    done = forked(*arguments, cwd=tmp_path)
    assert (done.code, done.out) == (code, "")
    assert all(line.startswith("error: ") for line in done.err.splitlines())
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = forked("train", "+recipe=quickstart", f"run_dir={tmp_path / 'file' / 'run'}")
    assert (done.code, done.out) == (7, "")
    assert done.err.startswith("error: ")


# --- config ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``rlrun config`` prints, as a file."""
    path = tmp_path_factory.mktemp("resolved") / "mine.yaml"
    done = rlrun("config", "+recipe=quickstart", "grpo.max_num_steps=2", "loss=gspo")
    assert (done.code, done.err) == (0, "")
    path.write_text(done.out)
    return path


def test_what_config_prints_is_the_same_recipe(resolved: Path) -> None:
    again = forked("config", f"+recipe={resolved}")
    assert again.out.partition("\n")[2] == resolved.read_text().partition("\n")[2]


def test_what_config_prints_can_be_trained(resolved: Path, tmp_path: Path) -> None:
    sizes = ("grpo.num_prompts_per_step=2", "grpo.num_generations_per_prompt=2")
    more = ("grpo.max_val_samples=2", "num_threads=2")
    done = forked("train", f"+recipe={resolved}", *sizes, *more, cwd=tmp_path)
    assert done.code == 0, done.err
    (run_dir,) = (tmp_path / "runs" / "mine").iterdir()
    assert json.loads((run_dir / "status.json").read_text())["step"] == 2


def test_origin_says_where_each_value_comes_from() -> None:
    lines = forked("config", "+recipe=quickstart", "grpo.seed=7", "--origin").out.splitlines()
    origin = {line.split()[0]: line.split()[1:] for line in lines}
    assert origin["grpo.seed"] == ["7", "flag", "grpo.seed=7"]
    assert origin["policy.optimizer.lr"][1] == "recipe"
    assert origin["policy.optimizer.lr"][2].startswith("recipes/quickstart.yaml:")
    assert origin["policy.optimizer.eps"][2].startswith("conf/policy/default.yaml:")


def test_schema_is_a_json_schema_of_all_keys() -> None:
    schema = json.loads(forked("config", "--schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "num_prompts_per_step" in json.dumps(schema)


def test_diff_shows_what_differs_and_nothing_else() -> None:
    lines = forked("config", "--diff", "quickstart", "+recipe=quickstart grpo.seed=7").out
    assert [line.split() for line in lines.splitlines()[1:]] == [["grpo.seed", "42", "7"]]


def test_recipes_lists_every_recipe_and_shows_one(tmp_path: Path) -> None:
    listed = forked("recipes").out.splitlines()
    recipes = [info.name for info in list_recipes()]
    assert [line.split()[0] for line in listed if line[0] != " "] == recipes
    assert max(map(len, listed)) <= 80
    (tmp_path / "zz_mine.yaml").write_text(
        "# Mine, of two\n# lines. And more.\n\ngrpo: {seed: 1}\n"
    )
    own = forked("recipes", "--config-dir", str(tmp_path), cwd=tmp_path).out
    assert re.search(r"^zz_mine +Mine, of two lines\. \(zz_mine\.yaml\)", own, re.MULTILINE)
    shown = forked("recipes", "quickstart").out
    assert "grpo:" in shown and "num_prompts_per_step: 16" in shown


# --- check ----------------------------------------------------------------------------------------


def test_check_of_the_quickstart_passes_even_strictly() -> None:
    done = forked("check", "+recipe=quickstart", "--strict", "--json")
    assert (done.code, done.err) == (0, "")
    lines = json.loads(done.out)
    assert {line["verdict"] for line in lines} == {"pass"}
    assert {"configuration", "sample", "environment", "model", "memory"} <= {
        line["name"] for line in lines
    }


def test_dry_run_is_check() -> None:
    assert forked("train", "+recipe=quickstart", "--dry-run") == forked(
        "check", "+recipe=quickstart"
    )


def test_check_names_all_that_fails_and_ends_with_the_first_ones_code(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n{"problem": "What is 2 + 2?"}\n')
    done = forked(
        "check",
        "+recipe=quickstart",
        "data.train.split=null",
        f"data.train.source={rows}",
        f"run_dir={rows / 'run'}",
    )
    assert (done.code, done.err) == (7, "")
    failed = [line for line in done.out.splitlines() if line.startswith("fail")]
    assert [line.split(": ")[0].split()[1] for line in failed] == ["run", "tokenizer"]
    assert f"{rows}:2" in done.out


# --- score ----------------------------------------------------------------------------------------


def write_answers(path: Path, *responses: str) -> Path:
    rows = [
        {"id": number, "response": response, "gold": "4"}
        for number, response in enumerate(responses)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_score_keeps_the_order_of_its_input(tmp_path: Path) -> None:
    responses = ["\\boxed{4}", "Answer: 5", "\\boxed{\\sqrt{16}}", "no idea"] * 40
    done = rlrun("score", str(write_answers(tmp_path / "a.jsonl", *responses)))
    assert done.code == 0
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["id"] for row in rows] == list(range(160))
    assert [row["reward"] for row in rows] == [1.0, 0.0, 1.0, 0.0] * 40
    assert done.err == (
        "160 rows, mean reward 0.5000, 0 without a reward, 0 at the verifier's limit\n"
    )


def test_a_bad_line_ends_score_after_everything_before_it(tmp_path: Path) -> None:
    path = write_answers(tmp_path / "a.jsonl", "\\boxed{4}", "Answer: 4")
    path.write_text(path.read_text() + '{"response": 4, "gold": "4"}\n')
    done = rlrun("score", str(path))
    assert done.code == 3
    assert len(done.out.splitlines()) == 2
    assert done.err.startswith(f"error: {path}:3: ")


def test_scoring_a_validation_again_gives_its_rewards(quickstart_run: Path) -> None:
    path = quickstart_run / "validation" / "step_000000.jsonl"
    done = rlrun("score", str(path))
    assert done.code == 0, done.err
    again = [json.loads(line) for line in done.out.splitlines()]
    stored = list(read_validation(path))
    assert [row["reward"] for row in again] == [row["reward"] for row in stored]
    assert [row["extracted"] for row in again] == [row["extracted"] for row in stored]


def test_what_was_trained_is_scored_by_the_run_it_lies_in(quickstart_run: Path) -> None:
    path = quickstart_run / "trained" / "step_000001.jsonl"
    done = rlrun("score", str(path))
    assert done.code == 0, done.err
    again = [json.loads(line)["reward"] for line in done.out.splitlines()]
    assert again == [row["unfiltered_reward"] for row in read_trained(path)]


# --- pipes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    ["config +recipe=quickstart --origin", "config --schema", "check +recipe=quickstart"],
)
def test_a_reader_that_has_enough_is_no_error(arguments: str) -> None:
    assert through_a_closing_pipe(f"{sys.executable} -m rlrun {arguments}") == (0, "")


def test_a_reader_that_ends_while_score_writes_is_no_error(tmp_path: Path) -> None:
    answers = write_answers(tmp_path / "a.jsonl", *["\\boxed{4}"] * 20_000)
    assert through_a_closing_pipe(f"{sys.executable} -m rlrun score {answers}") == (0, "")


def through_a_closing_pipe(command: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose reader takes one line and closes."""
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr
