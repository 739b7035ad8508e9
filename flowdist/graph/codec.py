"""The role graph as JSON and back: what `flowdist plan --json` prints and what a run keeps as graph.json."""

from __future__ import annotations

import msgspec

from flowdist.graph.model import RoleGraph

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(RoleGraph)


def encode_graph(graph: RoleGraph) -> bytes:
    """Compact JSON; equal graphs give equal bytes."""
    return _ENCODER.encode(graph)


def decode_graph(data: bytes | str) -> RoleGraph:
    """Raises msgspec.DecodeError for what is no role graph."""
    return _DECODER.decode(data)
