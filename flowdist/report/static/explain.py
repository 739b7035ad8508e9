"""Explanation of one failure: what would restart, stop and continue, as the controller says in rehearsals.

The topology does not say when the failure happens. A role that waits for the success of others may run by then or not,
so the failure is rehearsed once for each moment at which one more such role runs. What restarts only at some of these
moments is told with the condition.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

from flowdist.control.placement.placement import explain
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, format_duration
from flowdist.graph.policies import SCOPES, Scope
from flowdist.report.static.failing import Failing
from flowdist.report.static.happening import Hit, Seen, happen
from flowdist.report.static.reasons import charge_of, ended_text, led_back, rule_text, verdict_text, why_restarting
from flowdist.report.static.rehearsal import Rehearsal, names_of, with_room
from flowdist.report.static.restarts import Extent, RestartTable
from flowdist.report.static.sections import (
    late_note,
    notes_of,
    running_on,
    start_waves_of,
    stop_layers_of,
    why_not_running,
)
from flowdist.text.printable import table

_OUTCOMES = {
    "fail": "the job fails: everything is stopped, and nothing starts again",
    "restart": "the job continues",
    "ignore": "the failure is ignored, and the job continues",
    "refused": "the drain is refused, and nothing changes",
    "takeover": "another controller takes over, and the job continues",
    "nothing": "nothing runs there, and the job continues",
}


class Explainer:
    """Explanations of failures of one topology. Its start is rehearsed once, and each failure in a copy of that."""

    def __init__(self, graph: RoleGraph) -> None:
        self.graph = graph
        self.table = RestartTable(graph)
        self.healthy = Rehearsal(graph)

    def explain(self, failing: Failing) -> dict[str, Any]:
        """Return the explanation of a failure as plain values, for --json and for tests; durations are in seconds.

        FlowdistError: a node is to fail, and the job does not fit its nodes.
        """
        if failing.kind == "controller":
            return _taken_over(self.graph, failing)
        job = self.healthy.job
        if failing.nodes and not job.admitted:
            why = explain(job, next(iter(job.roles.values())))
            raise FlowdistError(f"the job does not fit its nodes: {why}", help="see flowdist plan; add nodes")
        return _Explanation(self.graph, self.table, failing, self._moments(failing)).as_json()

    def _moments(self, failing: Failing) -> list[Seen]:
        """Return what the failure leads to, first as early as it can happen, then with more roles that run."""
        done = frozenset(self.graph.to_succeed_before(failing.role)) if failing.role else frozenset()
        healthy = self.healthy
        found = [_seen(healthy, failing, done)]
        if failing.role and not found[0].hits:  # the nodes have no room for what fails: as if they had
            healthy = Rehearsal(with_room(self.graph, sum(spec.max_replicas for spec in self.graph.roles)))
            found = [_seen(healthy, failing, done)]
        hit = {each.replica.role for each in found[0].hits}
        later = {done | self.graph.to_succeed_before(spec.name) for spec in self.graph.roles} - {done}
        for names in sorted(later, key=lambda names: (len(names), sorted(names))):
            if hit.isdisjoint(names):
                found.append(_seen(healthy, failing, names))
        return [found[0], *(seen for seen in found[1:] if seen.hits)]


def _seen(healthy: Rehearsal, failing: Failing, succeeded: frozenset[str]) -> Seen:
    """Return what the failure leads to once these roles have succeeded, in a copy; no hit if the job is over then."""
    rehearsal = healthy.copy()
    rehearsal.succeed(succeeded)
    return happen(rehearsal, failing)


def _taken_over(graph: RoleGraph, failing: Failing) -> dict[str, Any]:
    """Return the explanation for the death of the controller: no role is part of it (R21)."""
    outage = format_duration(graph.options.controller_outage_ns)
    because = f"agents keep their workers running for {outage} without a controller"
    going_on = [{"role": spec.name, "who": spec.name, "told": False, "because": because} for spec in graph.roles]
    notes = ["the next controller reads the journal, and the agents report what has happened since"]
    return _empty(failing) | {"outcome": "takeover", "goes_on": going_on, "notes": notes}


def _empty(failing: Failing) -> dict[str, Any]:
    """Return every key of an explanation; those that depend on what is seen are empty."""
    lists = [
        "hits",
        "verdicts",
        "ended",
        "restarts",
        "memory",
        "stuck",
        "spared",
        "stops",
        "starts",
        "goes_on",
        "notes",
    ]
    return {
        "fault": failing.spec,
        "how": failing.how,
        "outcome": "nothing",
        "announced": failing.is_announced,
        "charged": None,
        **{key: [] for key in lists},
    }


class _Explanation:
    """Explanation of what was seen at several moments; `main` is the first at which the job does not fail, if any."""

    def __init__(self, graph: RoleGraph, table: RestartTable, failing: Failing, moments: list[Seen]) -> None:
        self.graph, self.table, self.failing, self.moments = graph, table, failing, moments
        self.alive = [seen for seen in moments if not seen.failed_for]
        self.main = self.alive[0] if self.alive else moments[0]
        self.hits: dict[str, list[Hit]] = {}
        for hit in self.main.hits:
            self.hits.setdefault(hit.replica.role, []).append(hit)

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain values."""
        outcome = self._outcome()
        notes = [*self.main.refused, *self._why_nothing()]
        if outcome != "refused":
            notes += notes_of(self.graph, self.failing, self.hits, self.main, outcome)
        told = _empty(self.failing) | {
            "hits": [str(hit.replica) for hit in self.main.hits],
            "verdicts": [self._verdict(role) for role in self.hits],
            "outcome": outcome,
            "stops": stop_layers_of(self.graph, self.main, {}, {}),
            "notes": notes,
        }
        if outcome == "fail":
            is_said = any(hit.verdict.action == "fail" or self._is_below(hit) for hit in self.main.hits)
            return told | {"notes": notes if is_said else [*notes, f"the job fails: {self.main.failed_for}"]}
        if outcome == "refused" or self.main.job.ending:
            return told
        late = {role: seen for role, seen in self.first_at.items() if seen is not self.main}
        ended = self._ended()
        stuck = {role: because for role, because in self._stuck().items() if not self._is_late(role)}
        listed = {entry["role"] for entry in ended if entry["who"] == entry["role"]} | stuck.keys()
        spared = self._spared(listed | self.first_at.keys())
        return told | {
            "ended": ended,
            "restarts": [self._restart(role) for role in self.first_at],
            "memory": self._memory(),
            "stuck": [
                {"role": role, "who": self._stuck_who(role), "because": because} for role, because in stuck.items()
            ],
            "spared": [{"role": role, "who": role, "because": because} for role, because in spared.items()],
            "stops": stop_layers_of(self.graph, self.main, self.extents, late),
            "starts": start_waves_of(self.graph, self.main, self.extents, late),
            "charged": self._charged(),
            "goes_on": running_on(self.graph, self.main, list(self.first_at), listed | spared.keys()),
            "notes": notes + self._late_notes(),
        }

    def _why_nothing(self) -> list[str]:
        """Return a note on a role that never runs, so that nothing of it can fail; no note if it does."""
        role, job = self.failing.role, self.main.job
        if not role or self.main.hits:
            return []
        is_over = "the job has succeeded before it starts"
        return [f"{role} does not run: {is_over if job.ending else explain(job, job.roles[role])}"]

    def _outcome(self) -> str:
        """Return `fail`, `restart`, `ignore`, `refused` or `nothing`, by what was seen."""
        if self.main.failed_for:
            return "fail"
        if not self.main.hits:
            return "refused" if self.main.refused else "nothing"
        if self.first_at:
            return "restart"
        return "ignore" if self.main.ended else "nothing"

    @cached_property
    def scopes(self) -> dict[str, Scope | None]:
        """Return the widest scope by which each role that is hit restarts; None for each if its node is lost."""
        found: dict[str, Scope | None] = {}
        for role, those in self.hits.items():
            scopes = [hit.verdict.scope for hit in those if hit.verdict.action == "restart"]
            if scopes and any(role in seen.restarted for seen in self.moments):
                found[role] = None if self.failing.nodes else max(scopes, key=SCOPES.index)
        return found

    @cached_property
    def nominal(self) -> dict[str, Extent]:
        """Return the restart set if all roles ran."""
        found: dict[str, Extent] = {}
        for role, scope in self.scopes.items():
            here = self.table.restart_set(role, "failure" if scope else "node_lost", scope)
            found |= {name: extent for name, extent in here.items() if found.get(name) != "role"}
        return found

    @cached_property
    def first_at(self) -> dict[str, Seen]:
        """Return the first moment at which each role restarts, in the order of the graph."""
        found: dict[str, Seen] = {}
        for seen in self.alive:
            for role in seen.restarted:
                if seen is self.main or role in self.nominal:
                    found.setdefault(role, seen)
        return {spec.name: found[spec.name] for spec in self.graph.roles if spec.name in found}

    @cached_property
    def extents(self) -> dict[str, Extent]:
        """Return for each role that restarts whether all of it does at some moment, or single replicas alone."""
        found: dict[str, Extent] = {}
        for seen in self.alive:
            for role in seen.restarted:
                if found.get(role) != "role":
                    found[role] = self._extent(role, seen)
        return found

    def _extent(self, role: str, seen: Seen) -> Extent:
        hit = {each.replica.index for each in seen.hits if each.replica.role == role}
        restarted = set(seen.restarted[role])
        whole = restarted == set(seen.before[role]) and self.nominal.get(role) == "role"
        return "role" if self.graph.role(role).gang or restarted - hit or whole else "replica"

    def _verdict(self, role: str) -> dict[str, Any]:
        """Return the verdict that is shown for a role: on the last replica that pays or finds the budget used up."""
        spec, those = self.graph.role(role), self.hits[role]
        ends = next((each for each in those if each.verdict.action != "restart"), those[-1])
        hit = next((each for each in reversed(those) if each.verdict.counted or each.verdict.exhausted), ends)
        verdict = hit.verdict
        because = verdict_text(spec, self.failing, verdict, hit.rule)
        if self._is_below(hit):
            because += f"; fewer than the {spec.min_replicas} replicas that {role} needs are left: the job fails"
        rule = rule_text(hit.rule) if hit.rule is not None else None
        told = {"role": role, "action": verdict.action, "counted": verdict.counted, "rule": rule}
        return told | {"exhausted": verdict.exhausted, "because": because}

    def _is_below(self, hit: Hit) -> bool:
        """Return whether the failure is ignored, and the job fails because too few replicas of the role are left."""
        return hit.verdict.action == "ignore" and self.main.job.roles[hit.replica.role].outcome == "failed"

    def _restart(self, role: str) -> dict[str, Any]:
        """Return the entry of a role that restarts: what of it, why, and under which condition."""
        seen, extent = self.first_at[role], self.extents[role]
        because = why_restarting(self.graph, self.scopes, seen.restarted)[role]
        if extent == "role" and role in self.scopes and not self.graph.role(role).gang:
            back = led_back(self.graph, role, self.first_at)
            because += f"; all of it restarts: {back}" if back and self.scopes[role] in (None, "replica") else ""
        who = role if extent == "role" else names_of(role, seen.restarted[role])
        return {"role": role, "extent": extent, "who": who, "because": because, "if": self._condition(role)}

    def _memory(self) -> list[dict[str, str]]:
        """Return what each gang with snapshots goes on from when it restarts: memory, or a checkpoint (R24)."""
        found = []
        for role in [role for role in self.first_at if self.graph.role(role).snapshots is not None]:
            starts = [start for wave in self.first_at[role].waves for start in wave if start.replica.role == role]
            chosen = starts[-1].snapshot if starts else None
            tier, because = "checkpoint", "its latest checkpoint, if it has one: a shard of its newest snapshot is lost"
            if chosen is not None:
                counts = [len(each.holders) for each in chosen.shards]
                least, most = min(counts), max(counts)
                many = f"{least} cop{'ies' if most > 1 else 'y'}" if least == most else f"{least} to {most} copies"
                tier, because = "memory", f"its newest snapshot, of which each shard has {many} left"
            found += [{"role": role, "who": role, "tier": tier, "because": because}] if starts else []
        return found

    def _condition(self, role: str) -> str | None:
        """Return under which condition a role restarts, or all of it does; None if it restarts in any case."""
        seen = self.first_at[role]
        if seen is not self.main:
            done = {name for hit in self.hits for name in self.graph.to_succeed_before(hit)}
            waits = sorted(self.graph.to_succeed_before(role) - done)
            has = "has" if len(waits) == 1 else "have"
            return f"if {' and '.join(waits)} {has} succeeded by then" if waits else "if what leads to it runs by then"
        if self._extent(role, seen) != self.extents[role]:
            return "the rest of it if what leads back to it runs by then"
        return None

    def _ended(self) -> list[dict[str, str]]:
        """Return what ends for good because its failure is ignored, with the reason; a gang ends with its member."""
        found: list[dict[str, str]] = []
        for role, those in self.hits.items():
            over = self.main.ended.get(role, ())
            ignored = [h.replica.index for h in those if h.verdict.action == "ignore" and h.replica.index in over]
            if ignored:
                spec = self.graph.role(role)
                ended = (
                    {mate: mate for mate in self.graph.mates_of(role)} if spec.gang else {role: names_of(role, ignored)}
                )
                because = ended_text(self.graph, spec)
                found += [{"role": name, "who": who, "because": because} for name, who in ended.items()]
        return found

    def _stuck(self) -> dict[str, str]:
        """Return the roles that the controller ends because they wait for what has ended for good, with the reason."""
        ignored = {entry["role"] for entry in self._ended()}
        stuck = [spec.name for spec in self.graph.roles if spec.name in self.main.ended and spec.name not in ignored]
        return {role: because for role in stuck if (because := self._stuck_text(role, stuck))}

    def _stuck_who(self, role: str) -> str:
        """Return the role, or those replicas of it that the controller ends, if others have ended by themselves."""
        before, ended = self.main.before.get(role, []), self.main.ended[role]
        return role if set(before) <= set(ended) else names_of(role, [index for index in ended if index in before])

    def _stuck_text(self, role: str, stuck: list[str]) -> str:
        for mate in sorted(self.graph.mates_of(role), key=lambda mate: mate != role):
            for gate in self.graph.role(mate).gates:
                if gate.role in stuck or self.main.is_over(gate.role):
                    if mate != role:
                        return f"it is in one world with {mate}, which cannot start, and is ended as well"
                    why = "which does not start" if gate.role in stuck else "of which too few are left"
                    so_far = "succeed" if gate.condition == "succeeded" else f"be {gate.condition}"
                    return f"it waits for {gate.role} to {so_far}, {why}: it cannot start, and is ended as well"
        return ""

    def _is_late(self, role: str) -> bool:
        """Return whether a role that is stuck had only not started yet: it runs on at a later moment."""
        if role in self.main.before:
            return False
        return any(role in seen.before and role not in seen.ended for seen in self.alive)

    def _late_notes(self) -> list[str]:
        """Return notes on roles that cannot start any more if they have not started before the failure."""
        found: dict[str, str] = {}
        for seen in [self.main, *(seen for seen in self.moments if seen.failed_for)]:
            for spec in self.graph.roles:
                over = [gate.role for gate in spec.gates if self.main.is_over(gate.role)]
                is_late = spec.name in self.main.before if seen.failed_for else self._is_late(spec.name)
                if over and is_late and spec.name not in seen.before and spec.name in seen.ended:
                    end = "the job fails" if seen.failed_for else "it is ended as well"
                    found.setdefault(spec.name, late_note(self.graph, spec.name, over[0], end))
        return list(found.values())

    def _spared(self, told: Collection[str]) -> dict[str, str]:
        """Return the roles of the nominal restart set that do not run then, and so do not restart, with the reason."""
        spared = {}
        for role in [spec.name for spec in self.graph.roles if spec.name in self.nominal and spec.name not in told]:
            running = [*self.hits, *self.first_at, *self.main.before]
            why = why_not_running(self.graph, role, running) if role not in self.main.before else None
            spared[role] = why or "only roles that do not run by then lead to it"
        return spared

    def _charged(self) -> dict[str, Any] | None:
        """Return which budget pays for the restart, as `charge_of` does; None if no budget pays."""
        if not self.main.charges:
            return None
        payer = self.main.charges[0][0]
        levels = [level for role, level in self.main.charges if role == payer]
        spec = self.graph.role(payer)
        assert spec.restart is not None, f"{payer} pays without a policy"
        wider = spec.restart.chain()[levels[-1]].wider
        restarted = self.table.restart_set(payer, "failure", wider.scope) if wider is not None else ()
        return charge_of(self.graph, spec, levels, restarted)


def explanation_text(told: dict[str, Any]) -> str:
    """Return the text of an explanation, section by section; empty sections are left out."""
    restarts = [e | {"because": e["because"] + (f", {e['if']}" if e["if"] else "")} for e in told["restarts"]]
    verdicts = [entry | {"who": entry["role"]} for entry in told["verdicts"]]
    untouched = [*told["spared"], *(entry for entry in told["goes_on"] if not entry["told"])]
    sections = [
        ("Why", _rows(verdicts)),
        ("What is ended", _rows(told["ended"])),
        ("What restarts", _rows(restarts)),
        ("What it goes on from", _rows(told["memory"])),
        ("What is ended with it", _rows(told["stuck"])),
        ("In which order", _order(told)),
        ("What is charged", _charge(told)),
        ("What reconnects", _rows([entry for entry in told["goes_on"] if entry["told"]])),
        ("What is not affected", _rows(untouched)),
        ("Notes", [f"  {note}" for note in told["notes"]]),
    ]
    lines = [f"{told['how']}: {_OUTCOMES[told['outcome']]}"]
    for title, body in sections:
        lines += ["", title, *body] if body else []
    return "\n".join(lines) + "\n"


def _rows(entries: list[dict[str, Any]]) -> list[str]:
    return table([(entry["who"], entry["because"]) for entry in entries]) if entries else []


def _charge(told: dict[str, Any]) -> list[str]:
    if not told["restarts"]:
        return []
    words = told["charged"]["words"] if told["charged"] is not None else ["nothing: the restart is not counted"]
    return [f"  {text}" for text in words]


def _order(told: dict[str, Any]) -> list[str]:
    layers = told["stops"]
    lines = []
    if layers:
        when = "each world once it has left its step" if told["announced"] else "all at once"
        lines.append(f"  stopped, {when}, dependents first:")
        for number, layer in enumerate(layers, 1):
            names = ", ".join(f"{e['who']} (SIGKILL after {format_duration(round(e['grace_s'] * 1e9))})" for e in layer)
            lines.append(f"    {number}. {names}")
    if told["starts"]:
        wait = ", and the back-off is over" if told["charged"] is not None else ""
        lines.append(f"  started, when all of it is gone{wait}:")
        for number, wave in enumerate(told["starts"], 1):
            names = ", ".join(e["who"] + (f" (after {', '.join(e['after'])})" if e["after"] else "") for e in wave)
            lines.append(f"    {number}. {names}")
    return lines
