"""The user code that is at work in a simulation: of generations of worlds, and of replicas of services."""

from __future__ import annotations

from dataclasses import dataclass

from flowdist.sim.user_code.model_worker import ModelWorker
from flowdist.sim.user_code.workload import WorldModel


@dataclass(slots=True)
class Playing:
    """The user code of one generation of a world. `done` counts the steps that were played."""

    world: str
    model: WorldModel
    workers: list[ModelWorker]
    done: int = 0
    has_failed: bool = False
    busy: int = 0  # ranks that still write
    saving: int = 0  # the step of that checkpoint
    unsaved: int = -1  # the last step of which a file could not be written
    pump: int = 0  # entries of the queue with an earlier number do nothing


@dataclass(slots=True)
class Serving:
    """A replica of a service. `saves` counts its checkpoints."""

    worker: ModelWorker
    is_there: bool = True
    saves: int = 0
