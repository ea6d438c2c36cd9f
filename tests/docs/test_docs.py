# SPDX-License-Identifier: Apache-2.0
"""What the pages say exists: commands and their options, keys, metrics, recipes, links."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from rlrun.config import load
from rlrun.config.keys import all_keys
from rlrun.config.load import load_section
from rlrun.config.variants import discover
from rlrun.errors import ConfigError
from rlrun.metrics.registry import METRICS, is_declared
from tests.docs.commands import (
    DOCS,
    PAGES,
    ROOT,
    Command,
    blocks,
    code_in_sentences,
    commands,
    parsed,
    prose,
    python_block,
)
from tests.docs.shortened import NOT_RUN, instead, is_run

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):(?!=)", MAKEFILE, re.MULTILINE))
COMMANDS = [command for page in PAGES for command in commands(page)]


def of(*start: str) -> list[Command]:
    """Those that begin with these words, equal ones once."""
    found = {each.words: each for each in reversed(COMMANDS) if each.words[: len(start)] == start}
    return list(reversed(found.values()))


def named(command: Command) -> str:
    return str(command)[:100]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that pages speak of as the user's own."""
    (tmp_path / "recipe.yaml").write_text("defaults: [quickstart, _self_]\n")
    for name in ("mine.yaml", "my_recipe.yaml", "path/to/it.yaml", "RUN_DIR/config.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("defaults: [quickstart, _self_]\n")
    functions = map(python_block, ("def short_answers", "def rare_answers"))
    (tmp_path / "my_rewards.py").write_text("\n".join(functions))
    (tmp_path / "riddle.py").write_text(python_block("class Riddle"))
    (tmp_path / "rewards.py").write_text("def correct(response, answer, **row): return 1.0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def filled_in(overrides: list[str]) -> list[str]:
    """Overrides with real names in the place of those that stand for any."""
    told = [word for word in overrides if word != "..."]
    if len(told) < len(overrides):
        told.insert(0, "+recipe=quickstart")
    names = {"+recipe=NAME": "+recipe=quickstart", "+recipe=FILE": "+recipe=mine.yaml"}
    told = [names.get(word, word) for word in told]
    return [word for word in told if not re.fullmatch(r"[^=]+=[A-Z_]{3,}|key=value", word)]


def test_commands_are_found() -> None:
    assert len(of("rlrun", "train")) > 20
    assert {"README.md", "docs/async.md", "docs/cluster.md"} <= {
        command.where.split(":")[0] for command in of("rlrun")
    }
    assert any("cluster.num_learner_ranks=32" in command.words for command in COMMANDS)


def is_not_run(command: Command) -> bool:
    """Whether test_commands_run.py leaves it out, since it is a part of a command or needs more."""
    entry = instead(" ".join(command.words))
    return not is_run(command) or (entry is not None and entry.form == NOT_RUN)


@pytest.mark.parametrize("command", [*filter(is_not_run, of("rlrun"))], ids=named)
def test_commands_that_are_not_run_are_valid(command: Command, folder: Path) -> None:
    name, params = parsed(command.words, command.mention)
    overrides = filled_in(params.get("overrides") or [])
    match name:
        case "rlrun train" | "rlrun check" | "rlrun gym serve" if overrides:
            load(overrides)
        case "rlrun score":
            load_section("env", [word.replace("=[...]", "=[]") for word in overrides])


@pytest.mark.parametrize(
    "words",
    ["rlrun train --dry", "rlrun vieww RUN_DIR", "rlrun simulate --form RUN_DIR"],
)
def test_options_and_commands_that_do_not_exist_are_noticed(words: str) -> None:
    with pytest.raises((AssertionError, typer.exceptions.TyperException)):
        parsed(tuple(words.split()))


def test_keys_that_do_not_exist_are_noticed(folder: Path) -> None:
    with pytest.raises(ConfigError):
        load(filled_in(["+recipe=NAME", "grpo.sede=1"]))


@pytest.mark.parametrize("command", of("make"), ids=named)
def test_targets_of_make_exist(command: Command) -> None:
    for word in command.words[1:]:
        assert word in TARGETS or re.fullmatch(r"TIER=(cpu|1gpu|1node|multinode)", word)


@pytest.mark.parametrize("command", of("python"), ids=named)
def test_scripts_and_their_options_exist(command: Command) -> None:
    if command.words[1] == "-m":
        assert importlib.util.find_spec(command.words[2])
        return
    source = (ROOT / command.words[1]).read_text(encoding="utf-8")
    for option in command.words[2:]:
        assert not option.startswith("--") or f'"{option.split("=")[0]}"' in source


def recipes() -> list[Any]:
    """Blocks that are whole recipes: they begin with a comment and have a defaults list."""
    return [
        pytest.param(text, id=f"{page.name}:{line}")
        for page in PAGES
        for line, text in blocks(page, "yaml")
        if text.startswith("# ") and "- override /" in text
    ]


@pytest.mark.parametrize("text", recipes())
def test_recipes_on_pages_compose(text: str, folder: Path) -> None:
    (folder / "shown.yaml").write_text(text, encoding="utf-8")
    load(["+recipe=shown.yaml"])


RUN_BY = {
    ("environments.md", "def short_answers"): "tests/docs/test_commands_run.py",
    ("extend.md", "class MyLoss"): "tests/docs/test_extending.py",
    ("extend.md", "class Ranks"): "tests/docs/test_extending.py",
    ("extend.md", "class StreamOrder"): "tests/docs/test_extending.py",
    ("extend.md", "class PlainGenerator"): "tests/docs/test_extending.py",
    ("extend.md", "def short_answers"): "tests/docs/test_commands_run.py",
    ("extend.md", "def rare_answers"): "tests/env/test_python_env.py",
    ("extend.md", "class Riddle"): "tests/env/test_dialogue.py",
    ("quickstart.md", "def short_answers"): "tests/docs/test_commands_run.py",
    ("migration_trl.md", "GRPOTrainer("): "nothing: it is a program for TRL",
    ("serving.md", "openai.OpenAI("): "tests/serve/test_server.py",
}
"""Which test runs a block of Python, by its page and something in it."""


def test_every_block_of_python_is_run_by_a_test() -> None:
    found = [(page.name, text) for page in PAGES for _, text in blocks(page, "python")]
    for name, text in found:
        assert [1 for page, has in RUN_BY if page == name and has in text] == [1], text
    assert len(found) == len(RUN_BY)
    for test in RUN_BY.values():
        assert not test.startswith("tests/") or (ROOT / test).exists(), test


SECTIONS = "advantage|checkpointing|cluster|correction|data|env|generation|grpo|logging|loss|policy"
KEY = re.compile(rf"(?<![\w./-])((?:{SECTIONS})(?:\.[a-z0-9_]+)+)(?![\w/(-])")
FILES = (".py", ".md", ".yaml", ".json", ".jsonl")


def unknown_keys(text: str) -> set[str]:
    """Names of keys and sections in a text that do not exist."""
    known = {key.rsplit(".", n)[0] for key in all_keys() for n in range(key.count(".") + 1)}
    return {key for key in KEY.findall(text) if not key.endswith(FILES)} - known


def without_others(page: Path) -> str:
    """A page without what is another library's: left columns, headings, blocks of such pages."""
    text = page.read_text(encoding="utf-8")
    if not page.name.startswith("migration_"):
        return text
    text = re.sub(r"^```(text|yaml\n# NeMo RL)\n.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"^(\|[^|]*|#.*)", "", text, flags=re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_on_pages_exist(page: Path) -> None:
    discover()
    assert unknown_keys(without_others(page)) == set()
    assert unknown_keys("Set grpo.sede, not grpo.seed.") == {"grpo.sede"}


def test_what_to_do_about_a_metric_names_keys_that_exist() -> None:
    discover()
    told = [metric for metric in METRICS.values() if metric.remedy]
    assert len(told) >= 25
    for metric in told:
        assert unknown_keys(metric.remedy) == set(), metric.name
        assert metric.remedy.endswith(".")
        assert " ? " not in metric.remedy


METRIC = re.compile(
    r"(train|validation|age|buffer|correction|rollout|tokens|refit|perf|idle)/[a-z_]+(/[a-z_]+)*"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_metrics_on_pages_are_declared(page: Path) -> None:
    ours = without_others(page)
    codes = {code for _, code in code_in_sentences(page) if f"`{code}`" in ours}
    named = {code for code in codes if METRIC.fullmatch(code)}
    assert {name for name in named if not is_declared(name)} == set()


def slug(heading: str) -> str:
    """The anchor of a heading, as both GitHub and the site make it."""
    plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower())
    return re.sub(r"\s", "-", plain.strip())


def anchors(page: Path) -> set[str]:
    return {slug(line.lstrip("# ")) for line in prose(page).splitlines() if line.startswith("#")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


SOURCE = re.compile(r"(rlrun|conf|scripts|tests)/[a-z0-9_./]*(/|\.(py|ya?ml))")
EXAMPLES = {"rlrun/loss/mine.py", "conf/loss/mine.yaml"}
"""Files that docs/extend.md has its reader write."""


def test_files_that_pages_name_exist() -> None:
    named = {code for page in PAGES for _, code in code_in_sentences(page)}
    files = {code for code in named if SOURCE.fullmatch(code)} - EXAMPLES
    assert len(files) > 20
    assert {file for file in files if not (ROOT / file).exists()} == set()


def in_index(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [page for value in values for page in in_index(value)]


def test_every_page_is_in_the_index_of_the_site_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = in_index(site["nav"])
    assert sorted(pages) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert site["strict"] and site["theme"]["font"] is False


def test_every_decision_has_a_number_of_its_own_and_is_listed() -> None:
    pages = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
    assert [name[:4] for name in pages] == [f"{n:04}" for n in range(1, len(pages) + 1)]
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    for name in pages:
        title = (DOCS / "decisions" / name).read_text(encoding="utf-8").splitlines()[0]
        number, _, text = title.removeprefix("# ").partition(" ")
        assert number == name[:4]
        assert f"| [{number}]({name}) | {text} |" in index


def test_pages_for_users_of_other_libraries_are_current() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "docs_migration.py"))
    assert script["main"](["--check"]) == 0, "run scripts/docs_migration.py"
