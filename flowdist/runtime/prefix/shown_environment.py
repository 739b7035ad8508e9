"""The variables of a process in /proc/PID/environ: those that it was started with, where the kernel has put them.

A fork shows those of its template. Tools that look a worker up by its RANK, and scripts that read /proc/self/environ,
expect the worker's own. So the prefix is started with a variable that has room for them, and each worker writes its
variables there. Nothing else points to that text: the variable is unset before the script begins.
"""

from __future__ import annotations

import os
import posix

from flowdist.runtime.prefix.link import VARIABLE

MEMORY = "/proc/self/mem"
REST = b"FLOWDIST_ROOM="  # of the place: an empty entry would end the list for many readers
ENV_START, ENV_END = 47, 48  # fields of /proc/self/stat behind the name of the program (proc(5), 50 and 51)


class ShownEnvironment:
    """Place of PYTHONPATH and VARIABLE, one after the other, in the memory of this process and of its forks.

    Args:
        pythonpath: The user's own PYTHONPATH, in place of the prefix's; none if it is unset.
    """

    def __init__(self, pythonpath: dict[str, str]) -> None:
        self._pythonpath = pythonpath
        self._address = self._size = 0
        try:
            with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  # pathlib is not imported here
                fields = file.read().rpartition(b")")[2].split()
            start, end = int(fields[ENV_START]), int(fields[ENV_END])
            memory = posix.open(MEMORY, os.O_RDONLY | os.O_CLOEXEC)
            block = posix.pread(memory, end - start, start)
            posix.close(memory)
        except OSError:
            return  # a system without these files: workers show the variables of the prefix
        at = block.rfind(b"\0PYTHONPATH=") + 1
        if at and block.endswith(b"\0") and block.count(b"\0", at) == 2 and os.fsencode(VARIABLE) in block[at:]:
            self._address, self._size = start + at, len(block) - at - 1

    def give(self, values: dict[str, str]) -> None:
        """Have this process, a worker, show its variables; do nothing if there is no room for them.

        Args:
            values: The variables that differ from rank to rank or from start to start.
        """
        shown = [os.fsencode(f"{name}={value}") for name, value in {**self._pythonpath, **values}.items()]
        text = b"\0".join([*shown, REST])
        if len(text) <= self._size:
            try:
                memory = posix.open(MEMORY, os.O_RDWR | os.O_CLOEXEC)
                posix.pwrite(memory, text.ljust(self._size), self._address)
                posix.close(memory)
            except OSError:
                return
