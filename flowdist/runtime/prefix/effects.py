"""Acts of a program on the world, as audit events, and those that a library only tries while it is imported."""

from __future__ import annotations

import os
import posix

from flowdist.runtime.prefix import caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Audit events (docs.python.org/3/library/audit_events.html) by which a program acts on the world.
ON_FILES = frozenset(
    [
        *("os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"),
        *("os.utime", "os.setxattr", "os.removexattr", "os.lockf", "fcntl.flock", "fcntl.lockf"),
    ]
)
TEMPORARY = frozenset({"tempfile.mkstemp", "tempfile.mkdtemp"})
EFFECTS = (ON_FILES | TEMPORARY).union(
    ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "urllib.Request"),
    ("subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system"),
    ("os.kill", "os.killpg", "signal.pthread_kill"),
    ("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"),  # else they would see flowdist's frames
    ("sqlite3.connect", "pty.spawn", "builtins.input", "builtins.breakpoint"),
)
# The same for the user's code alone: libraries try at their import which kinds of sockets there are.
EFFECTS_OF_USER = frozenset({"socket.__new__", "socket.bind", "ctypes.dlsym"})


class Scratch:
    """Temporary files and folders that libraries have made while they were imported, to try something there."""

    def __init__(self) -> None:
        self._paths: list[str] = []

    def is_tried(self, event: str, args: tuple[Any, ...], *, may_begin: bool) -> bool:
        """Return whether an event is a library's at its import, in a temporary folder that it has made for that.

        A function of a library makes such a folder, if one `may_begin`, and removes it. What the module itself makes,
        it keeps.
        """
        if event in TEMPORARY:
            is_new = may_begin and caller.is_import() and not caller.is_module("/tempfile.py")
            if is_new:
                self._paths.append(os.fsdecode(args[0]))
            return is_new
        if not self._paths or (event not in ON_FILES and event != "os.mkdir"):
            return False
        paths = [os.fsdecode(arg) for arg in args if isinstance(arg, (str, bytes)) or hasattr(arg, "__fspath__")]
        try:  # of a descriptor, if there is one: of the file itself, or of the folder that its path begins in
            base = posix.readlink(f"/proc/self/fd/{args[-1] if paths else args[0]}")
        except OSError:
            base = posix.getcwd()
        return all((path if path.startswith("/") else f"{base}/{path}") in self for path in paths or [""])

    def __contains__(self, path: str) -> bool:
        return any(path == each or path.startswith(each + "/") for each in self._paths)

    def why_unsafe(self) -> str:
        """Return why workers must not be forked: a library has kept such a folder; empty if none has."""
        kept = (path for path in self._paths if exists(path))
        return next((f"a library has made {path} at its import, and keeps it" for path in kept), "")


def exists(path: str) -> bool:
    """Return whether there is something at a path, which may be a link that leads nowhere."""
    try:
        posix.lstat(path)
    except OSError:
        return False
    return True
