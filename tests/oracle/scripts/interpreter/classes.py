"""Identities survive: classes, enums, singletons, caches and weak dictionaries that were made before RANK is read."""

import enum
import functools
import os
import pickle
import weakref

import probe


class Color(enum.Enum):
    RED = 1


class Node:
    registry = weakref.WeakValueDictionary()

    def __init__(self, name):
        self.registry[name] = self


@functools.lru_cache
def compute(number):
    CALLS.append(number)
    return object()


CALLS = []
NODE = Node("a")
KEPT = compute(1)
probe.note("made")
rank = os.environ["RANK"]
probe.first_step(
    same=[pickle.loads(pickle.dumps(Color.RED)) is Color.RED, compute(1) is KEPT, Node.registry["a"] is NODE, isinstance(NODE, Node)],
    calls=CALLS,
    info=list(compute.cache_info()),
    rank=rank,
)
