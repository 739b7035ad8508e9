"""Role graphs as JSON: the form that `flowdist plan --json` prints and that a run keeps as graph.json."""

from __future__ import annotations

import msgspec

from flowdist.graph.role_graph import RoleGraph

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(RoleGraph)


def encode_graph(graph: RoleGraph) -> bytes:
    """Encode the graph as compact JSON; equal graphs give equal bytes."""
    return _ENCODER.encode(graph)


def decode_graph(data: bytes | str) -> RoleGraph:
    """Decode a graph from JSON.

    Raises:
        msgspec.DecodeError: The data is no role graph.
    """
    return _DECODER.decode(data)
