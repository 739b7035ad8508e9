"""Calls of a real process are stopped by the kernel, and shown: real files, no mocks."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowdist.prove import calls

pytestmark = pytest.mark.real

CHILD = """import os, socket, sys
from flowdist.prove import calls
link = socket.socket(fileno=int(sys.argv[1]))
listener = calls.install()
socket.send_fds(link, [b"."], [listener])
os.close(listener)
os.chdir(sys.argv[2])
exec(sys.argv[3])
"""


class Stopped:
    """A process that runs some lines of Python, stopped at each call; `answer` decides what becomes of the call."""

    def __init__(self, folder: Path, lines: str) -> None:
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-c", CHILD, str(theirs.fileno()), str(folder), lines]
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        theirs.close()
        with ours:
            self.listener = socket.recv_fds(ours, 1, 1)[1][0]

    def stops(self) -> Iterator[calls.Stop]:
        """Yield the calls until the process has ended; the caller answers each."""
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        while not poll.poll(30_000)[0][1] & select.POLLHUP:
            if (stop := calls.receive(self.listener)) is not None:
                yield stop
        os.close(self.listener)
        self.process.wait(30)


def seen(folder: Path, lines: str) -> list[tuple[str, str]]:
    """Return the calls of some lines of Python on files of a folder, each let through."""
    stopped, found = Stopped(folder, lines), []
    for stop in stopped.stops():
        is_mine = stop.path.startswith(str(folder))
        if is_mine:
            found.append((stop.call, stop.path.removeprefix(f"{folder}/") + (f" {stop.size}" if stop.size else "")))
        stop.go_on(is_watched=is_mine)
    assert stopped.process.returncode == 0
    return found


def killed_at(folder: Path, lines: str, call: str, do: Callable[[calls.Stop], None]) -> None:
    """Run some lines of Python, and at their first `call` in the folder do something, and kill the process."""
    stopped = Stopped(folder, lines)
    for stop in stopped.stops():
        if stop.call == call and stop.path.startswith(str(folder)) and stopped.process.poll() is None:
            do(stop)
            stopped.process.send_signal(signal.SIGKILL)
        else:
            stop.go_on(is_watched=stop.path.startswith(str(folder)))
    assert stopped.process.returncode == -signal.SIGKILL


SAVE = """with open("new", "wb", 0) as file:
    file.write(b"0123456789")
    os.fsync(file.fileno())
os.replace("new", "last")"""


def test_each_call_that_changes_a_file_is_shown_with_its_path(tmp_path: Path) -> None:
    assert seen(tmp_path, SAVE) == [("openat", "new"), ("write", "new 10"), ("fsync", "new"), ("rename", "new")]
    assert (tmp_path / "last").read_bytes() == b"0123456789"


def test_relative_paths_descriptors_of_folders_and_threads_are_followed(tmp_path: Path) -> None:
    lines = """import threading
os.mkdir("a")
os.chdir("a")
folder = os.open("..", os.O_RDONLY)
os.rename("../b", "c", src_dir_fd=None) if os.path.exists("../b") else None
thread = threading.Thread(target=lambda: os.mkdir("of_thread", dir_fd=folder))
thread.start()
thread.join()
os.symlink("../a", "link")
os.unlink("link")
open("../a/d", "a").close()
os.truncate("d", 3)
os.rmdir("../of_thread")"""
    found = seen(tmp_path, lines)
    assert ("mkdir", "a") in found and ("mkdirat", "of_thread") in found and ("unlink", "a/link") in found
    assert ("openat", "a/d") in found and ("truncate", "a/d") in found and ("rmdir", "of_thread") in found
    assert (tmp_path / "a/d").stat().st_size == 3


def test_a_file_that_is_opened_to_be_read_is_no_stop(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("text")
    assert seen(tmp_path, 'open("there").read()') == []


def test_a_child_of_the_process_is_stopped_too(tmp_path: Path) -> None:
    lines = 'import subprocess; subprocess.run(["/bin/sh", "-c", "echo x > of_child"], check=True)'
    assert ("openat", "of_child") in seen(tmp_path, lines)


def test_before_a_call_nothing_has_happened(tmp_path: Path) -> None:
    killed_at(tmp_path, SAVE, "rename", lambda stop: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


@pytest.mark.parametrize(("share", "content"), [(1.0, b"0123456789"), (0.5, b"01234"), (0.0, b"")])
def test_a_write_can_be_done_in_part(tmp_path: Path, share: float, content: bytes) -> None:
    killed_at(tmp_path, SAVE, "write", lambda stop: stop.carry_out(share))
    assert (tmp_path / "new").read_bytes() == content


@pytest.mark.parametrize(
    ("lines", "call"),
    [
        ('open("f", "w").close()', "openat"),
        ('os.open("f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)', "openat"),
        ('os.mkdir("d")', "mkdir"),
        ('os.rename("there", "moved")', "rename"),
        ('os.unlink("there")', "unlink"),
        ('os.link("there", "other")', "link"),
        ('os.symlink("there", "other")', "symlink"),
        ('os.truncate("there", 2)', "truncate"),
        ('os.ftruncate(os.open("there", os.O_RDWR), 2)', "ftruncate"),
        ('os.pwrite(os.open("there", os.O_RDWR), b"XY", 1)', "pwrite64"),
        ('os.writev(os.open("there", os.O_RDWR), [b"X", b"YZ"])', "writev"),
        ('os.write(os.open("there", os.O_WRONLY | os.O_APPEND), b"XY")', "write"),
        ('file = os.open("there", os.O_RDWR); os.lseek(file, 2, 0); os.write(file, b"XY")', "write"),
        ('os.rmdir("empty")', "rmdir"),
    ],
)
def test_a_call_that_is_carried_out_leaves_what_the_process_would_have_left(lines: str, call: str) -> None:
    """The oracle: the same lines, let through."""
    left = []
    for does in (None, calls.Stop.carry_out):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            (folder / "there").write_bytes(b"abcdef")
            (folder / "empty").mkdir()
            if does is None:
                seen(folder, lines)
            else:
                killed_at(folder, lines, call, does)
            left.append({path.name: path.is_dir() or path.read_bytes() for path in folder.iterdir()})
    assert left[0] == left[1]


def test_the_end_is_a_call_and_says_the_exit_code(tmp_path: Path) -> None:
    stopped = Stopped(tmp_path, "sys.exit(3)")
    ends = []
    for stop in stopped.stops():
        if stop.call == calls.END:
            ends.append(stop.size)
        stop.go_on()
    assert ends == [3] and stopped.process.returncode == 3


def test_a_refused_call_fails_with_that_error(tmp_path: Path) -> None:
    lines = """try:
    os.mkdir("d")
except OSError as error:
    sys.exit(error.errno)"""
    stopped = Stopped(tmp_path, lines)
    for stop in stopped.stops():
        if stop.call == "mkdir":
            stop.refuse(30)
        else:
            stop.go_on()
    assert stopped.process.returncode == 30


def test_calls_on_other_files_pipes_and_sockets_are_no_stops(tmp_path: Path) -> None:
    lines = """a, b = socket.socketpair()
a.send(b"x")
os.writev(a.fileno(), [b"y", b"z"])
r, w = os.pipe()
os.write(w, b"x")
os.write(1, b"")
open("/dev/null", "wb", 0).write(b"x")"""
    stopped, found = Stopped(tmp_path, lines), []
    for stop in stopped.stops():
        found.append((stop.call, stop.path))
        stop.go_on()
    assert [each for each in found if each[0] != calls.END] == [("openat", "/dev/null")]


def test_a_watched_file_keeps_its_mode_its_flags_and_the_errors_of_its_opening(tmp_path: Path) -> None:
    lines = """os.umask(0o027)
with open("a", "w") as file, open("b", "a") as other:
    assert file.fileno() >= 800 and other.fileno() != file.fileno()
    assert not os.get_inheritable(file.fileno())
    file.write("text")
assert os.stat("a").st_mode & 0o777 == 0o640
assert open("a").read() == "text"
try:
    open("missing/c", "w")
except FileNotFoundError:
    sys.exit(0)
sys.exit(1)"""
    assert [call for call, _ in seen(tmp_path, lines)] == ["openat", "openat", "write", "openat"]
