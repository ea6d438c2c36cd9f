# SPDX-License-Identifier: Apache-2.0
"""Every command of a page is run, in its order, in a folder with what the page speaks of.

Equal commands are run once. What is shortened or takes another form is in shortened.py.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.conftest import DOCUMENTED
from tests.docs.commands import PAGES, ROOT, Command, blocks, commands, python_block
from tests.docs.shortened import (
    INSTEAD,
    NOT_RUN,
    Instead,
    arguments,
    instead,
    is_run,
    named,
)
from tests.e2e.forked import forked

RUNS = (
    *("RUN_DIR", "BEFORE", "AFTER", "runs/quickstart/20261129-120000"),
    *("runs/quickstart/sync", "runs/quickstart/async"),
)
"""Names of runs that are there when a page's commands are run."""

LORA_RUN = "runs/lora"
"""Where a page that trains an adapter finds the run."""

EXPORTS = ("my-model", "my-adapter", "good-policy", "DEST")
"""Names of folders that a page exports to, and may speak of before."""

OWN = ("mine.yaml", "my_recipe.yaml", "path/to/it.yaml", "my_rewards.py", "riddle.py")
"""Names of files that may be another one on every page."""

DONE: set[tuple[str, ...]] = set()
"""Commands that a page before has run."""


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four short steps that have signal, with checkpoints and a validation."""
    path = tmp_path_factory.mktemp("documented") / "run"
    sizes = ("grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4", "num_threads=1")
    more = ("grpo.max_num_steps=4", "grpo.val_period=2", "grpo.max_val_samples=4")
    saving = ("checkpointing.save_period=2", "grpo.val_at_start=false")
    done = forked("train", "+recipe=quickstart", *sizes, *more, *saving, f"run_dir={path}")
    assert done.code == 0, done.err
    return path


def lay_out(page: Path, folder: Path, found: list[Command], a_run: Path) -> None:
    """Puts into the folder what the commands speak of: blocks of the page where it has them."""
    text = " ".join(word for command in found for word in named(command.words))
    for name in RUNS:
        if name in text:
            shutil.copytree(a_run, folder / name)
    answers = '{"response": "It is \\\\boxed{4}.", "gold": "4"}\n'
    recipe, rows = recipe_of(page), rows_of(page)
    promised = [text for _, text in blocks(page, "yaml") if text.startswith("runs:")]
    files = {
        **dict.fromkeys(("mine.yaml", "my_recipe.yaml", "path/to/it.yaml"), recipe),
        **dict.fromkeys(("rows.jsonl", "held_out.jsonl", "my_rows.jsonl"), rows),
        **dict.fromkeys(("answers.jsonl", "FILE"), answers),
        **dict.fromkeys(("mine.nightly.yaml",) * len(promised), "".join(promised)),
        "my_rewards.py": "\n".join(
            code_of(page, f"def {name}_answers") for name in ("short", "rare")
        ),
        "riddle.py": code_of(page, "class Riddle"),
        "rewards.py": "def correct(response, answer, **row):\n    return 1.0\n",
    }
    if "gsm8k/train.parquet" in recipe:
        write_rows_of_verl(folder / "gsm8k")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def write_rows_of_verl(folder: Path) -> None:
    """Two files as verl's examples prepare GSM8K."""
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "What is 30 + 42?"}],
        "ability": "math",
        "reward_model": {"ground_truth": "72", "style": "rule"},
        "extra_info": {"index": 0, "split": "train"},
    }
    folder.mkdir()
    for name in ("train", "test"):
        table = pyarrow.Table.from_pylist([row] * 4)
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")


def recipe_of(page: Path) -> str:
    """The last whole recipe of the page, or a small one."""
    found = [text for _, text in blocks(page, "yaml") if "- override /" in text]
    return found[-1] if found else "# Mine.\ndefaults: [quickstart, _self_]\n"


def rows_of(page: Path) -> str:
    """The first row of the page, a few times."""
    found = [text for _, text in blocks(page, "json") if '"problem"' in text]
    row = found[0].splitlines()[0] if found else '{"problem": "What is 2 + 2?", "answer": "4"}'
    return f"{row}\n" * 4


def code_of(page: Path, has: str) -> str:
    """A block of the page, or of the page about extending."""
    found = [text for _, text in blocks(page, "python") if has in text]
    return found[0] if found else python_block(has)


def with_commands() -> list[Path]:
    return [page for page in PAGES if any(is_run(command) for command in commands(page))]


@pytest.mark.parametrize("page", with_commands(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_do_what_they_say(
    page: Path,
    a_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [command for command in commands(page) if is_run(command)]
    lay_out(page, tmp_path, found, a_run)
    for command in found:
        entry = instead(" ".join(command.words))
        if entry is not None:
            record_property(DOCUMENTED, f"{entry.form}: {entry.reason}\n  {command}")
        words = as_run(command, entry)
        line = " ".join(words)
        exported = [name for name in EXPORTS if name in line]
        once = (page.name, *words) if any(name in line for name in OWN) else words
        if once in DONE and not exported:
            continue
        DONE.add(once)
        for name in exported:
            make_or_make_room(command, name, a_run)
        run(command, words, None if entry is None else entry.form)


def as_run(command: Command, entry: Instead | None) -> tuple[str, ...]:
    """The words that are run."""
    first, *rest = named(command.words)
    if first != "rlrun":
        return (first, *rest)
    return (first, *arguments(rest, None if entry is None else entry.form))


def make_or_make_room(command: Command, name: str, a_run: Path) -> None:
    """Exported folders are there where a command reads them, and not where it writes them."""
    if command.words[1] == "export":
        shutil.rmtree(name, ignore_errors=True)
        if "--adapter" in command.words:
            shutil.rmtree("RUN_DIR")
            shutil.move(LORA_RUN, "RUN_DIR")
    elif not Path(name).exists():
        done = forked("export", str(a_run), name)
        assert done.code == 0, done.err


def run(command: Command, words: tuple[str, ...], form: str | None = None) -> None:
    if form == NOT_RUN:
        return
    match words[0]:
        case "rlrun":
            done = forked(*words[1:], *folder_of(words))
            assert done.code == 0, f"{command}\n{' '.join(words)}\n{done.err}{done.out}"
        case "make":
            line = ["make", "--dry-run", "--directory", str(ROOT), *words[1:]]
            finished = subprocess.run(line, capture_output=True, text=True)
            assert finished.returncode == 0, finished.stderr
        case "pip":
            installs_what_is_known(words[2:])
        case "python":
            has_options(words)


def folder_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """A folder of its own for a run that names none: two of one second would want the same."""
    if words[1] != "train" or any(word.startswith("run_dir=") for word in words):
        return ()
    if "policy.lora.enabled=true" in words:
        return (f"run_dir={LORA_RUN}",)
    return (f"run_dir={tempfile.mkdtemp(dir='.')}/run",)


def installs_what_is_known(words: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in words:
        extra = re.fullmatch(r"rlrun\[(.*)\]", word)
        if extra is not None:
            assert extra[1] in project["optional-dependencies"]
        elif not word.startswith("--"):
            assert word in (ROOT / "Makefile").read_text(encoding="utf-8")


def has_options(words: tuple[str, ...]) -> None:
    """The script or module exists and declares the options that the page gives it."""
    path = ROOT / words[1]
    if words[1] == "-m":
        spec = importlib.util.find_spec(words[2])
        assert spec is not None and spec.origin is not None
        path = Path(spec.origin)
    source = path.read_text(encoding="utf-8")
    assert "argparse" in source
    for option in words[2:]:
        assert not option.startswith("--") or f'"{option.split("=")[0]}"' in source, option


def test_reasons_name_tests_that_exist() -> None:
    for entry in INSTEAD:
        for name in re.findall(r"tests/[\w/.]+", entry.reason):
            assert (ROOT / name).exists(), entry


def test_every_entry_of_the_table_is_used() -> None:
    every = [" ".join(c.words) for page in PAGES for c in commands(page) if is_run(c)]
    for entry in INSTEAD:
        assert any(instead(text) == entry for text in every), entry
    assert sum(instead(text) is None for text in every) > 60


def test_a_command_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="is not a folder"):
        run(Command("page.md:1", ()), ("rlrun", "view", "RUN_DIR"))
