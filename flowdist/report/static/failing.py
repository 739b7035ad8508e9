"""Parser of `flowdist explain --fail`: which replica, role or node fails, and how. A failure has no time.

    TARGET[:KIND[=ARG]]        ps/0   ps   all   node1   node1,node2   zone=a   controller   ps/0:oom   zone=a:drain
The words are those of the fault grammar and of `On(...)`.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from flowdist.dsl.problems.problem import did_you_mean
from flowdist.errors import FlowdistError
from flowdist.faults.kinds import KINDS, having
from flowdist.graph import FailureKind, RoleGraph, RoleSpec, duration_help, format_duration, parse_duration
from flowdist.graph.policies import SIGNAL_NAMES

REPLICA_KINDS = ("kill", "exit", "signal", "oom", "hang", "start_failed", "unready")
NODE_KINDS = (*having("takes-node"), "drain")  # all ways in which a node goes: one that is cut off is lost


class Failing(NamedTuple):
    """One failure, parsed from `spec`. `how` tells it in words for people.

    `role` is empty if nodes or the controller fail; `number` None means every replica of the role.
    """

    spec: str
    kind: FailureKind | Literal["drained", "controller"]
    how: str
    role: str = ""
    number: int | None = None
    nodes: tuple[str, ...] = ()  # nodes that fail: one, several, or all with a label
    exit: int = 0
    signal: str | None = None

    @property
    def is_announced(self) -> bool:
        """Return whether the replicas know before and leave the node in order (R14): it is drained or preempted."""
        return self.kind in ("drained", "preempted")


def parse_failings(text: str, graph: RoleGraph) -> list[Failing]:
    """Return the failures that a text names: one for each role if the target is `all`, else one."""
    target, colon, kind = text.partition(":")
    if target != "all":
        return [parse_failing(text, graph)]
    return [parse_failing(f"{spec.name}{colon}{kind}", graph)._replace(spec=text) for spec in graph.roles]


def parse_failing(text: str, graph: RoleGraph) -> Failing:
    """Return the failure that a text names. A topology without nodes has one, `node0`: this machine."""
    _refuse_times(text)
    target, colon, kind_text = text.partition(":")
    nodes = [node.name for node in graph.cluster.nodes] if graph.cluster.given else ["node0"]
    kind, equals, argument = (kind_text if colon else "kill").partition("=")
    if target == "controller":
        return _controller(text, kind_text if colon else "kill")
    if set(target.split(",")) <= set(nodes) or "=" in target:
        hit = _labelled(text, target, graph) if "=" in target else tuple(dict.fromkeys(target.split(",")))
        return _nodes(text, target, hit, kind, argument if equals else None)
    name, slash, number = target.partition("/")
    roles = {spec.name: spec for spec in graph.roles}
    if name in nodes:
        raise _wrong(text, f"{name} is a node: it has no replicas", f"write {name}")
    if name not in roles:
        raise _wrong(text, f"there is no {name!r}", did_you_mean(name, [*roles, *nodes, "all", "controller"]))
    index = _index(text, roles[name], number) if slash else None
    return _replica(text, roles[name], index, kind, equals, argument)


def _refuse_times(text: str) -> None:
    """Raise if the text has a time (`@30s`) or a duration (`/10s`), as faults of a plan may have."""
    if "@" in text:
        target, _, rest = text.partition("@")
        kind = "".join(rest.partition(":")[1:])
        raise _wrong(text, "the time of the failure makes no difference here", f"write {target or 'ps/0'}{kind}")
    if "/" in text.partition(":")[2]:
        raise _wrong(text, "the duration of the failure makes no difference here", f"write {text.rpartition('/')[0]}")


def _controller(text: str, kind: str) -> Failing:
    name, _, argument = kind.partition("=")
    if name in KINDS and KINDS[name].argument == "nodes" and argument:
        other = argument.partition(",")[0]
        raise _wrong(text, f"the controller keeps running; {argument} fall silent", f"write {other}:lost")
    if kind != "kill":
        raise _wrong(text, f"the controller does not fail by {kind!r}", "write controller")
    return Failing(text, "controller", "the controller is killed")


def _labelled(text: str, label: str, graph: RoleGraph) -> tuple[str, ...]:
    """Return the nodes that have the label, such as `zone=a`, in the order of the cluster; raise if no node has it."""
    found = tuple(node.name for node in graph.cluster.nodes if label in map("=".join, node.labels))
    if not found:
        known = dict.fromkeys("=".join(each) for node in graph.cluster.nodes for each in node.labels)
        raise _wrong(text, f"no node is {label}", did_you_mean(label, known))
    return found


def _nodes(text: str, target: str, nodes: tuple[str, ...], kind: str, argument: str | None) -> Failing:
    if kind not in NODE_KINDS:
        raise _wrong(text, f"a node does not fail by {kind!r}", did_you_mean(kind, NODE_KINDS))
    if argument is not None and kind != "preempt":
        raise _wrong(text, f"{kind} takes no argument", f"write {target}:{kind}")
    many = len(nodes) > 1
    who = ", ".join(nodes) + (f" ({target})" if "=" in target else "")
    are, s = ("are", "") if many else ("is", "s")
    if kind == "preempt":
        after = f" in {format_duration(_notice(text, target, argument))}" if argument is not None else ""
        return Failing(text, "preempted", f"{who} {are} taken away{after}", nodes=nodes)
    if kind == "drain":
        each = ", one by one" if many else ""
        return Failing(text, "drained", f"{who} {are} drained by the operator{each}", nodes=nodes)
    end = {"kill": f"{are} gone", "lost": f"fall{s} silent", "leave": f"leave{s}"}[kind]
    return Failing(text, "node_lost", f"{who} {end}", nodes=nodes)


def _notice(text: str, target: str, argument: str) -> int:
    """Return the notice of a preemption in nanoseconds; raise if the argument is no duration."""
    try:
        return parse_duration(argument)
    except ValueError:
        help = duration_help(argument, f"write {target}:preempt=30s")
        raise _wrong(text, f"{argument!r} is no duration", help) from None


def _index(text: str, spec: RoleSpec, number: str) -> int:
    """Return the index of the replica from `0`, or from `0.1`, a worker: a replica that loses a worker has failed."""
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", number)
    if match is None:
        raise _wrong(text, f"{number!r} is no number of a replica", f"write {spec.name}/0")
    index = int(match[1])
    if index >= spec.max_replicas:
        known = f"{spec.name}/0 to {spec.name}/{spec.max_replicas - 1}" if spec.max_replicas > 1 else f"{spec.name}/0"
        raise _wrong(text, f"{spec.name} has {spec.max_replicas} replicas at most", f"write {known}")
    if match[2] is not None and int(match[2]) >= spec.procs:
        help = f"write {spec.name}/{index}.0" + (f" to {spec.name}/{index}.{spec.procs - 1}" if spec.procs > 1 else "")
        workers = f"{spec.procs} workers" if spec.procs > 1 else "one worker"
        raise _wrong(text, f"a replica of {spec.name} has {workers}", help)
    return index


def _replica(text: str, spec: RoleSpec, index: int | None, kind: str, equals: str, argument: str) -> Failing:
    """Return the failure of one replica, or of every replica of the role if `index` is None."""
    if kind == "node_lost":
        raise _wrong(text, "a replica is lost with its node", "name the node: node1")
    if kind not in REPLICA_KINDS:
        raise _wrong(text, f"kind {kind!r} is unknown", did_you_mean(kind, REPLICA_KINDS))
    if equals and kind not in ("exit", "signal"):
        raise _wrong(text, f"{kind} takes no argument", f"write {text.partition('=')[0]}")
    name = text.partition(":")[0] if index is not None else f"every replica of {spec.name}"

    def failing(kind: FailureKind, how: str, exit: int = 0, signal: str | None = None) -> Failing:
        return Failing(text, kind, f"{name} {how}", spec.name, index, exit=exit, signal=signal)

    match kind:
        case "exit":
            code = _code(text, argument)
            if (named := SIGNAL_NAMES.get(code - 128)) is None:
                return failing("exit", f"exits with {code}", code)
            return failing("signal", f"exits with {code}, which stands for signal SIG{named}", code, named)
        case "kill" | "signal":
            signal = "KILL" if kind == "kill" else argument.removeprefix("SIG")
            if signal not in SIGNAL_NAMES.values():
                raise _wrong(text, f"signal {argument!r} is unknown", did_you_mean(signal, SIGNAL_NAMES.values()))
            return failing("signal", f"is killed by signal SIG{signal}", signal=signal)
        case "unready":
            if not spec.has_readiness:
                raise _wrong(text, f"{spec.name} has no readiness check that it could fail", "give it ready_when=")
            return failing("unready", f"does not get ready within {format_duration(spec.ready_timeout_ns)}")
        case "hang":
            return failing("hang", _how_it_hangs(text, spec))
        case "oom":
            return failing("oom", "runs out of memory")
    return failing("start_failed", "cannot be started")


def _code(text: str, argument: str) -> int:
    if not (argument.isdecimal() and 1 <= int(argument) <= 255):
        target = text.partition(":")[0]
        raise _wrong(text, f"{argument!r} is no exit code of a failure", f"write {target}:exit=1 to exit=255")
    return int(argument)


def _how_it_hangs(text: str, spec: RoleSpec) -> str:
    if spec.hang_after_ns is not None:
        return f"hangs: no sign of it for {format_duration(spec.hang_after_ns)}"
    if spec.start_timeout_ns is not None:
        return f"reports no progress within {format_duration(spec.start_timeout_ns)}"
    what = f"{spec.name} has no limit after which it counts as hanging"
    raise _wrong(text, what, 'give it hang_after=, such as "10m"')


def _wrong(text: str, message: str, help: str) -> FlowdistError:
    """Return, for the caller to raise, the error that says what is wrong with the text of --fail."""
    return FlowdistError(f"--fail {text}: {message}", help=help)
