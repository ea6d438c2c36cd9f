# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.env.children import Children
from rlrun.env.confine import clean_environment

TRY = """
import os, resource, socket, subprocess, sys
from rlrun.env.confine import confine
print(confine())
for attempt in (
    lambda: socket.socket(),
    lambda: socket.socketpair(),
    lambda: socket.create_connection(("127.0.0.1", 9)),
    lambda: subprocess.run([sys.executable, "-c", ""]),
    lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
    lambda: open(sys.argv[1], "wb", buffering=0).write(b"x"),
):
    try:
        attempt()
        print("done")
    except OSError as error:
        print(error.errno)
print(sum(range(10)), len(open(sys.argv[2]).read()) > 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is one of Linux")
def test_a_confined_process_has_no_network_starts_nothing_and_writes_nothing(
    tmp_path: Path,
) -> None:
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path / "file"), __file__],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    can, *refused, still = done.stdout.split("\n")[:-1]
    assert can == "True"
    assert refused == ["1", "1", "1", "1", "1", "27"]
    assert still == "45 True"


def test_verifier_children_see_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    pool = Children(1, 5.0, 1024)
    try:
        assert pool.ask({"gold": "2\\sqrt{3}", "answer": "\\sqrt{12}"}).fields == {"equal": True}
        (child,) = pool._all
        seen = Path(f"/proc/{child.process.pid}/environ").read_bytes()
        status = Path(f"/proc/{child.process.pid}/status").read_text()
        limits = Path(f"/proc/{child.process.pid}/limits").read_text()
    finally:
        pool.close()
    assert b"PYTHONPATH" in seen
    assert b"secret" not in seen
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    unlimited = [line for line in limits.splitlines() if "Max address space" in line]
    assert "unlimited" not in unlimited[0]


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "https_proxy", "SSH_AUTH_SOCK"]
)
def test_variables_that_may_hold_keys_are_not_passed_on(name: str) -> None:
    assert clean_environment({name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}
