"""Writes that return at once although nobody reads, in their order, to readers that are slow, gone or non-blocking."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowdist.text.queued_output import BEHIND_BYTES, QueuedOutput, is_behind
from flowdist.text.streams import PrintableStream, print_worker_line

MUCH = 20 * BEHIND_BYTES  # more than a pipe takes


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make stdout and stderr the same pipe, and yield the end that nobody reads yet."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out, os.fdopen(os.dup(writing), "w") as err, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", PrintableStream(out))
        patch.setattr(sys, "stderr", PrintableStream(err))
        yield reading
    os.close(reading)


class Reader(threading.Thread):
    """Thread that reads `size` bytes."""

    def __init__(self, fd: int, size: int) -> None:
        super().__init__()
        self._fd, self._size, self.data = fd, size, b""
        self.start()

    def run(self) -> None:
        while len(self.data) < self._size:
            self.data += os.read(self._fd, 1 << 16)


@pytest.mark.parametrize("blocking", [True, False])
def test_writes_return_at_once_and_all_is_read_in_order(monkeypatch: pytest.MonkeyPatch, blocking: bool) -> None:
    lines = [f"{'out' if number % 3 else 'err'} {number}" for number in range(MUCH // 8)]
    with unread(monkeypatch) as reading:
        os.set_blocking(sys.stdout.fileno(), blocking)
        with QueuedOutput():
            for number, line in enumerate(lines):
                print_worker_line(line, sys.stdout if number % 3 else sys.stderr)
            assert is_behind(sys.stdout), "nobody has read anything, and the writes have returned"
            reader = Reader(reading, sum(len(line) + 1 for line in lines))
        reader.join()
    assert reader.data.decode().splitlines() == lines


def test_a_stream_is_not_behind_when_its_reader_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with unread(monkeypatch) as reading:
        with QueuedOutput() as output:
            print("x" * MUCH)
            reader = Reader(reading, MUCH + 1)
            output.finish()
            assert not is_behind(sys.stdout, sys.stderr)
        reader.join()
        assert not is_behind(sys.stdout), "a stream that does not queue is never behind"


def test_a_reader_that_has_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    other, writing = os.pipe()
    os.close(other)
    with unread(monkeypatch) as reading, os.fdopen(writing, "w") as gone, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", gone)
        with QueuedOutput():
            for _ in range(3):
                print("x" * MUCH)
                print("an event", file=sys.stderr)
        assert os.read(reading, 1000) == 3 * b"an event\n", "the other stream is read"


def test_a_stdout_that_cannot_be_written_is_said_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    with unread(monkeypatch) as reading, Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", PrintableStream(full))
        with QueuedOutput():
            print("a line")
            print("an event", file=sys.stderr)
        said = os.read(reading, 1000).decode().splitlines()
        assert said[0] == "an event" and "stdout" in said[1] and said[1].endswith("No space left on device")


def test_a_process_that_may_start_no_thread_writes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with unread(monkeypatch) as reading:
        with monkeypatch.context() as patch, QueuedOutput():
            patch.setattr(threading.Thread, "start", refused)  # no limit counts for root, who may run this test
            print("a line")
            print("an event", file=sys.stderr)
            assert os.read(reading, 1000) == b"a line\nan event\n"
            patch.undo()
            print("later")
        assert os.read(reading, 1000) == b"later\n"


def test_an_interrupt_ends_the_wait_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with unread(monkeypatch) as reading:
            with QueuedOutput() as output:
                print("x" * MUCH)
                signal.setitimer(signal.ITIMER_REAL, 0.05)
            Reader(reading, MUCH).join()
            output.finish()  # else the thread would write to a closed or reused file descriptor
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_streams_without_a_file_descriptor_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with QueuedOutput():
        print("a line")
    assert capsys.readouterr().out == "a line\n"
