"""Digests of the values that a worker has: tensors and arrays by their bytes, others by their words."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterable
from typing import Any


def hashed(data: bytes) -> str:
    """Return a digest of bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def digest(value: Any) -> str:
    """Return a digest of a nested value; tensors and arrays by their kind, shape and bytes."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in _parts(value):
        hashed.update(part)
    return hashed.hexdigest()


def _parts(value: Any) -> Iterable[bytes | memoryview]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        local = value.detach()
        local = local.to_local() if hasattr(local, "to_local") else local  # a DTensor: the part that this rank has
        yield f"{local.dtype}{tuple(local.shape)}".encode()
        if local.numel():
            local = local.cpu().contiguous()
            size = local.numel() * local.element_size()
            yield bytes((ctypes.c_char * size).from_address(local.data_ptr()))  # without numpy, which may be missing
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
        yield f"{value.dtype}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, dict):
        for key, each in value.items():
            yield repr(key).encode()
            yield from _parts(each)
    elif isinstance(value, (list, tuple)):
        yield b"["
        for each in value:
            yield from _parts(each)
        yield b"]"
    else:
        yield repr(value).encode()
