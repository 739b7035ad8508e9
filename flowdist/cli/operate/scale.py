"""`flowdist scale trainer=4`: how many replicas a role is to have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowdist.cli.shared.common import guarded
from flowdist.cli.shared.operating import ask, json_option, run_option, runs_option, wait_option
from flowdist.errors import FlowdistError

if TYPE_CHECKING:
    from flowdist.control.job.state import ReplicaPhase
    from flowdist.record.status import Status

DIGITS_MAX = 9  # as in a fault: more of them are no size, and no integer of the message


@click.command(name="scale")
@click.argument("sizes", nargs=-1, required=True, metavar="ROLE=N...")
@run_option
@runs_option
@wait_option
@json_option
@guarded
def command(sizes: tuple[str, ...], run: str, base: str, wait: bool, as_json: bool) -> None:
    """Set how many replicas a role has, within its replicas=MIN:MAX.

    \b
    flowdist scale trainer=4
    flowdist scale trainer=4 reader=2 --run word2vec-2026 --wait

    A gang re-forms once in its new size, at nobody's cost. What the controller decides is printed; exit code 1 when it
    refuses.
    """
    from flowdist.control.protocol.events import ScaleRequested  # msgspec and the runtime: not for --help
    from flowdist.runtime.run_folder.folder import find_run

    wanted = dict(_size(text) for text in sizes)
    run_dir, graph = find_run(Path(base), run)

    def is_so(status: Status) -> bool:
        roles = {role.name: role for role in status.roles}
        return all(
            name not in roles or roles[name].outcome is not None or _up(roles[name].phases) == count
            for name, count in wanted.items()
        )

    orders = [(ScaleRequested(name, count), name) for name, count in wanted.items()]
    ask(run_dir, graph, orders, as_json=as_json, until=is_so if wait else None)


def _up(phases: Mapping[ReplicaPhase, int]) -> int:
    """What runs; whoever is on the way in or out makes it another number."""
    there = phases.get("running", 0) + phases.get("ready", 0) + phases.get("succeeded", 0)
    return -1 if phases.get("starting") or phases.get("stopping") else there


def _size(text: str) -> tuple[str, int]:
    role, equals, number = text.partition("=")
    if not equals or not role or not number.isdecimal() or len(number) > DIGITS_MAX:
        raise FlowdistError(f"{text!r} is no ROLE=N", help="write flowdist scale trainer=4")
    return role, int(number)
