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
ENV_START, ENV_END = 47, 48  # fields of /proc/self/stat behind the name of the program (proc(5), 50 and 51)


class ShownEnvironment:
    """Places of VARIABLE and PYTHONPATH in the memory of this process. Forks have them at the same place.

    Args:
        pythonpath: The user's own PYTHONPATH, in place of the prefix's; none if it is unset.
    """

    def __init__(self, pythonpath: dict[str, str]) -> None:
        self._pythonpath = pythonpath
        self._places: dict[bytes, tuple[int, int]] = {}  # address and size, by name
        try:
            with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  # pathlib is not imported here
                fields = file.read().rpartition(b")")[2].split()
            start, end = int(fields[ENV_START]), int(fields[ENV_END])
            memory = posix.open(MEMORY, os.O_RDONLY | os.O_CLOEXEC)
            block = posix.pread(memory, end - start, start)
            posix.close(memory)
        except OSError:
            return  # a system without these files: workers show the variables of the prefix
        for name in (os.fsencode(VARIABLE), b"PYTHONPATH"):
            at = (b"\0" + block).find(b"\0" + name + b"=")
            if at >= 0:
                self._places[name] = start + at, block.index(b"\0", at) - at

    def give(self, values: dict[str, str]) -> None:
        """Have this process, a worker, show its variables; do nothing if there is no room for them.

        Args:
            values: The variables that differ from rank to rank or from start to start.
        """
        try:
            memory = posix.open(MEMORY, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        texts = zip((os.fsencode(VARIABLE), b"PYTHONPATH"), (values, self._pythonpath), strict=True)
        for name, shown in texts:
            text = b"\0".join(os.fsencode(f"{key}={value}") for key, value in shown.items())
            address, size = self._places.get(name, (0, 0))
            if len(text) <= size:
                posix.pwrite(memory, text.ljust(size, b"\0"), address)
        posix.close(memory)
