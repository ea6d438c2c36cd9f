# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/migration_nemo_rl.md from that in rlrun/config/nemo_rl.py.

What stands above the mark in the page is written by hand and stays.

python scripts/docs_migration.py            writes the file
python scripts/docs_migration.py --check    exits with 1 if the file is not current
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rlrun.config.keys import all_keys
from rlrun.config.nemo_rl import NEMO_RL, Absent, Chosen, Renamed, Target
from rlrun.config.variants import discover

TARGET = Path(__file__).resolve().parent.parent / "docs" / "migration_nemo_rl.md"

MARK = "<!-- From here on made by scripts/docs_migration.py from rlrun/config/nemo_rl.py. -->\n"

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

SECTIONS = {
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
"""Headings, by the beginning of a key; the first that fits has it."""


def render(page: str) -> str:
    """The page with new tables."""
    discover()
    unknown = sorted(set(SAME) - set(all_keys()))
    assert not unknown, f"no keys of rlrun: {unknown}"
    above, mark, _ = page.partition(MARK)
    assert mark, f"{TARGET}: lacks the line {MARK}"
    same = ", ".join(f"`{key}`" for key in SAME)
    parts = [above, mark, f"\n## Under the same name\n\n{same}.\n"]
    rows: dict[str, list[str]] = {heading: [] for heading in SECTIONS.values()}
    for key, target in NEMO_RL.items():
        rows[_heading(key)].append(f"| `{key}` | {_told(target)} |\n")
    for heading, lines in rows.items():
        parts.append(f"\n## {heading}\n\n| NeMo RL | here |\n|---|---|\n")
        parts.extend(lines)
    parts.append(
        "\nA section in these tables stands for every key below it that has no line of its own.\n"
    )
    return "".join(parts)


def _heading(key: str) -> str:
    return next(_headings(key), SECTIONS["async_rl"])


def _headings(key: str) -> Iterator[str]:
    return (text for start, text in SECTIONS.items() if f"{key}.".startswith(f"{start}."))


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
    """Writes or checks the page; returns the exit code."""
    page = TARGET.read_text(encoding="utf-8")
    text = render(page)
    if arguments == ["--check"]:
        current = page == text
        if not current:
            sys.stderr.write(f"{TARGET}: is not current. Run python scripts/docs_migration.py.\n")
        return 0 if current else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
