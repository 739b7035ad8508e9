"""Random numbers that depend on a seed and on names alone: one more fault reshuffles nothing else."""

from __future__ import annotations

import hashlib


def draw(seed: int, entity: str, purpose: str, n: int = 0) -> float:
    """A number from 0 up to, and without, 1."""
    data = hashlib.blake2b(f"{seed}/{entity}/{purpose}/{n}".encode(), digest_size=8).digest()
    return int.from_bytes(data) / 2**64
