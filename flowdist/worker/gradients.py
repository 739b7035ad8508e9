"""The gradient of a whole batch, as a sum over micro-batches that several ranks have computed.

In exact mode the micro-batches of a step are the leaves of one binary tree, and their gradients are added along it: the
left part of each node has the largest power of two of leaves that leaves some for the right. Whatever rank computes
which leaf, the same numbers are added in the same order, so that the sum is the same to the bit. A rank has successive
leaves. It adds what forms whole nodes by itself, and is left with few sums: one, where the numbers of ranks and leaves
are powers of two, else at most two for each level of the tree. Each rank gets a slice of all of these sums, adds the
rest of the tree, and sends its result to all. With one sum per rank that moves as many bytes as an all-reduce.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from flowdist.worker.sampling import Part, Samples, share

if TYPE_CHECKING:
    import torch

Node = tuple[int, int]  # of the tree: its first leaf, and the first one behind it


class Sum(NamedTuple):
    """The sum of the gradients of a node of the tree; None for a parameter that no leaf has a gradient of."""

    node: Node
    values: list[torch.Tensor | None]


class Gradients:
    """Sums the gradients of a model over the micro-batches of a step, on all ranks: see docs/same_run.md.

    Args:
        model: The module, or its parameters. It is not wrapped by DistributedDataParallel, which would sum by itself.
        samples: Which samples each step uses, from `flowdist.worker.samples`.
        exact: Whether the sum is the same to the bit with any number of ranks. Else each rank adds its own
            micro-batches, and one all-reduce the ranks, so that another number of ranks has other last digits.
        group: The process group of the ranks that use different samples. None: that of the world.

    Raises:
        TypeError: if the model is wrapped, or a parameter is sharded: then no rank has whole gradients.
        ValueError: in exact mode, if a module has running statistics, such as BatchNorm: they depend on which samples
            a rank has.
    """

    def __init__(self, model: Any, samples: Samples, *, exact: bool = False, group: Any = None) -> None:
        parameters = model.parameters() if hasattr(model, "parameters") else model
        self._parameters: list[Any] = [each for each in parameters if each.requires_grad]
        _refuse_wrapped(model, self._parameters)
        if exact:
            _refuse_statistics(model)
        self._samples, self._exact, self._group = samples, exact, group
        self._sums: list[Sum] = []
        self._added: list[int] = []  # the micro-batches of this step

    def add(self, loss: torch.Tensor, part: Part) -> None:
        """Compute the gradient of one micro-batch, and add it to the sum of its step.

        Args:
            loss: The mean over the samples of the micro-batch.
            part: The micro-batch. With the first one of a rank the sum begins anew.
        """
        if part.is_first:
            self._sums, self._added = [], []
            for parameter in self._parameters:
                parameter.grad = None
        self._added.append(part.number)
        loss.backward()
        if self._exact:
            self._sums.append(Sum((part.number, part.number + 1), self._taken()))
            self._merge()

    def reduce(self) -> None:
        """Set the gradient of each parameter to the mean over the whole batch. Every rank calls this once in a step.

        Raises:
            RuntimeError: if this rank has not added all of its micro-batches, or if the ranks of the group are not
                those that share the samples: the sum would be another one.
        """
        self._check_share()
        if not self._exact:
            self._sums = [Sum((0, 0), self._taken())]
        sums, self._sums, self._added = self._sums, [], []
        for kind in dict.fromkeys((each.dtype, each.device) for each in self._parameters):
            places = [n for n, each in enumerate(self._parameters) if (each.dtype, each.device) == kind]
            self._reduce([self._parameters[n] for n in places], [[each.values[n] for n in places] for each in sums])

    def _check_share(self) -> None:
        dist: Any = sys.modules.get("torch.distributed")
        has_group = dist is not None and dist.is_initialized()
        group = (dist.get_rank(self._group), dist.get_world_size(self._group)) if has_group else (0, 1)
        rank, ranks = self._samples.share_now()
        if group != (rank, ranks):
            help = "pass group= to Gradients, or rank= and ranks= to samples()" if has_group else "initialise a group"
            raise RuntimeError(
                f"Gradients.reduce(): this is rank {group[0]} of {group[1]} of the process group, and rank {rank} of "
                f"{ranks} that share the samples; {help}"
            )
        wanted = list(range(*share(self._samples.parts, rank, ranks)))
        if self._added != wanted:
            raise RuntimeError(
                f"Gradients.reduce(): this rank has added the micro-batches {self._added} of the step, not {wanted}"
            )

    def _taken(self) -> list[torch.Tensor | None]:
        """Return the gradients of the parameters, and take them away."""
        taken = [each.grad for each in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return taken

    def _merge(self) -> None:
        """Add the last two sums as long as they are the two parts of one node."""
        while len(self._sums) > 1:
            (first, left), (second, right) = self._sums[-2:]
            node = (first[0], second[1])
            if not is_node(node, self._samples.parts) or split(node) != second[0]:
                return
            self._sums[-2:] = [Sum(node, [_added(a, b) for a, b in zip(left, right, strict=True)])]

    def _reduce(self, parameters: list[Any], sums: list[list[torch.Tensor | None]]) -> None:
        """Set the gradients of parameters of one type and device from the sums of this rank."""
        import torch  # heavy: this module is imported with flowdist.worker

        flat = torch.stack([_flat(parameters, values) for values in sums])
        total = self._sum_of_all(flat)
        total[: -len(parameters)].div_(self._samples.parts)
        counts = total[-len(parameters) :].tolist()
        at = 0
        for parameter, count in zip(parameters, counts, strict=True):
            if count:
                parameter.grad = total[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()

    def _sum_of_all(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks of vectors, of which this rank has the rows of `flat`. A collective."""
        dist: Any = sys.modules.get("torch.distributed")
        size = 1 if dist is None or not dist.is_initialized() else dist.get_world_size(self._group)
        if not self._exact:
            total = flat[0]
            if size > 1:
                dist.all_reduce(total, group=self._group)
            return total
        return self._tree_sum(flat, dist, size)

    def _tree_sum(self, flat: torch.Tensor, dist: Any, size: int) -> torch.Tensor:
        count = self._samples.parts
        nodes = [nodes_of(share(count, rank, size), count) for rank in range(size)]
        if size == 1:
            return along_tree((0, count), dict(zip(nodes[0], flat, strict=True)))
        width = -(-flat.shape[1] // size)  # of a slice, in numbers
        padded = flat.new_zeros(len(flat), width * size)
        padded[:, : flat.shape[1]] = flat
        mine = padded.view(len(flat), size, width).transpose(0, 1).contiguous().view(-1)
        theirs = flat.new_empty(sum(map(len, nodes)) * width)
        dist.all_to_all_single(
            theirs, mine, [len(each) * width for each in nodes], [len(flat) * width] * size, group=self._group
        )
        leaves = dict(zip((node for each in nodes for node in each), theirs.view(-1, width), strict=True))
        total = flat.new_empty(size * width)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
        gather(total, along_tree((0, count), leaves).contiguous(), group=self._group)
        return total[: flat.shape[1]]


def split(node: Node) -> int:
    """Return where the right part of a node begins: the left one has the largest power of two of its leaves."""
    first, end = node
    return first + (1 << (end - first - 1).bit_length() - 1)


def is_node(node: Node, count: int) -> bool:
    """Return whether the leaves of `node` are all those of a node of the tree with so many leaves."""
    at: Node = (0, count)
    while at[1] - at[0] > node[1] - node[0]:
        middle = split(at)
        at = (at[0], middle) if node[0] < middle else (middle, at[1])
    return at == node


def nodes_of(leaves: Node, count: int) -> list[Node]:
    """Return the largest nodes that successive leaves form, in order."""
    found: list[Node] = []
    first, end = leaves
    while first < end:
        at: Node = (0, count)
        while not (at[0] == first and at[1] <= end):
            middle = split(at)
            at = (at[0], middle) if first < middle else (middle, at[1])
        found.append(at)
        first = at[1]
    return found


def along_tree(node: Node, sums: dict[Node, torch.Tensor]) -> torch.Tensor:
    """Return the sum of a node, from the sums of nodes that together have all of its leaves."""
    if node in sums:
        return sums[node]
    middle = split(node)
    return along_tree((node[0], middle), sums) + along_tree((middle, node[1]), sums)


def _added(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left.add_(right)


def _flat(parameters: list[Any], gradients: list[torch.Tensor | None]) -> torch.Tensor:
    """Return one vector of the gradients, then for each parameter how many gradients it has: 0 or 1.

    A parameter without gradients gets zeros, as a rank cannot know whether another one has some. Zero plus a number is
    that number, but for the sign of a zero; an optimizer adds it, so that the sign is lost.
    """
    import torch  # as above

    parts = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and gradient.layout != torch.strided:
            raise TypeError("Gradients cannot sum sparse gradients: write sparse=False where the layer is made")
        parts.append((torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1))
    there = torch.tensor([each is not None for each in gradients], dtype=parts[0].dtype, device=parts[0].device)
    return torch.cat([*parts, there])


def _refuse_wrapped(model: Any, parameters: Iterable[Any]) -> None:
    kind = type(model).__name__
    if kind in ("DistributedDataParallel", "FullyShardedDataParallel"):
        help = "pass the module that it wraps" if kind.startswith("Dist") else "FSDP sums shards of gradients by itself"
        raise TypeError(f"Gradients({kind}): it sums the gradients of all ranks by itself; {help}")
    if any(type(each).__name__ == "DTensor" for each in parameters):
        raise TypeError(
            "Gradients(...): a parameter is a DTensor, as of FSDP2, of which no rank has the whole gradient; use "
            "samples.steps() with FSDP2's own reduction: the samples are the same then, the last digits may not be"
        )


def _refuse_statistics(model: Any) -> None:
    for name, module in model.named_modules() if hasattr(model, "named_modules") else ():
        if getattr(module, "track_running_stats", False):
            raise ValueError(
                f"Gradients(exact=True): {name or 'the model'} is a {type(module).__name__}, whose running statistics "
                "are those of the samples of one rank; use a norm without them, such as GroupNorm or LayerNorm"
            )
