"""How durations, sizes of memory and capacities are written, read and counted."""

from __future__ import annotations

import math

import pytest

from flowdist.graph import (
    HOUR,
    MINUTE,
    MS,
    SECOND,
    Capacity,
    NodeSpec,
    Resources,
    add,
    fits,
    format_duration,
    format_memory,
    needed,
    offered,
    parse_duration,
    parse_memory,
    slots,
    subtract,
)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1_500, "0.002ms"),
        (250 * MS, "250ms"),
        (999 * MS, "999ms"),
        (SECOND, "1s"),
        (1500 * MS, "1.5s"),
        (MINUTE, "1m"),
        (24 * HOUR, "1d"),
        (90 * SECOND, "1m30s"),
        (2 * HOUR, "2h"),
        (25 * HOUR + 30 * MINUTE, "1d1h30m"),
        (-90 * SECOND, "-1m30s"),
    ],
)
def test_a_duration_is_written_as_people_write_it(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"), (64 << 30, "64GiB"), (3 << 40, "3TiB")],
)
def test_a_size_is_written_in_the_largest_unit_that_it_fills(size: int, text: str) -> None:
    assert format_memory(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("7B", 7),
        ("2KB", 2_000),
        ("500MB", 500_000_000),
        ("3GB", 3_000_000_000),
        ("4TB", 4_000_000_000_000),
        ("1.5 GiB", 3 << 29),
        ("7kib", 7 << 10),
        ("5k", 5 << 10),
        ("6m", 6 << 20),
        ("2g", 2 << 30),
    ],
)
def test_sizes_of_memory(text: str | int, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "3 parsecs", "-1GiB", True, 1 << 63, "9" * 400 + ".5TiB", "9" * 5000])
def test_what_is_no_size_of_memory(text: str | int) -> None:
    with pytest.raises(ValueError):
        parse_memory(text)


@pytest.mark.parametrize("value", [math.inf, math.nan, 10**30, "293y", "107000d", "9" * 400 + ".5s", "9" * 5000])
def test_a_duration_that_no_clock_reaches_is_none(value: str | float) -> None:
    with pytest.raises(ValueError):
        parse_duration(value)


def test_the_longest_duration_loses_no_nanosecond() -> None:
    assert parse_duration("9223372036854775807ns") == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "ns"), [("7ns", 7), ("2us", 2_000), ("1d", 24 * HOUR), ("2m", 2 * MINUTE), ("1h2us", HOUR + 2_000)]
)
def test_durations_in_every_unit(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


def test_cores_are_counted_in_thousandths_the_rest_as_it_is() -> None:
    assert offered(NodeSpec("n", cpu=1.5, gpu=2, memory=3)) == Capacity(1500, 2, 3)
    assert needed(Resources(0.25, 4, 5)) == Capacity(250, 4, 5)
    assert add(Capacity(1, 2, 3), Capacity(10, 20, 30)) == Capacity(11, 22, 33)
    assert subtract(Capacity(11, 22, 33), Capacity(10, 20, 30)) == Capacity(1, 2, 3)


def test_a_tenth_and_two_tenths_of_a_core_are_three_tenths() -> None:
    tenth, two = needed(Resources(cpu=0.1)), needed(Resources(cpu=0.2))
    assert add(tenth, two) == needed(Resources(cpu=0.3))
    assert subtract(needed(Resources(cpu=0.3)), two) == tenth


def test_what_is_not_asked_for_does_not_matter_even_where_there_is_too_little_of_it() -> None:
    overbooked = Capacity(4000, -1, -5)
    assert fits(Capacity(4000, 0, 0), overbooked)
    assert not fits(Capacity(1, 1, 0), overbooked)


def test_a_node_has_as_many_slots_as_its_scarcest_part_allows() -> None:
    node = offered(NodeSpec("n", cpu=16, gpu=4, memory=100))
    assert slots(Capacity(2000, 1, 0), node) == 4
    assert slots(Capacity(2000, 0, 30), node) == 3
    assert slots(Capacity(32000, 0, 0), node) == 0


def test_what_needs_nothing_fits_a_thousand_times() -> None:
    assert slots(Capacity(0, 0, 0), Capacity(0, 0, 0)) == 1000
