"""The fleet: compares the members that a job needs with those that its engine shows, and orders what is missing.

The machine does no I/O and reads no clock. A driver calls `look` every second with what it sees, saves `state`, and
only then carries out the orders: a driver that dies in between repeats nothing.

When is a member replaced?

* Its node is lost for `REPLACE_NS`. The engine may notice that much later, or never: the member is cancelled, and its
  replacement avoids the host.
* It is over, except if the flowdist job is over or somebody cancelled it by the engine's own means. That person wants
  fewer members, and would cancel each replacement, too. Scaling a role, to its present size or to another, says that
  its members are wanted again.
* It is about to leave: the engine drains its host, its time limit comes, or its node is cordoned. The replacement is
  submitted first, and the member is cancelled when nothing runs on its node any more.

Members that end before they have joined are replaced ever more slowly, because the cause is rarely gone a second later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flowdist.control.fleet.values import (
    Cancel,
    Drain,
    FleetState,
    GiveUp,
    JobSeen,
    Member,
    NodeSeen,
    Order,
    Pool,
    PoolState,
    Seen,
    Submit,
    Tell,
)
from flowdist.errors import first_of
from flowdist.graph import MINUTE, SECOND

REPLACE_NS = 2 * SECOND  # a node that is lost for longer is replaced; an agent that died is back by then
IDLE_NS = 10 * SECOND  # a superfluous node without replicas is released after this time
DRAIN_NS = MINUTE  # a host that the engine drains is emptied after this time, even if its replacement is not there
CANCEL_NS = 30 * SECOND  # a member that is still there so long after its cancellation is cancelled again
AVOID_NS = 60 * MINUTE  # for which no member starts on a host that has failed, as in R22
RETRY_NS, RETRY_MAX_NS = SECOND, MINUTE  # before a replacement of a member that never joined; doubled each time
WAITS_NS = 5 * SECOND  # for which a member waits for one reason before people are told of it
NAMES_MAX = 6  # members that one line names
FAILURES_MAX = 6  # members in a row that never joined, without any that has: the job is given up


class Fleet:
    """The members of one job, whose roles have these largest `sizes`; `state` is that of an earlier driver."""

    def __init__(self, pools: Sequence[Pool], sizes: Mapping[str, int], state: FleetState | None = None) -> None:
        self._pools, self._sizes = pools, sizes
        self.state = state or FleetState()
        for pool in pools:
            self.state.pools.setdefault(pool.name, PoolState())

    def look(self, job: JobSeen, seen: Mapping[str, Seen], now: int) -> list[Order]:
        """Return the orders that follow from what the engine shows; a member that is missing is left alone."""
        nodes = _nodes_by_member(job.nodes)
        orders: list[Order] = []
        for member in self.state.members:
            if not member.is_gone and member.name in seen:
                _note_waiting(member, seen[member.name], now)
                orders += self._update(member, seen[member.name], nodes.get(member.name), now)
        orders += self._tell_waiting(now)
        if job.is_ending:
            return orders + [
                order for member in self.state.members for order in self._cancel_pending(member, seen, now)
            ]
        orders += self._give_up()
        for pool in self._pools if not self.state.is_given_up else ():
            orders += self._fill(pool, job, nodes, now)
        return orders

    def moved(self, endpoint: str) -> None:
        """Note where the controller is. Members that look for it elsewhere are replaced: they would never find it."""
        if self.state.endpoint not in ("", endpoint):
            for member in self.state.members:
                member.ended = member.ended or f"the controller has moved from {self.state.endpoint} to {endpoint}"
        self.state.endpoint = endpoint

    def submitted(self, member: str, reference: str) -> None:
        """Note that the engine has accepted a member."""
        self._member(member).reference = reference

    def refused(self, member: str, why: str, now: int) -> None:
        """Note that the engine has refused a member. The next one avoids no host: that may have been the reason."""
        self._member(member).is_gone = True
        self._end(self._member(member), why, now, has_failed=True)
        self.state.avoided.clear()

    def _member(self, name: str) -> Member:
        return next(member for member in self.state.members if member.name == name)

    def _update(self, member: Member, seen: Seen, node: NodeSeen | None, now: int) -> Iterator[Order]:
        """Note what has become of a member."""
        member.host = seen.host or member.host
        if seen.phase == "ended":
            member.is_gone = True
            if not member.ended:
                yield from self._ended(member, seen, now)
            return
        if member.ended:  # but the engine still has it
            yield from self._cancel(member, member.ended, now)
            return
        if seen.phase == "pending":  # for the first time, or because the engine has requeued it
            member.has_joined, member.lost_ns = False, None
            return
        if node is not None and node.is_usable:
            member.has_joined, member.lost_ns = True, None
            self.state.pools[member.pool].failures = 0
            yield from self._note_leaving(member, seen, node, now)
        elif node is not None and member.has_joined:
            member.lost_ns = now if member.lost_ns is None else member.lost_ns
            if now - member.lost_ns >= (CANCEL_NS if seen.is_ending else REPLACE_NS):
                yield from self._lost(member, node, now)

    def _tell_waiting(self, now: int) -> Iterator[Tell]:
        """Tell why members wait for a machine: of each member each reason once, if it lasts."""
        names: dict[str, list[str]] = {}
        for member in self.state.members:
            is_new = member.waits not in ("", *member.told) and not member.ended
            if is_new and now - member.waits_ns >= WAITS_NS:
                member.told = (*member.told, member.waits)
                names.setdefault(member.waits, []).append(member.name)
        for why, waiting in names.items():
            verb = "wait" if len(waiting) > 1 else "waits"
            yield Tell(f"{first_of(waiting, NAMES_MAX)} {verb} for a machine: {why}")

    def _ended(self, member: Member, seen: Seen, now: int) -> Iterator[Order]:
        """Note that a member is over although nothing had ended it here."""
        words = f"{member.name}{_on(member)} is over: {seen.reason or 'the engine has forgotten it'}"
        if seen.cause == "cancelled" and not member.leaving:
            member.ended = words
            self.state.pools[member.pool].unwanted += 1
            yield Tell(f"{member.name}{_on(member)} was cancelled outside flowdist, and is not replaced", "warning")
            return
        if seen.cause == "node failed":
            self._avoid(member, now)
        self._end(member, words, now, has_failed=not member.has_joined)
        yield Tell(words, "warning")

    def _end(self, member: Member, why: str, now: int, *, has_failed: bool) -> None:
        """Stop counting a member. With `has_failed` the next one of its pool waits, longer each time."""
        member.ended = why
        if has_failed:
            pool = self.state.pools[member.pool]
            pool.failures += 1
            pool.retry_ns = now + min(RETRY_MAX_NS, RETRY_NS << min(pool.failures - 1, 10))

    def _avoid(self, member: Member, now: int) -> None:
        """Start no member on the host of this one for a while. One that never ran has none."""
        if member.host:
            self.state.avoided[member.host] = now + AVOID_NS

    def _lost(self, member: Member, node: NodeSeen, now: int) -> Iterator[Order]:
        why = f"{node.node} is lost" + (f" ({node.lost_because})" if node.lost_because else "")
        self._avoid(member, now)
        self._end(member, why, now, has_failed=False)
        yield from self._cancel(member, why, now)

    def _note_leaving(self, member: Member, seen: Seen, node: NodeSeen, now: int) -> Iterator[Order]:
        """Note why a member with a usable node is to be replaced, and since when its node has been idle."""
        if node.replicas:
            member.idle_ns = None
        elif member.idle_ns is None:
            member.idle_ns = now
        why = f"{seen.host} is drained by its administrator" if seen.is_host_drained else node.cordoned
        if not why:
            member.leaving = ""  # the operator uses the node again
        elif not member.leaving:
            member.leaving, member.leaving_ns = why, now
            if not node.is_leaving and not seen.is_host_drained:  # cordoned, because of failures there
                self._avoid(member, now)
            yield Tell(f"{member.name}{_on(member)} is to be replaced: {why}")

    def _fill(self, pool: Pool, job: JobSeen, nodes: Mapping[str, NodeSeen], now: int) -> Iterator[Order]:
        """Submit the members that a pool lacks, and release those that it does not need."""
        state = self.state.pools[pool.name]
        wanted = self._wanted(pool, job)
        members = self.state.counting(pool.name)
        staying = [member for member in members if not member.leaving]
        if now >= state.retry_ns:
            for _ in range(wanted - len(staying)):
                yield self._submit(pool, now)
        has_all = sum(member.has_joined for member in staying) >= wanted
        for member in members:
            if member.leaving and (node := nodes.get(member.name)) is not None:
                yield from self._let_go(member, node, has_all, now)
        for member in _superfluous(staying, len(staying) - wanted, now):
            member.ended = "the job needs fewer members"
            yield from self._cancel(member, member.ended, now)

    def _wanted(self, pool: Pool, job: JobSeen) -> int:
        """Return how many members a pool should have: the part of its maximum that the wanted replicas are of all."""
        state = self.state.pools[pool.name]
        most = sum(self._sizes[role] for role in pool.roles)
        needed = -(-pool.max_members * sum(job.targets[role] for role in pool.roles) // most)
        for role in pool.roles:  # a member has room for its share of each role
            share = -(-self._sizes[role] // pool.max_members)
            needed = max(needed, -(-job.targets[role] // share))
        scalings = sum(job.scalings.get(role, 0) for role in pool.roles)
        if needed != state.target or scalings > state.scalings:  # what somebody has cancelled is wanted again
            state.target, state.scalings, state.unwanted = needed, max(scalings, state.scalings), 0
        low = pool.min_members if needed else 0
        return max(0, min(max(needed, low), pool.max_members) - state.unwanted)

    def _submit(self, pool: Pool, now: int) -> Submit:
        self.state.avoided = {host: until for host, until in self.state.avoided.items() if until > now}
        self.state.number += 1
        member = Member(f"m{self.state.number}", pool.name, tuple(sorted(self.state.avoided)))
        self.state.members.append(member)
        return Submit(member.name, pool.name, member.avoid)

    def _let_go(self, member: Member, node: NodeSeen, has_all: bool, now: int) -> Iterator[Order]:
        """Empty the node of a member that is to be replaced, and cancel the member once nothing runs there.

        A cordoned node is left alone until it is empty: what runs there may finish. `has_all` says that the pool has
        all the members that it needs besides this one.
        """
        if not node.replicas and (has_all or node.is_leaving):
            member.ended = member.leaving
            yield from self._cancel(member, member.leaving, now)
            return
        may_drain = has_all or now - member.leaving_ns >= DRAIN_NS
        was_asked = member.asked_ns is not None and now - member.asked_ns < DRAIN_NS
        if may_drain and not (was_asked or node.is_leaving or node.cordoned):
            member.asked_ns = now
            yield Drain(node.node, member.leaving)

    def _cancel(self, member: Member, because: str, now: int) -> Iterator[Cancel]:
        """Order the end of a member; again after `CANCEL_NS` while the engine still has it."""
        if member.reference and (member.cancelled_ns is None or now - member.cancelled_ns >= CANCEL_NS):
            again, member.cancelled_ns = member.cancelled_ns is not None, now
            yield Cancel(member.name, member.reference, because, again)

    def _cancel_pending(self, member: Member, seen: Mapping[str, Seen], now: int) -> Iterator[Order]:
        """Cancel a member that waits for a machine while the job ends. One that runs ends with the job."""
        if not member.is_gone and member.name in seen and seen[member.name].phase == "pending":
            member.ended = member.ended or "the job is over"
            yield from self._cancel(member, member.ended, now)

    def _give_up(self) -> Iterator[Order]:
        """Give up the job if the engine cannot start members of a pool, or somebody has cancelled all of them."""
        if self.state.is_given_up:
            return
        for pool in self._pools:
            state, name = self.state.pools[pool.name], f" of {pool.name}" if pool.name else ""
            members = [member for member in self.state.members if member.pool == pool.name]
            left = self.state.counting(pool.name)
            if left and any(member.has_joined for member in left):
                continue
            if not left and 0 < state.target <= state.unwanted:
                self.state.is_given_up = True
                yield GiveUp(f"all members{name} were cancelled outside flowdist", "cancelled")
            elif state.failures >= FAILURES_MAX or (state.failures and all(not each.reference for each in members)):
                self.state.is_given_up = True
                last = next(each.ended for each in reversed(members) if each.ended)
                yield GiveUp(
                    f"{state.failures} member{'s' * (state.failures > 1)}{name} in a row never joined: {last}", "failed"
                )


def _note_waiting(member: Member, seen: Seen, now: int) -> None:
    """Note whether a member waits for a machine, since when, and why."""
    waits = seen.reason if seen.phase == "pending" else ""
    if waits != member.waits:
        member.waits, member.waits_ns = waits, now
    member.is_pending = seen.phase == "pending"


def _nodes_by_member(nodes: Sequence[NodeSeen]) -> dict[str, NodeSeen]:
    """Return the node of each member: the usable one, else the one that has joined last."""
    found: dict[str, NodeSeen] = {}
    for node in nodes:
        if node.is_usable or node.member not in found or not found[node.member].is_usable:
            found[node.member] = node
    return found


def _superfluous(members: Sequence[Member], count: int, now: int) -> list[Member]:
    """Return at most `count` members that can go: those that have not joined, then idle ones, the latest first."""
    waiting = [member for member in reversed(members) if not member.has_joined]
    idle = [
        member
        for member in reversed(members)
        if member.has_joined and member.idle_ns is not None and now - member.idle_ns >= IDLE_NS
    ]
    return (waiting + idle)[: max(0, count)]


def _on(member: Member) -> str:
    return f" on {member.host}" if member.host else ""
