"""The library for training scripts. Standard library only; it also works in scripts that flowdist has not started.

A training script may call these functions::

    from flowdist import worker

    worker.ready()                      # for ready_when="call"
    if worker.should_stop(step):        # true on every rank at one step, when the job has to leave a node
        save_and_exit()
    worker.progress(step)               # reports a completed step
    worker.publish_version(step)        # new weights can be fetched; others: acknowledge_version(step)
    path = worker.latest()              # the checkpoint to resume from, or None
    with worker.saving():               # what saving takes is no training time; restoring() for reading
        torch.save(state, path)
    if worker.commit(path, step=step):  # publish a complete checkpoint, unless this generation is over
    worker.elastic(train, state)        # survive re-formations in this process
    worker.samples(size, global_batch=) # which samples a step uses, whatever ranks there are
    worker.snapshot(step, state)        # this rank's part of a sharded state, in memory; restore() returns it

A script that is not started by flowdist, but by plain python or torchrun, belongs to the world that torchrun's
variables describe: reports go nowhere, `should_stop` is false, and `commit` publishes at once. Only `port` and `peers`
raise an error.

`api` holds these functions, `agent_link` the connection to the agent, `step_counter` the count of optimizer steps of
scripts that report none, `save_timer` the time of saving and restoring, `elastic_training` and `elastic_state` the
training loop that survives a re-formation in place, `sampling` and `gradients` the samples, random numbers and gradient
of a step with any number of ranks, `snapshots` the state in the memory of nodes, `leaves` what that and `elastic_state`
share of nested values, `model` the loop that runs the class of `simulate=` for real.
Every worker imports this folder: nothing here imports torch, or another folder of flowdist, before it is used.
"""

from __future__ import annotations

from flowdist.worker.agent_link import Info, info, is_managed
from flowdist.worker.api import (
    acknowledge_version,
    backend,
    checkpoint_dir,
    commit,
    latest,
    log,
    memory_reader,
    memory_writer,
    mesh,
    peers,
    port,
    progress,
    publish_version,
    ready,
    should_stop,
)
from flowdist.worker.elastic_state import ElasticState
from flowdist.worker.elastic_training import elastic
from flowdist.worker.gradients import Gradients
from flowdist.worker.model import run
from flowdist.worker.sampling import Samples, random, samples
from flowdist.worker.save_timer import restoring, saving
from flowdist.worker.snapshots.snapshot import LocalPart, restore, snapshot

__all__ = [
    "ElasticState", "Gradients", "Info", "LocalPart", "Samples", "acknowledge_version", "backend", "checkpoint_dir",
    "commit", "elastic", "info", "is_managed", "latest", "log", "memory_reader", "memory_writer", "mesh", "peers",
    "port", "progress", "publish_version", "random", "ready", "restore", "restoring", "run", "samples", "saving",
    "should_stop", "snapshot",
]  # fmt: skip
