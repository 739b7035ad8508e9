"""The targets of faults: what a plan names has to be in the job, and what hits it has to be possible there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from flowdist.errors import did_you_mean, node_help
from flowdist.faults.grammar import Fault, FaultError, Plan, located, refuse, refuse_duration
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec

_FILES = "it would be your files that are damaged; the disk of flowdist simulate is its own"
SIMULATED_ONLY = {  # kinds that only the simulator carries out, and why
    "lost-checkpoint": _FILES,
    "corrupt-checkpoint": _FILES,
    "broken-copy": "flowdist run cannot damage the memory of a vault",
    "slow-checkpoint": "the disk is that of the whole machine; flowdist simulate has one of its own",
}


def check_plan(plan: Plan, graph: RoleGraph) -> None:
    """Check the names in a plan; FaultError for what the job does not have, or a node to add that it has."""
    roles = [role.name for role in graph.roles]
    nodes = [node.name for node in graph.cluster.nodes]
    added = [(add.node, add.node, add.where) for add in plan.adds]
    added += [(fault.target, fault.spec, fault.where) for fault in plan.faults if fault.kind == "add"]
    for name, spec, where in added:
        if name in (*nodes, *roles, "all", "controller"):
            help = "a node that is to come back is written node1@30s/60s: it is away for 60 s"
            refuse(spec, 0, len(name), f"there is a {name!r} already", help, where)
        nodes.append(name)
    check_targets(plan.faults, graph, nodes)
    for scale in plan.scales:
        if scale.role not in roles:
            _refuse_unknown(f"{scale.role}={scale.replicas}", 0, "role", scale.role, roles, scale.where)
    for drain in plan.drains:
        if drain.node not in nodes:
            message, help = f"there is no node {drain.node!r}", node_help(drain.node, nodes)
            refuse(drain.node, 0, len(drain.node), message, help, drain.where)


def added_node(name: str, graph: RoleGraph) -> NodeSpec:
    """Return the node that joins under this name: its capacity and labels are those of the job's first node, if any."""
    if not graph.cluster.nodes:
        return NodeSpec(name)
    like = graph.cluster.nodes[0]
    return NodeSpec(name, like.cpu, like.gpu, like.memory, like.labels)


def check_targets(faults: Sequence[Fault], graph: RoleGraph, nodes: Iterable[str]) -> None:
    """Check the targets of faults, and roles in their WHEN, against the job and all nodes that may be there.

    FaultError for what the job does not have, or a duration that the target cannot have.
    """
    nodes = list(nodes)
    for fault in faults:
        try:
            _check_target(fault, graph, nodes)
        except FaultError as error:
            raise located(error, fault.where) from None


def _check_target(fault: Fault, graph: RoleGraph, nodes: list[str]) -> None:
    roles = {role.name: role for role in graph.roles}
    name = fault.target.partition("/")[0]
    known = [*roles, *nodes, "all", "controller"]
    if fault.label is not None:
        labels = [label for node in graph.cluster.nodes for label in node.labels]
        if fault.label not in labels:
            texts = dict.fromkeys("=".join(label) for label in labels)
            refuse(fault.spec, 0, len(fault.target), f"no node is {fault.target}", did_you_mean(fault.target, texts))
    elif name not in known:
        refuse(fault.spec, 0, len(name), f"there is no {name!r}", node_help(name, nodes, known))
    for other in fault.others:
        others = [node for node in (*nodes, "controller") if node != fault.target]
        if other not in others:
            start = fault.spec.index(f":{fault.kind}=") + len(fault.kind) + 2
            message, help = f"there is no node {other!r}", node_help(other, nodes, others)
            if other == name:
                message, help = f"{other} cannot be cut off from itself", did_you_mean(other, others)
            refuse(fault.spec, start, start + len(fault.arg), message, help)
    if name in roles or name in ("all", "controller"):
        refuse_duration(fault)  # the text alone does not say whether the target is a role or a node
    if fault.kind == "scale" and fault.target not in roles:
        refuse(fault.spec, 0, len(fault.target), f"{fault.target} is no role", did_you_mean(fault.target, roles))
    if fault.replica is not None:
        _check_replica(fault, roles)
    if fault.when.event is not None and fault.when.role not in roles:
        start = fault.spec.index("=", fault.spec.index("@")) + 1  # the label of a target has one, too
        _refuse_unknown(fault.spec, start, "role", fault.when.role, roles)


def _check_replica(fault: Fault, roles: dict[str, RoleSpec]) -> None:
    """Raise FaultError if the fault's target is a replica or worker whose number the role never has."""
    assert fault.replica is not None
    name, index = fault.replica
    role = roles.get(name)
    end = len(fault.target)
    if role is None:
        refuse(fault.spec, 0, end, f"{name} is no role: it has no replicas", f"write {name}@...")
    most, procs = role.max_replicas, role.procs
    if index >= most:
        known = f"{name}/0 to {name}/{most - 1}" if most > 1 else f"{name}/0"
        refuse(fault.spec, 0, end, f"{name} has {most} replica{'s' * (most > 1)} at most", f"write {known}")
    if fault.local_rank is not None and fault.local_rank >= procs:
        help = f"write {name}/{index}" + (f".0 to {name}/{index}.{procs - 1}" if procs > 1 else "")
        workers = f"{procs} workers" if procs > 1 else "one worker"
        refuse(fault.spec, 0, end, f"a replica of {name} has {workers}", help)


def _refuse_unknown(text: str, start: int, what: str, name: str, known: Iterable[str], where: str = "") -> NoReturn:
    refuse(text, start, start + len(name), f"there is no {what} {name!r}", did_you_mean(name, known), where)


def refuse_unsupported(faults: Sequence[Fault], kinds: Mapping[str, Sequence[str]], where: str) -> None:
    """Raise FaultError for the first fault whose kind a command, `where` in the message, cannot carry out.

    `kinds` has the kinds that it can carry out, by target: `node`, `replica`, `controller`. A kind that it carries out
    for nodes alone, or for replicas alone, passes for both, as a target such as `x@30s` may be a role or a node:
    `refuse_misplaced` says of which of them it is.
    """
    for fault in faults:
        what = "controller" if fault.target == "controller" else "replica" if "/" in fault.target else "any"
        what = "node" if fault.label is not None else what
        known = list(kinds[what]) if what in kinds else sorted({*kinds["node"], *kinds["replica"]})
        possible = known if what == "controller" else [*known, *kinds["node"], *kinds["replica"]]
        if fault.kind not in possible:
            whom = f" of {fault.target}" if what != "any" else ""
            why = SIMULATED_ONLY.get(fault.kind)
            message = f"{where} cannot carry out {fault.kind!r}{whom}{f': {why}' if why else ' yet'}"
            refuse(fault.spec, *_kind_place(fault), message, f"it can: {', '.join(known)}", fault.where)


def refuse_fault(fault: Fault, message: str, help: str) -> NoReturn:
    """Raise FaultError for a fault, with its kind underlined, for a reason (`message`) of the simulator or runtime."""
    refuse(fault.spec, *_kind_place(fault), message, help, fault.where)


def refuse_misplaced(faults: Sequence[Fault], kinds: Mapping[str, Sequence[str]], nodes: Iterable[str]) -> None:
    """Raise FaultError for the first fault whose kind (`kinds`, by target) its target cannot have."""
    nodes = list(nodes)
    for fault in faults:
        what = "node" if fault.target in nodes or fault.label is not None else "replica"
        what = "controller" if fault.target == "controller" else what
        if fault.kind not in kinds[what]:
            help = f"what a {what} can suffer: {', '.join(kinds[what])}"
            if what == "replica" and fault.kind in kinds["node"]:
                node = nodes[0] if nodes else "node0"
                text = f"node-{fault.kind}=..." if fault.rate else node + fault.spec.removeprefix(fault.target)
                help = f"{fault.kind} is a fault of nodes: write {text}; {help}"
            refuse_fault(fault, f"{fault.kind} of a {what} means nothing here", help)


def _kind_place(fault: Fault) -> tuple[int, int]:
    """Return begin and end of the kind in the fault's text; those of the target for a kill without a written kind."""
    start = fault.spec.find(":") + 1
    return start, start + len(fault.kind if start else fault.target)
