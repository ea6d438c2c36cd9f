# SPDX-License-Identifier: Apache-2.0
"""Puts the sources of a configuration in order: default < group < recipe < scale < flag.

Hydra decides which files belong to the run and in which order. The values are then read here, with
their lines, rather than by Hydra, so that all mistakes can be told at once and every value knows
where it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.config.flags import Choice, Flags, parse_flags, unknown_choice
from rlrun.config.order import RUN, Announced, Item, Layer, Uncombinable, layers_of_run
from rlrun.config.origin import Assignment, OriginKind
from rlrun.config.paths import conf_dir, display, expand, is_dir
from rlrun.config.recipes import find_recipe, no_recipe, recipe_folders, recipe_name
from rlrun.config.report import Report
from rlrun.config.suggest import nearest
from rlrun.config.variants import SCHEMA_SUFFIX, config_groups, discover
from rlrun.config.yaml_file import DefaultsItem, YamlFile, read_yaml
from rlrun.interfaces import SLOTS

FULL_SCALE = "full"


@dataclass(slots=True)
class Composition:
    """The sources of a run, in order.

    Attributes:
        assignments: All values, the weakest source first.
        variants: The chosen variant of each slot.
        doubtful: Groups of which a choice was asked for that does not exist.
        complete: Whether every source could be read, so that what is missing is truly missing.
        recipe: Name of the recipe; "run" without one.
        rescaled: Groups of which the scale chose another variant than the recipe.
        flagged: Groups of which a flag chose the variant.
    """

    assignments: list[Assignment] = field(default_factory=list)
    variants: dict[str, str] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    complete: bool = True
    recipe: str = "run"
    rescaled: set[str] = field(default_factory=set)
    flagged: set[str] = field(default_factory=set)


def compose(overrides: Sequence[str], config_dir: Path | None, report: Report) -> Composition:
    """Reads all sources of a run; what is wrong with them is reported and left out."""
    discover()
    return _Composer(config_dir, report).compose(overrides)


class _Composer:
    def __init__(self, config_dir: Path | None, report: Report) -> None:
        self._report = report
        self._result = Composition()
        self._config_dir = self._usable(config_dir)
        self._folders = [conf_dir()] + ([self._config_dir] if self._config_dir else [])
        self._groups = config_groups(self._folders)
        self._run_file = read_yaml(conf_dir() / f"{RUN}.yaml")
        self._announced: dict[tuple[str, str], Announced] = {}
        self._recipes: dict[str, YamlFile] = {}
        self._names: dict[Path, str] = {}
        self._scale: Choice | None = None
        self._overlays: dict[str, YamlFile] = {}

    def compose(self, overrides: Sequence[str]) -> Composition:
        flags = parse_flags(overrides, self._groups, self._report)
        self._result.doubtful |= flags.doubtful
        self._result.complete &= "recipe" not in flags.doubtful
        overrides_of_files = self._recipe(flags) + self._choices(flags)
        self._announce("", RUN)
        try:
            files = tuple(self._announced.values())
            for layer in layers_of_run(files, tuple(overrides_of_files)):
                self._read(layer)
        except Uncombinable as error:
            self._result.complete = False
            remedy = "Check the defaults lists of recipe and groups"
            self._report.add(self._blamed(), f"the files cannot be combined: {error}", remedy)
        self._result.assignments.extend(flags.assignments)
        for slot in SLOTS:
            if slot not in self._result.variants and self._result.complete:
                what = f"no file says which class the section {slot} has"
                remedy = "Start its file with defaults: [NAME_schema, _self_]"
                self._report.add(display(conf_dir() / slot), what, remedy, slot)
                self._result.complete = False
        return self._result

    def _usable(self, config_dir: Path | None) -> Path | None:
        """The user's folder as an absolute path, if it is one."""
        if config_dir is None:
            return None
        flag = f"--config-dir {config_dir}"
        if not is_dir(config_dir):
            self._report.add(flag, "is not a folder", "Give a folder with recipes or groups")
            self._result.complete = False
            return None
        shipped = config_groups([conf_dir()])
        for group, choices in config_groups([config_dir]).items():
            for choice in choices:
                if choice in shipped.get(group, []):
                    what = f"{group}={choice} is the name of a choice that comes with rlrun"
                    file = config_dir / group / f"{choice}.yaml"
                    self._report.add(display(file), what, "Rename the file")
        return config_dir.resolve()

    def _note_mistakes(self, file: YamlFile) -> None:
        for mistake in file.mistakes:
            self._report.add(mistake.where, mistake.what, mistake.remedy)
        self._result.complete &= file.complete

    def _announce(self, group: str, name: str) -> None:
        """Tells Hydra of a choice and of everything that its defaults list leads to."""
        file = self._file(group, name)
        if file is None or (group, name) in self._announced:
            return
        self._note_mistakes(file)
        self._announced[group, name] = Announced.of(group, name, file)
        for item in file.defaults:
            if item.choice is None:
                continue
            inner = group if item.group is None else item.group
            if not inner.startswith("/") and item.group is not None and group:
                inner = f"{group}/{inner}"
            self._announce(inner.lstrip("/"), item.choice)

    def _recipe(self, flags: Flags) -> list[str]:
        """Stores the chosen recipe, and those it builds on, where Hydra finds them."""
        if not flags.recipes:
            return []
        choice = flags.recipes[0]
        path = self._find(choice, recipe_folders(self._config_dir))
        if path is None:
            return []
        self._result.recipe = recipe_name(path)
        name = self._store(path, choice.where, ())
        return [] if name is None else [f"+recipe={name}"]

    def _find(self, choice: Choice, folders: list[Path]) -> Path | None:
        path = find_recipe(choice.name, folders)
        if path is None:
            self._result.complete = False
            problem = no_recipe(choice.where, choice.name, self._config_dir)
            self._report.add(problem.where, problem.what, problem.remedy)
        return path

    def _store(self, path: Path, where: str, above: tuple[Path, ...]) -> str | None:
        """The name under which Hydra knows a recipe file from now on; None if it has none."""
        path = path.resolve()
        name = self._names.setdefault(path, f"recipe_{len(self._names)}")
        if path in above:
            self._report.add(where, f"{display(path)} builds on itself", "Take the item out")
            return None
        file = read_yaml(path)
        self._note_mistakes(file)
        if file.package not in (None, "_global_"):
            what = f"# @package {file.package} has no effect: a recipe is a whole run"
            self._report.add(file.where(1), what, "Take the line out, and write whole keys")
        self._recipes[name] = file
        layers, choices = list[Item](), list[Item]()
        for item in file.defaults:
            if item.choice == "_self_" and "_self_" in layers:
                what = "_self_ is given twice in the defaults list"
                self._report.add(file.where(item.line), what, "Keep one of the two")
            elif item.group is None or item.group.strip("/") == "recipe":
                layers += self._base(file, item, (*above, path))
            else:
                choices += self._item(file, item)
        if "_self_" not in layers:
            layers.append("_self_")
        self._announced["recipe", name] = Announced("recipe", name, (*layers, *choices))
        # Those that it builds on come before it.
        self._recipes[name] = self._recipes.pop(name)
        return name

    def _base(self, file: YamlFile, item: DefaultsItem, above: tuple[Path, ...]) -> list[Item]:
        if item.choice == "_self_":
            return ["_self_"]
        where = file.where(item.line)
        folder = file.path.resolve().parent
        name = item.choice or ""
        if name.endswith((".yaml", ".yml")):
            name = str(folder / expand(name))
        path = self._find(
            Choice("recipe", name, where), [folder, *recipe_folders(self._config_dir)]
        )
        stored = None if path is None else self._store(path, where, above)
        return [] if stored is None else [stored]

    def _item(self, file: YamlFile, item: DefaultsItem) -> list[Item]:
        """A choice in a recipe's defaults list as Hydra takes it, with the scale set aside."""
        group, where = (item.group or "").lstrip("/"), file.where(item.line)
        choice = Choice(group, str(item.choice), where)
        if group not in self._groups:
            remedy = f"The nearest group is {nearest(group, self._groups)[0]}"
            self._report.add(where, f"there is no config group {group}", remedy)
        elif choice.name not in self._groups[group]:
            unknown_choice(choice, self._groups[group], self._report)
            self._result.doubtful.add(group)
        elif group == "scale":
            self._scale = choice
        elif self._has_default(group) and not item.override:
            what = f"{group} has a choice already"
            self._report.add(where, what, f"Write - override /{group}: {choice.name}")
        else:
            self._announce(group, choice.name)
            return [(f"override /{group}" if item.override else f"/{group}", choice.name)]
        return []

    def _has_default(self, group: str) -> bool:
        return any(item.group == group for item in self._run_file.defaults)

    def _choices(self, flags: Flags) -> list[str]:
        """The command line's choices; the scale last, so that it comes after the recipe."""
        chosen = [choice for choice in flags.choices if choice.group != "scale"]
        for choice in flags.choices:
            if choice.group == "scale":
                self._scale = choice
        scale = FULL_SCALE if self._scale is None else self._scale.name
        self._result.flagged = {choice.group for choice in chosen}
        for choice in self._overlay(scale):
            if choice.group not in self._result.flagged:
                chosen.append(choice)
                self._result.rescaled.add(choice.group)
        overrides = list[str]()
        for choice in chosen:
            self._announce(choice.group, choice.name)
            plus = "" if self._has_default(choice.group) else "+"
            overrides.append(f"{plus}{choice.group}={choice.name}")
        return [*overrides, f"+scale={scale}"]

    def _overlay(self, scale: str) -> list[Choice]:
        """Tells Hydra of a scale: conf/scale/SCALE.yaml, then what the recipes say of it.

        That is RECIPE.SCALE.yaml beside the recipe, of the one that it builds on first.

        Returns:
            The choices of groups in their defaults lists. They count as if they came from the
            command line, since a recipe's own choices would otherwise win.
        """
        common = self._file("scale", scale)
        files = {scale: common} if common is not None else {}
        for name, recipe in self._recipes.items():
            path = recipe.path.with_name(f"{recipe.path.stem}.{scale}.yaml")
            if path.is_file():
                files[f"{name}_{scale}"] = read_yaml(path)
        choices = dict[str, Choice]()
        for file in files.values():
            self._note_mistakes(file)
            for item in file.defaults:
                choice = None if item.choice == "_self_" else self._overlay_choice(file, item)
                if choice is not None:
                    choices[choice.group] = choice
        for name in files:
            layers = ("_self_", *list(files)[1:]) if name == scale else ()
            self._announced["scale", name] = Announced("scale", name, layers)
        self._overlays = files
        return list(choices.values())

    def _overlay_choice(self, file: YamlFile, item: DefaultsItem) -> Choice | None:
        group, where = (item.group or "").lstrip("/"), file.where(item.line)
        choice = Choice(group, str(item.choice), where)
        if group not in self._groups or group == "scale" or not item.override:
            self._report.add(
                where,
                f"a scale cannot have {group or item.choice} in its defaults list",
                "Write - override /GROUP: CHOICE",
            )
        elif choice.name not in self._groups[group]:
            unknown_choice(choice, self._groups[group], self._report)
            self._result.doubtful.add(group)
        else:
            return choice
        return None

    def _blamed(self) -> str:
        files = list(self._recipes.values())
        if files:
            return display(files[0].path)
        return display(self._config_dir or conf_dir())

    def _read(self, layer: Layer) -> None:
        if layer.name.endswith(SCHEMA_SUFFIX):
            self._result.variants[layer.group] = layer.name.removesuffix(SCHEMA_SUFFIX)
            return
        if layer.group == "recipe":
            file: YamlFile | None = self._recipes[layer.name]
        elif layer.group == "scale":
            file = self._overlays[layer.name]
        else:
            file = self._file(layer.group, layer.name)
        assert file is not None, "Hydra names only what it was told of"
        kind, shown = self._kind(layer), display(file.path)
        self._result.assignments.extend(
            Assignment((*layer.section, *entry.path), entry.value, kind, f"{shown}:{entry.line}")
            for entry in file.entries
        )

    def _file(self, group: str, name: str) -> YamlFile | None:
        files = [folder / group / f"{name}.yaml" for folder in self._folders]
        return next((read_yaml(file) for file in files if file.is_file()), None)

    def _kind(self, layer: Layer) -> OriginKind:
        if layer.group in ("recipe", "scale"):
            return OriginKind(layer.group)
        chosen = [(item.group, item.choice) for item in self._run_file.defaults]
        if not layer.group or (layer.group, layer.name) in chosen:
            return OriginKind.DEFAULT
        return OriginKind.GROUP
