# SPDX-License-Identifier: Apache-2.0
"""Asks Hydra which files make a run, and in which order.

Hydra sees the defaults list of each file and nothing else: reading its values is not its business
here, and reading files twice would double the time that a command takes to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydra import initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.yaml_file import DefaultsItem

RUN = "run"
"""The file that everything starts from."""


class Uncombinable(Exception):
    """The defaults lists contradict each other."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One file of a run.

    Attributes:
        group: Its config group; "" for run.yaml.
        name: Its name in the group.
        section: The section that its keys belong to.
    """

    group: str
    name: str
    section: tuple[str, ...]


def announce(group: str, name: str, defaults: Sequence[object], package: str | None = None) -> None:
    """Tells Hydra of a file: of its defaults list, as Hydra writes it, and its package header."""
    node = {"defaults": list(defaults)} if defaults else {}
    store = ConfigStore.instance()
    store.store(group=group or None, name=name, package=package, node=node)


def as_hydra(item: DefaultsItem) -> object:
    """An item of a defaults list as Hydra writes it."""
    if item.group is None:
        return item.choice
    return {f"override {item.group}" if item.override else item.group: item.choice}


def layers_of_run(overrides: list[str]) -> list[Layer]:
    """What the run is composed of, the weakest first, of what has been announced.

    Args:
        overrides: Choices of groups.

    Raises:
        Uncombinable: It cannot be done.
    """
    try:
        with initialize(config_path=None, version_base="1.3", job_name="rlrun"):
            loader = GlobalHydra.instance().config_loader()
            found = loader.compute_defaults_list(RUN, overrides, RunMode.RUN)
    except (HydraException, OmegaConfBaseException) as error:
        raise Uncombinable(" ".join(str(error).split())) from error
    layers = []
    for default in found.defaults:
        section = tuple(default.package.split(".")) if default.package else ()
        if section[:1] != ("hydra",):
            group, _, name = (default.config_path or "").rpartition("/")
            layers.append(Layer(group, name, section))
    return layers
