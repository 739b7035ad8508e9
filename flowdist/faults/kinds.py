"""The kinds of faults, in one table: what each is called, where a command can carry it out, and what it does.

A new kind is a row here, and what it does: a case in `sim/faults/injector.py`, and for real one in
`runtime/injection/injector.py`.
"""

from __future__ import annotations

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


_ANY, _BOTH, _CUT = "node replica controller", "node replica", "node controller"
KINDS = {
    "kill": Kind("the loss of {target}", "", _ANY, _ANY, _BOTH, "ends harms takes-node momentary"),
    "exit": Kind("the failure of {target} (exit code {arg})", "exit code", *3 * ("replica",), "ends harms momentary"),
    "oom": Kind("the death of {target} (out of memory)", "", *3 * ("replica",), traits="ends harms momentary"),
    "hang": Kind("the hang of {target}", "", "replica", "replica", "", "harms unseen momentary"),
    "slow": Kind("the slowness of {target} ({arg})", "factor", *3 * ("replica",), traits="unseen"),
    "lost": Kind("the silence of {target}", "", *3 * ("node",), traits="harms takes-node silences"),
    "leave": Kind("the departure of {target}", "", "node", "node", "", "harms takes-node"),
    "preempt": Kind("the preemption of {target}", "duration", "node", "node", "", "harms takes-node"),
    "pause": Kind("the pause of {target}", "", _BOTH, _BOTH, "", "harms silences unseen"),
    "partition": Kind("the partition of {target} from {arg}", "nodes", _CUT, _CUT, "", "harms silences unseen"),
    "cut-to": Kind("the cut from {target} to {arg}", "nodes", _CUT, _CUT, "", "harms silences unseen"),
    "delay": Kind("the slow link of {target} ({arg})", "duration", "node", "node", "", "weakens-link unseen"),
    "drop": Kind("the lossy link of {target} ({arg})", "probability", "node", "node", "", "weakens-link unseen"),
    "flap": Kind("the flapping link of {target}", "duration", "node", traits="weakens-link unseen"),
    "duplicate": Kind("the duplicated messages of {target} ({arg})", "probability", "node", traits="unseen"),
    "reorder": Kind("the reordered messages of {target} ({arg})", "probability", "node", traits="unseen"),
    "xid": Kind("the GPU error of {target} (Xid {arg})", "Xid", "node"),
    "disk-full": Kind("the full disk of {target}", "", "replica", traits="unseen"),
    "torn-checkpoint": Kind("the torn checkpoint of {target}", "", *2 * ("replica",), "", "damages unseen momentary"),
    "lost-checkpoint": Kind("the lost checkpoint of {target}", "", "replica", traits="damages unseen"),
    "corrupt-checkpoint": Kind("the corrupt checkpoint of {target}", "", "replica", traits="damages unseen"),
    "slow-checkpoint": Kind("the slow checkpoints of {target} ({arg})", "factor", "replica", traits="unseen"),
    "scale": Kind("the scaling of {target} to {arg}", "number of replicas", "replica", "replica", "", "order"),
    "add": Kind("the arrival of {target}", "", *3 * ("node",), traits="order"),
    "drain": Kind("the drain of {target}", "", "node", "node", "", "order"),
}


def having(*traits: Trait) -> tuple[str, ...]:
    """Return the kinds with one of the traits, in the order of the table."""
    return tuple(name for name, kind in KINDS.items() if not set(traits).isdisjoint(kind.traits.split()))


def carried_out(command: Command) -> dict[str, tuple[str, ...]]:
    """Return the kinds that a command can carry out, by target."""
    return {
        target: tuple(name for name, kind in KINDS.items() if target in getattr(kind, command).split())
        for target in get_args(Target)
    }


ORDERS = having("order")
