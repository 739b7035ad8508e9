"""The metrics, read back by a parser that is independent of the code that writes them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flowdist.errors import FlowdistError
from flowdist.graph import SECOND
from flowdist.record.accounts import Spent
from flowdist.record.status import NodeStatus, Status, VersionStatus
from flowdist.runtime.controller import metrics
from flowdist.runtime.controller.limits import SCRAPES_MAX, Connections
from flowdist.runtime.controller.metrics import CAUSES, OPENMETRICS, PLAIN, listen, metrics_text, serve_metrics
from flowdist.runtime.controller.refusals import Refusals
from tests.report.test_status import big_job

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> tuple[Samples, dict[str, str]]:
    """Return the samples by name and labels, and the types; assert that the format allows the text."""
    samples: Samples = {}
    types: dict[str, str] = {}
    described: set[str] = set()
    assert text.endswith("\n")
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            described.add(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} is described twice"
            assert kind in ("gauge", "counter") and name in described
            types[name] = kind
        elif line != "# EOF":
            match = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line)
            assert match is not None, line
            key = (match[1], tuple(labels(match[2] or "")))
            assert key not in samples, f"{line} comes twice"
            samples[key] = float(match[3])
    return samples, types


def labels(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"(?:,|$)').match(text, at)
        assert match is not None, text[at:]
        yield match[1], re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], match[2])
        at = match.end()


def status() -> Status:
    told = big_job().status(125)
    nodes = [msgspec.structs.replace(node, heard_s_ago=0.25) if node.phase == "up" else node for node in told.nodes]
    times: Spent = {"trainer": {"productive": 9 * SECOND, "lost work": SECOND}}
    versions = (
        VersionStatus("actor", "learner", 2, 9, {"actor/0": 8, "actor/1": -1}, {}),
        VersionStatus("judge", "learner", 0, 9, {"judge/0": 9}, {}),
        VersionStatus("reader", "writer", 0, -1, {"reader/0": -1}, {}),
    )
    return msgspec.structs.replace(told, nodes=tuple(nodes), time_ns=times, goodput=0.9, versions=versions)


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"flowdist_{name}", tuple(labels.items())]


def by_state(samples: Samples, name: str) -> dict[str, float]:
    return {dict(labels)["state"]: value for (each, labels), value in samples.items() if each == f"flowdist_{name}"}


def test_metrics_of_the_job_and_its_worlds() -> None:
    samples, types = read(metrics_text(status()))
    assert value(samples, "job_info", job="test", run="big-20261121-1") == 1
    states = by_state(samples, "job_state")
    assert [state for state, on in states.items() if on] == ["running"] and len(states) == 6
    assert value(samples, "job_seconds") == 125
    assert value(samples, "world_size", world="trainer") == 185
    assert value(samples, "world_generation", world="trainer") == 4
    assert value(samples, "incidents_total", cause="exit") == 5 and value(samples, "incidents_open") == 4
    assert value(samples, "incidents_total", cause="gpu_lost") == 0, "a counter begins with 0"
    assert set(status().incidents) < set(CAUSES)
    assert types["flowdist_restarts_total"] == "counter" and types["flowdist_replicas"] == "gauge"
    assert all(name in types for name, _ in samples)


def test_metrics_of_roles() -> None:
    samples, _ = read(metrics_text(status()))
    assert value(samples, "replicas", role="trainer", state="running") == 185
    assert value(samples, "replicas", role="trainer", state="waiting") == 15
    assert value(samples, "replicas", role="trainer", state="gone") == 0, "every state is there from the start"
    stalled = {role: value(samples, "replicas_stalled", role=role) for role in ("trainer", "ps")}
    assert stalled == {"trainer": 1, "ps": 0}
    assert value(samples, "workers", role="trainer") == 185 and value(samples, "step", role="trainer") == 515
    assert value(samples, "steps_per_second", role="trainer") == 5
    assert value(samples, "restarts_total", role="actor", cause="exit") == 2
    assert value(samples, "restarts_total", role="ps", cause="drained") == 0
    assert value(samples, "budget_used", role="trainer") == 1 and value(samples, "budget", role="trainer") == 5


def test_r23_metrics_of_versions_leave_out_roles_and_replicas_without_one() -> None:
    samples, _ = read(metrics_text(status()))
    found = {key: value for key, value in samples.items() if key[0].endswith("ed_version")}
    assert found == {
        ("flowdist_published_version", (("role", "learner"),)): 9,
        ("flowdist_acknowledged_version", (("role", "actor"), ("replica", "actor/0"), ("of", "learner"))): 8,
        ("flowdist_acknowledged_version", (("role", "judge"), ("replica", "judge/0"), ("of", "learner"))): 9,
    }


def test_metrics_of_nodes_and_of_time() -> None:
    samples, _ = read(metrics_text(status()))
    nodes = {"up": 25, "cordoned": 1, "leaving": 1, "unheard": 0, "still": 0, "lost": 1, "expected": 0}
    assert by_state(samples, "nodes") == nodes
    assert value(samples, "agent_heard_seconds", node="node0") == 0.25
    assert value(samples, "replica_seconds", role="trainer", bucket="lost work") == 1
    assert value(samples, "goodput") == 0.9


def test_time_metrics_are_left_out_when_the_time_is_unknown() -> None:
    samples, _ = read(metrics_text(msgspec.structs.replace(status(), goodput=None)))
    assert "flowdist_goodput" not in {name for name, _ in samples}
    samples, _ = read(metrics_text(msgspec.structs.replace(status(), goodput=None, time_ns={})))
    assert not {"flowdist_goodput", "flowdist_replica_seconds"} & {name for name, _ in samples}


def test_the_docs_have_every_metric_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
    table = page.partition("| metric (")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    samples, _ = read(metrics_text(status()))
    assert named == {name.removeprefix("flowdist_") for name, _ in samples}


def test_openmetrics_names_the_family_of_a_counter_without_total_and_has_an_end() -> None:
    text = metrics_text(status(), openmetrics=True)
    samples, types = read(text)
    assert text.endswith("# EOF\n") and types["flowdist_restarts"] == "counter"
    plain, _ = read(metrics_text(status()))
    assert samples == plain


def test_labels_with_special_characters_are_escaped() -> None:
    odd = 'a "quoted" \\ name\nof two lines'
    node = NodeStatus(odd, "up", heard_s_ago=1.0)
    samples, _ = read(metrics_text(msgspec.structs.replace(status(), nodes=(node,))))
    assert samples["flowdist_agent_heard_seconds", (("node", odd),)] == 1


def test_metrics_are_served_over_http_on_loopback() -> None:
    listening = listen(0)
    address, port = listening.getsockname()

    def get(path: str, accept: str = "*/*") -> tuple[str, str]:
        request = urllib.request.Request(f"http://{address}:{port}{path}", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    async def talk() -> None:
        server = await serve_metrics(listening.detach(), status, Refusals())
        kind, text = await asyncio.to_thread(get, "/metrics")
        assert kind == PLAIN and text == metrics_text(status())
        kind, text = await asyncio.to_thread(get, "/metrics", "application/openmetrics-text;version=1.0.0,*/*;q=0.1")
        assert kind == OPENMETRICS and text == metrics_text(status(), openmetrics=True)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            await asyncio.to_thread(get, "/favicon.ico")
        reader, writer = await asyncio.open_connection(address, port)
        writer.write(b"no question\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()
        server.close()

    assert address == "127.0.0.1"
    asyncio.run(talk())


def test_silent_connections_do_not_keep_a_scrape_out_and_are_bounded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would use up the controller's file descriptors."""
    monkeypatch.setattr(metrics, "REQUEST_S", 600.0)  # it is not the time that closes them

    async def talk() -> None:
        refusals, listening = Refusals(), listen(0)
        address, port = listening.getsockname()
        server = await serve_metrics(listening.detach(), status, refusals)
        silent = [await asyncio.open_connection(address, port) for _ in range(SCRAPES_MAX + 2)]
        for reader, _ in silent[:2]:
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(30):
                    assert await reader.read() == b""
        reader, writer = await asyncio.open_connection(address, port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        samples, _ = read((await reader.read()).decode().partition("\r\n\r\n")[2])
        assert value(samples, "refusals_total") == refusals.count == 3
        for _, each in [*silent, (reader, writer)]:
            each.transport.abort()
        server.close()

    asyncio.run(talk())
    assert "a scrape was refused: too many connections to the port of the metrics" in capsys.readouterr().err


def test_a_client_that_does_not_read_its_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    class Ends(Connections[asyncio.StreamWriter]):
        """Connections whose ends the test sees."""

        def closed(self, connection: asyncio.StreamWriter) -> None:
            super().closed(connection)
            ends.put_nowait(connection)

    monkeypatch.setattr(metrics, "Connections", Ends)
    monkeypatch.setattr(metrics, "REQUEST_S", 0.5)
    monkeypatch.setattr(metrics, "metrics_text", lambda *_, **__: "x" * (32 << 20))  # more than the kernel takes

    async def talk() -> None:
        listening = listen(0)
        address, port = listening.getsockname()
        server = await serve_metrics(listening.detach(), status, Refusals())
        with socket.create_connection((address, port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(60):
                ended = await ends.get()
            await asyncio.sleep(0)  # asyncio closes the socket in the next turn of its loop
            assert ended.get_extra_info("socket").fileno() == -1 and not ended.transport.get_write_buffer_size()
        server.close()

    asyncio.run(talk())


def test_a_port_in_use_is_an_error_with_help() -> None:
    with listen(0) as first, pytest.raises(FlowdistError, match=r"--metrics-port \d+: address already in use\n"):
        listen(first.getsockname()[1])
