"""The calls of a process that change files: stopped by the kernel before they happen, and shown to another process.

A process installs a seccomp filter that sends each such call, and its own end, to a listener (`seccomp(2)`,
SECCOMP_RET_USER_NOTIF, Linux 5.14 or newer). The call waits until the listener answers. No root, no ptrace and no
compiler are needed, calls of C++ libraries are seen as well as Python's, and threads and children inherit the filter.

The listener may kill the process *before* the call, or carry out the call itself and kill the process *after* it: the
process then never learns that it was done.

A file that is to be watched is opened by the listener, who puts its descriptor into the process with a number from
`WATCHED_FD` on. Calls on lower descriptors go on without a stop: sockets, to which collectives write dozens of times in
each step, pipes, logs. Not seen: writes to mapped memory, and io_uring.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import itertools
import os
import platform
import select
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

_X86_64 = {
    "write": 1, "pwrite64": 18, "writev": 20, "pwritev": 296, "pwritev2": 328, "open": 2, "creat": 85, "openat": 257,
    "openat2": 437, "rename": 82, "renameat": 264, "renameat2": 316, "unlink": 87, "unlinkat": 263, "rmdir": 84,
    "fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77, "mkdir": 83, "mkdirat": 258, "link": 86,
    "linkat": 265, "symlink": 88, "symlinkat": 266, "sendfile": 40, "copy_file_range": 326, "fallocate": 285,
    "exit_group": 231,
}  # fmt: skip
_AARCH64 = {
    "write": 64, "pwrite64": 68, "writev": 66, "pwritev": 70, "pwritev2": 287, "openat": 56, "openat2": 437,
    "renameat": 38, "renameat2": 276, "unlinkat": 35, "fsync": 82, "fdatasync": 83, "truncate": 45, "ftruncate": 46,
    "mkdirat": 34, "linkat": 37, "symlinkat": 36, "sendfile": 71, "copy_file_range": 285, "fallocate": 47,
    "exit_group": 94,
}  # fmt: skip
_MACHINES = {"x86_64": (_X86_64, 0xC000003E, 317), "aarch64": (_AARCH64, 0xC00000B7, 277)}  # AUDIT_ARCH, seccomp(2)

_NO_NEW_PRIVS = 38
_SET_FILTER, _TSYNC_LISTENER = 1, 1 | 1 << 3 | 1 << 4  # all threads of the process, a listener, errors by errno
_KILLABLE = 1 << 5  # Linux 5.19: a signal that does not kill waits until the call was answered
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_SET_FLAGS, _SYNC_WAKE_UP = 0x40082104, 1  # Linux 6.6: whoever waits at the listener goes on at once
_ADD_FD, _SET_NUMBER, _ANSWER = 0x40182103, 1, 2  # Linux 5.14
_CONTINUE = 1
WATCHED_FD = 800  # flowdist's own descriptors in a worker begin at 700
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_AT_FDCWD = -100
_PAGE = 4096
_PATH_MAX = 4096

_NOTIFICATION = struct.Struct("QIIiIQ6Q")
_OPENS = ("open", "creat", "openat", "openat2")
_OF_DESCRIPTOR = frozenset(
    {
        *("write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync", "ftruncate"),
        *("sendfile", "copy_file_range", "fallocate"),
    }
)

COMMIT = "commit"  # the name of worker.commit(path), which is no call of the kernel, but changes what a restart reads
NOT_CARRIED_OUT = ("sendfile", "copy_file_range", "fallocate")  # calls that `carry_out` leaves undone
END = "exit"  # the name of the call by which a process ends


class Unsupported(OSError):
    """Error: this kernel or machine cannot stop a process at its file calls."""


def install() -> int:
    """Install the filter in this process, for good, and return the descriptor of its listener.

    Raises:
        Unsupported: The kernel refuses it, or the machine is neither x86-64 nor arm64.
    """
    numbers, architecture, seccomp = _machine()
    program = _program(numbers, architecture)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    for flags in (_TSYNC_LISTENER | _KILLABLE, _TSYNC_LISTENER):
        fd = int(libc.syscall(seccomp, _SET_FILTER, flags, header))
        if fd >= 0:
            break
    else:
        number = ctypes.get_errno()
        raise Unsupported(number, f"the kernel refuses to stop a process at its file calls: {os.strerror(number)}")
    return fd


@functools.cache
def _names() -> dict[int, str]:
    return {number: name for name, number in _machine()[0].items()}


def _machine() -> tuple[dict[str, int], int, int]:
    try:
        return _MACHINES[platform.machine()]
    except KeyError:
        raise Unsupported(errno.ENOSYS, f"no numbers of calls are known for {platform.machine()}") from None


def _program(numbers: dict[str, int], architecture: int) -> bytes:
    """Return the filter. Without a stop go on: calls that open a file to read it, and those on low descriptors."""
    flags = {numbers[name]: 16 + 8 * at for name, at in (("open", 1), ("openat", 2)) if name in numbers}
    on_descriptors = {
        numbers[name]: 16 + 16 * (name == "copy_file_range") for name in _OF_DESCRIPTOR if name in numbers
    }
    plain = [number for number in numbers.values() if number not in flags and number not in on_descriptors]
    stop, go = 0x7FC00000, 0x7FFF0000
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, go), (0x20, 0, 0, 0)]
    for number, offset in flags.items():
        program += [
            *[(0x15, 0, 4, number), (0x20, 0, 0, offset), (0x45, 0, 1, _CHANGES)],
            *[(0x06, 0, 0, stop), (0x06, 0, 0, go)],
        ]
    for number, offset in on_descriptors.items():
        program += [
            *[(0x15, 0, 4, number), (0x20, 0, 0, offset), (0x35, 0, 1, WATCHED_FD)],
            *[(0x06, 0, 0, stop), (0x06, 0, 0, go)],
        ]
    for number in plain:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, stop)]
    program.append((0x06, 0, 0, go))
    return b"".join(struct.pack("HBBI", *line) for line in program)


@dataclass(frozen=True, slots=True)
class Stop:
    """A process that waits in front of a call.

    `call` is its name, `path` the absolute one of the file, `target` the new one of a rename or link, and the text of a
    symlink. `size` is how many bytes a write has, and the exit code of an end. `flags` and
    `mode` are those of an open.
    """

    listener: int
    id: int
    tid: int
    call: str
    path: str
    target: str = ""
    size: int = 0
    flags: int = 0
    mode: int = 0
    args: tuple[int, ...] = ()

    def go_on(self, *, is_watched: bool = False) -> None:
        """Let the call happen. If it opens a file that `is_watched`, calls on it are stopped from now on."""
        if is_watched and self.call in _OPENS:
            self._open_watched()
            return
        with contextlib.suppress(OSError):  # the process was killed meanwhile
            fcntl.ioctl(self.listener, _SEND, struct.pack("QqiI", self.id, 0, 0, _CONTINUE))

    def _open_watched(self) -> None:
        """Open the file in place of the process, which gets a descriptor of a high number."""
        try:
            is_new = bool(self.flags & os.O_CREAT) and not Path(self.path).exists()
            fd = os.open(self.path, self.flags, self.mode)
            if is_new:
                os.fchmod(fd, self.mode & ~self._umask())  # the process's own: this one's is for all of its threads
        except OSError as error:
            self.refuse(error.errno or errno.EIO)
            return
        try:
            used = {int(name) for name in os.listdir(f"/proc/{self.tid}/fd")}  # noqa: PTH208  # quick
            number = next(each for each in itertools.count(WATCHED_FD) if each not in used)
            closes = os.O_CLOEXEC if self.flags & os.O_CLOEXEC else 0
            given = struct.pack("QIIII", self.id, _SET_NUMBER | _ANSWER, fd, number, closes)
            fcntl.ioctl(self.listener, _ADD_FD, given)
        except OSError:
            return  # the process was killed meanwhile
        finally:
            os.close(fd)

    def _umask(self) -> int:
        lines = Path(f"/proc/{self.tid}/status").read_text().splitlines()
        return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), 0)  # it is being killed

    def refuse(self, number: int) -> None:
        """Let the call fail with an error number."""
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.listener, _SEND, struct.pack("QqiI", self.id, 0, -number, 0))

    def carry_out(self, share: float = 1.0) -> None:
        """Do the call in place of the process, which is to be killed; of a write only a `share` of its bytes.

        The calls of `NOT_CARRIED_OUT` are not done, nor is fsync, which leaves nothing to see.
        """
        match self.call:
            case "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2":
                self._write(share)
            case "truncate" | "ftruncate":
                open_file = f"/proc/{self.tid}/fd/{self._fd}"
                os.truncate(open_file if self.call == "ftruncate" else self.path, self.args[1])
            case "open" | "creat" | "openat" | "openat2":
                os.close(os.open(self.path, self.flags, self.mode))
            case "rename" | "renameat" | "renameat2":
                Path(self.path).replace(self.target)
            case "unlink" | "unlinkat" | "rmdir":
                path = Path(self.path)
                (path.rmdir if stat.S_ISDIR(path.lstat().st_mode) else path.unlink)()
            case "mkdir" | "mkdirat":
                Path(self.path).mkdir()
            case "link" | "linkat":
                Path(self.target).hardlink_to(self.path)
            case "symlink" | "symlinkat":
                Path(self.path).symlink_to(self.target)
            case _:
                pass

    @property
    def _fd(self) -> int:
        return _signed(self.args[0])

    def _write(self, share: float) -> None:
        info = dict(line.split(":", 1) for line in Path(f"/proc/{self.tid}/fdinfo/{self._fd}").read_text().splitlines())
        data = self._data()
        data = data[: int(len(data) * share)]
        at = self.args[3] if self.call.startswith("pwrite") else int(info["pos"])
        fd = os.open(f"/proc/{self.tid}/fd/{self._fd}", os.O_WRONLY | int(info["flags"], 8) & os.O_APPEND)
        try:
            while data:
                done = os.pwrite(fd, data, at)
                data, at = data[done:], at + done
        finally:
            os.close(fd)

    def _data(self) -> bytes:
        if self.call in ("write", "pwrite64"):
            return _memory(self.tid, self.args[1], self.args[2])
        vector = _memory(self.tid, self.args[1], 16 * self.args[2])
        return b"".join(_memory(self.tid, *pair) for pair in struct.iter_unpack("QQ", vector))


def hasten(listener: int) -> None:
    """Have the kernel hand over to the listener's process at once when a call comes, where it can."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _SET_FLAGS, struct.pack("Q", _SYNC_WAKE_UP))


def receive(listener: int) -> Stop | None:
    """Return the next call that waits at a listener, or None if its process has ended meanwhile."""
    waits = select.poll()
    waits.register(listener, select.POLLIN)
    if not any(event & select.POLLIN for _, event in waits.poll(0)):
        return None  # a kernel before 6.11 would have this process wait for ever for one that has ended
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError:
        return None
    id, tid, _, number, _, _, *args = _NOTIFICATION.unpack(buffer)
    call = _names()[number]
    try:
        if call in _OF_DESCRIPTOR:
            fd = _signed(args[2 if call == "copy_file_range" else 0])
            path = os.readlink(f"/proc/{tid}/fd/{fd}")  # noqa: PTH115  # quick
            if not path.startswith("/"):
                return Stop(listener, id, tid, call, path)  # a socket: there are many
            stop = Stop(listener, id, tid, call, path, size=_size(tid, call, args), args=tuple(args))
        else:
            stop = _described(listener, id, tid, call, args)
        fcntl.ioctl(listener, _IS_VALID, struct.pack("Q", id))  # else what was read is another process's
    except OSError:
        # The call will fail by itself, as with a descriptor that is not open or a path at an address that is none.
        return Stop(listener, id, tid, call, "")
    return stop


def _size(tid: int, call: str, args: list[int]) -> int:
    """Return how many bytes a call writes; 0 for one that writes none."""
    if call in ("write", "pwrite64"):
        return args[2]
    if "writev" in call:
        return sum(length for _, length in struct.iter_unpack("QQ", _memory(tid, args[1], 16 * args[2])))
    return 0


def _described(listener: int, id: int, tid: int, call: str, args: list[int]) -> Stop:
    path, target, size, flags, mode = "", "", 0, 0, 0
    at = call.endswith("at") or call in ("renameat2", "openat2")
    match call:
        case "exit_group":
            call = END
            size = args[0] & 0xFF
        case "open" | "openat" | "openat2" | "creat":
            path = _path(tid, *_place(args, 0, at=at))
            if call == "openat2":
                flags, mode = struct.unpack("QQ", _memory(tid, args[2], 16))
            elif call == "creat":
                flags, mode = os.O_CREAT | os.O_WRONLY | os.O_TRUNC, args[1]
            else:
                flags, mode = args[2 if at else 1] & 0xFFFFFFFF, args[3 if at else 2] & 0o7777
        case "rename" | "renameat" | "renameat2" | "link" | "linkat":
            path, target = _path(tid, *_place(args, 0, at=at)), _path(tid, *_place(args, 2 if at else 1, at=at))
        case "symlink" | "symlinkat":
            target = _text(tid, args[0])
            path = _path(tid, args[1], args[2]) if at else _path(tid, _AT_FDCWD, args[1])
        case _:
            path = _path(tid, *_place(args, 0, at=at))
    return Stop(listener, id, tid, call, path, target, size, flags, mode, tuple(args))


def _place(args: list[int], first: int, *, at: bool) -> tuple[int, int]:
    """Return the descriptor of a folder and the address of a path."""
    return (args[first], args[first + 1]) if at else (_AT_FDCWD, args[first])


def _path(tid: int, folder: int, address: int) -> str:
    text = _text(tid, address)
    if text.startswith("/"):
        return os.path.normpath(text)
    number = _signed(folder)
    base = Path(f"/proc/{tid}/cwd" if number == _AT_FDCWD else f"/proc/{tid}/fd/{number}").readlink()
    return os.path.normpath(os.path.join(base, text))  # noqa: PTH118  # pathlib would keep the ..


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _text(tid: int, address: int) -> str:
    found = b""
    while b"\0" not in found and len(found) < _PATH_MAX:
        found += _memory(tid, address + len(found), _PAGE - (address + len(found)) % _PAGE)
    return os.fsdecode(found.partition(b"\0")[0])


def _memory(tid: int, address: int, size: int) -> bytes:
    with open(f"/proc/{tid}/mem", "rb", 0) as memory:  # noqa: PTH123  # unbuffered: no byte more than is asked for
        memory.seek(address)
        found = b""
        while len(found) < size and (more := memory.read(size - len(found))):
            found += more
        return found
