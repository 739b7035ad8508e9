"""Planted bugs: mutants of control that the explorer has to find, by their names on its command line (`--plant`)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tests.proofs.mutations import MUTANTS, Mutant, mutated

_OF_BENCH = {mutant.name: mutant for mutant in MUTANTS}
PLANTED_BUGS = {
    "late-news": _OF_BENCH["any-attempt"],
    "not-gone": _OF_BENCH["not-all-gone"],
    "over-at-once": _OF_BENCH["over-too-soon"],
    "start-again": Mutant(
        "start-again", "R20", "an agent starts an attempt that has ended",
        "agent.agent:Agent._start", "before is not None and before.order.attempt >=",
        "before is not None and not before.is_over and before.order.attempt >="),
    "say-nothing": Mutant(
        "say-nothing", "R20", "orders to start that are lost with a connection are not resent",
        "membership.nodes:greet", "job.emit(replica.order)", "pass"),
    "lost-stops": Mutant(
        "lost-stops", "R20", "orders to stop that are lost with a connection are not resent",
        "membership.nodes:_repeat_orders", "or replica.node is None", "or True"),
    "late-orders": _OF_BENCH["any-incarnation"],
    "no-patience": Mutant(
        "no-patience", "R21", "a controller that takes over allows no extra time",
        "connection.failure_detector:FailureDetector.watch", "self._silent.pop(node, None)", "patience_ns = 0"),
    "no-fence": _OF_BENCH["no-fence"],
    "too-soon": _OF_BENCH["replaced-too-soon"],
    "old-weights": _OF_BENCH["old-weights"],
    "unpublished": _OF_BENCH["unpublished"],
    "torn-snapshot": _OF_BENCH["torn-snapshot"],
    "late-attempt": _OF_BENCH["late-attempt"],
    "late-generation": _OF_BENCH["late-generation"],
    "broken-copy": _OF_BENCH["broken-copy"],
    "reads-what-is-lost": _OF_BENCH["reads-what-is-lost"],
    "old-vault": Mutant(
        "old-vault", "R24", "a vault that comes back empty is not told its buddies, since they are the same",
        "snapshots.copies:note_vault", "world.buddies.pop(name, None)", "pass"),
}  # fmt: skip


def planted(name: str | None) -> AbstractContextManager[None]:
    """Return a context manager that switches off the safeguard of the planted bug `name`; with None, nothing.

    Raises:
        KeyError: There is no such planted bug.
        MutationError: On entry: the mutant does not fit the code any more.
    """
    return mutated(PLANTED_BUGS[name]) if name is not None else nullcontext()
