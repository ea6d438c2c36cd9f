# SPDX-License-Identifier: Apache-2.0
"""Facts about the whole package on which docs/security.md rests."""

import ast
from collections.abc import Iterator
from pathlib import Path

import rlrun

PACKAGE = Path(rlrun.__file__).parent
PIPES = {
    "rlrun/generation/process_pipe.py",
    "rlrun/generation/process_child.py",
    "rlrun/env/reasoning_gym_worker.py",
}
"""Files that unpickle, and only what the other end of their own pipe sent."""


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """File, dotted name and node of every call in the package."""
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE.parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield file, ast.unparse(node.func), node


def keywords(call: ast.Call) -> dict[str | None, str]:
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def test_nothing_is_unpickled_but_from_pipes_of_our_own() -> None:
    loading = {"pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "shelve.open"}
    assert {file for file, name, _ in calls() if name in loading} == PIPES


def test_torch_loads_only_weights() -> None:
    loads = [call for _, name, call in calls() if name == "torch.load"]
    assert all(keywords(call).get("weights_only") == "True" for call in loads)


def test_no_model_brings_code() -> None:
    given = [keywords(call).get("trust_remote_code") for _, _, call in calls()]
    assert {value for value in given if value is not None} == {"False"}


def test_yaml_constructs_plain_values_alone() -> None:
    names = {name for _, name, _ in calls() if name.startswith("yaml.")}
    assert not names & {"yaml.unsafe_load", "yaml.full_load", "yaml.UnsafeLoader"}
    loads = [call for _, name, call in calls() if name == "yaml.load"]
    assert all(ast.unparse(call.args[1]) == "Loader" for call in loads)


def test_no_shell_is_started() -> None:
    for file, name, call in calls():
        assert name not in ("os.system", "os.popen", "subprocess.getoutput"), file
        assert keywords(call).get("shell", "False") == "False", file
