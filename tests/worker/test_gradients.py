"""worker.Gradients: the gradient of a batch, which in exact mode has the same bits with any number of ranks."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist import worker
from flowdist.worker.gradients import Node, along_tree, is_node, nodes_of, split
from flowdist.worker.sampling import share

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def leaves(node: Node) -> Any:
    """Return the tree of a node as nested pairs: the slow way, by its definition."""
    first, end = node
    if end - first == 1:
        return first
    power = 1
    while power * 2 < end - first:
        power *= 2
    return leaves((first, first + power)), leaves((first + power, end))


@given(st.integers(1, 200))
def test_a_node_is_split_at_the_largest_power_of_two_that_leaves_some(count: int) -> None:
    def tree(node: Node) -> Any:
        if node[1] - node[0] == 1:
            return node[0]
        return tree((node[0], split(node))), tree((split(node), node[1]))

    assert tree((0, count)) == leaves((0, count))


@given(st.integers(1, 100), st.integers(1, 20))
def test_the_ranks_have_few_nodes_that_together_are_the_tree(count: int, ranks: int) -> None:
    class Sum(tuple[Any, ...]):
        def __add__(self, other: Any) -> Any:  # type: ignore[override]
            return Sum([(self[0], other[0])])

    nodes = [nodes_of(share(count, rank, ranks), count) for rank in range(ranks)]
    held = [node for each in nodes for node in each]
    assert [leaf for first, end in held for leaf in range(first, end)] == list(range(count))
    assert all(is_node(node, count) for node in held)
    assert all(len(each) <= 2 * count.bit_length() for each in nodes)
    sums: Any = {node: Sum([leaves(node)]) for node in held}
    assert along_tree((0, count), sums)[0] == leaves((0, count))  # type: ignore[comparison-overlap]


def test_leaves_that_are_no_node_are_told_apart() -> None:
    assert [node for first in range(5) for end in range(first + 1, 6) if is_node(node := (first, end), 5)] == [
        (0, 1), (0, 2), (0, 4), (0, 5), (1, 2), (2, 3), (2, 4), (3, 4), (4, 5),
    ]  # fmt: skip


def trained(rank: int, ranks: int, parts: int, *, exact: bool) -> str:
    """Train a small model for a few steps, and return a digest of its parameters."""
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Linear(20, 50), torch.nn.Dropout(0.3), torch.nn.GELU(), torch.nn.Linear(50, 7)
    model, data = torch.nn.Sequential(*layers), torch.randn(100, 20)
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    model.register_parameter("sometimes", torch.nn.Parameter(torch.ones(3)))
    samples = worker.samples(100, global_batch=parts * 4, micro_batch=4, seed=5, rank=rank, ranks=ranks)
    gradients, optimizer = worker.Gradients(model, samples, exact=exact), torch.optim.AdamW(model.parameters())
    for batch in samples.steps(0, 6):
        for part in batch:
            loss = model(data[part.samples]).square().mean()
            if part.number == parts - 1:  # one rank alone has a gradient of it
                loss = loss + model.sometimes.sum() * 0.1
            gradients.add(loss, part)
        gradients.reduce()
        assert model.unused.grad is None and model.sometimes.grad is not None
        optimizer.step()
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()


def main(rank: int, ranks: int, store: str) -> None:
    """Train as one of several ranks, and print the digests in the order of `SIZES`, and that of the usual mode."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    print(*[trained(rank, ranks, parts, exact=True) for parts in SIZES], trained(rank, ranks, SIZES[0], exact=False))


SIZES = 4, 7, 13  # numbers of micro-batches


def ended(folder: Path, ranks: int) -> list[list[str]]:
    """Return what each of so many ranks has printed."""
    line = f"from {__name__} import main; main({{}}, {ranks}, {str(folder / str(ranks))!r})"
    commands = [[sys.executable, "-c", line.format(rank)] for rank in range(ranks)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        return [each.communicate()[0].split() for each in workers]
    finally:
        for each in workers:
            each.kill()
            each.wait()


@pytest.mark.real
def test_exact_mode_ends_equal_to_the_bit_with_one_three_and_four_ranks(tmp_path: Path) -> None:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = [trained(0, 1, parts, exact=True) for parts in SIZES]
    finally:
        torch.set_num_threads(threads)
    for ranks in (3, 4):
        digests = ended(tmp_path, ranks)
        assert [each[:-1] for each in digests] == [alone] * ranks
        assert len({each[-1] for each in digests}) == 1 and digests[0][-1] != alone[0]  # so that this test can fail


def test_the_mean_is_that_of_the_whole_batch() -> None:
    import torch

    weight, data = torch.nn.Parameter(torch.zeros(3)), torch.randn(40, 3)
    samples = worker.samples(40, global_batch=8, micro_batch=2)
    for exact in (True, False):
        gradients = worker.Gradients([weight], samples, exact=exact)
        for batch in samples.steps(2, 3):
            for part in batch:
                gradients.add((data[part.samples] @ weight).mean(), part)
            gradients.reduce()
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad, data[batch.samples].mean(dim=0))


def test_a_step_that_was_left_in_its_middle_leaves_nothing_behind() -> None:
    import torch

    weight, samples = torch.nn.Parameter(torch.ones(1)), worker.samples(40, global_batch=8, micro_batch=2)
    for exact in (True, False):
        gradients = worker.Gradients([weight], samples, exact=exact)
        first = samples.batch(0).parts
        gradients.add(weight.sum() * 100, first[0])
        for part in samples.batch(1).parts:
            gradients.add(weight.sum(), part)
        gradients.reduce()
        assert weight.grad is not None and weight.grad.item() == 1
        with pytest.raises(RuntimeError, match=r"has added the micro-batches \[\] of the step, not \[0, 1, 2, 3\]"):
            worker.Gradients([weight], samples, exact=exact).reduce()


def test_ranks_that_share_no_group_are_told_so() -> None:
    import torch

    weight, samples = (
        torch.nn.Parameter(torch.ones(1)),
        worker.samples(40, global_batch=8, micro_batch=2, rank=1, ranks=2),
    )
    gradients = worker.Gradients([weight], samples)
    for part in samples.batch(0).parts:
        gradients.add(weight.sum(), part)
    with pytest.raises(RuntimeError, match="rank 0 of 1 of the process group, and rank 1 of 2 that share the samples"):
        gradients.reduce()


def test_models_whose_gradients_are_not_whole_or_not_the_same_are_refused() -> None:
    import torch

    samples = worker.samples(40, global_batch=8, micro_batch=2)
    norm = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="1 is a BatchNorm1d, whose running statistics"):
        worker.Gradients(norm, samples, exact=True)
    assert worker.Gradients(norm, samples)

    class DistributedDataParallel(torch.nn.Linear):
        pass

    with pytest.raises(TypeError, match="pass the module that it wraps"):
        worker.Gradients(DistributedDataParallel(2, 2), samples)

    class DTensor(torch.nn.Parameter):
        pass

    with pytest.raises(TypeError, match="a parameter is a DTensor"):
        worker.Gradients([DTensor(torch.ones(1))], samples)
    table = torch.nn.Embedding(4, 2, sparse=True)
    gradients = worker.Gradients(table, samples, exact=True)
    for part in samples.batch(0).parts:
        gradients.add(table(torch.tensor([1])).sum(), part)
    with pytest.raises(TypeError, match="write sparse=False"):
        gradients.reduce()
