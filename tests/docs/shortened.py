# SPDX-License-Identifier: Apache-2.0
"""How a command of a page is run in a second: as it stands, shortened, or in another form.

``INSTEAD`` is the one table of what is not run itself, each entry with its reason. A run of these
tests ends with the entries and the commands that they were used for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.docs.commands import Command, parsed

NAMES = {
    "+recipe=NAME": "+recipe=quickstart",
    "+recipe=FILE": "+recipe=mine.yaml",
    "GROUP=CHOICE": "loss=gspo",
    "KEY=VALUE": "grpo.seed=7",
    "scale=SCALE": "scale=smoke",
    "...": "+recipe=quickstart",
    "NAME": "quickstart",
    "/shared/runs/NAME": "RUN_DIR",
    "run_dir=/shared/runs/NAME": "run_dir=runs/shared",
    "env.config_overrides={AGENT: {responses_api_agents: {simple_agent: {port: 9000}}}}": (
        "env.config_overrides={string_match_simple_agent: {responses_api_agents: "
        "{simple_agent: {port: 9000}}}}"
    ),
}
"""Words that stand for any of a kind, with one of the kind. Names of folders and files (RUN_DIR,
my-model, rows.jsonl) are there when a page's commands are run, and stay as they are."""

SHORT_RUN = (
    *("grpo.max_num_steps=1", "grpo.num_prompts_per_step=2", "grpo.num_generations_per_prompt=2"),
    *("grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false"),
    *("policy.train_global_batch_size=null", "generation.max_new_tokens=8", "num_threads=1"),
    *("checkpointing.metric=null", "logging.tensorboard=false"),
)
SHORT_EVALUATION = ("grpo.max_val_samples=2", "generation.max_new_tokens=8", "num_threads=1")


@dataclass(frozen=True, slots=True)
class Instead:
    """What is run in the place of a command.

    Attributes:
        of: A regular expression that is found in such commands.
        form: How it is run.
        reason: Why not as it stands.
    """

    of: str
    form: str
    reason: str


CHECK = "rlrun check of the same run"
CONFIG = "rlrun config of the same run"
HELP, DRY_RUN = "--help", "--dry-run"
OPTIONS = "its options are looked up"
EXTRA = "what it installs is named in pyproject.toml or the Makefile"
NOT_RUN = "not at all"

INSTEAD = (
    Instead(
        r"^rlrun (train|eval) .*generation=vllm",
        CHECK,
        "an engine takes half a minute to start: tests/e2e/test_vllm.py trains with one",
    ),
    Instead(
        r"^rlrun train .*cluster=ray cluster.address=auto",
        CONFIG,
        "other machines and GPUs are not here: tests/cluster trains over two that are simulated",
    ),
    Instead(
        r"^rlrun train .*cluster=ray",
        CHECK,
        "Ray takes 20 s to start, and GPUs are not here: tests/cluster trains over it",
    ),
    Instead(r"^rlrun train .*env.agents=", CONFIG, "no agent is at that address here"),
    Instead(r"^rlrun train .*age_steps=8", CHECK, "as grpo=async alone, which is run"),
    Instead(
        r"^rlrun train .*(gym_quickstart|recipe=nanov3)",
        CHECK,
        "servers take half a minute to start: tests/e2e/test_gym.py trains with them",
    ),
    Instead(
        r"^rlrun train .*recipe=smollm2_135m",
        CHECK,
        "two minutes of CPU: tests/e2e/test_smollm2.py trains it",
    ),
    Instead(r"^rlrun train .*recipe=(mine.yaml$|FILE)", CHECK, "a model of the hub, for a GPU"),
    Instead(r"loss=mine$", NOT_RUN, "needs the page's files: tests/docs/test_extending.py runs it"),
    Instead(r"^rlrun gym setup", HELP, "installs 1 GB: make gym"),
    Instead(r"^rlrun gym serve", CONFIG, "needs that: tests/e2e/test_gym.py serves"),
    Instead(r"^rlrun score .*env=gym", NOT_RUN, "needs that: tests/env/test_gym_score.py"),
    Instead(r"^rlrun nightly", DRY_RUN, "a quarter of an hour: tests/nightly"),
    Instead(r"^make ", "make --dry-run", "installs packages, or runs for minutes"),
    Instead(r"^python ", OPTIONS, "downloads a model, or measures for minutes"),
    Instead(r"^pip install ", EXTRA, "needs a package index"),
    Instead(r"^ray ", NOT_RUN, "starts daemons on several machines"),
)


def instead(text: str) -> Instead | None:
    """The entry of the table for a command, or None if it is run."""
    return next((entry for entry in INSTEAD if re.search(entry.of, text)), None)


def is_run(command: Command) -> bool:
    """Whether it is a whole command; in a sentence it may be the name of one, or a part."""
    if command.mention and len(command.words) < 3 and command.words[0] == "rlrun":
        return False
    if not command.mention or command.words[0] != "rlrun":
        return True
    try:
        parsed(tuple(named(command.words)))
    # Typer's own, for what a command line lacks.
    except Exception:  # noqa: BLE001
        return False
    return True


def named(words: tuple[str, ...]) -> list[str]:
    """The words with real names in the place of those that stand for any."""
    told = [NAMES.get(word, word) for word in words]
    # The run that is there has four steps.
    return [
        "4" if before == "--step" else word for before, word in zip(["", *told], told, strict=False)
    ]


def arguments(words: list[str], form: str | None) -> list[str]:
    """What rlrun is called with.

    Args:
        words: As the page has them, without the program's name.
        form: Of the table; None for the command itself.
    """
    overrides = [word for word in words if "=" in word and not word.startswith("--")]
    if form == CHECK:
        return ["check", *overrides]
    if form == CONFIG:
        return ["config", *overrides]
    if form in (HELP, DRY_RUN):
        return [*words, form]
    match words[0]:
        case "train":
            return [*_but(words, SHORT_RUN), *SHORT_RUN]
        case "eval" if len(overrides) > 0:
            return [*_but(words, SHORT_EVALUATION), *SHORT_EVALUATION]
        case "simulate":
            return [*words, "--steps", "3"]
    return words


def _but(words: list[str], replaced: tuple[str, ...]) -> list[str]:
    keys = {word.split("=")[0] for word in replaced}
    return [word for word in words if word.split("=")[0] not in keys]
