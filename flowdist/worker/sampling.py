"""The samples of each step, as a function of seed and step alone: the same whatever ranks there are. Standard library.

Samples are drawn from an endless stream: each epoch of it is all samples of the dataset, in an order of its own, and a
step takes the next `global_batch` of it. So each sample comes once in each epoch, and nothing is dropped at its end. A
step is split into *micro-batches* of equal size, and these are split over the ranks: three ranks of a batch of eight
micro-batches have 3, 3 and 2 of them. A micro-batch is never split: what depends on who is in a batch with whom, as
dropout does by its random numbers, is the same with any number of ranks.

The order of an epoch is a permutation that can be asked for any position without computing the others: a Feistel
network over the smallest power of two that holds the dataset, which is applied again while the result is no sample
(M. Luby, C. Rackoff, "How to construct pseudorandom permutations", 1988; J. Black, P. Rogaway, "Ciphers with arbitrary
finite domains", 2002). So a step far into a dataset of a billion samples costs the same as the first one.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from flowdist.worker.agent_link import Info, info, link

ROUND_PAIRS = 4
WORD = (1 << 64) - 1
SIZE_MAX = 1 << 48  # of a dataset, and of a batch
STEP_MAX = 1 << 48
SEED_MAX = 1 << 62


class Part(NamedTuple):
    """One micro-batch of a step: its number in the step, from 0, and the indices of its samples in the dataset."""

    step: int
    number: int
    samples: list[int]
    is_first: bool  # of those of this rank
    is_last: bool  # after which this rank waits for the others


class Batch:
    """This rank's part of one step: iterate it for the micro-batches, or take all their `samples` at once.

    While it is iterated, the random generators are set by `flowdist.worker.random(step, part.number)` before each
    micro-batch, and by `random(step)`, which all ranks have in common, before the first and after the last one.
    """

    def __init__(self, step: int, parts: list[Part], seed: int) -> None:
        self.step, self.parts, self._seed = step, parts, seed

    def __iter__(self) -> Iterator[Part]:
        for part in self.parts:
            random(self.step, part.number, seed=self._seed)
            yield part
        random(self.step, seed=self._seed)

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def samples(self) -> list[int]:
        """The samples of all micro-batches of this rank."""
        return [sample for part in self.parts for sample in part.samples]


class Samples:
    """The samples that each step uses: a function of the seed and the step, with any number of ranks (rule R25).

    Args:
        dataset_size: How many samples the dataset has.
        global_batch: How many samples a step uses, on all ranks together. It does not change with their number.
        micro_batch: How many samples a rank computes at once; it has to divide `global_batch`. None: all of a step,
            which one rank alone can use.
        seed: Decides the order of the samples, and the random numbers of each micro-batch.
        shuffle: Whether each epoch has an order of its own; else all have that of the dataset.
        rank: The number of this rank among those that use different samples, where that is not the rank of the world:
            with tensor parallelism, `mesh.get_local_rank("dp")`. None: that of the world, in each generation anew.
        ranks: How many such ranks there are.
        ledger: Whether the controller keeps count of these samples: of one dataset of a role, that of its training.

    Raises:
        ValueError: if the micro-batch does not divide the batch, or if there are fewer micro-batches than ranks.
        TypeError: if a number is no whole number.
    """

    def __init__(
        self,
        dataset_size: int,
        *,
        global_batch: int,
        micro_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        ranks: int | None = None,
        ledger: bool = True,
    ) -> None:
        self.dataset_size = _whole("dataset_size", dataset_size, 1, SIZE_MAX)
        self.global_batch = _whole("global_batch", global_batch, 1, SIZE_MAX)
        self.micro_batch = self.global_batch if micro_batch is None else _whole("micro_batch", micro_batch, 1, SIZE_MAX)
        self.seed = _whole("seed", seed, 0, SEED_MAX)
        self.shuffle = bool(shuffle)
        if self.global_batch % self.micro_batch:
            least, most = _neighbours(self.global_batch, self.micro_batch)
            raise ValueError(
                f"samples(global_batch={global_batch}, micro_batch={micro_batch}): all micro-batches have one size, so "
                f"that it has to divide the batch; write micro_batch={least}" + (f" or {most}" if most else "")
            )
        if (rank is None) != (ranks is None):
            raise ValueError("samples(rank=, ranks=) go together: the number of this rank, and how many there are")
        self._share = None if rank is None else (_whole("rank", rank, 0, SIZE_MAX), _whole("ranks", ranks, 1, SIZE_MAX))
        if self._share is not None and self._share[0] >= self._share[1]:
            raise ValueError(f"samples(rank={rank}, ranks={ranks}): ranks are numbered from 0")
        self._has_ledger = bool(ledger)
        self._last: tuple[int, int] | None = None  # the generation and step of the last batch
        self.share_now()

    @property
    def parts(self) -> int:
        """How many micro-batches a step has, on all ranks together."""
        return self.global_batch // self.micro_batch

    @property
    def accumulation(self) -> int:
        """How many micro-batches each rank has in a step, where all have the same number.

        Raises:
            ValueError: if the ranks have different numbers of them.
        """
        ranks = self.share_now()[1]
        if self.parts % ranks:
            worlds = ", ".join(str(n) for n in range(1, self.parts + 1) if self.parts % n == 0)
            raise ValueError(
                f"{self.parts} micro-batches of {self.micro_batch} samples cannot be split evenly over {ranks} ranks "
                f"(over {worlds} they can); iterate samples.steps(), which needs no equal numbers, or choose another "
                "global_batch or micro_batch"
            )
        return self.parts // ranks

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Yield this rank's batch of each step from `start` to `stop`, exclusive; None: without end.

        Args:
            start: How many steps are done: that of the checkpoint that was read.
            stop: The number of steps of the whole training.

        Raises:
            ValueError: if there are more ranks than micro-batches.
        """
        step = _whole("start", start, 0, STEP_MAX)
        while stop is None or step < stop:
            random(step, seed=self.seed)
            yield self.batch(step)
            step += 1

    def batch(self, step: int) -> Batch:
        """Return this rank's part of a step. No generator is set before it is iterated.

        flowdist hears at which step a generation begins (R25), and of each step that does not follow the last one.
        `flowdist prove` takes what this returns for what the step uses.
        """
        first, end = self._begin(step)
        parts = [
            Part(step, number, self._samples(step, number), number == first, number == end - 1)
            for number in range(first, end)
        ]
        return Batch(step, parts, self.seed)

    def micro_batch_of(self, step: int, place: int, *, is_done: bool = False) -> list[int]:
        """Return the samples of one micro-batch of this rank, by its place among them. Loaders draw it ahead.

        One of a step that is done is drawn in order to be skipped: flowdist does not hear of it.
        """
        first, _ = share(self.parts, *self.share_now()) if is_done else self._begin(step)
        return self._samples(step, first + place)

    def _begin(self, step: int) -> tuple[int, int]:
        """Note that this rank takes samples of a step, and return which micro-batches it has."""
        rank, ranks = self.share_now()
        self._note(step, rank, ranks)
        return share(self.parts, rank, ranks)

    def sampler(self, start: int = 0, *, steps_per_epoch: int | None = None) -> Sampler:
        """Return a `batch_sampler` for a DataLoader: it yields this rank's micro-batches, from step `start` on.

        Args:
            start: How many steps are done. A loader that draws them all the same in order to skip them, as
                transformers' Trainer does within an epoch, does not take their samples.
            steps_per_epoch: How many steps one iteration has; the next one goes on behind it. None: as many as one
                epoch of the dataset has in whole.

        Raises:
            ValueError: if the ranks have different numbers of micro-batches.
        """
        return Sampler(self, start, steps_per_epoch)

    def _who(self) -> Info:
        """Return whose samples these are; simulated workers have another answer."""
        return info()

    def _tell(self, sampling: dict[str, Any]) -> None:
        """Tell the agent; simulated workers have their own."""
        link.send({"sampling": sampling})

    def _note(self, step: int, rank: int, ranks: int) -> None:
        """Report to flowdist that this rank takes its samples from a step on, unless it has said so."""
        generation = self._who().generation
        if self._has_ledger and self._last not in ((generation, step - 1), (generation, step)):
            names = ("dataset_size", "global_batch", "micro_batch", "seed", "shuffle")
            rule = {name: getattr(self, name) for name in names}
            self._tell({"begin": step, "rank": rank, "ranks": ranks, **rule})
        self._last = (generation, step)

    def share_now(self) -> tuple[int, int]:
        """Return which rank this is, and how many there are: as given, or as in the present generation.

        Raises:
            ValueError: if there are more ranks than micro-batches.
        """
        me = self._who()
        rank, ranks = (me.rank, me.world_size) if self._share is None else self._share
        if ranks > self.parts:
            most = self.global_batch // ranks
            help = f"write micro_batch={most} or less" if most else f"write global_batch={ranks} or more"
            raise ValueError(
                f"samples(global_batch={self.global_batch}, micro_batch={self.micro_batch}) has {self.parts} "
                f"micro-batches a step, which are not enough for {ranks} ranks; {help}"
            )
        return rank, ranks

    def _samples(self, step: int, part: int) -> list[int]:
        first = step * self.global_batch + part * self.micro_batch
        return [self._sample(position) for position in range(first, first + self.micro_batch)]

    def _sample(self, position: int) -> int:
        """Return the sample at a position of the stream."""
        epoch, place = divmod(position, self.dataset_size)
        if not self.shuffle:
            return place
        return _permuted(place, self.dataset_size, *_keys(self.dataset_size, self.seed, epoch))


class Sampler:
    """A `batch_sampler` that yields the micro-batches of one rank. Each iteration is one epoch, behind the last one.

    `state_dict()` and `load_state_dict()` save and restore its position, as torchdata's StatefulDataLoader needs it.
    """

    def __init__(self, samples: Samples, start: int, steps_per_epoch: int | None) -> None:
        self._samples = samples
        whole = max(1, samples.dataset_size // samples.global_batch)
        self.steps_per_epoch = (
            whole if steps_per_epoch is None else _whole("steps_per_epoch", steps_per_epoch, 1, STEP_MAX)
        )
        assert samples.accumulation > 0  # it raises if the ranks have different numbers
        self._step = self._start = _whole("start", start, 0, STEP_MAX)
        self._parts = 0  # how many micro-batches of this rank are drawn of that step

    def __len__(self) -> int:
        return self.steps_per_epoch * self._samples.accumulation

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be this epoch, from its beginning."""
        self._step, self._parts = _whole("epoch", epoch, 0, STEP_MAX) * self.steps_per_epoch, 0

    def __iter__(self) -> Iterator[list[int]]:
        count, end = self._samples.accumulation, (self._step // self.steps_per_epoch + 1) * self.steps_per_epoch
        if self._parts >= count:
            self._step, self._parts = self._step + 1, 0
        while self._step < end:
            part = self._samples.micro_batch_of(self._step, self._parts, is_done=self._step < self._start)
            self._parts += 1
            if self._parts == count:
                self._step, self._parts = self._step + 1, 0
            yield part

    def state_dict(self) -> dict[str, int]:
        """Return how far the steps are, as a number of steps and of micro-batches of this rank behind them."""
        return {"step": self._step, "parts": self._parts}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where `state_dict()` was called; with another number of ranks, at the beginning of its step."""
        self._step, self._parts = state["step"], state["parts"]
        self._start = min(self._start, self._step)


def share(parts: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return which of so many micro-batches a rank has: from the first number to the second, exclusive."""
    return parts * rank // ranks, parts * (rank + 1) // ranks


def random(step: int, part: int | None = None, *, seed: int = 0) -> None:
    """Set the generators of python, numpy and torch by step and micro-batch, so that no rank has its own.

    numpy and torch are set if they are imported; torch sets those of all devices. `Samples.steps()` calls this.

    Args:
        step: The step.
        part: The number of the micro-batch in the step. None: what all ranks have in common in this step.
        seed: That of the training.
    """
    import random as python  # the module of this name; here, because every worker imports this file

    word = _mixed(_mixed(seed, step), -1 if part is None else part)
    python.seed(word)
    if (numpy := sys.modules.get("numpy")) is not None and hasattr(numpy, "random"):
        numpy.random.seed(word & 0xFFFFFFFF)
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "manual_seed"):
        # Without a device in use, torch.manual_seed would note a stack of calls for later: 0.3 ms each time.
        has_device = torch.accelerator.current_accelerator() is not None and _is_in_use(torch)
        (torch.manual_seed if has_device else torch.default_generator.manual_seed)(word >> 1)


def _is_in_use(torch: Any) -> bool:
    backend = getattr(torch, torch.accelerator.current_accelerator().type, None)
    return bool(getattr(backend, "is_initialized", lambda: True)())


def _mixed(key: int, number: int) -> int:
    """Return 64 bits that depend on both numbers (the finalizer of D. Stafford's "Mix13", as in SplitMix64)."""
    word = (key * 0x9E3779B97F4A7C15 + number + 0x632BE59BD9B4E019) & WORD
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & WORD
    return word ^ word >> 31


@functools.lru_cache(maxsize=4)
def _keys(size: int, seed: int, epoch: int) -> tuple[int, int, tuple[tuple[int, int, int, int], ...]]:
    """Return how many bits each half of a position has, and the multipliers and summands of each pair of rounds."""
    bits = max(2, (size - 1).bit_length())
    low = bits // 2
    words = [_mixed(_mixed(seed, epoch), number) for number in range(4 * ROUND_PAIRS)]
    rounds = [(words[n] | 1, words[n + 1], words[n + 2] | 1, words[n + 3]) for n in range(0, 4 * ROUND_PAIRS, 4)]
    return low, bits - low, tuple(rounds)


def _permuted(place: int, size: int, low: int, high: int, rounds: tuple[tuple[int, int, int, int], ...]) -> int:
    """Return the sample at a place of an epoch.

    Each half is xored with a hash of the other one: the highest bits of a product (M. Dietzfelbinger et al., "A
    reliable randomized algorithm for the closest-pair problem", 1997), which a second factor mixes again.
    """
    mask, to_high, to_low = (1 << low) - 1, 64 - high, 64 - low
    while True:
        left, right = place >> low, place & mask
        for a, b, c, d in rounds:
            word = (right * a + b) & WORD
            left ^= ((word ^ word >> 32) * c & WORD) >> to_high
            word = (left * c + d) & WORD
            right ^= ((word ^ word >> 32) * a & WORD) >> to_low
        place = left << low | right
        if place < size:
            return place


def _whole(name: str, value: Any, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is no whole number") from None
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"{name}={value!r} is not between {least} and {most}")
    return number


def _neighbours(batch: int, micro: int) -> tuple[int, int]:
    """Return the divisors of a batch that are next to a number: a lower one, and a higher one or 0."""
    lower = next(n for n in range(min(micro, batch), 0, -1) if batch % n == 0)
    return lower, next((n for n in range(micro, min(batch, 1 << 20) + 1) if batch % n == 0), 0)


samples = Samples  # what scripts call: `worker.samples(...)`
