"""The port of --master-port, at which the stores of all generations listen if the job runs on one machine.

Scripts with `init_process_group(init_method="tcp://127.0.0.1:29611")` find the store there. Under
TORCHELASTIC_USE_AGENT_STORE=True torch makes each rank a client, which would wait in vain; since torch 2.15 only at
MASTER_ADDR and MASTER_PORT. Elsewhere rank 0 serves a store. If only the address differs (localhost), it logs that the
port is taken, and uses the store there.
"""

from __future__ import annotations

import socket

import msgspec

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.runtime.wire.addresses import why_unbound


def with_store_at(graph: RoleGraph, endpoint: str) -> RoleGraph:
    """Return the graph with stores that listen at this HOST:PORT; empty: each at a port of its own."""
    options = msgspec.structs.replace(graph.options, store_endpoint=endpoint)
    return msgspec.structs.replace(graph, options=options)


def check_store_port(endpoint: str) -> None:
    """Check before the start that a store can listen at HOST:PORT; FlowdistError if that is taken or unbindable."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        message = f"--master-port {port}: {endpoint} cannot be bound: {why_unbound(error)}"
        help = "name another port, or leave the option out: each generation then has a free one"
        raise FlowdistError(message, help=help) from None
