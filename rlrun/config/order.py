# SPDX-License-Identifier: Apache-2.0
"""Asks Hydra which files make a run, and in which order.

Hydra sees the defaults list of each file and nothing else: reading its values is not its business
here, and reading files twice would double the time that a command takes to start.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from hydra import initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.yaml_file import DefaultsItem, YamlFile

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


Item = str | tuple[str, str | None] | None
"""An item of a defaults list as Hydra writes it: a name, or a group with its choice."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What Hydra is told of a file.

    Attributes:
        group: Its config group; "" for run.yaml.
        name: Its name in the group.
        defaults: Its defaults list.
        package: Its package header.
    """

    group: str
    name: str
    defaults: tuple[Item, ...] = ()
    package: str | None = "_global_"

    @classmethod
    def of(cls, group: str, name: str, file: YamlFile) -> Announced:
        """As the file says."""
        return cls(group, name, tuple(map(_as_hydra, file.defaults)), file.package)


def announce(file: Announced) -> None:
    """Tells Hydra of a file."""
    defaults = [dict([item]) if isinstance(item, tuple) else item for item in file.defaults]
    node = {"defaults": defaults} if defaults else {}
    store = ConfigStore.instance()
    store.store(group=file.group or None, name=file.name, package=file.package, node=node)


def _as_hydra(item: DefaultsItem) -> Item:
    if item.group is None:
        return item.choice
    return (f"override {item.group}" if item.override else item.group, item.choice)


@lru_cache(maxsize=64)
def layers_of_run(files: tuple[Announced, ...], overrides: tuple[str, ...]) -> tuple[Layer, ...]:
    """What the run is composed of, the weakest first.

    It is most of the time that a configuration takes, and depends on no value: a further
    configuration of the same files has it from before.

    Args:
        files: All that defaults lists and overrides lead to.
        overrides: Choices of groups.

    Raises:
        Uncombinable: It cannot be done.
    """
    try:
        for file in files:
            announce(file)
        with initialize(config_path=None, version_base="1.3", job_name="rlrun"):
            loader = GlobalHydra.instance().config_loader()
            found = loader.compute_defaults_list(RUN, list(overrides), RunMode.RUN)
    except (HydraException, OmegaConfBaseException) as error:
        raise Uncombinable(" ".join(str(error).split())) from error
    layers = []
    for default in found.defaults:
        section = tuple(default.package.split(".")) if default.package else ()
        if section[:1] != ("hydra",):
            group, _, name = (default.config_path or "").rpartition("/")
            layers.append(Layer(group, name, section))
    return tuple(layers)
