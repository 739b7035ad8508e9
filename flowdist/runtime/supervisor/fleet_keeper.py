"""The keeper of the members of a job: it shows the pure `Fleet` what the engine says, and carries out its orders.

The state of the fleet is saved in the run's folder before an order: the next supervisor of a resumed run knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from flowdist.control.fleet.fleet import Fleet
from flowdist.control.fleet.values import (
    Cancel,
    Drain,
    FleetState,
    GiveUp,
    Launch,
    Order,
    Pool,
    Seen,
    Submit,
    Tell,
    job_seen,
)
from flowdist.control.job.state import JobState
from flowdist.control.protocol.events import CancelRequested, DrainRequested
from flowdist.engines.interface import Engine, EngineFailed
from flowdist.errors import FlowdistError
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.run_folder.folder import FLEET
from flowdist.runtime.saved_files import DAMAGED
from flowdist.runtime.supervisor.event_printer import Show
from flowdist.runtime.wire.frames import Operation

LOOK_S = 1.0  # between two looks at the engine; its programs may take longer
END_S = 20.0  # for the engine to cancel what still waits for a machine, once the job is over


class Employer(NamedTuple):
    """The engine of a run, its pools, and how a member is launched. The keeper asks for a launch at each submission."""

    engine: Engine
    pools: tuple[Pool, ...]
    launch: Callable[[Submit], Launch]
    endpoint: str  # where members find the controller


class FleetKeeper:
    """The keeper of the members of one job; FlowdistError if the saved state of the fleet cannot be read."""

    def __init__(self, employer: Employer, run_dir: Path, show: Show, operate: Callable[[Operation], None]) -> None:
        self._employer, self._show, self._operate = employer, show, operate
        self._path = run_dir / FLEET
        self._state = _saved(self._path)
        self._fleet: Fleet | None = None
        self._failing = ""  # what the engine has last failed with; empty: it answers

    async def keep(self, job: Callable[[], JobState], now_ns: Callable[[], int]) -> None:
        """Look at job and engine again and again, and carry out what follows, until the coroutine is cancelled."""
        while True:
            await self._look(job(), now_ns)
            await asyncio.sleep(LOOK_S)

    async def finish(self, job: JobState, now_ns: Callable[[], int]) -> None:
        """Cancel the members that still wait for a machine. Those that run end with the job."""
        try:
            async with asyncio.timeout(END_S):
                await self._look(job, now_ns, is_ending=True)
        except TimeoutError:
            self._show("warning", f"{self._employer.engine.name} has not answered: members may still wait there")

    async def _look(self, job: JobState, now_ns: Callable[[], int], *, is_ending: bool = False) -> None:
        fleet = self._fleet_of(job)
        references = {
            member.reference: member.name for member in fleet.state.members if member.reference and not member.is_gone
        }
        try:
            seen = await asyncio.to_thread(self._employer.engine.observe, list(references))
        except EngineFailed as error:
            self._note_failing(error.message)
            return
        self._note_failing("")
        view = job_seen(job)
        if is_ending:
            view = msgspec.structs.replace(view, is_ending=True)
        named: Mapping[str, Seen] = {references[reference]: each for reference, each in seen.items()}
        before = msgspec.json.encode(fleet.state)
        orders = fleet.look(view, named, now_ns())
        if msgspec.json.encode(fleet.state) != before:
            self._save()
        for order in orders:
            await self._carry_out(order, now_ns)

    def _fleet_of(self, job: JobState) -> Fleet:
        if self._fleet is None:
            sizes = {role.name: role.max_replicas for role in job.graph.roles}
            self._fleet = Fleet(self._employer.pools, sizes, self._state)
            self._fleet.moved(self._employer.endpoint)
            for member in self._fleet.state.members:
                if not member.reference and not member.is_gone:  # the supervisor died while it submitted the member
                    self._fleet.refused(member.name, "flowdist was killed while it submitted it", 0)
        return self._fleet

    async def _carry_out(self, order: Order, now_ns: Callable[[], int]) -> None:
        engine = self._employer.engine
        match order:
            case Submit():
                await self._submit(order, now_ns)
            case Cancel():
                if not order.again:
                    self._show("event", f"{order.member} is cancelled: {order.because}")
                try:
                    await asyncio.to_thread(engine.cancel, order.reference)
                except EngineFailed as error:  # the fleet orders it again
                    self._note_failing(error.message)
            case Drain():
                self._operate(DrainRequested(order.node))
            case Tell():
                self._show(order.level, order.text)
            case GiveUp():
                self._show("error", order.because)
                self._operate(CancelRequested(order.because, outcome=order.outcome))

    async def _submit(self, order: Submit, now_ns: Callable[[], int]) -> None:
        assert self._fleet is not None
        engine = self._employer.engine
        launch = self._employer.launch(order)
        try:
            reference = await asyncio.to_thread(engine.submit, launch)
        except EngineFailed as error:
            self._show("warning", f"{order.member}: {error.message}")
            self._fleet.refused(order.member, error.message, now_ns())
        else:
            avoids = f", not on {', '.join(order.avoid)}" if order.avoid else ""
            self._show("event", f"{order.member} is submitted: {engine.name} {reference} ({launch.title}){avoids}")
            self._fleet.submitted(order.member, reference)
        self._save()

    def _save(self) -> None:
        assert self._fleet is not None
        write_atomically(self._path, msgspec.json.encode(self._fleet.state), durable=True)

    def _note_failing(self, why: str) -> None:
        """Show that the engine fails, or answers again, if that is new."""
        if bool(why) != bool(self._failing):
            text = f"{why}; members are neither replaced nor added meanwhile" if why else "answers again"
            self._show("warning" if why else "event", f"{self._employer.engine.name}: {text}")
        self._failing = why


def _saved(path: Path) -> FleetState | None:
    """Return the saved state of the fleet; None if there is none. Raises FlowdistError if the file is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FleetState)
    except FileNotFoundError:
        return None
    except (OSError, *DAMAGED) as error:
        help = f"remove {path} if none of the job's members is left on the engine"
        raise FlowdistError(f"{path} cannot be read: {error}", help=help) from None
