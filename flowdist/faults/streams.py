"""Random numbers that depend on a seed and on names alone, so that one more fault leaves all other draws alone."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b


def draw(seed: int, entity: str, purpose: str, n: int = 0) -> float:
    """Return the n-th number of the stream of these names, evenly distributed in [0, 1)."""
    return number(stream(seed, entity, purpose), n)


def spread(seed: int, entity: str, purpose: str) -> float:
    """Return a factor from 0.8 to 1.2, the same for the same arguments; 1 for seed 0, which is nominal."""
    return 0.8 + 0.4 * draw(seed, entity, purpose) if seed else 1.0


def stream(seed: int, entity: str, purpose: str) -> bytes:
    """Return the key of a stream, for callers that draw many numbers."""
    return f"{seed}/{entity}/{purpose}/".encode()


def numbers(of: bytes) -> Callable[[int], float]:
    """Return `number` of one stream as a function of n, which hashes the key once, for callers that draw very many."""
    begun = blake2b(of, digest_size=8)

    def number(n: int) -> float:
        rest = begun.copy()
        rest.update(b"%d" % n)
        return int.from_bytes(rest.digest(), "big") * 2.0**-64

    return number


def number(of: bytes, n: int) -> float:
    """Return the n-th number of the stream with this key, in [0, 1)."""
    return int.from_bytes(blake2b(of + b"%d" % n, digest_size=8).digest(), "big") * 2.0**-64
