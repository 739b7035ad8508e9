"""Names and seeds that each process draws for itself, before RANK is read, in the way that the argument names."""

import os
import sys

import probe


def _torch_seed():
    import torch

    return torch.seed()


def _generator():
    import torch

    return torch.Generator().seed()


def _uuid1():
    import uuid

    return str(uuid.uuid1())


def _ssl():
    import ssl

    return ssl.RAND_bytes(8).hex()


def _native():
    import threading

    return threading.get_native_id()


def _kernel():
    with open("/proc/sys/kernel/random/uuid") as file:
        return file.read()


WAYS = {
    "torch_seed": _torch_seed,
    "generator": _generator,
    "uuid1": _uuid1,
    "ssl": _ssl,
    "native": _native,
    "kernel": _kernel,
}
WAY = sys.argv[1]
OWN = {"by_compiled" if WAY == "generator" else "drawn": WAYS[WAY]()}
probe.first_step(rank=os.environ["RANK"], **OWN)
