"""Durations, sizes of memory and capacities: writing, reading and counting."""

from __future__ import annotations

import math

import pytest

from flowdist.graph import (
    HOUR,
    MINUTE,
    MS,
    SECOND,
    NodeSpec,
    NoUnitError,
    Resources,
    RoleSpec,
    duration_help,
    format_duration,
    format_memory,
    parse_duration,
    parse_memory,
)
from flowdist.graph.capacity import (
    Capacity,
    Need,
    add,
    fits,
    needed,
    node_for_all,
    offered,
    pick,
    slots,
    subtract,
    without,
)
from flowdist.graph.units import GPUS_MAX


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
        (0, 0),
        ("0", 0),
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
        ("64Gi", 64 << 30),
        ("3t", 3 << 40),
    ],
)
def test_sizes_of_memory(text: str | int, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "3 parsecs", "-1GiB", True, 1 << 63, "9" * 400 + ".5TiB", "9" * 5000, b"1B"]
)
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


@pytest.mark.parametrize(
    ("value", "help"),
    [
        ("10sec", "the unit is s: write 10s"),
        ("10 s", "the unit is s: write 10s"),
        ("1.5 Hours", "the unit is h: write 1.5h"),
        ("1min 30 seconds", "the units are m, s: write 1m30s"),
        ("400 msec", "the unit is ms: write 400ms"),
        ("10 parsecs", "otherwise"),
        ("10sec+", "otherwise"),
        ("sec", "otherwise"),
        ("10", "otherwise"),
        ("", "otherwise"),
        ("999999 days", "the longest duration is 292 years"),
        (10, "otherwise"),
        (None, "otherwise"),
    ],
)
def test_a_unit_in_other_words_is_named(value: object, help: str) -> None:
    assert duration_help(value, "otherwise") == help


@pytest.mark.parametrize("value", [1, 0.5, -1, 10**30, math.nan, "1", "0.5", " 30 ", "64"])
def test_a_number_without_a_unit_is_refused_as_such(value: str | float) -> None:
    for parse in (parse_duration, parse_memory):
        with pytest.raises(NoUnitError):
            parse(value)  # type: ignore[operator]


@pytest.mark.parametrize("value", [0, 0.0, "0", "0.0", "00"])
def test_zero_needs_no_unit(value: str | float) -> None:
    assert parse_duration(value) == parse_memory(value) == 0  # type: ignore[arg-type]


def test_cores_are_counted_in_thousandths_and_gpus_one_by_one() -> None:
    assert offered(NodeSpec("n", cpu=1.5, gpu=2, memory=3)) == Capacity(1500, (1000, 1000), 3)
    assert needed(Resources(0.25, 4, 5)) == Need(250, 4, 5)
    assert needed(Resources(gpu=1, gpu_share=500)) == Need(1000, 1, 0, 500)
    left = subtract(Capacity(11, (1000,) * 3, 33), Need(10, 2, 30))
    assert left == Capacity(1, (0, 0, 1000), 3)
    assert add(left, Need(10, 2, 30), (0, 1)) == Capacity(11, (1000,) * 3, 33)
    assert without(left, (2,)) == Capacity(1, (0, 0, 0), 3) and without(left, ()) == left


def test_a_tenth_and_two_tenths_of_a_core_are_three_tenths() -> None:
    three = Capacity(300, (), 0)
    assert subtract(subtract(three, needed(Resources(cpu=0.1))), needed(Resources(cpu=0.2))) == Capacity(0, (), 0)
    assert fits(needed(Resources(cpu=0.3)), three) and not fits(needed(Resources(cpu=0.31)), three)


def test_what_is_not_asked_for_does_not_matter_even_where_there_is_too_little_of_it() -> None:
    overbooked = Capacity(4000, (), -5)
    assert fits(Need(4000), overbooked)
    assert not fits(Need(1, 1), overbooked) and not fits(Need(1, memory=1), overbooked)


def test_a_node_has_as_many_slots_as_its_scarcest_part_allows() -> None:
    node = offered(NodeSpec("n", cpu=16, gpu=4, memory=100))
    assert slots(Need(2000, 1), node) == 4
    assert slots(Need(2000, memory=30), node) == 3
    assert slots(Need(32000), node) == 0
    assert slots(Need(gpu=3), node) == 1
    assert slots(Need(gpu=1, share=300), node) == 12


def test_what_needs_nothing_fits_a_thousand_times() -> None:
    assert slots(Need(), Capacity(0, (), 0)) == 1000
    assert Need().is_nothing and not Need(gpu=1).is_nothing


def test_whole_devices_are_the_lowest_that_nobody_has() -> None:
    assert pick(Need(gpu=2), Capacity(0, (1000, 0, 700, 1000, 1000), 0)) == (0, 3)
    assert pick(Need(gpu=2), Capacity(0, (1000, 999), 0)) == () and pick(Need(1), Capacity(5, (), 0)) == ()


def test_a_share_is_of_the_fullest_device_that_has_room_for_it() -> None:
    assert pick(Need(gpu=1, share=300), Capacity(0, (1000, 200, 400, 300, 300), 0)) == (3,)
    assert pick(Need(gpu=1, share=700), Capacity(0, (600, 600), 0)) == ()


def test_three_shares_of_six_tenths_do_not_fit_on_two_devices() -> None:
    most = Need(gpu=1, share=600)
    two = offered(NodeSpec("n", gpu=2))
    assert slots(most, two) == 2
    left = subtract(subtract(two, most), most)
    assert left.devices == (400, 400) and not fits(most, left) and slots(Need(gpu=1, share=400), left) == 2


def test_a_node_for_all_roles_has_what_all_of_their_replicas_need_but_no_more_gpus_than_a_node_can_have() -> None:
    a = RoleSpec("a", ("true",), max_replicas=3, resources=Resources(cpu=1.5, gpu=2, memory=10))
    b = RoleSpec("b", ("true",), max_replicas=2, resources=Resources(cpu=0.1, memory=5))
    assert node_for_all([a, b]) == NodeSpec("node0", cpu=4.7, gpu=6, memory=40)
    many = RoleSpec("many", ("true",), max_replicas=GPUS_MAX, resources=Resources(cpu=0, gpu=8))
    assert node_for_all([many]) == NodeSpec("node0", cpu=1, gpu=GPUS_MAX, memory=0), "and at least one core"


def test_what_a_replica_needs_of_gpus_in_words() -> None:
    assert (Resources(gpu=2).gpu_words, Resources(gpu=1, gpu_share=250).gpu_words, Resources().gpu_words) == (
        *("2 gpu", "0.25 gpu", ""),
    )
