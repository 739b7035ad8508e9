"""`flowdist ui` and `run --ui` with a real run: what the browser gets and when, and who gets nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from flowdist.cli.run.execution import DisplayOptions
from flowdist.errors import FlowdistError
from flowdist.ui import follow, server
from flowdist.ui.follow import FollowedRun
from flowdist.ui.server import CONNECTIONS_MAX, RunServer
from tests.report.browser import Browser, find_browser
from tests.runtime.harness import Job

pytestmark = pytest.mark.real
TOPOLOGY = """
from flowdist import Restart, Topology

t = Topology("watched")
t.role("trainer", ["python", "train.py"], replicas=2, restart=Restart("role", max_restarts=9))
"""
TRAIN = """
import time
from flowdist import worker
print("at work", flush=True)
for step in range(10_000):
    worker.progress(step)
    time.sleep(0.1)
"""


def write_job(folder: Path) -> None:
    (folder / "topology.py").write_text(TOPOLOGY)
    (folder / "train.py").write_text(TRAIN)


@contextmanager
def shown(tmp_path: Path) -> Iterator[tuple[Job, RunServer]]:
    """A run of two trainers, and its page."""
    write_job(tmp_path)
    with Job(tmp_path) as job:
        for _ in range(2):
            job.until("at work")
        with RunServer(FollowedRun(tmp_path / "runs/latest"), 0) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield job, server
            finally:
                server.shutdown()
                thread.join()


def asked(server: RunServer | int, path: str, host: str | None = None) -> tuple[int, str]:
    """Return status and text of what the server, or that at a port, answers to a path."""
    port = server if isinstance(server, int) else server.server_port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@contextmanager
def half_requests(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that send half a request each."""
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]
        for connection in connections:
            with suppress(OSError):  # the server may have ended it
                connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        yield connections


def test_half_requests_hold_neither_the_page_nor_more_than_a_few_threads() -> None:
    """Each held a thread and a descriptor for as long as it sent a byte a minute."""
    with RunServer(None, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        before = threading.active_count()
        with half_requests(server.server_port, 5 * CONNECTIONS_MAX) as connections:
            assert asked(server, f"/{server.token}/")[0] == 200
            ended = 0
            for connection in connections[: 4 * CONNECTIONS_MAX]:  # the oldest; each has ended, or ends now
                connection.settimeout(20)
                with suppress(ConnectionError):
                    ended += connection.recv(1) == b""
            assert threading.active_count() <= before + CONNECTIONS_MAX + 5
            assert asked(server, f"/{server.token}/")[0] == 200
        server.shutdown()
        thread.join()


def test_the_data_follows_the_run_and_only_who_knows_the_address_gets_it(tmp_path: Path) -> None:
    with shown(tmp_path) as (job, server):
        base = urlsplit(server.url).path
        status, page = asked(server, base)
        assert status == 200 and "connect-src 'self'" in page
        first = json.loads(asked(server, f"{base}data?after=0")[1])
        assert first["state"] == "running" and first["data"]["incidents"] == []
        status, logs = asked(server, f"{base}logs?replica={quote('trainer/1', safe='')}&attempt=1")
        assert status == 200 and "trainer/1 stdout\nat work" in logs
        os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
        job.until("incident 1")
        size, incidents = first["size"], []
        while not incidents:  # each answer waits for what is new
            found = json.loads(asked(server, f"{base}data?after={size}")[1])
            size, incidents = found["size"], found["data"]["incidents"]
        assert "signal SIGKILL" in incidents[0][5]
        for path in ("/", "/data?after=0", f"/x{base[1:]}", f"{base}journal.jsonl", f"{base}../"):
            assert asked(server, path)[0] == 404, path
        assert asked(server, base, host="evil.example")[0] == 404
        for wrong in ("logs?replica=..%2Fx&attempt=1", "logs?replica=trainer%2F0&attempt=x", "logs", "data?after=x"):
            assert asked(server, base + wrong)[0] == 400, wrong


def pid_of(tmp_path: Path, index: int) -> int:
    return int((tmp_path / f"runs/latest/trainer/{index}/attempt_1/0/pid").read_text().split()[0])


@pytest.mark.skipif(find_browser() is None, reason="no Chromium on the path, nor in FLOWDIST_BROWSER")
def test_in_a_browser_a_killed_worker_is_on_the_page_with_its_reason_without_a_reload(tmp_path: Path) -> None:
    with shown(tmp_path) as (job, server):
        browser = Browser(find_browser() or "", tmp_path / "profile")
        try:
            browser.open(server.url)
            browser.value("window.same = true")
            browser.value("select(attempts.find(a => names[a.replica] === 'trainer/0'))")
            os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
            killed = time.monotonic()
            job.until("incident 1")
            while not browser.value("incidents.length && incidents[0].reason"):
                assert time.monotonic() < killed + 60, "the page does not show it"
            assert "signal SIGKILL" in browser.value("incidents[0].reason")
            assert browser.value("window.same") is True  # the page was not loaded again
            assert "trainer/0, attempt 1" in browser.value("document.getElementById('details').innerText")
            browser.value("select(null)")
            assert "1 signal" in browser.value("document.getElementById('details').innerText")
            os.kill(job.process.pid, signal.SIGTERM)
            job.finish()
            while browser.value("document.getElementById('live').textContent") == "live":
                assert time.monotonic() < killed + 100, "the page does not show the end"
        finally:
            browser.close()


def test_the_command_prints_the_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with shown(tmp_path), Job(tmp_path, verb="ui") as page:
        line = page.until("http://127.0.0.1:")
        page.process.send_signal(signal.SIGINT)
        assert page.finish() == 0, line


def followed(port: int, base: str, answers: list[dict[str, Any]]) -> None:
    """Ask for the data of a run as a browser does, until it is over, and append each answer."""
    while not answers or answers[-1]["state"] == "running":
        status, text = asked(port, f"{base}data?after={answers[-1]['size'] if answers else 0}")
        assert status == 200, text
        answers.append(json.loads(text))


def test_a_run_shows_itself_until_it_ends_and_its_readers_get_all_of_it(tmp_path: Path) -> None:
    write_job(tmp_path)
    with Job(tmp_path, "--ui") as job:
        address = urlsplit(job.until("in the browser, until the run ends: ").rpartition(" ")[2])
        assert address.hostname == "127.0.0.1" and address.port
        assert asked(address.port, address.path)[0] == 200  # whether or not the job has begun
        assert asked(address.port, "/")[0] == 404
        for _ in range(2):
            job.until("at work")
        answers: list[dict[str, Any]] = []
        reader = threading.Thread(target=followed, args=(address.port, address.path, answers), daemon=True)
        reader.start()
        os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
        job.until("incident 1")
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.finish() == 130
        reader.join(60)
        assert answers[0]["state"] == "running" and answers[-1]["state"] == "cancelled"
        assert "signal SIGKILL" in answers[-1]["data"]["incidents"][0][5]
        assert answers[-1]["size"] == (tmp_path / "runs/latest/journal.jsonl").stat().st_size
        with pytest.raises(ConnectionRefusedError):
            asked(address.port, address.path)
        assert job.alive() == []


def test_the_end_is_whole_however_long_the_page_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shown(tmp_path) as (job, server):
        base = urlsplit(server.url).path
        first = json.loads(asked(server, f"{base}data?after=0")[1])
        monkeypatch.setattr(follow, "REST", 1e9)  # while a run goes on, the page would not be made again
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.finish() == 130
        last = json.loads(asked(server, f"{base}data?after={first['size']}")[1])
        assert last["state"] == "cancelled"
        assert last["size"] == (tmp_path / "runs/latest/journal.jsonl").stat().st_size > first["size"]


def test_before_the_journal_begins_the_page_asks_again_by_itself(tmp_path: Path) -> None:
    page = RunServer(None, 0)
    page.begin(tmp_path)
    address = urlsplit(page.url)
    assert address.port
    status, text = asked(address.port, address.path)
    assert status == 200 and "http-equiv=refresh" in text
    assert asked(address.port, f"{address.path}data?after=0")[0] == 404
    page.end()
    with pytest.raises(ConnectionRefusedError):
        asked(address.port, address.path)


def test_the_page_stays_until_a_browser_that_asks_knows_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "END_S", 60.0)
    page = RunServer(None, 0)
    page.begin(tmp_path)
    with page.readers.question():
        ending = threading.Thread(target=page.end, daemon=True)
        ending.start()
        ending.join(0.5)
        assert ending.is_alive()
        page.readers.told_the_end()
    ending.join(30)
    assert not ending.is_alive()


def test_a_run_in_the_background_has_no_page_of_its_own() -> None:
    assert DisplayOptions(False, False, True, None, False, None).page() is None
    for wanted, port in ((True, None), (False, 0)):
        page = DisplayOptions(False, False, False, None, wanted, port).page()
        assert page is not None
        page.end()
    with pytest.raises(FlowdistError, match="--ui does not go with --detach"):
        DisplayOptions(False, False, True, None, True, None).page()


def test_a_port_in_use_and_what_is_no_run_are_named(tmp_path: Path) -> None:
    with shown(tmp_path) as (_, server), pytest.raises(FlowdistError, match="cannot be used: Address already in use"):
        RunServer(server.run, server.server_port)
    (tmp_path / "runs/latest/journal.jsonl").write_text("{}\n")
    with pytest.raises(FlowdistError, match="the file is no journal"):
        FollowedRun(tmp_path / "runs/latest")
