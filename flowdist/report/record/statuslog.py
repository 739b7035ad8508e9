"""Status log for reading by eye: one line an event, a mark for what happened, and a column for every replica.

    time           event  mark  world    gen  step  saved  members  replicas  what
    0:03:00.010    20     -                                         rr-r      node2 is lost ...

The mark is for the event. Up to two capitals after it say what followed: I an incident opened, G a generation forms, S
replicas start, X replicas are stopped, E the job ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowdist.control.job.parts import World
from flowdist.control.job.state import JobState
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AnswerCheckpoint, FinishJob, OpenStore, StartReplica, StopReplica
from flowdist.record.journal import FaultLine, Line, Record, UnsavedLine
from flowdist.report.record.trace import event_text, stamp
from flowdist.text.printable import one_line

NO_WORLD = ("",) * 5  # the columns of an event about no world
COLUMNS_MAX = 64  # with more replicas, the log counts them by role

LEGEND = """\
happened: + node joined  - node lost or left  f fault  ! failed  ? stalled, overdue  " revived  o store open
          ^ runs  * ready  . step  ] checkpoint accepted  } refused  ) not saved  v stopped  $ finished
          @ operator  ~ leaving in order  = can continue in place  , other
followed: I incident  G generation forms  S starts  X stops  E the job ends
replicas: . waits  s starting  r running  R ready  x stopping  - gone  $ succeeded  _ ended
"""

_PHASES = {"waiting": ".", "starting": "s", "running": "r", "ready": "R"}
_PHASES |= {"stopping": "x", "gone": "-", "succeeded": "$", "ended": "_"}


def log_heading(job: JobState) -> str:
    """Return the heading of the log, with the widths of the columns that `log_line` uses."""
    names = ("world", "gen", "step", "saved", "members")
    return _row("time", "event", "", names, f"{'replicas':<{len(_replicas(job))}}", "what")


def _row(time: str, n: int | str, mark: str, world: tuple[object, ...], replicas: str, what: str) -> str:
    name, generation, step, saved, members = world
    head = f"{time:>13}  {n:>5} {mark:<3} {name:<12.12} {generation:>4} {step:>8} {saved:>8} {members:>9}"
    return f"{head}  {replicas:<8}  {what}"


def log_line(job: JobState, line: Line) -> Iterator[str]:
    """Yield the log line of an event, fault or unsaved checkpoint, by the state after it; nothing for a header."""
    if isinstance(line, FaultLine):
        text = one_line(f"{line.spec} hits {line.target}")
        yield _row(stamp(line.t_ns), "", "f", NO_WORLD, " " * len(_replicas(job)), text)
    elif isinstance(line, UnsavedLine):
        world = (line.world, *NO_WORLD[1:])
        yield _row(stamp(line.t_ns), "", ")", world, " " * len(_replicas(job)), one_line(line.text))
    elif isinstance(line, Record):
        mark, what = _mark(line) + _followed(line), one_line(line.reason) or event_text(line)
        yield _row(stamp(line.t_ns), line.n, mark, _world_columns(job, line), _replicas(job), what)


def _mark(line: Record) -> str:
    """Return the sign for the event of a line."""
    match line.event:
        case ev.ReplicaExited(kind=kind):
            return "$" if kind is None else "!"
        case ev.CheckpointOffered():
            accepted = any(isinstance(e, AnswerCheckpoint) and e.accepted for e in line.effects)
            return "]" if accepted else "}"
    return _MARKS.get(type(line.event), ",")


_KINDS: dict[str, tuple[type[ev.Event], ...]] = {
    "+": (ev.NodeJoined, ev.NodeWarm, ev.NodeHeard),
    "-": (ev.NodeLeft, ev.NodeGone, ev.NodeSilent),
    "?": (ev.NodeSuspected, ev.ReplicaStalled),
    "!": (ev.GpuFailed, ev.NodeStandsStill, ev.StoreLost, ev.ReplicaUnkillable),
    "~": (ev.StepTold, ev.ReplicaLeftStep, ev.NodePreempted),
    "@": (ev.ScaleRequested, ev.DrainRequested, ev.CordonRequested, ev.UncordonRequested, ev.CancelRequested),
    "o": (ev.StoreOpened,),
    "^": (ev.ReplicaStarted,),
    "*": (ev.ReplicaReady,),
    ".": (
        *(ev.ReplicaProgressed, ev.ReplicaStepped, ev.ReplicaSpent),
        *(ev.ReplicaPublished, ev.ReplicaAcknowledged),
    ),
    "=": (ev.ReplicaElastic,),
    "v": (ev.ReplicaStopped,),
    '"': (ev.ReplicaRevived,),
}
_MARKS = {kind: mark for mark, kinds in _KINDS.items() for kind in kinds}


def _followed(line: Record) -> str:
    """Return the capitals of the log for what followed an event: the two most important, in the order `I E G S X`."""
    kinds = {type(effect) for effect in line.effects}
    found = "I" if any(f"; {does} " in line.reason for does in ("restarting", "re-forming", "stopping")) else ""
    letters = {FinishJob: "E", OpenStore: "G", StartReplica: "S", StopReplica: "X"}
    found += "".join(letter for kind, letter in letters.items() if kind in kinds)
    return found[:2]


def _world_columns(job: JobState, line: Record) -> tuple[object, ...]:
    """Return generation, step, last checkpoint and live members of the world that the event is about, as columns."""
    world = _world_of(job, line)
    if world is None:
        return NO_WORLD
    up = world.counts["starting"] + world.counts["running"] + world.counts["ready"]
    least = sum(role.spec.min_replicas for role in job.roles_of(world)) if len(world.pool) > 1 else 1
    saved = "-" if world.checkpoint is None else world.checkpoint.step
    step = "-" if world.step < 0 else world.step
    return world.name, world.generation, step, saved, f"{up}/{least}..{len(world.pool)}"


def _world_of(job: JobState, line: Record) -> World | None:
    """Return the world that the event is about, else the first one that forms because of it; None for neither."""
    name = getattr(line.event, "world", None)
    replica = getattr(line.event, "replica", None)
    if replica in job.replicas:
        name = job.replicas[replica].world
    if name is None:
        name = next((effect.world for effect in line.effects if isinstance(effect, OpenStore)), None)
    return job.worlds.get(name) if name is not None else None


def _replicas(job: JobState) -> str:
    """Return a letter for the phase of each replica, role by role; with many replicas, the live ones of each role."""
    if len(job.replicas) <= COLUMNS_MAX:
        return " ".join("".join(_PHASES[r.phase] for r in job.replicas_of(role)) for role in job.roles.values())
    counts = [
        (name, role.count("starting") + role.count("running") + role.count("ready")) for name, role in job.roles.items()
    ]
    return " ".join(f"{name}:{count:<4}" for name, count in counts)
