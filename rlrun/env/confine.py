# SPDX-License-Identifier: Apache-2.0
"""Limits that a process puts on itself before it looks at anything that a model wrote.

All are kept by the kernel and cannot be taken back. Resource limits hold on every Unix; the filter
of system calls (no sockets, no other programs, no tracing) on Linux for x86-64 and arm64 alone.
What is not prevented: reading files that the user may read, and threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Mapping

_PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")
_PASSED_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "PYTHON", "COVERAGE_")

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    # socket, connect, bind, listen, socketpair, fork, vfork, execve, ptrace, io_uring_setup,
    # execveat, process_vm_readv, process_vm_writev
    "x86_64": (41, 42, 49, 50, 53, 57, 58, 59, 101, 425, 322, 310, 311),
    # socket, socketpair, bind, listen, connect, execve, ptrace, io_uring_setup, execveat,
    # process_vm_readv, process_vm_writev
    "aarch64": (198, 199, 200, 201, 203, 221, 117, 425, 281, 270, 271),
}
_X32_BIT = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCH_AT = 0, 4


def clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a child needs: none that could hold a key or a password."""
    return {
        name: value
        for name, value in variables.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }


def limit_resources() -> None:
    """No file is written, none is left by a crash, and no process is started, from here on.

    The limit of processes does not hold for root, for whom the filter of system calls does.
    """
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))


def refuse_network() -> bool:
    """Makes the system calls for sockets and for starting programs fail with EPERM.

    Returns:
        Whether this system can; where not, the process is confined by its limits alone.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _AUDIT_ARCH:
        return False
    program = _filter(machine)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a count, padding, and the address of the instructions.
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    prctl = libc.prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    described = ctypes.create_string_buffer(head, len(head))
    address = ctypes.addressof(described)
    return bool(prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address, 0, 0) == 0)


def _filter(machine: str) -> bytes:
    """Instructions of the kernel's packet filter, 8 bytes each, over struct seccomp_data."""
    refused = _REFUSED[machine]
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    code = [
        _instruction(_LOAD, _ARCH_AT),
        _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        refuse,
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, len(refused) + 1, 0),
    ]
    for place, number in enumerate(refused):
        code.append(_instruction(_JUMP_EQUAL, number, len(refused) - place, 0))
    return b"".join([*code, _instruction(_RETURN, _ALLOW), refuse])


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def confine() -> bool:
    """``limit_resources`` and ``refuse_network``; whether the latter was possible."""
    limit_resources()
    return refuse_network()


def passed_environment(**more: str) -> dict[str, str]:
    """The environment of a child, with further variables."""
    return {**clean_environment(os.environ), **more}
