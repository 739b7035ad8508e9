"""What servers and trainers both know: the tensors, and how a file comes onto the disk."""

import os

import numpy as np

SHAPES = {"w1": (8, 24), "b1": (24,), "w2": (24, 12), "b2": (12,), "w3": (12, 1), "b3": (1,)}


def first_weights():
    rng = np.random.default_rng(1)
    return {name: rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}


def names_of(server, servers):
    return list(SHAPES)[server::servers]


def write(path, writer):
    with path.open("wb") as f:
        writer(f)
        f.flush()
        os.fsync(f.fileno())


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
