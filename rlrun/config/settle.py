# SPDX-License-Identifier: Apache-2.0
"""Settles what every key's value is: checks each source's word, lets the last good one win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rlrun.config.compose import Composition
from rlrun.config.flags import as_text
from rlrun.config.foreign import Renamed, find_key
from rlrun.config.interpolation import Resolver
from rlrun.config.keys import Keys, Leaf, all_keys, keys_of, variants_with
from rlrun.config.nemo_rl import FSDP_ALONE, NEMO_RL
from rlrun.config.origin import Assignment, Origin, OriginKind
from rlrun.config.paths import conf_dir
from rlrun.config.report import Report
from rlrun.config.suggest import nearest_key
from rlrun.config.trl import TRL
from rlrun.config.values import (
    IN_QUOTES,
    MISSING,
    WrongValue,
    convert,
    describe,
    is_interpolated,
    item_type,
    range_text,
    shown,
)
from rlrun.config.verl import VERL
from rlrun.config.yaml_file import read_yaml
from rlrun.interfaces import REGISTRY

_LIBRARIES = {"NeMo RL": NEMO_RL, "verl": VERL, "TRL": TRL}
"""Keys that people bring along."""

_ELSEWHERE = {"generation.colocated": Renamed("cluster.colocated", variant="cluster/ray")}
"""Keys that people look for in another section."""

_HOW_TO_GIVE = {
    "policy.model": "Give policy.model=FOLDER_OR_NAME, or choose policy/model=tiny",
    "data.train.source": "Give data.train.source=FILE.jsonl, or choose data=addition",
}


@dataclass(slots=True)
class Settled:
    """The values of a run.

    Attributes:
        values: By dotted key, finished: interpolations resolved, of the key's type and in range.
            A key without a good value is not in it. Free mappings are values of their own key.
        origins: By dotted key; the names in a free mapping are keys of their own.
    """

    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)


def settle(
    composition: Composition, keys: Keys, report: Report, *, needed: str | None = None
) -> Settled:
    """Checks all assignments; what is wrong is reported and the value before it stays.

    Args:
        composition: The sources.
        keys: All keys of the run.
        report: Takes what is wrong.
        needed: The section that must be complete; None for all.
    """
    return _Settler(composition, keys, report).settle(needed)


class _Settler:
    def __init__(self, composition: Composition, keys: Keys, report: Report) -> None:
        self._composition, self._keys, self._report = composition, keys, report
        self._origins: dict[tuple[str, ...], Origin] = {}
        self._foreign: dict[str, Assignment] = {}

    def settle(self, needed: str | None) -> Settled:
        for assignment in self._composition.assignments:
            self._take(assignment)
        for assignment in self._foreign.values():
            self._check_foreign(assignment)
        if self._composition.complete:
            self._check_missing(needed)
        resolver = Resolver({path: origin.value for path, origin in self._origins.items()})
        settled = Settled()
        for path, origin in self._origins.items():
            settled.origins[".".join(path)] = origin
            leaf = self._keys.holder(path)
            if leaf is not None and origin.value != MISSING:
                self._finish(path, leaf, origin, resolver, settled)
        return settled

    def _take(self, assignment: Assignment) -> None:
        leaf = self._keys.holder(assignment.path)
        if leaf is None:
            if assignment.key in self._keys.sections:
                self._check_section(assignment)
            else:
                self._unknown(assignment)
        elif leaf.is_mapping:
            self._take_in_mapping(assignment, leaf)
        elif leaf.key != assignment.key:
            self._unknown(assignment)
        elif self._good(assignment, leaf):
            self._origins[assignment.path] = assignment.origin

    def _take_in_mapping(self, assignment: Assignment, leaf: Leaf) -> None:
        path, root = assignment.path, tuple(leaf.key.split("."))
        if path == root and assignment.value not in (None, {}):
            what = f"{leaf.key} must be {describe(leaf.type)}, not {shown(assignment.value)}"
            self._report.add(assignment.where, what, "Write the names below it", leaf.key)
            return
        if path == root and assignment.value == {}:
            # Mappings merge, so an empty one changes nothing.
            if not any(other[: len(root)] == root for other in self._origins):
                self._origins[root] = assignment.origin
            return
        item = Leaf(assignment.key, item_type(leaf), True, {})
        if path != root and not self._good(assignment, item):
            return
        for other in list(self._origins):
            if other[: len(path)] == path or path[: len(other)] == other:
                del self._origins[other]
        origin = assignment.origin
        self._origins[path] = Origin({}, origin.kind, origin.where) if path == root else origin

    def _good(self, assignment: Assignment, leaf: Leaf) -> bool:
        if assignment.value == MISSING or is_interpolated(assignment.value):
            return True
        try:
            convert(assignment.value, leaf)
        except WrongValue as error:
            by_flag = assignment.where.partition("=")[0].lstrip("+") == leaf.key
            if by_flag and error.remedy == IN_QUOTES:
                # The shell takes quotes away.
                error.remedy = f"Put it in quotes to make it text: {as_text(assignment)}"
            self._wrong(assignment.where, leaf.key, error)
            return False
        return True

    def _wrong(self, where: str, key: str, error: WrongValue) -> None:
        self._report.add(where, f"{key} {error.what}", error.remedy, key)

    def _check_section(self, assignment: Assignment) -> None:
        key, value = assignment.key, assignment.value
        if value == {}:
            return
        given = shown(value)
        remedy = "Write its keys below it, or leave it out"
        if isinstance(value, str) and f"{key}/{value}" in REGISTRY:
            remedy = f"Choose it in the defaults list: - override /{key}: {value}"
        self._report.add(assignment.where, f"{key} is a section, not {given}", remedy, key)

    def _unknown(self, assignment: Assignment) -> None:
        key = assignment.key
        variants = variants_with(key)
        if variants:
            if key.partition(".")[0] not in self._composition.doubtful:
                self._foreign[key] = assignment
            return
        found = {name: said for name, table in _LIBRARIES.items() if (said := find_key(key, table))}
        if found:
            what = f"{key} is a key of {' and '.join(found)}"
            self._report.add(assignment.where, what, [*found.values()][0], key)
            return
        holder = self._keys.holder(assignment.path)
        if holder is not None:
            what = f"unknown key {key}; {holder.key} is {describe(holder.type)}, not a section"
            self._report.add(assignment.where, what, f"Write {holder.key} alone", key)
            return
        near = nearest_key(key, self._keys.names()) or nearest_key(key, all_keys())
        remedy = f"The nearest key is {near}" if near else "The command rlrun config lists all keys"
        remedy = find_key(key, _ELSEWHERE) or remedy
        if key.startswith(("policy.", "cluster.")) and "parallel" in key:
            remedy = FSDP_ALONE  # No other key comes near to it.
        self._report.add(assignment.where, f"unknown key {key}", remedy, key)

    def _check_foreign(self, assignment: Assignment) -> None:
        """A key that another variant of the slot has."""
        key, variants = assignment.key, variants_with(assignment.key)
        slot = key.partition(".")[0]
        chosen = self._composition.variants.get(slot, "none")
        owners = " or ".join(f"{slot}={variant}" for variant in variants)
        remedy = f"Leave it out, or choose {owners}"
        # Written for the variant that the recipe chose and the scale replaced, or a flag: a recipe
        # must run with either schedule by that flag alone.
        replaced = slot in self._composition.rescaled
        replaced |= slot == "grpo" and slot in self._composition.flagged
        # A resolved run names every key of its choice, and is to be tried with another one.
        replaced |= slot in self._composition.flagged and self._names_all(slot, variants)
        if replaced and assignment.kind is OriginKind.RECIPE:
            return
        # For the same reason, what does nothing there may stay.
        if slot == "grpo":
            default = _conf_value(slot, variants[0], key)
            if assignment.value == default:
                return
            remedy += f"; at its default {default} it may stay"
        what = f"{key} is a key of {owners}, but {slot}={chosen} is chosen"
        self._report.add(assignment.where, what, remedy, key)

    def _names_all(self, slot: str, variants: Sequence[str]) -> bool:
        """Whether the recipe names every key of a variant, of a slot whose variants share meanings.

        Not so a loss: what clips the ratio of one is far too wide for another.
        """
        recipe = OriginKind.RECIPE
        given = {one.key for one in self._composition.assignments if one.kind is recipe}
        given |= {".".join(key.split(".")[:2]) for key in given}
        return slot != "loss" and any(
            given >= set(keys_of(REGISTRY[f"{slot}/{variant}"], slot).leaves)
            for variant in variants
        )

    def _check_missing(self, needed: str | None) -> None:
        doubtful = {group.partition("/")[0] for group in self._composition.doubtful}
        for key, leaf in self._keys.leaves.items():
            path = tuple(key.split("."))
            if needed is not None and path[0] != needed:
                continue
            if self._report.blames(key) or path[0] in doubtful:
                continue
            origin = self._origins.get(path)
            if origin is not None and origin.value == MISSING:
                remedy = _HOW_TO_GIVE.get(key, f"Give {key}={describe(leaf.type)}")
                self._report.add(origin.where, f"{key} is not set", remedy, key)
            elif origin is None and not any(p[: len(path)] == path for p in self._origins):
                slot = key.partition(".")[0]
                where = f"conf/{slot}/{self._composition.variants.get(slot, 'default')}.yaml"
                remedy = "Write its default, or ??? if it must be given"
                self._report.add(where, f"there is no value for {key}", remedy, key)

    def _converted(self, value: object, leaf: Leaf, reference: object) -> object:
        """The value in its type; ``reference`` is the ${...} that gave it, if one did."""
        if reference is None:
            return convert(value, leaf)
        try:
            return convert(value, leaf, from_text=True)
        except WrongValue as error:
            # What a variable of the environment holds may be a secret and is never repeated.
            legal = " ".join(filter(None, (describe(leaf.type), range_text(leaf.bounds))))
            what = f"must be {legal}, which {shown(reference)} is not"
            raise WrongValue(what, "Change the variable or key that it refers to") from error

    def _finish(
        self,
        path: tuple[str, ...],
        leaf: Leaf,
        origin: Origin,
        resolver: Resolver,
        settled: Settled,
    ) -> None:
        key = ".".join(path)
        item = Leaf(key, item_type(leaf), True, {}) if leaf.is_mapping and key != leaf.key else leaf
        try:
            value = origin.value
            interpolated = is_interpolated(value)
            if interpolated:
                value = resolver.resolve(path)
            if not (item.is_mapping and value == {}):
                value = self._converted(value, item, origin.value if interpolated else None)
        except WrongValue as error:
            self._wrong(origin.where, key, error)
            return
        if not leaf.is_mapping:
            settled.values[key] = value
            return
        # Values of a run are its own: a change by one user of the mapping must not reach another.
        target = settled.values.setdefault(leaf.key, {})
        names = path[len(leaf.key.split(".")) :]
        for depth, name in enumerate(names):
            assert isinstance(target, dict)
            if depth == len(names) - 1:
                target[name] = value
            else:
                target = target.setdefault(name, {})


@cache
def _conf_values(path: Path) -> dict[str, object]:
    return {".".join(entry.path): entry.value for entry in read_yaml(path).entries}


def _conf_value(slot: str, variant: str, key: str) -> object:
    """The default of a key in the YAML of a variant, or MISSING."""
    assert key in keys_of(REGISTRY[f"{slot}/{variant}"], slot)
    values = _conf_values(conf_dir() / slot / f"{variant}.yaml")
    return values.get(key.removeprefix(f"{slot}."), MISSING)
