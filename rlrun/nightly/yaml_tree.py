# SPDX-License-Identifier: Apache-2.0
"""A YAML file as values that know their lines, names with dots and lists of mappings included."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from rlrun.config.paths import display
from rlrun.config.yaml_limits import Refused, check_size
from rlrun.config.yaml_loader import Loader
from rlrun.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file.

    Attributes:
        where: ``FILE:LINE``.
        value: A dict of nodes by name, a list of nodes, or a scalar.
    """

    where: str
    value: object

    def mapping(self) -> dict[str, Node]:
        """The values by name.

        Raises:
            ConfigError: It is not a mapping.
        """
        if not isinstance(self.value, dict):
            remedy = "Write one name: value per line, indented below it"
            raise ConfigError([Problem(self.where, "is not a mapping of names", remedy)])
        return self.value


def read_tree(path: Path) -> Node:
    """The whole file, which must be a mapping.

    Raises:
        ConfigError: It cannot be read, is not YAML, or gives a name twice.
    """
    shown = display(path)
    try:
        loader = Loader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if root is None:
            raise ConfigError([Problem(shown, "is empty", "Write a list of runs below runs:")])
        check_size(root)
        return _build(loader, root, shown)
    except Refused as error:
        problem = Problem(f"{shown}:{error.mark.line + 1}", error.what, error.remedy)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        problem = Problem(shown + line, f"is not valid YAML: {error.problem}", "Check indentation")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = Problem(shown, f"is not valid YAML: {error}", "Save it as UTF-8 text")
    except OSError as error:
        problem = Problem(shown, f"cannot be read: {error.strerror}", "Check the path")
    raise ConfigError([problem])


def _build(loader: Loader, node: yaml.Node, file: str) -> Node:
    where = f"{file}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode):
        return Node(where, [_build(loader, item, file) for item in node.value])
    if not isinstance(node, yaml.MappingNode):
        return Node(where, loader.construct_object(node))
    values: dict[str, Node] = {}
    for key, value in node.value:
        line = f"{file}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise ConfigError([Problem(line, "a key is not a name", "Write name: value")])
        if key.value in values:
            raise ConfigError([Problem(line, f"{key.value} is given twice", "Keep one of the two")])
        # The line of the name says more than that of the value, which may begin below it.
        values[key.value] = Node(line, _build(loader, value, file).value)
    return Node(where, values)
