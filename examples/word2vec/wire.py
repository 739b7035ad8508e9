"""Push and pull of sparse rows: frames of a JSON header and raw arrays, over plain sockets. Nothing is unpickled."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import numpy as np

_LENGTHS = struct.Struct("!II")
HEADER_MAX, BODY_MAX = 1 << 16, 1 << 28


def send(link: socket.socket, op: str, **arrays: np.ndarray) -> None:
    """One message: an operation with named arrays."""
    described = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    header = json.dumps({"op": op, "arrays": described}).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    link.sendall(_LENGTHS.pack(len(header), len(body)) + header + body)


def receive(link: socket.socket) -> tuple[str, dict[str, np.ndarray]]:
    """The next message. ConnectionError at the end of the connection, ValueError for what is no message."""
    header_size, body_size = _LENGTHS.unpack(_exactly(link, _LENGTHS.size))
    if header_size > HEADER_MAX or body_size > BODY_MAX:
        raise ValueError(f"a message of {header_size} + {body_size} bytes is none of ours")
    header: dict[str, Any] = json.loads(_exactly(link, header_size))
    body = _exactly(link, body_size)
    arrays, offset = {}, 0
    for name, (dtype, shape) in header["arrays"].items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(body, dtype=np.dtype(dtype), count=count, offset=offset).reshape(shape)
        offset += arrays[name].nbytes
    return header["op"], arrays


def _exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionError("the other side closed the connection")
        data += part
    return bytes(data)
