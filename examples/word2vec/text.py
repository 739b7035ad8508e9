"""The text of Python's own documentation topics, as word numbers: over 450 kB of English on every machine."""

from __future__ import annotations

import re
from collections import Counter
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np

MIN_COUNT = 5
SUBSAMPLE = 1e-3  # frequent words are left out at random, as in Mikolov et al. 2013, section 2.3


class Corpus(NamedTuple):
    """`tokens` are indices into `words`, most frequent word first; `counts` belong to `words`."""

    tokens: np.ndarray
    words: list[str]
    counts: np.ndarray


def load() -> Corpus:
    """The same on every machine with the same Python."""
    text = " . ".join(topics[name] for name in sorted(topics)).lower()
    raw = re.findall(r"[a-z_]{2,}", text)
    counts = Counter(raw)
    words = [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count >= MIN_COUNT]
    index = {word: i for i, word in enumerate(words)}
    tokens = np.array([index[word] for word in raw if word in index], dtype=np.int32)
    return Corpus(tokens, words, np.array([counts[word] for word in words], dtype=np.int64))


def shard(tokens: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Every `size`-th block of 1000 tokens, from block `rank` on: disjoint, and complete over all ranks."""
    blocks = [tokens[start : start + 1000] for start in range(0, len(tokens), 1000)]
    mine = blocks[rank::size]
    return np.concatenate(mine) if mine else tokens[:0]


def batches(corpus: Corpus, tokens: np.ndarray, size: int, window: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """Endless (centre, context) index arrays of length `size`, words subsampled anew in each pass."""
    share = corpus.counts / corpus.counts.sum()
    keep = np.minimum(1.0, np.sqrt(SUBSAMPLE / share) + SUBSAMPLE / share)
    while True:
        kept = tokens[rng.random(len(tokens)) < keep[tokens]]
        centres, contexts = [], []
        for distance in range(1, window + 1):
            near = rng.random(len(kept) - distance) < (window - distance + 1) / window  # nearer words more often
            left, right = kept[:-distance][near], kept[distance:][near]
            centres += [left, right]
            contexts += [right, left]
        centre, context = np.concatenate(centres), np.concatenate(contexts)
        order = rng.permutation(len(centre))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield centre[chosen], context[chosen]
