"""The role graph as JSON, as it is in graph.json and in the header of a record."""

from __future__ import annotations

import msgspec

from flowdist.graph.role_graph import RoleGraph
from flowdist.graph.sound import why_unsound

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(RoleGraph)


def encode_graph(graph: RoleGraph) -> bytes:
    """Encode the graph as compact JSON in UTF-8; equal graphs give equal bytes."""
    return _ENCODER.encode(graph)


def decode_graph(data: bytes | str) -> RoleGraph:
    """Decode a graph from the JSON that `encode_graph` makes, and check it: a file may be damaged or edited.

    Raises:
        msgspec.DecodeError: The data is not a role graph, or one that contradicts itself.
    """
    try:
        graph = _DECODER.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"it is no JSON: {error}") from None
    if why := why_unsound(graph):
        raise msgspec.ValidationError(why)
    return graph
