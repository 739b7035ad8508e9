"""The two sides of a simulated node, as protocols: the controller at the other end of its link, and its workers.

`NodeT` is the class of the nodes, `node.SimNode`, so that this module does not depend on it.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.protocol.messages import ToController

NodeT = TypeVar("NodeT", contravariant=True)


class ControllerSide(Protocol[NodeT]):
    """Protocol for the controller's side of the link of a node."""

    def hear(self, message: ToController) -> None:
        """Handle a message of an agent that has arrived."""

    def note_heard(self, node: NodeName, at: int) -> None:
        """Tell the failure detector of heartbeats that were not played; the last of them arrived at `at` (ns)."""

    def watch(self, node: NodeT) -> None:
        """Update `is_heard` of a node, and whether wake-ups of the controller depend on the heartbeats of the node.

        Called whenever the node or its link has changed.
        """


class WorkerSide(Protocol[NodeT]):
    """Protocol for the behaviour of the workers on all nodes. An attempt is given by its replica and its number."""

    def workers_run(self, node: NodeT, start: StartReplica, kept: tuple[int, ...]) -> None:
        """Begin the start-up of an attempt whose processes run; those of the local ranks in `kept` were suspended."""

    def worker_lost(self, replica: ReplicaId, attempt: int) -> None:
        """Let the peers of an attempt react to the end of its workers.

        Called just before the workers end, while they are still members of their process groups.
        """

    def worker_failed(self, replica: ReplicaId, attempt: int) -> None:
        """Halt the world of an attempt, of which a worker has exited with an error or by a signal."""

    def ended(self, replica: ReplicaId, attempt: int) -> None:
        """Halt the world of an attempt whose workers have all ended, or are suspended now."""

    def is_deaf(self, replica: ReplicaId, attempt: int) -> bool:
        """Return whether only SIGKILL ends the workers, because they are inside a collective that never ends."""

    def step_of(self, replica: ReplicaId, attempt: int) -> int | None:
        """Return the step that the workers of an attempt are at; None if they do not step, or not yet."""

    def stop_at(self, node: NodeT, replica: ReplicaId, attempt: int, step: int | None) -> None:
        """Order the workers of an attempt to save at a step and leave it, as if `should_stop()` turned true there.

        None is the controller's word that there is no agreed step: the workers go on until they are stopped.
        """

    def show_signs(self, node: NodeT, replica: ReplicaId, attempt: int) -> None:
        """Tell the agent the step of the workers of an attempt, and when they wrote output last."""

    def checkpoint_answered(self, answer: io.AnswerWorker) -> None:
        """Handle the controller's answer to a checkpoint that a worker has offered."""
