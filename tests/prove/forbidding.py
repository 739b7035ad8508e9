"""`python -m tests.prove.forbidding COMMAND...`: run a command where seccomp is refused, as some containers do it.

A seccomp filter says so itself: it lets seccomp(2), and prctl(2) for a filter, fail with EPERM.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_NUMBERS = {"x86_64": (317, 157), "aarch64": (277, 167)}  # of seccomp(2) and prctl(2)
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_GO, _EPERM = 0x7FFF0000, 0x00050000 | 1


def forbid() -> None:
    """Have the kernel refuse seccomp to this process, and to all that it starts."""
    seccomp, prctl = _NUMBERS[platform.machine()]
    lines = [
        (0x20, 0, 0, 0),
        (0x15, 3, 0, seccomp),
        (0x15, 0, 3, prctl),
        (0x20, 0, 0, 16),
        (0x15, 0, 1, _SET_SECCOMP),
        (0x06, 0, 0, _EPERM),
        (0x06, 0, 0, _GO),
    ]
    program = b"".join(struct.pack("HBBI", *line) for line in lines)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0):
        raise OSError(ctypes.get_errno(), "the filter is refused")


if __name__ == "__main__":
    forbid()
    os.execv(sys.argv[1], sys.argv[1:])
