"""`flowdist scale trainer=4`: set the number of replicas of a role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from flowdist.cli.shared.common import verb
from flowdist.cli.shared.runs import RunOptions, give_orders, run_options_of_order, wait_option
from flowdist.errors import FlowdistError

if TYPE_CHECKING:
    from flowdist.control.job.state import ReplicaPhase
    from flowdist.record.status import Status

DIGITS_MAX = 9  # as in --scale of run: a longer number is not a size, and may not fit the message


@verb("scale")
@click.argument("sizes", nargs=-1, required=True, metavar="ROLE=N...")
@run_options_of_order
@wait_option
def command(named: RunOptions, sizes: tuple[str, ...], wait: bool) -> None:
    """Set the number of replicas of a role, within its replicas=MIN:MAX.

    \b
    flowdist scale trainer=4
    flowdist scale trainer=4 reader=2 --run word2vec-2026 --wait

    A gang re-forms once in its new size, without a charge to its budget. The decision of the controller is printed;
    exit code 1 if it refuses.
    """
    from flowdist.control.protocol.events import ScaleRequested  # msgspec and the runtime: not needed by --help

    wanted = dict(_size(text) for text in sizes)

    def is_scaled(status: Status) -> bool:
        roles = {role.name: role for role in status.roles}
        return all(
            name not in roles or roles[name].outcome is not None or _settled_count(roles[name].phases) == count
            for name, count in wanted.items()
        )

    orders = [(ScaleRequested(name, count), name) for name, count in wanted.items()]
    give_orders(named, orders, until=is_scaled if wait else None)


def _settled_count(phases: Mapping[ReplicaPhase, int]) -> int:
    """Return how many replicas run or have succeeded; -1 while any of them starts or stops."""
    if phases.get("starting") or phases.get("stopping"):
        return -1
    return phases.get("running", 0) + phases.get("ready", 0) + phases.get("succeeded", 0)


def _size(text: str) -> tuple[str, int]:
    role, equals, number = text.partition("=")
    if not equals or not role or not number.isdecimal() or len(number) > DIGITS_MAX:
        raise FlowdistError(f"{text!r} is not a ROLE=N", help="write flowdist scale trainer=4")
    return role, int(number)
