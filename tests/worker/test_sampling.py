"""worker.samples(): the samples and random numbers of a step depend on seed and step alone, not on the ranks."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist import worker
from flowdist.worker.agent_link import Info
from flowdist.worker.sampling import Samples

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def of(rank: int, ranks: int, size: int = 100, batch: int = 12, micro: int = 2, **options: Any) -> Samples:
    return worker.samples(size, global_batch=batch, micro_batch=micro, rank=rank, ranks=ranks, **options)


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 5), st.integers(0, 50), st.integers(0, 1 << 62))
def test_any_number_of_ranks_uses_the_same_micro_batches(
    size: int, parts: int, micro: int, step: int, seed: int
) -> None:
    options = {"size": size, "batch": parts * micro, "micro": micro, "seed": seed}
    alone = of(0, 1, **options).batch(step).parts
    for ranks in range(1, parts + 1):
        theirs = [part for rank in range(ranks) for part in of(rank, ranks, **options).batch(step).parts]
        assert [(part.number, part.samples) for part in theirs] == [(part.number, part.samples) for part in alone]
        assert sum(part.is_first for part in theirs) == sum(part.is_last for part in theirs) == ranks


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 1 << 62))
def test_each_sample_comes_once_in_each_epoch(size: int, batch: int, seed: int) -> None:
    samples = of(0, 1, size, batch, 1, seed=seed)
    steps = -(-3 * size // batch)
    stream = [sample for step in range(steps) for sample in samples.batch(step).samples]
    for epoch in range(3):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    first, second, other = (
        of(0, 1, 50, 50, 50, seed=seed).batch(step).samples for seed, step in ((1, 0), (1, 1), (2, 0))
    )
    assert first != second and first != other and first != list(range(50))
    assert of(0, 1, 50, 50, 50, shuffle=False).batch(7).samples == list(range(50))


@pytest.mark.parametrize("size", [5, 10, 33])
def test_every_sample_is_equally_often_at_every_place(size: int) -> None:
    """A chi-square of places and samples over 4,000 seeds, which are the same in each run."""
    seen = Counter[tuple[int, int]]()
    for seed in range(4000):
        seen.update(enumerate(of(0, 1, size, size, 1, seed=seed).batch(0).samples))
    expected = 4000 / size
    surplus = sum((seen[place, sample] - expected) ** 2 / expected for place in range(size) for sample in range(size))
    assert surplus < 3 * (size - 1) ** 2 + 10


def test_a_step_far_into_a_large_dataset_is_there_at_once() -> None:
    batch = of(3, 4, 1 << 40, 64, 8, seed=3).batch(1 << 33)
    assert len(set(batch.samples)) == 16 and all(0 <= sample < 1 << 40 for sample in batch.samples)


def test_the_random_numbers_of_a_micro_batch_do_not_depend_on_the_rank_that_has_it() -> None:
    def drawn(ranks: int) -> dict[int, float]:
        found = {}
        for rank in range(ranks):
            for batch in of(rank, ranks, seed=4).steps(7, 8):
                for part in batch:
                    found[part.number] = random.random()
        return found

    state = random.getstate()
    try:
        assert drawn(1) == drawn(2) == drawn(4)
        assert len(set(drawn(1).values())) == 6
    finally:
        random.setstate(state)


def test_after_a_step_and_before_the_first_one_all_ranks_have_the_same_random_numbers() -> None:
    state = random.getstate()
    try:
        found = set()
        for rank in range(3):
            for batch in of(rank, 3, seed=4).steps(7, 8):
                list(batch)
                found.add(random.random())
        assert len(found) == 1
    finally:
        random.setstate(state)


@needs_torch
def test_random_sets_numpy_and_torch() -> None:
    import numpy as np
    import torch

    worker.random(3, 1, seed=9)
    first = (np.random.rand(), torch.rand(1).item())
    worker.random(3, 2, seed=9)
    assert (np.random.rand(), torch.rand(1).item()) != first
    worker.random(3, 1, seed=9)
    assert (np.random.rand(), torch.rand(1).item()) == first


def test_without_ranks_it_has_those_of_the_present_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    samples = worker.samples(100, global_batch=12, micro_batch=2)
    assert [part.number for part in samples.batch(0).parts] == [3, 4, 5] and samples.accumulation == 3
    monkeypatch.setenv("WORLD_SIZE", "3")  # as after a re-formation in place
    assert [part.number for part in samples.batch(1).parts] == [2, 3] and samples.accumulation == 2


class Told(Samples):
    """Samples whose reports are kept, of a world of one rank."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        self.generation, self.messages = 1, list[dict[str, Any]]()
        super().__init__(*sizes, **options)

    def _who(self) -> Info:
        return Info("trainer", "trainer/0", 0, 0, 1, 0, 0, 1, self.generation, 1, "x", 0)

    def _tell(self, sampling: dict[str, Any]) -> None:
        self.messages.append(sampling)


def told(generations: list[tuple[int, int]]) -> list[int]:
    """Return at which steps it is reported that sampling begins, for pairs of a generation and a step."""
    samples = Told(100, global_batch=4)
    for samples.generation, step in generations:
        samples.batch(step)
    return [message["begin"] for message in samples.messages]


def test_flowdist_hears_where_a_generation_begins_and_of_steps_that_are_left_out() -> None:
    assert told([(1, 0), (1, 1), (1, 1), (1, 2)]) == [0]
    assert told([(1, 5), (1, 6), (2, 6), (2, 7)]) == [5, 6]
    assert told([(1, 0), (1, 2), (1, 3), (1, 1)]) == [0, 2, 1]


def test_a_sampler_yields_the_micro_batches_of_its_rank_epoch_by_epoch() -> None:
    samples = of(1, 2, 30, 12, 2, seed=5)
    sampler = samples.sampler(1)
    assert len(sampler) == 2 * 3
    mine = [part.samples for step in range(6) for part in samples.batch(step).parts]
    assert [*sampler] == mine[3:6] and [*sampler] == mine[6:12] and [*sampler] == mine[12:18]
    sampler.set_epoch(0)
    assert [*sampler] == mine[:6]


def test_flowdist_does_not_hear_of_steps_that_a_loader_draws_in_order_to_skip_them() -> None:
    samples = Told(100, global_batch=20)
    sampler = samples.sampler(7)
    sampler.set_epoch(1)  # as transformers' Trainer does, which then skips what is done of the epoch
    drawn = [*sampler]
    assert [message["begin"] for message in samples.messages] == [7]
    assert drawn == [samples.batch(step).samples for step in range(5, 10)]


def test_a_sampler_goes_on_with_another_number_of_ranks_where_it_was() -> None:
    before = of(0, 2, 30, 12, 2).sampler()
    drawn = iter(before)
    for _ in range(3):
        next(drawn)
    after = of(0, 3, 30, 12, 2).sampler()
    after.load_state_dict(before.state_dict())
    assert next(iter(after)) == of(0, 3, 30, 12, 2).batch(1).parts[0].samples


def test_a_sampler_that_outlives_its_generation_stays_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    samples = worker.samples(1000, global_batch=12, micro_batch=1)
    drawn = iter(sampler := samples.sampler(steps_per_epoch=50))
    assert [next(drawn) for _ in range(30)][-1] == samples.batch(9).parts[2].samples
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert next(iter(sampler)) == samples.batch(10).parts[0].samples


def test_another_dataset_beside_that_of_the_training_is_not_reported() -> None:
    samples = Told(100, global_batch=4, ledger=False)
    samples.batch(0)
    assert samples.messages == []


@needs_torch
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # which torchdata imports
@pytest.mark.parametrize("loaders", [0, 2])
def test_loaders_of_torch_and_torchdata_take_the_sampler(loaders: int) -> None:
    data = pytest.importorskip("torchdata.stateful_dataloader")
    from torch.utils.data import DataLoader

    expected = [part.samples for step in range(4) for part in of(1, 2, 48, 12, 2, seed=5).batch(step).parts]
    plain = DataLoader(range(48), batch_sampler=of(1, 2, 48, 12, 2, seed=5).sampler(), num_workers=loaders)
    assert [batch.tolist() for batch in plain] == expected

    def stateful() -> Any:
        sampler = of(1, 2, 48, 12, 2, seed=5).sampler()
        return data.StatefulDataLoader(range(48), batch_sampler=sampler, num_workers=loaders)

    first, read = stateful(), list[list[int]]()
    for batch in first:
        read.append(batch.tolist())
        if len(read) == 5:
            break
    second = stateful()
    second.load_state_dict(first.state_dict())
    assert read + [batch.tolist() for batch in second] == expected


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"global_batch": 12, "micro_batch": 5}, "write micro_batch=4 or 6"),
        ({"global_batch": 4, "micro_batch": 4, "rank": 0, "ranks": 3}, "not enough for 3 ranks; write micro_batch=1"),
        ({"global_batch": 2, "micro_batch": 1, "rank": 0, "ranks": 3}, "write global_batch=3 or more"),
        ({"global_batch": 0}, "global_batch=0 is not between 1 and"),
        ({"global_batch": True}, "global_batch=True"),
        ({"global_batch": 4, "rank": 1}, "rank=, ranks="),
        ({"global_batch": 4, "micro_batch": 1, "rank": 2, "ranks": 2}, "ranks are numbered from 0"),
        ({"global_batch": 4, "seed": -1}, "seed=-1"),
    ],
)
def test_what_cannot_be_is_refused_in_words(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        worker.samples(100, **arguments)


def test_a_size_that_is_no_number_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="dataset_size='x' is no whole number"):
        worker.samples("x", global_batch=1)  # type: ignore[arg-type]


def test_a_loop_of_equal_numbers_is_told_which_numbers_of_ranks_it_can_have() -> None:
    with pytest.raises(ValueError, match=r"cannot be split evenly over 4 ranks \(over 1, 2, 3, 6 they can\)"):
        of(0, 4).sampler()
