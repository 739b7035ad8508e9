"""Weak references, cycles and finalizers across the first step: what is collected, when, and what is said."""

import gc
import os
import weakref

import probe


class Thing:
    pass


gc.collect()
thing, kept = Thing(), Thing()
thing.self = thing
weakref.finalize(kept, print, "kept ends", flush=True)
REFERENCE = weakref.ref(thing)
del thing
alive = REFERENCE() is not None
probe.note("made")
rank = os.environ["RANK"]
counts = gc.collect() > 0
gone = REFERENCE() is None
probe.first_step(rank=rank, alive=alive, cycle_gone=gone, cycle_counts=counts, has_frozen=gc.get_freeze_count() > 0)
