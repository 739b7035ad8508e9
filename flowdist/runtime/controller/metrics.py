"""The metrics of a job at http://127.0.0.1:PORT/metrics, in the text formats of Prometheus and OpenMetrics.

Each scrape is computed from the state of the job: no counter drifts, and the next controller continues the counts, but
for its refusals. A client library is made for counters that a process keeps; adapting one would take more code.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

from flowdist.control.job.state import PHASES
from flowdist.control.rules import CHOSEN_KINDS, SNAPSHOT_LOST
from flowdist.errors import FlowdistError
from flowdist.graph.policies import FailureKind
from flowdist.record.status import NodePhase, Status
from flowdist.runtime.controller.host_registry import address_of
from flowdist.runtime.controller.limits import SCRAPES_MAX, Connections
from flowdist.runtime.controller.refusals import Refusals
from flowdist.runtime.wire.addresses import why_unbound
from flowdist.text.printable import printable

REQUEST_S = 5.0  # seconds for a client to send its request and read the answer
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
JOB_STATES = ("starting", "running", "ending", "succeeded", "failed", "cancelled")
CAUSES: tuple[str, ...] = (*get_args(FailureKind), *sorted(CHOSEN_KINDS), SNAPSHOT_LOST)
NODE_STATES: tuple[NodePhase, ...] = get_args(NodePhase)


class Family(NamedTuple):
    """A metric and its samples; the name is without `flowdist_`, and without the `_total` of counters."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: list[tuple[dict[str, str], float]]


def families(status: Status, refused: int = 0) -> Iterator[Family]:
    """Yield all metrics of a job; time accounts and goodput only if known.

    Restarts and incidents begin with 0 for every cause: a counter's first increment would be hidden from `rate`.
    """
    nodes = Counter(node.phase for node in status.nodes)
    yield Family("job_info", "gauge", "The job.", [({"job": status.name, "run": status.run_id}, 1)])
    states = [({"state": name}, float(name == status.state)) for name in JOB_STATES]
    yield Family("job_state", "gauge", "1 for the current state of the job, 0 for every other.", states)
    yield Family("job_seconds", "gauge", "Time since the job was started.", [({}, status.now_ns / 1e9)])
    yield Family("controller_epoch", "gauge", "Number of the current controller.", [({}, status.epoch)])
    yield from _of_roles(status)
    yield from _of_versions(status)
    sizes = [(_w(world.name), float(world.size)) for world in status.worlds]
    yield Family("world_size", "gauge", "Workers of a world; 0 while it does not run.", sizes)
    generations = [(_w(world.name), float(world.generation)) for world in status.worlds]
    yield Family("world_generation", "gauge", "Number of times that the world has formed.", generations)
    saved = [(_w(world.name), float(world.checkpoints)) for world in status.worlds]
    yield Family("checkpoints", "counter", "Accepted checkpoints.", saved)
    counted = {(each.role, each.cause): each.replicas for each in status.restarts}
    pairs = [(role.name, cause) for role in status.roles for cause in CAUSES]
    restarts = [({"role": role, "cause": cause}, float(counted.get((role, cause), 0))) for role, cause in pairs]
    yield Family("restarts", "counter", "Starts of replicas after their first, by cause.", restarts)
    incidents = [({"cause": cause}, float(status.incidents.get(cause, 0))) for cause in CAUSES]
    yield Family("incidents", "counter", "Incidents, by cause.", incidents)
    yield Family("incidents_open", "gauge", "Incidents that are open.", [({}, len(status.open_incidents))])
    yield Family("nodes", "gauge", "Nodes, by state.", [({"state": name}, nodes[name]) for name in NODE_STATES])
    if status.time_ns:
        times = [
            ({"role": role, "bucket": bucket}, ns / 1e9)
            for role, buckets in status.time_ns.items()
            for bucket, ns in buckets.items()
        ]
        yield Family("replica_seconds", "gauge", "Time of all replicas, by role and use.", times)
    if status.goodput is not None:
        yield Family("goodput", "gauge", "Productive share of the time of tasks.", [({}, status.goodput)])
    ages = [({"node": node.name}, node.heard_s_ago) for node in status.nodes if node.heard_s_ago is not None]
    yield Family("agent_heard_seconds", "gauge", "Time since the last message of a node's agent.", ages)
    yield Family("refusals", "counter", "Connections and messages that this controller has refused.", [({}, refused)])


def _of_roles(status: Status) -> Iterator[Family]:
    roles = status.roles
    stalled = Counter(replica.name.partition("/")[0] for replica in status.replicas if replica.stalled)
    counts = [
        ({"role": role.name, "state": phase}, float(role.phases.get(phase, 0))) for role in roles for phase in PHASES
    ]
    yield Family("replicas", "gauge", "Replicas, by role and state.", counts)
    yield Family("replicas_stalled", "gauge", "Stalled replicas.", [(_r(r.name), stalled[r.name]) for r in roles])
    yield Family("replicas_target", "gauge", "Maximum number of replicas.", [(_r(r.name), r.target) for r in roles])
    yield Family("replicas_min", "gauge", "Minimum number of replicas.", [(_r(r.name), r.min_replicas) for r in roles])
    yield Family("workers", "gauge", "Running worker processes.", [(_r(r.name), r.workers) for r in roles])
    yield Family("step", "gauge", "Highest completed step.", [(_r(r.name), r.step) for r in roles if r.step >= 0])
    rates = [(_r(r.name), r.steps_per_s) for r in roles if r.steps_per_s is not None]
    yield Family("steps_per_second", "gauge", "Steps per second, over the last half minute.", rates)
    yield Family("budget_used", "gauge", "Charges that the budget still counts.", [(_r(r.name), r.used) for r in roles])
    budgets = [(_r(r.name), float(r.budget)) for r in roles if r.budget is not None]
    yield Family("budget", "gauge", "Restarts that the budget allows.", budgets)


def _of_versions(status: Status) -> Iterator[Family]:
    """Yield the versions on edges (R23); a role or replica that has none yet has no sample, as with `step`."""
    published = {edge.of: edge.published for edge in status.versions}  # several roles may need those of one
    latest = [(_r(role), float(version)) for role, version in published.items() if version >= 0]
    yield Family("published_version", "gauge", "Version that a role has published last.", latest)
    acknowledged = [
        ({"role": edge.role, "replica": replica, "of": edge.of}, float(version))
        for edge in status.versions
        for replica, version in edge.replicas.items()
        if version >= 0
    ]
    text = "Version that the present attempt of a replica has acknowledged."
    yield Family("acknowledged_version", "gauge", text, acknowledged)


def _r(name: str) -> dict[str, str]:
    return {"role": name}


def _w(name: str) -> dict[str, str]:
    return {"world": name}


def metrics_text(status: Status, refused: int = 0, *, openmetrics: bool = False) -> str:
    """Return the page of metrics that answers a scrape, in the text format of Prometheus or, if asked, OpenMetrics."""
    lines = []
    for family in families(status, refused):
        name = f"flowdist_{family.name}"
        total = f"{name}_total" if family.kind == "counter" else name
        described = name if openmetrics else total
        lines += [f"# HELP {described} {family.help}", f"# TYPE {described} {family.kind}"]
        for labels, value in family.samples:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{total}{{{inside}}} {value:.12g}" if inside else f"{total} {value:.12g}")
    return "\n".join([*lines, *(["# EOF"] if openmetrics else [])]) + "\n"


def _escaped(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def listen(port: int) -> socket.socket:
    """Open the socket at which the controllers of a run answer scrapes, on loopback; port 0 selects a free one.

    The foreground process keeps it, so that the next controller has the same port. FlowdistError if it cannot be bound.
    """
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        help = "name another port; 0 selects a free one"
        raise FlowdistError(f"--metrics-port {port}: {why_unbound(error)}", help=help) from None


async def serve_metrics(listening: int, status: Callable[[], Status], refusals: Refusals) -> asyncio.Server:
    """Begin to answer scrapes at a listening socket; of more than SCRAPES_MAX connections, the oldest is closed."""
    connections: Connections[asyncio.StreamWriter] = Connections(SCRAPES_MAX)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (victim := connections.opened(writer, address_of(writer))) is not None:
            refusals.note("a scrape", "too many connections to the port of the metrics")
            victim.transport.abort()
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(head.decode("latin-1"), status(), refusals.count))
                writer.close()
                await writer.wait_closed()  # until the peer has read the answer
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, slow or no client of HTTP
        finally:
            writer.transport.abort()
            connections.closed(writer)

    return await asyncio.start_server(serve, sock=socket.socket(fileno=listening))


def _answer(head: str, status: Status, refused: int) -> bytes:
    method, _, rest = head.partition(" ")
    if method not in ("GET", "HEAD") or rest.split(" ")[0].partition("?")[0] not in ("/", "/metrics"):
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    openmetrics = "application/openmetrics-text" in head
    body = metrics_text(status, refused, openmetrics=openmetrics).encode()
    kind = OPENMETRICS if openmetrics else PLAIN
    start = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return start.encode() + (body if method == "GET" else b"")
