"""A few words for conversations with the pure agent of one node, which runs two workers of `trainer/0`."""

from __future__ import annotations

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import Order, StartReplica
from flowdist.graph import SECOND, NodeSpec
from tests.control.harness import graph, r, role

A = NodeSpec("node0")
T = r("trainer/0")


def start(attempt: int = 1, name: str = "trainer/0") -> StartReplica:
    return StartReplica("node0", r(name), attempt, "trainer", attempt, 0, 2, 0, 1, 0, 2, 0, "127.0.0.1", 29500)


class Talk:
    def __init__(self, spec: NodeSpec = A, **fields: object) -> None:
        self.agent = Agent(spec, graph(role("trainer", **{"procs": 2, **fields})))
        self.now = 0
        self.sent: list[object] = []
        self.tell(io.Connected())
        self.tell(msg.Acked(1, self.agent.incarnation, 0))

    def tell(self, event: io.AgentInput) -> list[object]:
        """The outputs, with messages and reports unwrapped; those to the controller are kept in `sent`."""
        outputs: list[object] = []
        for output in self.agent.handle(event, self.now):
            message = output.message if isinstance(output, io.Send) else output
            outputs.append(message.event if isinstance(message, msg.Report) else message)
            if isinstance(output, io.Send):
                self.sent.append(outputs[-1])
        return outputs

    def order(self, order: Order, epoch: int = 1, incarnation: int = 0) -> list[object]:
        return self.tell(msg.Ordered(epoch, incarnation or self.agent.incarnation, order))

    def at(self, seconds: float, ack: bool = False) -> list[object]:
        """Time passes, deadline by deadline; heartbeats are acknowledged if `ack`."""
        until, outputs = round(seconds * SECOND), []
        while (due := self.agent.deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            for output in self.tell(io.AgentTimePassed()):
                if isinstance(output, msg.Heartbeat):
                    if ack:
                        self.tell(msg.Acked(1, output.incarnation, output.sent_ns))
                else:
                    outputs.append(output)
        self.now = until
        return outputs

    def run(self, attempt: int = 1) -> None:
        self.order(start(attempt))
        self.tell(io.WorkersSpawned(T, attempt))


def running(spec: NodeSpec = A, **fields: object) -> Talk:
    """A conversation with an agent whose workers run."""
    talk = Talk(spec, **fields)
    talk.run()
    return talk


def kill(signal: str, attempt: int = 1) -> io.SignalWorkers:
    return io.SignalWorkers(T, attempt, signal)
