"""Text of a job's status: roles as rows with counts, and by name only what is unusual.

The text stays readable with hundreds of replicas. Plain output and the live terminal share the same lines; the terminal
adds colours, and limits their width and number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowdist.control.job.parts import LIVE_PHASES
from flowdist.errors import first_of
from flowdist.graph import format_duration
from flowdist.record.status import (
    MemberPhase,
    MemberStatus,
    NodePhase,
    NodeStatus,
    ReplicaStatus,
    RoleStatus,
    Status,
    VersionStatus,
    WorldStatus,
)
from flowdist.report.record.trace import stamp
from flowdist.text.printable import joined, table

STRIP_MAX = 64  # with more nodes, the strip with a character each is left out
OVERDUE_S = 2.0  # without a heartbeat; agents send two a second by default
NAMES_MAX = 6  # replicas or nodes in one list
MARKS: dict[NodePhase, str] = {
    "up": "=",
    "cordoned": "#",
    "leaving": "~",
    "unheard": "?",
    "still": "|",
    "lost": "x",
    "expected": ".",
}
STYLES = {
    **dict.fromkeys(("running", "succeeded"), "green"),
    **dict.fromkeys(("starting", "ending", "cancelled", "warning", "refused"), "yellow"),
    **dict.fromkeys(("failed", "died", "error"), "red"),
}


class Span(NamedTuple):
    """Text with a style: a colour, `bold`, `dim` or nothing."""

    text: str
    style: str = ""


Line = list[Span]


class Limits(NamedTuple):
    """Greatest number of lines for each part of the text that has no natural limit."""

    said: int = 6
    unusual: int = 8
    held_up: int = 3
    roles: int = 40


TIGHTER = (Limits(), Limits(4, 6, 2), Limits(3, 4, 1, 20), Limits(1, 2, 1, 10), Limits(1, 1, 0, 5), Limits(0, 2, 0, 5))


def status_text(status: Status, *, state: str = "") -> str:
    """Return the whole status as plain text; `state` replaces `status.state` for a run that died without its end."""
    return joined(plain(line) for line in status_lines(status, Limits(12, 20, 10, 1000), state=state))


def fitted(status: Status, height: int) -> list[Line]:
    """Return the status in at most `height` lines (1 at least), by the first of `TIGHTER` that fits; else cut off."""
    for limits in TIGHTER:
        lines = status_lines(status, limits)
        if len(lines) <= height:
            break
    return lines[: max(1, height)]


def plain(line: Line) -> str:
    """Return the text of a line without its styles and without trailing spaces."""
    return "".join(span.text for span in line).rstrip()


def status_lines(status: Status, limits: Limits, *, state: str = "") -> list[Line]:
    """Return the lines of the status, each part limited; `state` replaces `status.state` as in `status_text`."""
    lines = [_head(status, state or status.state)]
    if status.reason:
        lines.append([Span(status.reason)])
    is_dead = state == "died"
    lines += [[], *_roles(status.roles, limits.roles, is_dead), *_versions(status.versions), *_snapshots(status.worlds)]
    unusual = [*_unusual_replicas(status), *_unusual_nodes(status.nodes), *_open_incidents(status)]
    nodes = _nodes(status.nodes, is_dead)
    lines += [[], *([nodes] if nodes else []), *_at_most(unusual, limits.unusual)]
    lines += _at_most([*_members(status.members)], limits.unusual)
    if status.held_up_by and limits.held_up:
        waits: list[Line] = [[Span(f"  {text}")] for text in status.held_up_by]
        lines += [[], [Span("waiting for", "bold")], *_at_most(waits, limits.held_up)]
    if status.said and limits.said:
        lines += [[], [Span("recent decisions", "bold")]]
        for said in status.said[-limits.said :]:
            lines.append([Span(f"  {stamp(said.t_ns).strip()}  ", "dim"), Span(said.text, STYLES.get(said.level, ""))])
    return lines


def one_line(status: Status) -> str:
    """Return the status in one line, for a periodic log."""
    roles = []
    for role in status.roles:
        step = f" step {role.step}" if role.step >= 0 else ""
        rate = f" ({_rate(role.steps_per_s)}/s)" if role.steps_per_s is not None else ""
        roles.append(f"{role.name} {_up(role)}/{role.target}{step}{rate}")
    up = sum(node.phase == "up" for node in status.nodes)
    counts = f"nodes {up}/{len(status.nodes)}, incidents {sum(status.incidents.values())}"
    return f"{_seconds(status.now_ns)} {status.state}: {', '.join(roles)}; {counts}"


def _head(status: Status, state: str) -> Line:
    line = [Span(status.run_id or status.name, "bold"), Span("  "), Span(state, STYLES.get(state, ""))]
    words = [f"after {_seconds(status.now_ns)}"]
    if total := sum(status.incidents.values()):
        causes = ", ".join(f"{count} {kind}" for kind, count in status.incidents.items())
        words.append(f"{total} incident{'s' * (total != 1)} ({causes})")
    is_known = status.state != "failed" or any(role.step >= 0 for role in status.roles)  # else it may never have worked
    if status.goodput is not None and is_known:
        words.append(f"goodput {100 * status.goodput:.0f} %")
    if unknown := [name for name, spent in status.time_ns.items() if spent.get("unknown")]:
        words.append(f"goodput unknown of {', '.join(unknown)}")
    if status.epoch > 1:
        words.append(f"controller of epoch {status.epoch}")
    return [*line, Span(f"  {', '.join(words)}")]


def _roles(roles: Sequence[RoleStatus], most: int, is_dead: bool) -> list[Line]:
    """Return a row for each of the first `most` roles; if the run is dead, a row says what ran then."""
    heading = ("role", "up", "replicas", "gen", "workers", "step", "steps/s", "restarts", "charged")
    first, *rows = table([heading, *(_role(role, is_dead) for role in roles[:most])])
    place = first.index("replicas")  # up to there, a row has the colour of its role
    lines: list[Line] = [[Span(first, "bold")]]
    for role, row in zip(roles, rows, strict=False):
        lines.append([Span(row[:place], _role_style(role, is_dead)), Span(row[place:])])
    if len(roles) > most:
        lines.append([Span(f"  and {len(roles) - most} more roles")])
    return lines


def _role(role: RoleStatus, is_dead: bool) -> tuple[str, ...]:
    live = any(count for phase, count in role.phases.items() if phase in LIVE_PHASES)
    up = _up(role) if not is_dead else 0
    phases = ", ".join(f"{count} {_in_words(phase, count, is_dead)}" for phase, count in _shown(role))
    is_over = role.outcome is not None and not live
    return (
        role.name,
        f"{up}/{role.target}" if not is_over else "-",
        str(role.outcome) if is_over else phases or "-",
        str(role.generation or "-"),
        str(role.workers or "-"),
        str(role.step) if role.step >= 0 else "-",
        _rate(role.steps_per_s) if role.steps_per_s is not None else "-",
        str(role.restarts),
        f"{role.used} of {role.budget}" if role.budget is not None else "-",
    )


def _in_words(phase: str, count: int, is_dead: bool) -> str:
    """Return the phase of so many replicas; of a dead run, those that were live are not any more."""
    return f"{'was' if count == 1 else 'were'} {phase}" if is_dead and phase in LIVE_PHASES else phase


def _shown(role: RoleStatus) -> list[tuple[str, int]]:
    """Return the shown phases of a role with counts. Replicas beyond its target wait for nothing: they are left out."""
    shown = Counter({str(phase): count for phase, count in role.phases.items()})
    shown["waiting"] -= min(shown["waiting"], role.max_replicas - role.target)
    return [(phase, count) for phase, count in shown.items() if count]


def _up(role: RoleStatus) -> int:
    """Return how many replicas of the role run or are ready."""
    return role.phases.get("running", 0) + role.phases.get("ready", 0)


def _role_style(role: RoleStatus, is_dead: bool) -> str:
    """Return the colour of a role's row, by the replicas that are up; none before the first start."""
    up = _up(role) if not is_dead else 0
    if role.outcome is not None or up >= role.target:
        return "red" if role.outcome == "failed" else "green"
    return "yellow" if up >= role.min_replicas else "red" if role.generation else ""


def _open_incidents(status: Status) -> Iterable[Line]:
    for incident in status.open_incidents:
        awaits = f", awaits {incident.awaits}" if incident.awaits else ""
        since = _seconds(status.now_ns - incident.opened_ns)
        text = f"  incident {incident.number}, {incident.phase} for {since}{awaits}: {incident.reason}"
        yield [Span(text, "yellow")]


def _versions(versions: Sequence[VersionStatus]) -> Iterable[Line]:
    """Yield a line for each role with `versions=`: the latest version, and which replicas have which (R23)."""
    for each in versions:
        latest = f"version {each.published}" if each.published >= 0 else "no version yet"
        yield [Span(f"  {each.of} has published {latest}; {each.role} may be {each.max_staleness} behind")]
        groups: dict[int, list[str]] = {}
        for replica, version in each.replicas.items():
            groups.setdefault(version, []).append(replica)
        for version, names in sorted(groups.items(), reverse=True):
            has = f"version {version}" if version >= 0 else "no version"
            is_late = any(name in each.waiting for name in names)
            text = f"    {has}: {first_of(names, NAMES_MAX)}" + (", not ready" if is_late and len(names) == 1 else "")
            yield [Span(text, "yellow" if is_late else "")]


def _snapshots(worlds: Sequence[WorldStatus]) -> Iterable[Line]:
    """Yield a line for each world with a snapshot in memory that is whole: the newest one, and its copies (R24)."""
    for each in worlds:
        if each.copies:
            many = f"{each.copies} cop{'y' if each.copies == 1 else 'ies'} of each shard"
            yield [Span(f"  {each.name} has step {each.snapshot} in memory, {many}")]


def _unusual_replicas(status: Status) -> Iterable[Line]:
    """Yield a line for each role and thing that is unusual about its replicas, with their names; stalled ones first."""
    roles = {role.name: role for role in status.roles}
    groups: dict[tuple[str, str], list[str]] = {}
    for replica in status.replicas:
        role = roles[replica.name.partition("/")[0]]
        if what := _what_is_unusual(role, replica):
            details = [f"attempt {replica.attempt}"] if replica.attempt > 1 else []
            details += [replica.node] if replica.node is not None else []
            name = f"{replica.name} ({', '.join(details)})" if details else replica.name
            groups.setdefault((role.name, what), []).append(name)
    for (_, what), names in sorted(groups.items(), key=lambda group: not group[0][1].startswith("stalled")):
        yield [Span(f"  {what}: {first_of(names, NAMES_MAX)}", "red" if what.startswith("stalled") else "yellow")]


def _what_is_unusual(role: RoleStatus, replica: ReplicaStatus) -> str:
    """Return in words what is unusual about a replica; empty if nothing is."""
    if replica.stalled:
        missed = "not started" if replica.stalled == "start" else f"no {replica.stalled}"
        return f"stalled, {missed}"
    if replica.is_stopped:
        return "stopped, by SIGSTOP or a debugger"
    if replica.phase == "stopping":
        return "stopping"
    if replica.phase == "gone":
        return "gone, waiting for its incident"
    if replica.phase == "waiting" and replica.has_seat_to_come and role.generation and role.outcome is None:
        return "waiting for a seat" if replica.node is None else "waiting to start again"
    if replica.attempt > 1 and replica.phase == "starting":
        return "starting again"
    if replica.attempt > 1 and replica.phase == "running" and role.has_readiness:
        return "not ready again"
    return ""


def _nodes(nodes: Sequence[NodeStatus], is_dead: bool) -> Line:
    """Return the line about nodes: how many are up, or were when the run died, and a sign for each if they are few."""
    if not nodes:
        return []
    up = sum(node.phase == "up" for node in nodes)
    line = [Span("nodes", "bold"), Span(f"  {up} of {len(nodes)} {'were ' * is_dead}up  ")]
    if len(nodes) <= STRIP_MAX:
        colours = {"up": "green", "lost": "red"} if not is_dead else {}
        other = "yellow" if not is_dead else "dim"
        line += [Span(MARKS[node.phase], colours.get(node.phase, other)) for node in nodes]
    return line


def _members(members: Sequence[MemberStatus]) -> Iterable[Line]:
    """Yield a line that counts an engine's members by phase, and one for each reason to wait or to leave."""
    if not members:
        return
    counts = Counter(member.phase for member in members)
    yield [Span("members", "bold"), Span(f"  {', '.join(f'{count} {phase}' for phase, count in counts.items())}")]
    groups: dict[tuple[MemberPhase, str], list[str]] = {}
    for member in members:
        if member.because:
            name = f"{member.name} ({member.reference})" if member.reference else member.name
            groups.setdefault((member.phase, member.because), []).append(name)
    for (phase, because), names in groups.items():
        yield [Span(f"  {phase} {first_of(names, NAMES_MAX)}: {because}", "yellow")]


def _unusual_nodes(nodes: Sequence[NodeStatus]) -> Iterable[Line]:
    """Yield lines about overdue heartbeats, nodes that are not up, grouped by phase and reason, and bad GPUs."""
    overdue = [f"{node.name} for {node.heard_s_ago:.0f}s" for node in nodes if _is_overdue(node)]
    if overdue:
        yield [Span(f"  ! no heartbeat: {first_of(overdue, NAMES_MAX)}", "yellow")]
    groups: dict[tuple[NodePhase, str], list[str]] = {}
    for node in nodes:
        if node.phase != "up":
            groups.setdefault((node.phase, node.because), []).append(node.name)
    for (phase, because), names in groups.items():
        text = f"  {MARKS[phase]} {phase} {first_of(names, NAMES_MAX)}" + (f": {because}" if because else "")
        yield [Span(text, "red" if phase == "lost" else "yellow")]
    for node in nodes:
        if node.bad_gpus:
            yield [Span(f"  x {node.name} without {', '.join(node.bad_gpus)}", "red")]


def _is_overdue(node: NodeStatus) -> bool:
    """Return whether heartbeats of the node are overdue, although its lease has not run out yet."""
    return node.phase not in ("lost", "expected") and node.heard_s_ago is not None and node.heard_s_ago > OVERDUE_S


def _at_most(lines: list[Line], most: int) -> list[Line]:
    """Return the first `most` lines, with one more line for the number of those left out; no line if `most` is 0."""
    if len(lines) <= most:
        return lines
    return [*lines[:most], [Span(f"  and {len(lines) - most} more lines")]] if most else []


def _seconds(ns: int) -> str:
    """Return nanoseconds as a duration rounded to seconds."""
    return format_duration(round(ns, -9)) if ns >= 10**9 else "0s"


def _rate(steps_per_s: float) -> str:
    return f"{steps_per_s:.1f}" if steps_per_s < 100 else f"{steps_per_s:.0f}"
