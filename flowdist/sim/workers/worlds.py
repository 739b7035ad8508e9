"""The worlds of tasks of one simulation: what each waits for, the end of its generations, and where its time went.

Only the simulator can tell in the accounts of a job (`record.accounts`) what is lost. Steps that were booked as kept
may be lost after all, when a later generation resumes from an older checkpoint; steps that were booked as lost may be
in the memory of a survivor. Either is booked for the members that did these steps, however many there are now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.record.accounts import Accounts, Bucket
from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.user_code.workload import Done, WorldModel


def _ignore(*_: object) -> None:
    return None


class Worlds:
    """The model of each world of tasks, by name.

    `models` holds the worlds, and `serving` the attempts of services that have started up, by role. Parts that plan
    for a world set `on_resume`, called when nothing keeps a world waiting any more, and `on_change`, called whenever
    a reason to wait comes or goes.
    """

    def __init__(self, ctx: Context, code: UserCode, accounts: Accounts) -> None:
        self._ctx, self._queue, self._code, self._accounts = ctx, ctx.queue, code, accounts
        self.models: dict[str, WorldModel] = {}
        self.serving: dict[str, dict[ReplicaId, int]] = {}
        self.on_resume: Callable[[str, WorldModel], None] = _ignore
        self.on_change: Callable[[str], None] = _ignore

    def model_of(self, replica: ReplicaId, attempt: int) -> WorldModel | None:
        """Return the model of the world whose present generation has this attempt as a member; None: there is none."""
        model = self.models.get(self._ctx.job.replicas[replica].world)
        start = model.members.get(replica) if model is not None else None
        return model if start is not None and start.attempt == attempt else None

    def users(self, service: str, on_restart: str | None = None) -> list[str]:
        """Return the worlds of all roles that have a gate on a service, or one that says `on_restart`."""
        edges = self._ctx.graph.dependents(service)
        roles = [spec.name for spec, gate in edges if on_restart in (None, gate.on_restart)]
        return list(dict.fromkeys(world for role in roles for world in self._ctx.job.roles[role].worlds))

    def stall(self, world: str, why: str, *, for_member: bool = False) -> None:
        """Make a world that has started wait until `resume`, in any generation, or with `for_member` in this one."""
        model = self.models.get(world)
        if model is not None:
            model.stall(why, self._queue.now, for_member=for_member)
            self.on_change(world)

    def resume(self, world: str, why: str) -> None:
        """Remove a reason to wait, if the world has it. If it was the last one, a world at work steps again."""
        model = self.models.get(world)
        if model is not None and model.resume(why, self._queue.now) and model.begun_ns is not None:
            self.on_resume(world, model)
        self.on_change(world)

    def halt(self, model: WorldModel) -> None:
        """End the work of the generation, and book it: steps that are not saved are lost, or unsaved at the end."""
        self._code.halt(model)
        is_over = self._accounts.is_ending(self._queue.now)
        self._end_work(model, is_over=is_over)
        model.halt(self._queue.now, is_over=is_over)

    def begin_work(self, model: WorldModel) -> None:
        """Book that members begin to work after a restore, and which earlier steps were kept or lost."""
        self._count_up_to(model, model.first_step)
        model.done = [one._replace(last=min(one.last, model.first_step)) for one in model.done]
        model.done = [one for one in model.done if one.first < one.last]
        for member in model.members:
            self._accounts.begin_work([member], self._queue.now, model.restore_took_ns(member))

    def book_saved(self, model: WorldModel) -> None:
        """Book steps of a generation that has ended as kept: the answer to their checkpoint has arrived only now."""
        self._count_up_to(model, model.durable)

    def _end_work(self, model: WorldModel, *, is_over: bool) -> None:
        """Book the time of a generation that ends (with the job if `is_over`), before its model forgets it."""
        if model.begun_ns is None:
            return
        now, members = self._queue.now, [each for each in model.members if self._accounts.bucket_of(each) == "work"]
        if not members:
            return  # the user code failed as it began
        warmed, worked, checkpoint = model.split(now)
        kept = min(worked, max(0, model.durable - model.first_step) * model.steps.ns)
        checkpoint += now - model.left_ns if model.left_ns is not None else 0
        ending = model.finishing_ns(now)
        stalled = now - model.begun_ns - warmed - worked - checkpoint - ending
        unkept: Bucket = "unsaved at the end" if is_over else "lost work"
        parts: dict[Bucket, int] = {"productive": kept + ending, unkept: worked - kept, "start-up": warmed}
        self._accounts.end_work(self._ctx.job, members, parts | {"checkpoint": checkpoint, "stalled": stalled}, now)
        self._count_up_to(model, min(model.durable, model.first_step), unkept)
        by = dict(Counter(member.role for member in members))
        done = Done(model.first_step, model.step_at(now), by, model.steps.ns)
        before = model.done.pop() if model.done and model.done[-1][1:] == (done.first, by, done.step_ns) else done
        model.done.append(done._replace(first=before.first))  # a gang that fails again at one step has one entry
        model.counted = max(model.counted, min(model.durable, model.step_at(now)))

    def _count_up_to(self, model: WorldModel, step: int, unkept: Bucket = "lost work") -> None:
        """Book the steps of earlier generations up to `step` as productive, and later ones in the bucket `unkept`."""
        low, high = sorted((step, model.counted))
        source: Bucket = "lost work" if step > model.counted else "productive"
        target: Bucket = "productive" if step > model.counted else unkept
        for one in model.done:
            ns = max(0, min(high, one.last) - max(low, one.first)) * one.step_ns
            for role, members in one.by.items():
                self._accounts.transfer(role, source, target, ns * members)
        model.counted = step

    def close(self) -> None:
        """End the work of all worlds in the accounts, and book the time of all replicas, at the end."""
        for model in self.models.values():
            self._end_work(model, is_over=True)
            model.note_unsaved(self._queue.now)
        self._accounts.close(self._queue.now)


class Partitions:
    """The network partitions between nodes that are in force, each named by the fault that made it (`why`).

    Worlds with members on both sides wait, and so do worlds cut off from a service. The agents still reach the
    controller: a partition from it is a fault of the link of a node.
    """

    def __init__(self, ctx: Context, worlds: Worlds) -> None:
        self._ctx, self._worlds = ctx, worlds
        self._parted: dict[str, tuple[str, list[str]]] = {}  # by partition: a node, and those that it cannot reach

    def part(self, why: str, node: str, others: list[str]) -> None:
        """Begin the partition `why` between workers on a node and on the others: worlds that it cuts off wait."""
        self._parted[why] = (node, others)
        for world in list(self._worlds.models):
            self.update(world)

    def join(self, why: str) -> None:
        """End the partition `why`: no world waits for it any more."""
        del self._parted[why]
        for world in list(self._worlds.models):
            self._worlds.resume(world, why)
            self._worlds.resume(world, _away(why))

    def parts(self, one: NodeName, other: NodeName) -> bool:
        """Return whether a partition keeps two nodes from reaching each other."""
        pairs = ((node, others) for node, others in self._parted.values())
        return any((one == node and other in others) or (other == node and one in others) for node, others in pairs)

    def splits(self, model: WorldModel) -> bool:
        """Return whether a partition keeps members of the world from reaching each other."""
        return any(why in self._parted for why in model.stalls)

    def waits_for_service(self, model: WorldModel) -> bool:
        """Return whether the world waits for a service that is away, does nothing, or is behind a partition."""
        return any(why not in self._parted for why in model.stalls)

    def update(self, world: str) -> None:
        """Make a world wait for those partitions alone that split it, or cut it off from a service, as of now."""
        if not self._parted or world not in self._worlds.models:
            return
        members = {start.node for start in self._worlds.models[world].members.values()}
        served = self._nodes_of_services(world)
        for why, (node, others) in self._parted.items():
            is_split = node in members and not members.isdisjoint(others)
            is_away = (node in members and not served.isdisjoint(others)) or (
                node in served and not members.isdisjoint(others)
            )
            for waits, reason in ((is_split, why), (is_away, _away(why))):
                if waits:
                    self._worlds.stall(world, reason)
                else:
                    self._worlds.resume(world, reason)

    def update_users(self, service: str) -> None:
        """Call `update` for each world that depends on a service, of which a replica has come or gone."""
        for world in self._worlds.users(service) if self._parted else ():
            self.update(world)

    def _nodes_of_services(self, world: str) -> set[str]:
        job, nodes = self._ctx.job, set()
        for role in job.worlds[world].roles:
            for gate in self._ctx.graph.role(role).gates:
                nodes |= {job.replicas[replica].node or "" for replica in self._worlds.serving.get(gate.role, ())}
        return nodes


def _away(why: str) -> str:
    """Return the reason to wait of a world that the partition `why` cuts off from a service."""
    return f"{why}, from a service"
