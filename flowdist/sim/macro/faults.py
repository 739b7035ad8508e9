"""What befalls a job in macro mode: nodes die, fall silent and come back, processes end; and when control knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowdist.faults.grammar import Fault, Rate
from flowdist.faults.rates import fault_of

if TYPE_CHECKING:
    from flowdist.sim.macro.macro import Macro


def hit(macro: Macro, target: str, what: Fault | Rate, now: int) -> None:
    """A node, all nodes of a label, or a replica of the gang."""
    node = macro.names.get(target)
    if node is not None:
        if what.kind == "add":
            macro.at(now + macro.times.message, None, node)
        elif macro.alive[node] and node not in macro.cuts:  # who is cut off from all is as good as dead
            _note_fault(macro, target, what, now)
            _kill(macro, node, what, now)
    elif "=" in target:
        specs = macro.scope.graph.cluster.nodes
        for place, name in enumerate(macro.scope.nodes):
            spec = specs[place] if place < len(specs) else specs[0]  # what was added is like the first
            if tuple(target.split("=", 1)) in spec.labels:
                macro.hit(name, what, now)
    else:
        _hit_replica(macro, int(target.rpartition("/")[2]), what, now)


def _note_fault(macro: Macro, target: str, what: Fault | Rate, now: int) -> None:
    macro.result.faults += 1
    if macro.tell is not None:
        spec = what.spec if isinstance(what, Fault) else fault_of(what, target, now).spec
        macro.tell(now, "fault", target, spec)


def _kill(macro: Macro, node: int, what: Fault | Rate, now: int) -> None:
    """Its power is off, or it is cut off: then its workers go on until its lease is over."""
    times = macro.times
    back = now + what.duration_ns if what.duration_ns is not None else None
    dies, told, why = now, now + times.proof, "it was killed"
    if what.kind == "lost":
        macro.cuts[node] = now
        heard = _last_heard(macro, node, now)
        dies, told, why = heard + times.fence, heard + times.silent, "not heard"
        if back is not None and back < dies:
            macro.met[node] = back
            macro.at(back, lambda now: _heal(macro, node))
            return  # a short silence changes nothing
    macro.alive[node] = False
    macro.fences[node], macro.died[node] = dies, now
    if back is not None:
        macro.met[node] = back
        back += times.message
        told = min(told, back)
    macro.at(told, lambda now: macro.gone(node, why, now))
    if back is not None:
        macro.at(back, None, node)
    macro.doomed[node] = told
    for role in macro.others.roles:
        role.node_dies(node, dies)
    if macro.members_on(node):
        if macro.phase == "running" and now < macro.formed - times.message:
            macro.is_halfway = True
        if dies > now:
            macro.at(dies, macro.stop_short)
        else:
            macro.stop_short(now)
        if macro.phase == "stopping" and now < macro.stopped_ns:  # the dead do not say that they have stopped
            macro.due = max(macro.due, told)


def _last_heard(macro: Macro, node: int, now: int) -> int:
    """When the last heartbeat was sent that was answered."""
    period, met = macro.options.heartbeat_ns, macro.met.get(node, 0)
    return met + (now - 2 * macro.times.message - met) // period * period


def _heal(macro: Macro, node: int) -> None:
    macro.cuts.pop(node, None)


def _hit_replica(macro: Macro, replica: int, what: Fault | Rate, now: int) -> None:
    """Its processes end; nobody is hit that does not run."""
    node = macro.seats.node_of[replica]
    runs = macro.phase == "running" and now >= macro.formed
    if node is None or not runs or (not macro.alive[node] and now >= macro.fences.get(node, 0)):
        return
    _note_fault(macro, f"{macro.role.name}/{replica}", what, now)
    macro.stop_short(now)
    macro.exited[replica] = None
    if not macro.alive[node]:
        return  # it is cut off: nobody hears of it
    generation = macro.result.generations
    macro.at(now + macro.times.message, lambda at: macro.failed(replica, generation, what, at))
