"""Limits of Linux and of flowdist that no node can exceed: a command and its environment, ports, and hosts."""

from __future__ import annotations

import sys

from flowdist.dsl.problems.problem import Problems
from flowdist.dsl.read.fields import Fields, owner_of
from flowdist.dsl.topology import Topology
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.graph.units import HOSTS_MAX, PORTS_MAX

STRING_MAX = 131_071  # bytes of one argument, or of one variable with its name, that Linux gives to a program
STRINGS_MAX = 6 << 20  # bytes of all of them together, whatever the limit of the stack is
POINTER_BYTES = 8  # each string needs one, and a NUL
OTHERS_BYTES = 4096  # that Linux and flowdist need in any case

_FILE = "put the text into a file, and its path into the variable"


def check_limits(fields: Fields, spec: RoleSpec) -> None:
    """Add an error if no process can be given the role's command and environment (FD183), or its ports (FD184)."""
    too_long = False
    for number, word in enumerate(spec.command):
        if (size := len(word.encode())) > STRING_MAX:
            what, too_long = f"argument {number} of its command", True
            fields.error("FD183", "command", f"{what} has {_bytes(size, STRING_MAX)}", "put the text into a file")
    for name, text in spec.env:
        if (size := len(f"{name}={text}".encode())) > STRING_MAX:
            too_long = True
            fields.error("FD183", f"env.{name}", f"env[{name!r}] has {_bytes(size, STRING_MAX)}", _FILE)
    strings = [*spec.command, *(f"{name}={text}" for name, text in spec.env)]
    size, most = sum(len(text.encode()) + 1 + POINTER_BYTES for text in strings), _strings_max()
    if size > most and not too_long:
        fields.error("FD183", "env", f"its command and environment have {_bytes(size, most)}", _FILE)
    if len(spec.ports) > PORTS_MAX:
        message = f"each of its replicas has {len(spec.ports):,} ports, and a node has {PORTS_MAX}"
        fields.error("FD184", "ports", message, "name the ports that other roles need; a program may open more itself")


def check_limits_of_job(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """Add an error if the nodes have too few ports for the roles (FD184); warn of more nodes than a run has (FD337).

    Nothing is checked if the topology declares no nodes.
    """
    nodes, top = len(graph.cluster.nodes), Fields(owner_of(topology), topology.fields, topology.site, problems)
    if not graph.cluster.given or top.is_wrong("nodes"):
        return
    needs = [role.min_replicas * len(role.ports) for role in graph.roles]
    if sum(needs) > nodes * PORTS_MAX and not any(len(role.ports) > PORTS_MAX for role in graph.roles):
        most = Fields.of_role(topology.roles[needs.index(max(needs))], problems)
        message = f"the roles need {sum(needs):,} ports, and {nodes:,} node{'s' * (nodes > 1)} have {PORTS_MAX} each"
        most.error("FD184", "ports", message, "name fewer ports, or add nodes")
    if nodes > HOSTS_MAX + 1:
        message = f"{nodes:,} nodes can be simulated; a run has {HOSTS_MAX + 1:,} at most"
        top.warn("FD337", "nodes", message, "write fewer nodes to run the job")


def _bytes(size: int, most: int) -> str:
    return f"{size:,} bytes, and Linux gives a program at most {most:,}"


def _strings_max() -> int:
    """Return the bytes of arguments and environment that Linux gives a program here: a quarter of its stack's limit."""
    if sys.platform != "linux":
        return STRINGS_MAX - OTHERS_BYTES
    import resource  # Linux and macOS have it

    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY:
        return STRINGS_MAX - OTHERS_BYTES
    return min(STRINGS_MAX, max(STRING_MAX + 1, soft // 4)) - OTHERS_BYTES
