"""`--set` and `--nodes`: overrides of the command line, which win over the file.

`--set FIELD=VALUE` sets a field of the topology, `--set ROLE.FIELD=VALUE` a field of a role, and a further dot a field
of the role's restart policy, snapshots, workload or environment. A name without a dot that is a role's is refused, even
if the topology has a field of that name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from itertools import count, islice
from typing import Any

from flowdist.dsl.frozen import force
from flowdist.dsl.problems.places import CLI, COMMAND_LINE, CallSite
from flowdist.dsl.problems.problem import Problems, did_you_mean
from flowdist.dsl.topology import ROLE_DEFAULTS, Gate, Role, Topology, replaced_by
from flowdist.dsl.words import Node, Restart, Snapshots, Workload
from flowdist.graph.units import COUNT_MAX

HERE = CallSite(COMMAND_LINE, 1, ())
NESTED = {"restart": Restart, "snapshots": Snapshots, "workload": Workload}
NOT_SET = ("like", "versions")  # fields of a role that cannot be written as text
CONDITIONS = ("started", "ready", "succeeded")


def apply_nodes(topology: Topology, nodes: str, problems: Problems, given: str) -> None:
    """Replace the topology's nodes by as many as `--nodes` asks for: a number, or a range such as "2:4".

    With a list of `Node`, a number keeps the first nodes of the list and adds nodes of the same size. Otherwise the
    nodes have the default size. If the nodes of the list have different sizes, an error is added and nothing changes.
    What is neither a number nor a range, the compiler reports. Messages call the option as it was `given`.
    """
    declared = topology.fields["nodes"]
    declared = [declared] if isinstance(declared, Node) else declared
    value: int | str = int(nodes) if re.fullmatch(r"\d{1,9}", nodes) else nodes
    is_list = isinstance(declared, Sequence) and not isinstance(declared, str) and len(declared) > 0
    if not is_list or not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
        topology.fields["nodes"] = value
        topology.overridden["nodes"] = CLI
    elif all(isinstance(node, Node) for node in declared):  # the compiler reports other values in the file
        if any(_size(node) != _size(declared[0]) for node in declared):
            message = f"{given}: the nodes of the topology have different sizes"
            problems.error("FD104", message, "change nodes= in the file", CLI)
        else:
            topology.fields["nodes"] = [*declared[:value], *_more_like(declared, value - len(declared))]


def _size(node: Node) -> dict[str, Any]:
    """Return the arguments of a node that say how large it is."""
    return {name: getattr(node, name) for name in ("cpu", "gpu", "memory", "resources")}


def _more_like(declared: Sequence[Node], missing: int) -> list[Node]:
    """Return `missing` new nodes of the size of the first declared one, named `nodeN` as no declared node is."""
    taken = {node.name or f"node{i}" for i, node in enumerate(declared)}
    free = (name for i in count(len(declared)) if (name := f"node{i}") not in taken)
    return [Node(name, **_size(declared[0])) for name in islice(free, max(0, missing))]


def apply_sets(topology: Topology, sets: Sequence[str], problems: Problems) -> None:
    """Apply the values of `--set` to the topology in order, so that the last one wins; add errors to `problems`."""
    for text in sets:
        _Override(topology, text, problems).apply()


class _Override:
    """One `--set KEY=VALUE` for a topology; a wrong key adds a problem. The compiler checks the value later."""

    def __init__(self, topology: Topology, text: str, problems: Problems) -> None:
        self._topology, self._text, self._problems = topology, text, problems
        self._key, self._equals, self._value = text.partition("=")

    def apply(self) -> None:
        """Set the field of the topology or of a role that the key names; add a problem if it names none."""
        owner, dot, field = self._key.partition(".")
        roles: dict[str, Role] = {}
        for role in self._topology.roles:
            roles.setdefault(role.name, role)
        if not self._equals or not owner or (dot and not field):
            self._error("FD133", "cannot be read", "write --set ROLE.FIELD=VALUE, or --set FIELD=VALUE")
        elif dot and owner in roles:
            self._set_in_role(roles[owner], field)
        elif dot:
            self._error("FD133", f"no role {owner!r}", did_you_mean(owner, roles))
        elif owner in roles:
            self._error("FD133", f"{owner!r} is a role", f"write --set {owner}.FIELD={self._value}")
        else:
            self._set_in_topology(owner, [*roles])

    def _error(self, code: str, message: str, help: str) -> None:
        self._problems.error(code, f"--set {self._text}: {message}", help, CLI)

    @property
    def _is_none(self) -> bool:
        return self._value.lower() == "none"

    def _set_in_topology(self, field: str, roles: list[str]) -> None:
        """Set a field of the topology; `roles` has the names of its roles, for suggestions."""
        topology = self._topology
        known = [name for name in topology.fields if name != "resources"]
        if field == "resources":
            help = "set cpu, gpu or memory of a role, or change flowdist.toml"
            self._error("FD132", "a table of resources has no spelling here", help)
        elif field not in known:
            self._error("FD132", f"the topology has no {field!r} to set", did_you_mean(field, [*known, *roles]))
        elif field == "nodes" and not self._is_none:
            apply_nodes(topology, self._value, self._problems, f"--set {self._text}")
        else:
            self._store(topology, field, None if self._is_none else self._value)

    def _set_in_role(self, role: Role, field: str) -> None:
        """Set a field of the role, or a part of its policy, workload or environment; the value `none` resets it."""
        head, dot, rest = field.partition(".")
        plain = [name for name in ROLE_DEFAULTS if name not in (*NOT_SET, *NESTED, "env", "depends_on")]
        known = [*plain, "depends_on", "env", *NESTED]
        if dot and head in NESTED:
            self._set_nested(role, head, rest)
        elif dot and head == "env":
            self._set_env(role, rest)
        elif field not in known:
            self._error("FD132", f"a role has no {field!r} to set", did_you_mean(head, known))
        elif self._is_none:
            self._store(role, field, ROLE_DEFAULTS[field])
        elif field in (*NESTED, "env"):
            part = "NAME" if field == "env" else "FIELD"
            self._error("FD132", f"{field} is set part by part", f"write --set {role.name}.{field}.{part}=...")
        elif field == "depends_on":
            self._set_gates(role)
        elif field in ("near", "apart", "where"):
            self._set_placement(role, field)
        else:
            self._set_plain(role, field)

    def _set_plain(self, role: Role, field: str) -> None:
        """Set a field, and reset those that it replaces (`script`: `command`), unless an earlier --set gave them."""
        for name in replaced_by(field):
            if name not in role.overridden:
                role.fields[name] = ROLE_DEFAULTS[name]
        self._store(role, field, self._value)

    def _store(self, owner: Role | Topology, field: str, value: Any) -> None:
        """Set the field of a role or of the topology, and record that it comes from the command line."""
        owner.fields[field] = value
        owner.overridden[field] = CLI

    def _set_nested(self, role: Role, head: str, rest: str) -> None:
        """Set field `rest` of `head`, an argument such as the restart policy, which is made if the role has none."""
        kind = NESTED[head]
        default: Any = kind()
        force(default, "site", HERE)
        if head == "workload":
            force(default, "startup", None)  # the default depends on the role's kind
        given = role.fields[head]
        if given is not None and not isinstance(given, kind):
            return  # the compiler reports the value of the file
        known = [name for name in vars(default) if name not in ("site", "rules")]
        if rest not in known:
            self._error("FD132", f"a {head} has no {rest!r}", did_you_mean(rest, known))
            return
        changed: Any = copy.copy(given) if given is not None else default  # other roles may share the object
        force(changed, rest, getattr(default, rest) if self._is_none else self._value)
        role.fields[head] = changed
        role.overridden[f"{head}.{rest}"] = CLI

    def _set_env(self, role: Role, name: str) -> None:
        env = role.fields["env"]
        if not name:
            self._error("FD133", "the variable has no name", f"write --set {role.name}.env.NAME=VALUE")
        elif env is None or isinstance(env, Mapping):
            role.fields["env"] = {**(env or {}), name: self._value}
            role.overridden[f"env.{name}"] = CLI

    def _set_placement(self, role: Role, field: str) -> None:
        """Set `near=ps,data`, `apart=true` or `where=zone=a,rack=7`; a value that cannot be read adds a problem."""
        words = [word.strip() for word in self._value.split(",") if word.strip()]
        roles = {other.name: other for other in self._topology.roles}
        value: Any = self._value.lower() == "true"
        if field == "where":
            if any("=" not in word for word in words):
                self._error("FD133", "a label is NAME=VALUE", f"write --set {role.name}.where=zone=a")
                return
            value = dict(word.partition("=")[::2] for word in words)
        elif field == "near" or self._value.lower() not in ("true", "false"):
            for word in words:
                if word not in roles:
                    self._error("FD133", f"no role {word!r}", did_you_mean(word, roles))
                    return
            value = [roles[word] for word in words]
        self._store(role, field, value)

    def _set_gates(self, role: Role) -> None:
        """Set the role's gates from text such as `ps.ready:restart,data`; `data` means `data.started:reconnect`."""
        gates = []
        upstreams = {other.name: other for other in self._topology.roles if other is not role}
        for word in self._value.split(","):
            name, _, rest = word.strip().partition(".")
            condition, _, on_restart = rest.partition(":")
            if name == role.name:
                self._error("FD133", f"role {name!r} cannot wait for itself", "name a role that starts before it")
                return
            if name not in upstreams:
                self._error("FD133", f"no role {name!r}", did_you_mean(name, upstreams))
                return
            if (condition or "started") not in CONDITIONS:
                self._error("FD131", f"condition {condition!r} is unknown", did_you_mean(condition, CONDITIONS))
                return
            gates.append(Gate(upstreams[name], condition or "started", on_restart or "reconnect", HERE))
        self._store(role, "depends_on", gates)
