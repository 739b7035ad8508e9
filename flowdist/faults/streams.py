"""Random numbers that depend on a seed and on names alone, so that one more fault changes no other draw."""

from __future__ import annotations

from hashlib import blake2b


def draw(seed: int, entity: str, purpose: str, n: int = 0) -> float:
    """Return the n-th number, in [0, 1), of the stream for this seed, entity and purpose: equal for equal arguments."""
    return number(stream(seed, entity, purpose), n)


def spread(seed: int, entity: str, purpose: str, share: float = 0.2) -> float:
    """Return a factor from 1 - share to 1 + share for this seed, entity and purpose; 1 for seed 0, the nominal run."""
    return 1 - share + 2 * share * draw(seed, entity, purpose) if seed else 1.0


def stream(seed: int, entity: str, purpose: str) -> bytes:
    """Return the key of a stream, for `number`: building it once saves time if many numbers are drawn."""
    return f"{seed}/{entity}/{purpose}/".encode()


def number(of: bytes, n: int) -> float:
    """Return the n-th number of the stream with the key `of` (see `stream`), evenly distributed in [0, 1)."""
    return int.from_bytes(blake2b(of + b"%d" % n, digest_size=8).digest(), "big") * 2.0**-64
