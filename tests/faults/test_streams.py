"""Streams of random numbers: the same for the same names, others for other names, and no stream disturbs another."""

from __future__ import annotations

from flowdist.faults.streams import draw, number, spread, stream


def test_a_stream_gives_the_same_numbers_by_its_names_and_by_its_key() -> None:
    of = stream(7, "node1", "kill")
    drawn = [draw(7, "node1", "kill", n) for n in range(50)]
    assert drawn == [number(of, n) for n in range(50)]
    assert all(0 <= x < 1 for x in drawn) and len(set(drawn)) == 50


def test_streams_of_other_seeds_entities_and_purposes_are_others() -> None:
    streams = [(7, "node1", "kill"), (8, "node1", "kill"), (7, "node2", "kill"), (7, "node1", "lose")]
    assert len({draw(*names) for names in streams}) == 4


def test_a_spread_is_within_a_fifth_of_one_and_nominal_for_seed_0() -> None:
    assert spread(0, "a", "start") == 1.0
    assert all(0.8 <= spread(seed, "a", "start") <= 1.2 for seed in range(1, 200))
