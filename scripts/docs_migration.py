# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/migration_*.md from those in rlrun/config/nemo_rl.py and verl.py.

What stands above the mark in a page is written by hand and stays.

python scripts/docs_migration.py            writes the files
python scripts/docs_migration.py --check    exits with 1 if one is not current
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.foreign import Absent, Chosen, Renamed, Target
from rlrun.config.keys import all_keys
from rlrun.config.nemo_rl import NEMO_RL
from rlrun.config.variants import discover
from rlrun.config.verl import VERL

DOCS = Path(__file__).resolve().parent.parent / "docs"

MARK = "<!-- From here on made by scripts/docs_migration.py from rlrun/config/{}.py. -->\n"

SAME = """
grpo.num_prompts_per_step grpo.num_generations_per_prompt grpo.max_num_steps grpo.max_num_epochs
grpo.max_rollout_turns grpo.seed grpo.val_period grpo.val_start_at grpo.val_at_start grpo.val_at_end
grpo.val_batch_size grpo.max_val_samples grpo.val_num_generations_per_prompt
grpo.stop_at_validation_metric grpo.stop_at_validation_threshold grpo.overlong_filtering
grpo.use_dynamic_sampling grpo.dynamic_sampling_max_gen_batches grpo.seq_logprob_error_threshold
grpo.skip_reference_policy_logprobs_calculation grpo.reward_scaling.enabled
grpo.reward_scaling.source_min grpo.reward_scaling.source_max grpo.reward_scaling.target_min
grpo.reward_scaling.target_max grpo.invalid_tool_call_advantage grpo.malformed_thinking_advantage
policy.train_global_batch_size policy.max_total_sequence_length policy.precision
policy.max_grad_norm checkpointing.enabled checkpointing.save_period checkpointing.keep_top_k
checkpointing.higher_is_better checkpointing.checkpoint_must_save_by cluster.gpus_per_node
cluster.num_nodes
""".split()
"""Keys that NeMo RL has too and that mean the same here."""

NEMO_RL_SECTIONS = {
    "grpo.async_grpo": "`grpo.async_grpo`",
    "grpo": "`grpo`",
    "reward_penalties": "`reward_penalties`",
    "loss_fn": "`loss_fn`",
    "policy.generation": "`policy.generation`",
    "policy": "`policy`",
    "data": "`data`",
    "env": "`env`",
    "logger": "`logger`",
    "checkpointing": "`checkpointing`",
    "cluster": "`cluster`",
    "async_rl": "`async_rl`, `data_plane` and others",
}

VERL_SECTIONS = {
    "data": "`data`",
    "actor_rollout_ref.model": "`actor_rollout_ref.model`",
    "actor_rollout_ref.actor": "`actor_rollout_ref.actor`",
    "actor_rollout_ref.rollout": "`actor_rollout_ref.rollout`",
    "actor_rollout_ref": "`actor_rollout_ref`",
    "algorithm": "`algorithm`",
    "trainer": "`trainer`",
    "": "Rewards, asynchronous training and others",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A page for users of a library.

    Attributes:
        name: Of the page and of the module with its table.
        library: What it is called.
        table: Its keys.
        sections: Headings, by the beginning of a key; the first that fits has it, else the last.
        same: Keys that mean the same here.
    """

    name: str
    library: str
    table: Mapping[str, Target]
    sections: Mapping[str, str]
    same: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The page."""
        return DOCS / f"migration_{self.name}.md"


PAGES = (
    Page("nemo_rl", "NeMo RL", NEMO_RL, NEMO_RL_SECTIONS, tuple(SAME)),
    Page("verl", "verl", VERL, VERL_SECTIONS),
)


def render(page: Page, text: str) -> str:
    """A page's text with new tables."""
    discover()
    unknown = sorted(set(page.same) - set(all_keys()))
    assert not unknown, f"no keys of rlrun: {unknown}"
    above, mark, _ = text.partition(MARK.format(page.name))
    assert mark, f"{page.path}: lacks the line {MARK.format(page.name)}"
    parts = [above, mark]
    if page.same:
        same = ", ".join(f"`{key}`" for key in page.same)
        parts.append(f"\n## Under the same name\n\n{same}.\n")
    rows: dict[str, list[str]] = {heading: [] for heading in page.sections.values()}
    for key, target in page.table.items():
        rows[_heading(key, page.sections)].append(f"| `{key}` | {_told(target)} |\n")
    for heading, lines in rows.items():
        parts.append(f"\n## {heading}\n\n| {page.library} | here |\n|---|---|\n")
        parts.extend(lines)
    parts.append(
        "\nA section in these tables stands for every key below it that has no line of its own.\n"
    )
    return "".join(parts)


def _heading(key: str, sections: Mapping[str, str]) -> str:
    fitting = (text for start, text in sections.items() if f"{key}.".startswith(f"{start}."))
    return next(fitting, [*sections.values()][-1])


def _told(target: Target) -> str:
    match target:
        case Renamed(key, note, variant):
            with_choice = f", with `{variant.replace('/', '=')}`" if variant else ""
            return f"`{key}`" + (f" ({note})" if note else "") + with_choice
        case Chosen(group, choice, note):
            return f"`{group}={choice}`" + (f" ({note})" if note else "")
        case Absent(reason):
            return "nothing to set: " + reason.removeprefix("Nothing to set: ")


def main(arguments: list[str]) -> int:
    """Writes or checks the pages; returns the exit code."""
    stale = 0
    for page in PAGES:
        before = page.path.read_text(encoding="utf-8")
        text = render(page, before)
        if arguments != ["--check"]:
            page.path.write_text(text, encoding="utf-8")
        elif text != before:
            sys.stderr.write(
                f"{page.path}: is not current. Run python scripts/docs_migration.py.\n"
            )
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
