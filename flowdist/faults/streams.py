"""Random numbers that depend on a seed and on names alone: one more fault reshuffles nothing else."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b


def draw(seed: int, entity: str, purpose: str, n: int = 0) -> float:
    """A number from 0 up to, and without, 1."""
    return number(stream(seed, entity, purpose), n)


def stream(seed: int, entity: str, purpose: str) -> bytes:
    """What all numbers of one stream have in common: for whoever draws many."""
    return f"{seed}/{entity}/{purpose}/".encode()


def numbers(of: bytes) -> Callable[[int], float]:
    """`number` of one stream, for whoever draws very many: the beginning is hashed once."""
    begun = blake2b(of, digest_size=8)

    def number(n: int) -> float:
        rest = begun.copy()
        rest.update(b"%d" % n)
        return int.from_bytes(rest.digest(), "big") * 2.0**-64

    return number


def number(of: bytes, n: int) -> float:
    """The n-th number of that stream."""
    return int.from_bytes(blake2b(of + b"%d" % n, digest_size=8).digest(), "big") * 2.0**-64
