"""Whether a process may be forked: its script may have left what forks would share or lack, where ranks would not.

Each rank that runs the script by itself has threads, locks, file positions and child processes of its own. Forks have
no thread but one. They share the locks: one that is killed while it holds a lock would stop all others.
"""

from __future__ import annotations

import _ctypes
import _io
import _signal  # type: ignore[import-not-found]
import errno
import os
import posix
import select
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PF_EXITING = 0x4  # flag of a thread in /proc: it is ending, and runs no code of the process any more
_open = _io.open  # the script may have put something else in place of `builtins.open`
_FORK = _ctypes.dlsym(_ctypes.dlopen(None, 0), "fork")  # type: ignore[arg-type]
FORK_DETECTOR = 2 * os.sysconf("SC_PAGE_SIZE")  # bytes that a library may have for that: see `unforkable_memory`
EPOLL = "anon_inode:[eventpoll]"
FORK_SAFE = ("jemalloc_bg_thd",)  # threads whose library stops them for a fork, and starts them again when needed


def why_unsafe(own_files: set[int], own_child: int = 0, starters: Sequence[str] = ()) -> str:
    """Return why this process must not be forked; empty if it may be. It is forked once to find out.

    `own_files` and `own_child` (a process id) belong to flowdist. `starters` are modules whose imports began threads.
    """
    is_blocked = _signal.SIGCHLD in _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    if is_blocked or _signal.getsignal(_signal.SIGCHLD) != _signal.SIG_DFL:
        return "it handles SIGCHLD"
    if memory := unforkable_memory("/proc/self/smaps"):
        return memory
    if children() - {own_child}:
        return "it has started a process"
    for fd in sorted(open_files() - own_files - {0, 1, 2}):
        try:
            target = posix.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if not is_shareable(fd, target):
            return f"it has opened {target}"
    if has_timer():
        return "it has set a timer"
    # Libraries with a fork handler, such as OpenBLAS, stop their threads at this fork.
    pid = fork()
    if pid == 0:
        posix._exit(0)
    posix.waitpid(pid, 0)
    names = [name for name in running_threads("/proc/self/task", posix.getpid()) if name not in FORK_SAFE]
    count = f"{len(names)} thread{'s' if len(names) > 1 else ''}"
    since = f" since it imported {', '.join(starters)}" if starters else ""
    return f"it has left {count} running ({', '.join(names)}){since}" if names else ""


def fork() -> int:
    """Fork as the C library does: for Python and the script nothing happens.

    os.fork would call what is registered with os.register_at_fork. That resets locks, which the script may hold here,
    as a handler of logging does that opens its file. There is one thread, and it goes on where it is. OSError if the
    system allows no more processes.
    """
    pid: int = _ctypes.call_function(_FORK, ())
    if pid < 0:
        raise BlockingIOError(errno.EAGAIN, "no more processes can be forked")
    return pid


def is_shareable(fd: int, target: str) -> bool:
    """Return whether forks may have a descriptor: a file that is only read, or only appended to, or a plain device."""
    mode = posix.fstat(fd).st_mode
    if stat.S_ISCHR(mode):
        return not target.startswith("/dev/nvidia")
    if target == EPOLL:
        return True
    flags = _flags(fd)
    return stat.S_ISREG(mode) and (flags & os.O_ACCMODE == os.O_RDONLY or bool(flags & os.O_APPEND))


def copied_files() -> list[list[int]]:
    """Return the descriptors of each file that is read, those together that have been copied and share a position.

    A position is moved for a moment to find that out: no fork may use one of these files meanwhile.
    """
    groups: list[list[int]] = []
    for fd in sorted(open_files() - {0, 1, 2}):
        if not stat.S_ISREG(posix.fstat(fd).st_mode) or _flags(fd) & os.O_ACCMODE != os.O_RDONLY:
            continue
        for group in groups:
            if _have_one_position(fd, group[0]):
                group.append(fd)
                break
        else:
            groups.append([fd])
    return groups


def _have_one_position(one: int, other: int) -> bool:
    """Return whether two descriptors are copies of one: what is read by one moves the position of the other."""
    if posix.readlink(f"/proc/self/fd/{one}") != posix.readlink(f"/proc/self/fd/{other}"):
        return False
    try:
        at = posix.lseek(one, 0, os.SEEK_CUR)
        if posix.lseek(other, 0, os.SEEK_CUR) != at:
            return False
        posix.lseek(one, at + 1, os.SEEK_SET)
        is_same = posix.lseek(other, 0, os.SEEK_CUR) != at
        posix.lseek(one, at, os.SEEK_SET)
    except OSError:
        return False  # it has no position
    return is_same


def reopen(copied: list[list[int]]) -> None:
    """In a fork, give each file that is read a position of its own, as a process has that has opened it itself.

    An epoll object, as asyncio has one, is replaced by one of this process. `copied` is from before the fork.
    """
    for group in copied:
        try:
            at = posix.lseek(group[0], 0, os.SEEK_CUR)
            again = posix.open(f"/proc/self/fd/{group[0]}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # it has no position, or cannot be opened again: that position stays shared
        posix.lseek(again, at, os.SEEK_SET)
        for fd in group:
            posix.dup2(again, fd, inheritable=posix.get_inheritable(fd))
        posix.close(again)
    for fd in open_files() - {0, 1, 2}:
        try:
            if posix.readlink(f"/proc/self/fd/{fd}") == EPOLL:
                _renew_epoll(fd)
        except OSError:
            continue  # what it waits for is gone: it stays shared


def _renew_epoll(fd: int) -> None:
    new = select.epoll()
    for words in (line.split() for line in _info(fd)):
        if words[0] == "tfd:":
            new.register(int(words[1]), int(words[3], 16))
    posix.dup2(new.fileno(), fd, inheritable=False)
    new.close()


def unforkable_memory(smaps: str) -> str:
    """Return which memory of a process its forks would share, or would not have; empty if there is none.

    The semaphores of multiprocessing's locks are shared memory. MADV_DONTFORK takes memory from forks, MADV_WIPEONFORK
    what is in it: libraries for cryptography have a page like that, by which they find out that they were forked.
    """
    name, size = "", 0
    with _open(smaps, errors="replace") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            if fields[0] == "VmFlags:":
                flags = line.split()
                if "dc" in flags or ("wf" in flags and size > FORK_DETECTOR):
                    return f"it has memory that forks do not get ({name})"
            elif not fields[0].endswith(":"):
                name = fields[5].rstrip("\n") if len(fields) > 5 else "anonymous"
                start, end = (int(address, 16) for address in fields[0].split("-"))
                size = end - start
                if fields[1].startswith("rw") and fields[1].endswith("s"):
                    return f"it has made memory that processes share ({name})"
    return ""


def children() -> set[int]:
    """Return the process ids of the children of this process, running or not reaped yet."""
    me = posix.getpid()
    with _open(f"/proc/{me}/task/{me}/children") as file:
        return {int(pid) for pid in file.read().split()}


def has_timer() -> bool:
    """Return whether a timer of `signal.setitimer` or `signal.alarm` runs, which forks would not have."""
    signal = sys.modules.get("_signal")
    kinds = (0, 1, 2)
    return signal is not None and any(signal.getitimer(kind)[0] > 0 for kind in kinds)


def running_threads(tasks: str, pid: int) -> list[str]:
    """Return the names of the threads in `/proc/PID/task` that run beside the main thread, whose id is `pid`.

    A thread that is ending does not count: joining a thread may return a moment before the kernel removes the thread
    from the list.
    """
    names = []
    for task in posix.listdir(tasks):
        try:
            with _open(f"{tasks}/{task}/stat", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:
            continue  # the thread has ended
        fields = rest.split()
        if task != str(pid) and fields[0] not in "ZX" and not int(fields[6]) & PF_EXITING:
            names.append(name)
    return names


def open_files() -> set[int]:
    """Return the numbers of the descriptors that are open in this process."""
    found = set()
    for name in posix.listdir("/proc/self/fd"):
        try:
            posix.fstat(int(name))
        except OSError:
            continue  # the descriptor of the listing itself is closed by now
        found.add(int(name))
    return found


def _flags(fd: int) -> int:
    return next(int(line.split()[1], 8) for line in _info(fd) if line.startswith("flags:"))


def _info(fd: int) -> list[str]:
    with _open(f"/proc/self/fdinfo/{fd}") as info:
        return list(info)
