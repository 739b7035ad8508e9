"""The kinds of faults, in one table: what each is called, where a command can carry it out, and what it does.

A new kind is a row here, and what it does: a case in `sim/faults/injector.py`, and for real one in
`runtime/injection/injector.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple, get_args

Target = Literal["node", "replica", "controller"]
Command = Literal["simulated", "real", "fast"]  # `flowdist simulate`, `flowdist run`, `flowdist simulate --macro`
Trait = Literal[
    "ends",  # a process dies of it at once
    "harms",  # what it hits ends or stops; the others only disturb it
    "takes-node",  # the node is gone, and may come back
    "silences",  # a node that is hit is found by the end of its lease alone
    "weakens-link",  # so much comes late or never that a lease may end
    "damages",  # it makes a checkpoint useless
    "unseen",  # it need not make anything fail
    "momentary",  # of a replica or the controller, it has no duration
    "order",  # the operator orders it: no failure
]


class Kind(NamedTuple):
    """One kind of faults. The fields named like a command have the targets on which the command can carry it out."""

    words: str  # what happens to {target}; {arg} is the argument
    argument: str = ""  # what the argument is; empty: there is none
    simulated: str = ""
    real: str = ""
    fast: str = ""
    traits: str = ""


_N, _R, _ANY, _BOTH, _CUT = "node", "replica", "node replica controller", "node replica", "node controller"
KINDS = {  # by name: the words, the argument, where it is simulated, real and fast, the traits
    "kill": Kind("the loss of {target}", "", _ANY, _ANY, _BOTH, "ends harms takes-node momentary"),
    "exit": Kind("the failure of {target} (exit code {arg})", "exit code", _R, _R, _R, "ends harms momentary"),
    "oom": Kind("the death of {target} (out of memory)", "", _R, _R, _R, "ends harms momentary"),
    "hang": Kind("the hang of {target}", "", _R, _R, "", "harms unseen momentary"),
    "slow": Kind("the slowness of {target} ({arg})", "factor", _R, _R, _R, "unseen"),
    "lost": Kind("the silence of {target}", "", _N, _N, _N, "harms takes-node silences"),
    "leave": Kind("the departure of {target}", "", _N, _N, "", "harms takes-node"),
    "preempt": Kind("the preemption of {target}", "duration", _N, _N, "", "harms takes-node"),
    "pause": Kind("the pause of {target}", "", _BOTH, _BOTH, "", "harms silences unseen"),
    "partition": Kind("the partition of {target} from {arg}", "nodes", _CUT, _CUT, "", "harms silences unseen"),
    "cut-to": Kind("the cut from {target} to {arg}", "nodes", _CUT, _CUT, "", "harms silences unseen"),
    "delay": Kind("the slow link of {target} ({arg})", "duration", _N, _N, "", "weakens-link unseen"),
    "drop": Kind("the lossy link of {target} ({arg})", "probability", _N, _N, "", "weakens-link unseen"),
    "flap": Kind("the flapping link of {target}", "duration", _N, "", "", "weakens-link unseen"),
    "duplicate": Kind("the duplicated messages of {target} ({arg})", "probability", _N, "", "", "unseen"),
    "reorder": Kind("the reordered messages of {target} ({arg})", "probability", _N, "", "", "unseen"),
    "xid": Kind("the GPU error of {target} (Xid {arg})", "Xid", _N),
    "disk-full": Kind("the full disk of {target}", "", _R, "", "", "unseen"),
    "torn-checkpoint": Kind("the torn checkpoint of {target}", "", _R, _R, "", "damages unseen momentary"),
    "lost-checkpoint": Kind("the lost checkpoint of {target}", "", _R, "", "", "damages unseen"),
    "corrupt-checkpoint": Kind("the corrupt checkpoint of {target}", "", _R, "", "", "damages unseen"),
    "slow-checkpoint": Kind("the slow checkpoints of {target} ({arg})", "factor", _R, "", "", "unseen"),
    "broken-copy": Kind("the broken copies of {target}", "", _N, "", "", "unseen"),
    "scale": Kind("the scaling of {target} to {arg}", "number of replicas", _R, _R, "", "order"),
    "add": Kind("the arrival of {target}", "", _N, _N, _N, "order"),
    "drain": Kind("the drain of {target}", "", _N, _N, "", "order"),
}


@cache
def having(*traits: Trait) -> tuple[str, ...]:
    """Return the kinds with one of the traits, in the order of the table."""
    return tuple(name for name, kind in KINDS.items() if not set(traits).isdisjoint(kind.traits.split()))


def carried_out(command: Command) -> dict[str, tuple[str, ...]]:
    """Return the kinds that a command can carry out, by target."""
    return {
        target: tuple(name for name, kind in KINDS.items() if target in getattr(kind, command).split())
        for target in get_args(Target)
    }
