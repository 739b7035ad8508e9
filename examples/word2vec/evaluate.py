"""The evaluator: every few seconds the nearest neighbours of some words, and the loss on a fixed sample of pairs."""

from __future__ import annotations

import argparse
import signal
import threading

import numpy as np
import text
from client import Servers
from train import gradients

WORDS = ("function", "list", "exception", "class", "integer", "import", "string", "loop")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=float, default=5.0, help="seconds")
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    corpus = text.load()
    servers = Servers()
    losses: list[float] = []
    while True:
        last = stop.wait(0 if not losses else options.every)
        everything = np.arange(len(corpus.words), dtype=np.int32)
        rows = servers.pull(centre=everything, context=everything)
        losses.append(sample_loss(corpus, rows))
        print(
            f"loss {losses[-1]:.3f}" + ("" if last else "  " + neighbours(corpus, rows["centre"], WORDS[:2])),
            flush=True,
        )
        if last:
            break
    print(f"first loss {losses[0]:.3f}, last loss {losses[-1]:.3f}", flush=True)
    for word in WORDS:
        print(neighbours(corpus, rows["centre"], (word,), most=6), flush=True)


def sample_loss(corpus: text.Corpus, rows: dict[str, np.ndarray]) -> float:
    """On the same pairs and negative samples every time."""
    rng = np.random.default_rng(7)
    centre, context = next(text.batches(corpus, corpus.tokens, 20_000, 5, rng))
    chances = corpus.counts**0.75
    negatives = rng.choice(len(chances), 32, p=chances / chances.sum())
    at_context = np.concatenate([context, negatives])
    return gradients(rows["centre"], rows["context"], centre, at_context, len(centre))[0]


def neighbours(corpus: text.Corpus, vectors: np.ndarray, words: tuple[str, ...], most: int = 3) -> str:
    """`list: tuple sequence items`, by cosine among words that are not rare."""
    unit = vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-9)
    common = np.flatnonzero(corpus.counts >= 20)
    parts = []
    for word in words:
        query = corpus.words.index(word)
        order = common[np.argsort(-(unit[common] @ unit[query]))]
        near = [corpus.words[i] for i in order if i != query][:most]
        parts.append(f"{word}: {' '.join(near)}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
