"""The record of a long simulation is packed while it grows, and reads as if it were not."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest

from flowdist.control.protocol.events import ReplicaProgressed
from flowdist.control.protocol.ids import ReplicaId
from flowdist.record.journal import Header, Line, digest, encode_line, record
from flowdist.sim.engine.context import BLOCK, Trace
from tests.control.harness import graph, role

HEADER = Header(graph(role("trainer")), ("node0",))


def lines(count: int) -> list[Line]:
    return [record(n, n * 1000, ReplicaProgressed(ReplicaId("trainer", n % 64), 1, n), []) for n in range(1, count + 1)]


def trace_of(written: list[Line]) -> Trace:
    trace = Trace(HEADER)
    for line in written:
        trace.append(line)
    return trace


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_what_was_written_is_read_and_its_digest_is_that_of_a_journal(count: int) -> None:
    written = lines(count)
    trace, plain = trace_of(written), [HEADER, *written]
    assert len(trace) == len(plain)
    assert list(trace) == plain == trace
    assert trace.digest() == digest(map(encode_line, plain))
    for place in {0, min(1, count), count // 2, count, -1, -count}:
        assert trace[place] == plain[place]
        assert list(trace.since(place % len(plain))) == plain[place % len(plain) :]
    assert trace[1:7] == plain[1:7]
    with pytest.raises(IndexError):
        trace[len(plain)]


def test_a_digest_changes_with_each_line_and_can_be_asked_for_at_any_time() -> None:
    trace, seen = Trace(HEADER), []
    for line in lines(BLOCK + 5):
        trace.append(line)
        seen.append(trace.digest() if line.n % 1000 < 3 or line.n >= BLOCK - 1 else "")  # type: ignore[union-attr]
    asked = [one for one in seen if one]
    assert all(a != b for a, b in pairwise(asked))
    assert asked[-1] == trace_of(lines(BLOCK + 5)).digest()


@pytest.mark.slow
def test_a_line_that_is_kept_costs_few_bytes() -> None:
    count = 20 * BLOCK
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        trace = Trace(HEADER)
        for n in range(1, count + 1):
            trace.append(record(n, n * 1000, ReplicaProgressed(ReplicaId("trainer", n % 64), 1, n), []))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / count < 150
