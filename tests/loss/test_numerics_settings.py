# SPDX-License-Identifier: Apache-2.0
"""The YAML files of advantage, loss and correction fill their settings classes."""

import re
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from omegaconf import OmegaConf

from rlrun.advantage.group import Baseline, GroupAdvantage
from rlrun.correction.importance import ImportanceCorrection
from rlrun.interfaces import Checked
from rlrun.loss.cispo import CISPOLoss
from rlrun.loss.dr_grpo import DrGRPOLoss
from rlrun.loss.grpo import ClippedLoss
from rlrun.loss.gspo import GSPOLoss
from rlrun.loss.reinforce import ReinforceLoss

CONF = Path(__file__).parents[2] / "conf"
SHIPPED: dict[str, type[Checked]] = {
    "advantage/group": GroupAdvantage,
    "correction/importance": ImportanceCorrection,
    "loss/cispo": CISPOLoss,
    "loss/dapo": ClippedLoss,
    "loss/dr_grpo": DrGRPOLoss,
    "loss/grpo": ClippedLoss,
    "loss/gspo": GSPOLoss,
    "loss/reinforce": ReinforceLoss,
}


def values(choice: str) -> dict[str, Any]:
    """The keys of a file on top of those of the file that it builds on."""
    slot, variant = choice.split("/")
    own = OmegaConf.to_container(OmegaConf.load(CONF / slot / f"{variant}.yaml"))
    assert isinstance(own, dict)
    base, last = own.pop("defaults")
    assert last == "_self_"
    below = {} if base == f"{variant}_schema" else values(f"{slot}/{base}")
    context = OmegaConf.create({"generation": {"max_new_tokens": 77}, slot: {**below, **own}})
    resolved = OmegaConf.to_container(context, resolve=True)
    assert isinstance(resolved, dict)
    return dict(resolved[slot])


def load(choice: str) -> Checked:
    cls, given = SHIPPED[choice], values(choice)
    for name, hint in get_type_hints(cls).items():
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            given[name] = hint(given[name])
    return cls(**given)


@pytest.mark.parametrize("choice", SHIPPED)
def test_shipped_values_are_valid(choice: str) -> None:
    settings = load(choice)
    assert type(settings) is SHIPPED[choice]
    assert list(settings.problems()) == []
    for field in fields(settings):  # type: ignore[arg-type]  # every slot is a dataclass
        value = getattr(settings, field.name)
        for rule, bound in field.metadata.items():
            if value is not None:
                assert {
                    "ge": value >= bound,
                    "gt": value > bound,
                    "le": value <= bound,
                    "lt": value < bound,
                }[rule], f"{field.name}={value} {rule} {bound}"


@pytest.mark.parametrize("choice", SHIPPED)
def test_every_key_has_a_comment_above_it(choice: str) -> None:
    lines = (CONF / f"{choice}.yaml").read_text().splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r"(?!defaults)\w+:", line)]
    assert keys
    assert all(lines[i - 1].startswith("# ") for i in keys)


def test_every_shipped_file_is_tested() -> None:
    files = {
        f"{slot}/{path.stem}"
        for slot in ("advantage", "loss", "correction")
        for path in (CONF / slot).glob("*.yaml")
    }
    assert files == set(SHIPPED)


def test_dapo_differs_from_grpo_in_what_its_file_says() -> None:
    grpo, dapo = load("loss/grpo"), load("loss/dapo")
    assert isinstance(grpo, ClippedLoss) and isinstance(dapo, ClippedLoss)
    assert (grpo.ratio_clip_max, dapo.ratio_clip_max) == (0.2, 0.28)
    assert dapo.reference_policy_kl_penalty == 0.0
    assert dapo.kl_output_clamp == grpo.kl_output_clamp


def test_enums_and_interpolations_arrive_as_what_they_are() -> None:
    advantage, dr_grpo = load("advantage/group"), load("loss/dr_grpo")
    assert isinstance(advantage, GroupAdvantage) and advantage.baseline is Baseline.MEAN
    assert isinstance(dr_grpo, DrGRPOLoss) and dr_grpo.normalizer_tokens == 77


@pytest.mark.parametrize(
    ("settings", "field", "rule", "bound"),
    [
        (ClippedLoss, "ratio_clip_min", "lt", 1),
        (ClippedLoss, "ratio_clip_c", "gt", 1),
        (ClippedLoss, "reference_policy_kl_penalty", "ge", 0),
        (ClippedLoss, "kl_input_clamp", "gt", 0),
        (GSPOLoss, "ratio_clip_min", "lt", 1),
        (DrGRPOLoss, "ratio_clip_c", "gt", 1),
        (DrGRPOLoss, "normalizer_tokens", "ge", 1),
        (CISPOLoss, "ratio_clip_min", "le", 1),
        (ImportanceCorrection, "ess_stop", "le", 1),
        (ImportanceCorrection, "ess_stop", "gt", 0),
        (GroupAdvantage, "clip_low", "le", 0),
        (GroupAdvantage, "clip_high", "ge", 0),
    ],
)
def test_values_that_cannot_work_are_out_of_the_declared_range(
    settings: type, field: str, rule: str, bound: float
) -> None:
    (declared,) = [each for each in fields(settings) if each.name == field]
    assert declared.metadata[rule] == bound
