"""An asynchronous trainer: skip-gram with negative sampling on its own shard of the text (Mikolov et al. 2013).

It keeps no state but its step: parameters live on the servers. A restarted trainer goes on where it was.
"""

from __future__ import annotations

import argparse

import numpy as np
import text
from client import Servers

from flowdist import worker

BATCH, WINDOW, NEGATIVES = 2048, 5, 32
SAMPLE_POWER = 0.75  # negative samples follow counts ** 0.75, as in the paper


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    me = worker.info()
    corpus = text.load()
    tokens = text.shard(corpus.tokens, me.role_rank, me.role_world_size)
    servers = Servers()
    step = resume_step()
    print(f"shard {me.role_rank} of {me.role_world_size}: {len(tokens)} tokens, from step {step}", flush=True)
    rng = np.random.default_rng([me.replica_index, step])
    chances = corpus.counts**SAMPLE_POWER
    cumulated = np.cumsum(chances / chances.sum())
    losses: list[float] = []
    for centre, context in text.batches(corpus, tokens, BATCH, WINDOW, rng):
        if step >= options.steps:
            break
        negatives = np.minimum(np.searchsorted(cumulated, rng.random(NEGATIVES)), len(cumulated) - 1)
        losses.append(train_step(servers, centre, context, negatives))
        step += 1
        worker.progress(step)
        if step % 100 == 0:
            print(f"step {step}: loss {np.mean(losses[-100:]):.3f}", flush=True)
            commit_step(step)
    print(f"done: {step} steps, {servers.reconnects} reconnects", flush=True)


def train_step(servers: Servers, centre: np.ndarray, context: np.ndarray, negatives: np.ndarray) -> float:
    """One batch: pull what it needs, push summed gradients. All pairs of the batch share the negative samples."""
    centres, at_centre = np.unique(centre, return_inverse=True)
    contexts, at_context = np.unique(np.concatenate([context, negatives]), return_inverse=True)
    rows = servers.pull(centre=centres, context=contexts)
    loss, d_centre, d_context = gradients(rows["centre"], rows["context"], at_centre, at_context, len(centre))
    servers.push(centre_rows=centres, centre_gradients=d_centre, context_rows=contexts, context_gradients=d_context)
    return loss


def gradients(
    centre_rows: np.ndarray, context_rows: np.ndarray, at_centre: np.ndarray, at_context: np.ndarray, size: int
) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss per pair and the gradients of the pulled rows. The negatives stand at the end of `at_context`."""
    v, u, n = centre_rows[at_centre], context_rows[at_context[:size]], context_rows[at_context[size:]]
    weight = 5.0 / len(n)  # as strong as five samples of its own for each pair
    good, bad = np.einsum("ij,ij->i", v, u), v @ n.T
    loss = np.logaddexp(0, -good).mean() + weight * np.logaddexp(0, bad).sum() / size
    d_good = (sigmoid(good) - 1)[:, None]
    d_bad = weight * sigmoid(bad)
    d_centre, d_context = np.zeros_like(centre_rows), np.zeros_like(context_rows)
    np.add.at(d_centre, at_centre, d_good * u + d_bad @ n)
    np.add.at(d_context, at_context[:size], d_good * v)
    np.add.at(d_context, at_context[size:], d_bad.T @ v)
    return float(loss), d_centre, d_context


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))


def commit_step(step: int) -> None:
    """All that a trainer has to remember: where it is."""
    folder = worker.checkpoint_dir() / "trainer"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{worker.info().replica_index}-{step}.step"
    path.write_text(str(step))
    worker.commit(path, step=step)


def resume_step() -> int:
    """The step that an earlier attempt has committed; a repeated step does no harm."""
    path = worker.latest()
    return int(path.read_text()) if path is not None else 0


if __name__ == "__main__":
    main()
