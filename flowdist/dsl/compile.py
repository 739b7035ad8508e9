"""The compiler from a topology to a role graph.

The compiler reads every argument, fills in every default and collects every problem. Roles are compiled one by one;
checks that concern several roles are in `check/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flowdist.dsl.check.graph import check_graph, check_worlds
from flowdist.dsl.check.timeouts import check_timeouts
from flowdist.dsl.frozen import Unknown
from flowdist.dsl.problems.problem import Problems, did_you_mean
from flowdist.dsl.read import commands
from flowdist.dsl.read.fields import DOUBLE, PART_NAME, RESERVED, Fields, owner_of, parse_sizes
from flowdist.dsl.read.objects import check_model, model_of
from flowdist.dsl.read.parallel import read_parallel
from flowdist.dsl.read.placement import read_placement
from flowdist.dsl.read.policy import compile_restart
from flowdist.dsl.read.resources import NamedResources, read_cluster, read_heartbeat_and_lease
from flowdist.dsl.read.snapshots import read_snapshots
from flowdist.dsl.read.workload import read_workload
from flowdist.dsl.topology import ROLE_DEFAULTS, Gate, Role, Topology, Version
from flowdist.graph import MINUTE, SECOND, JobOptions, Resources
from flowdist.graph.role_graph import Domain, JointWorld, Readiness, RoleGraph, RoleSpec, VersionEdge
from flowdist.graph.role_graph import Gate as GateSpec
from flowdist.graph.units import COUNT_MAX

# What stands after the colon of a `ready_when=`.
_CHECKED = {"tcp": "port", "http": "port", "file": "path", "log": "regular expression"}
PORTS_SHOWN_MAX = 3  # in a help
# Durations of a role whose defaults a topology can set.
SHARED = (
    *("grace", "stop_grace", "drain"),
    *("ready_timeout", "join_window", "pending_timeout", "finish_timeout", "cooldown"),
)


def compile_topology(
    topology: Topology, problems: Problems, *, is_complete: bool = True, by_engine: bool = False
) -> RoleGraph:
    """Return the role graph of the topology, and add every error and warning to `problems`.

    The graph can be used only if `problems` has no error afterwards: wrong arguments have been replaced by harmless
    values. Unless it `is_complete`, the file ended early by an exception, and what is missing is no problem.
    `by_engine`: an engine starts the nodes, as large as their replicas need.
    """
    top = Fields(owner_of(topology), topology.fields, topology.site, problems, topology.overridden)
    folder = Path(topology.site.file).resolve().parent
    sizes = NamedResources(topology, folder, problems)
    cluster = read_cluster(top, sizes)
    usual = RoleSpec("", ())
    shared = {name: top.duration(name, getattr(usual, f"{name}_ns")) for name in SHARED}
    if not PART_NAME.fullmatch(topology.name) and not top.is_wrong("name"):
        top.error("FD102", "name", "its name cannot name a folder", "use lower case letters, digits, - and _")
    compiler = _RoleCompiler(topology, folder, shared, {node.name for node in cluster.nodes}, sizes, problems)
    roles = tuple(compiler.compile(role) for role in topology.roles)
    beat_ns, lease_ns = read_heartbeat_and_lease(top)
    graph = RoleGraph(
        name=topology.name,
        roles=roles,
        domains=_domains(topology, problems),
        worlds=tuple(
            JointWorld(name, tuple(dict.fromkeys(role.name for role in members if isinstance(role, Role))))
            for name, members, _ in topology.worlds
        ),
        cluster=cluster,
        options=JobOptions(
            heartbeat_ns=beat_ns,
            lease_ns=lease_ns,
            cause_window_ns=top.duration("cause_window", 2 * SECOND),
            min_uptime_ns=top.duration("min_uptime", MINUTE),
            controller_outage_ns=top.duration("controller_outage", 10 * MINUTE, zero=False),
            move_after=top.whole("move_after", least=1, default=2),
            cordon_after=top.whole("cordon_after", least=1, default=3),
        ),
        on_incident=commands.read_hook(top, "on_incident", folder),
        checkpoint_dir=top.path("checkpoint_dir"),
        source=topology.site.file,
    )
    if is_complete:
        check_worlds(topology, graph, problems)
        check_graph(topology, graph, problems, by_engine=by_engine)
        check_timeouts(topology, graph, problems)
    return graph


def _domains(topology: Topology, problems: Problems) -> tuple[Domain, ...]:
    """Return the restart domains; add errors for domains with fewer than two roles, and for roles in two of them."""
    domains: list[Domain] = []
    for name, members, site in topology.domains:
        roles: dict[str, None] = {}
        for i, role in enumerate(members):
            if not isinstance(role, Role) or role.topology is not topology:
                problems.mark_wrong(owner_of(topology), "domains")
                help = "pass handles that this topology's role() returned"
                message = f"domain {name!r}: {_words_for(role)} is not a role of this topology"
                if not isinstance(role, Unknown):
                    problems.error("FD135", message, help, site.place(str(i)))
                continue
            other = next((domain for domain in domains if role.name in domain.roles), None)
            if other is not None:
                message = f"domain {name!r}: role {role.name!r} is in domain {other.name!r} already"
                problems.error("FD128", message, "make one domain of the two", site.place(str(i)))
            roles[role.name] = None
        if len({id(role) for role in members}) < 2:
            problems.mark_wrong(owner_of(topology), "domains")
            help = "name at least two roles: restart_together('core', a, b)"
            problems.error("FD128", f"domain {name!r} has fewer than two roles", help, site.place())
        domains.append(Domain(name, tuple(roles)))
    return tuple(domains)


@dataclass
class _RoleCompiler:
    """Compiler of the roles of one topology, one after the other; it adds what is wrong with a role to `problems`."""

    topology: Topology
    folder: Path
    shared: Mapping[str, int]  # the defaults of SHARED, in ns
    nodes: set[str]
    sizes: NamedResources
    problems: Problems
    seen: dict[str, Role] = field(default_factory=dict)

    def compile(self, role: Role) -> RoleSpec:
        """Return the graph's value of a role. What is wrong with the role becomes problems, not exceptions."""
        fields = Fields.of_role(role, self.problems)
        self._check_name(role, fields)
        self._check_arguments(role, fields)
        kind = fields.choice("kind", ("task", "service"))
        restart = compile_restart(fields, role.fields["restart"])
        loose = kind == "service" or (restart is not None and restart.scope == "replica")
        resources = self.sizes.read(fields)
        low, high, procs = self._sizes(fields, resources)
        command = commands.read_command(fields, self.folder)
        env, secrets = commands.read_env(fields, self.folder)
        ports = fields.words("ports")
        workdir = fields.path("workdir")
        if not fields.is_wrong("workdir"):
            commands.check_found(fields, command, self.folder / workdir, commands.way_of(fields))
        preload = commands.read_preload(fields, command, self.folder / workdir)
        macros = commands.macros_of(fields, command, env)
        self._check_macros(fields, macros, ports)
        addressed = dict.fromkeys(macro.split(":")[1] for _, macro in macros if macro.startswith("addresses:"))
        spec = RoleSpec(
            name=role.name,
            command=command,
            kind=kind,
            min_replicas=low,
            max_replicas=high,
            procs=procs,
            resources=resources,
            placement=read_placement(fields, self.topology),
            env=env,
            secrets=secrets,
            ports=ports,
            workdir=str(self.folder / workdir) if workdir else str(self.folder),
            gang=fields.flag("gang", not loose),
            primary=fields.flag("primary", True),
            gates=self._gates(fields),
            versions=self._versions(fields),
            restart=restart,
            ready=self._ready(fields, ports),
            snapshots=read_snapshots(fields),
            state=fields.choice("state", ("none", "memory", "checkpoint")),
            **{f"{name}_ns": fields.duration(name, default) for name, default in self.shared.items()},
            hang_after_ns=fields.optional_duration("hang_after"),
            start_timeout_ns=fields.optional_duration("start_timeout"),
            preload=preload,
            warm=fields.flag("warm", True),
            numa=self._numa(fields, resources),
            virtual_local_rank=fields.flag("virtual_local_rank", False),
            count_steps=fields.flag("count_steps", True),
            parallel=read_parallel(fields),
            workload=read_workload(fields, kind, max(1, low) * procs, max(1, high) * procs),
            simulate=model_of(fields, self.folder, kind),
            address_edges=tuple(addressed),
        )
        commands.warn_if_cold(fields, spec)
        check_model(fields, spec)
        return spec

    def _numa(self, fields: Fields, resources: Resources) -> Literal["", "node"]:
        if fields.values["numa"] is None:
            return ""
        fields.choice("numa", ("node",))
        if not resources.gpu and not fields.is_wrong("gpu", "resources", "numa"):
            help = "write gpu=1, or leave numa= out"
            fields.error("FD155", "numa", "its workers have no GPU to which they could be bound", help)
        return "node"

    def _check_name(self, role: Role, fields: Fields) -> None:
        """Add an error for a name that cannot name a role, means something else in faults, or is an earlier role's."""
        name = role.name
        if fields.is_wrong("name"):
            return
        if not PART_NAME.fullmatch(name):
            help = "use lower case letters, digits, - and _, beginning with a letter, at most 63"
            fields.error("FD102", "name", "its name cannot name a folder", help)
        elif name in RESERVED or name in self.nodes or re.fullmatch(r"node\d+", name):
            fields.error("FD102", "name", "its name has another meaning in faults", f'write "{name}-role"')
        if name in self.seen:
            line = self.seen[name].site.place().line
            help = "give each role its own name"
            self.problems.mark_wrong(fields.owner, DOUBLE)
            fields.error("FD101", "name", f"it is declared twice; the first time in line {line}", help)
        self.seen.setdefault(name, role)

    def _check_arguments(self, role: Role, fields: Fields) -> None:
        """Add errors for arguments that `Topology.role` does not know, and for a `like=` that is no Template."""
        for name in role.sites:
            if name not in ROLE_DEFAULTS and not name.startswith("env."):
                help = did_you_mean(name, ROLE_DEFAULTS)
                fields.error("FD132", name, f"argument {name!r} is unknown", help, fields.keyword(name))
        if fields.values["like"] is not None:
            message = f"like={fields.values['like']!r} must be a Template"
            fields.error("FD134", "like", message, "write base = Template(cpu=4), then like=base")

    def _sizes(self, fields: Fields, resources: Resources) -> tuple[int, int, int]:
        """Return minimum and maximum of replicas, and workers of each (default: its GPUs); 1, 1, 1 after an error."""
        value = fields.values["replicas"]
        try:
            sizes = parse_sizes(value)
        except (ValueError, TypeError, AttributeError):
            help = 'write replicas=4, replicas="2:4" or replicas="2:4x8" (MIN:MAXxPROCS)'
            fields.error("FD104", "replicas", f"replicas={value!r} cannot be read", help)
            return 1, 1, 1
        low, high = sizes.low, sizes.high
        procs = resources.gpu or 1 if sizes.procs is None else sizes.procs
        if max(low, high, procs) > COUNT_MAX:
            message = f"replicas={value!r} has more than {COUNT_MAX:,}"
            fields.error("FD105", "replicas", message, "write a smaller number")
            return 1, 1, 1
        if min(low, high, procs) < 1:
            fields.error("FD105", "replicas", f"replicas={value!r} has a zero", "every number must be 1 or more")
            return 1, 1, 1
        if low > high:
            tail = f"x{sizes.procs}" if sizes.procs else ""
            message = f"minimum {low} is larger than maximum {high}"
            fields.error("FD103", "replicas", message, f'write replicas="{high}:{low}{tail}"')
            low, high = high, low
        if fields.is_wrong("gpu", "resources"):
            return low, high, procs
        if resources.gpu and procs % resources.gpu:
            help = f"write x{resources.gpu} procs, or change gpu="
            fields.error("FD111", "replicas", f"{procs} procs are not a multiple of its {resources.gpu} gpus", help)
        elif resources.gpu and procs > resources.gpu:
            help = "NCCL refuses two ranks on one GPU; gloo takes them"
            fields.warn("FD301", "replicas", f"{procs} procs share {resources.gpu_words}", help)
        return low, high, procs

    def _check_macros(self, fields: Fields, macros: list[tuple[str, str]], ports: tuple[str, ...]) -> None:
        """Add errors for macros that do not exist, and for ports that the role lacks; `check_graph` has addresses."""
        for where, macro in macros:
            if macro.startswith("self.port:"):
                if (port := macro.removeprefix("self.port:")) not in ports and not fields.is_wrong("ports"):
                    fields.error("FD119", where, f"it has no port {port!r}", did_you_mean(port, ports))
            elif not macro.startswith("addresses:") and macro not in commands.MACROS:
                fields.error("FD120", where, f"macro ${{{macro}}} is unknown", did_you_mean(macro, commands.MACROS))

    def _gates(self, fields: Fields) -> tuple[GateSpec, ...]:
        """Return the gates of the role; a second gate on one role, or anything but a gate, adds an error instead."""
        gates: dict[str, GateSpec] = {}
        any_role = "write depends_on=[role.ready()] with a role of this topology"
        help = self._gates_on(fields.values["depends_on"]) or any_role
        for i, item in enumerate(fields.items("depends_on", Gate, Role, help=help)):
            gate = item.started() if isinstance(item, Role) else item
            if not isinstance(gate, Gate) or gate.role.topology is not self.topology:
                message = f"{_words_for(item)} is not a gate of this topology"
                help = self._gates_on(item) or any_role
                fields.error("FD135", "depends_on", message, help, fields.element("depends_on", i))
                continue
            if gate.role.name in gates:
                message = f"it has two gates on role {gate.role.name!r}"
                place = fields.element("depends_on", i)
                fields.error("FD136", "depends_on", message, "keep one gate; ready() includes started()", place)
                continue
            given = {"on_restart": gate.on_restart}
            reader = Fields(fields.owner, given, gate.site, self.problems, part="depends_on.")
            on_restart = reader.choice("on_restart", ("reconnect", "restart"))
            gates[gate.role.name] = GateSpec(gate.role.name, gate.condition, on_restart)  # type: ignore[arg-type]
        return tuple(gates.values())

    def _gates_on(self, name: object) -> str:
        """Return a help with the gates that fit the role of this name; empty if this is the name of no role."""
        role = next((role for role in self.topology.roles if isinstance(name, str) and role.name == name), None)
        if role is None:
            return ""
        values = Fields.of_role(role, self.problems).values
        is_service, has_check = values["kind"] == "service", bool(values["ready_when"])
        gates = [f"{name}.started()"] + [f"{name}.succeeded()"] * (not is_service)
        gates += [f"{name}.ready()"] * (has_check or is_service)
        needed = "" if has_check or not is_service else ", which needs a ready_when="
        return f"write the role without quotes, as a gate: {' or '.join(gates)}{needed}"

    def _versions(self, fields: Fields) -> VersionEdge | None:
        """Return the edge of `versions=`; None, after an error, for all but `x.version()` of a role of this job."""
        value = fields.values["versions"]
        if value is None:
            return None
        if not isinstance(value, Version) or value.role.topology is not self.topology:
            message = f"versions={value!r} is no version of a role of this topology"
            fields.error("FD135", "versions", message, "write versions=learner.version(max_staleness=2)")
            return None
        given = {"max_staleness": value.max_staleness}
        reader = Fields(fields.owner, given, value.site, self.problems, part="versions.")
        return VersionEdge(value.role.name, reader.whole("max_staleness", least=0, default=0))

    def _ready(self, fields: Fields, ports: tuple[str, ...]) -> Readiness | None:
        """Return the readiness check of `ready_when=`; None if there is none, and after an error."""
        value = fields.values["ready_when"]
        if value is None:
            return None
        how, _, target = str(value).partition(":")
        if how not in ("tcp", "http", "file", "log", "call"):
            help = 'write "tcp:PORT", "http:PORT/PATH", "file:PATH", "log:REGEX" or "call"'
            fields.error("FD131", "ready_when", f"ready_when={value!r} is unknown", help)
            return None
        if how != "call" and not target:
            message = f"ready_when={value!r} names no {_CHECKED[how]}"
            fields.error("FD131", "ready_when", message, _check_help(how, ports))
            return None
        port = target.partition("/")[0]
        if how in ("tcp", "http") and port not in ports and not fields.is_wrong("ports"):
            help = did_you_mean(port, ports) if ports else f'write ports=["{port}"]'
            fields.error("FD119", "ready_when", f"it has no port {port!r}", help)
        if how == "log":
            try:
                re.compile(target)
            except re.error as error:
                fields.error("FD131", "ready_when", f"{target!r} is not a regular expression: {error}", "correct it")
        return Readiness(how, target)  # type: ignore[arg-type]


def _check_help(how: str, ports: tuple[str, ...]) -> str:
    """Return what to write for a readiness check without anything to check, in a role with these ports."""
    if _CHECKED[how] != "port":
        return 'write "file:PATH"' if how == "file" else 'write "log:REGEX"'
    if not ports:
        return f'write ready_when="{how}:rpc" and ports=["rpc"]'
    return "write " + " or ".join(f'"{how}:{port}"' for port in ports[:PORTS_SHOWN_MAX])


def _words_for(value: object) -> str:
    if isinstance(value, Gate):
        return _words_for(value.role)
    return f"role {value.name!r} of topology {value.topology.name!r}" if isinstance(value, Role) else repr(value)
