"""Words of a topology file that build the job: topologies, roles, templates and gates.

The constructors check nothing. Each call records its place in the user's file, where the compiler (`compile.py`)
reports problems. A wrong call, and any attempt to change what a call has made, is a problem, too (`frozen.py`).
Durations are text such as `"1m30s"`, memory is text such as `"64GiB"`; only 0 needs no unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict, Unpack

from flowdist.dsl.frozen import Frozen, closest, forgiving, report, unknown, word
from flowdist.dsl.problems.places import CallSite, Place, call_site
from flowdist.dsl.problems.problem import current_recording
from flowdist.dsl.words import Duration, Memory, Node, Resources, Restart, Secret, Snapshots, Workload
from flowdist.graph.role_graph import OnRestart


class RoleFields(TypedDict, total=False):
    """Types of the arguments of `Topology.role` and `Template`; the docstring of `Topology.role` explains each."""

    script: str | None
    module: str | None
    args: str | Sequence[str]
    run: object
    kind: Literal["task", "service"]
    replicas: int | str
    resources: str | None
    cpu: float | None
    gpu: float | None
    memory: Memory | None
    placement: Literal["spread", "pack"]
    near: Role | Sequence[Role]
    apart: bool | Role | Sequence[Role]
    where: Mapping[str, str] | None
    env: Mapping[str, str | Secret] | None
    ports: Sequence[str]
    workdir: str
    depends_on: Sequence[Gate | Role] | Gate | Role
    versions: Version | None
    restart: Restart | None
    gang: bool | None
    primary: bool
    ready_when: str | None
    ready_timeout: Duration | None
    snapshots: Snapshots | None
    state: Literal["none", "memory", "checkpoint"]
    grace: Duration | None
    stop_grace: Duration | None
    drain: Duration | None
    join_window: Duration | None
    pending_timeout: Duration | None
    finish_timeout: Duration | None
    cooldown: Duration | None
    hang_after: Duration | None
    start_timeout: Duration | None
    preload: Sequence[str]
    numa: Literal["node"] | None
    virtual_local_rank: bool
    count_steps: bool
    warm: bool | None
    parallel: Mapping[str, int | Literal["elastic"]] | str | None
    workload: Workload | None
    simulate: object


ROLE_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("command", "like", *RoleFields.__annotations__)),
    "args": (),
    "kind": "task",
    "replicas": 1,
    "ports": (),
    "workdir": "",
    "depends_on": (),
    "primary": True,
    "placement": "spread",
    "near": (),
    "apart": (),
    "state": "none",
    "preload": (),
    "numa": None,
    "virtual_local_rank": False,
    "count_steps": True,
}
WAYS = ("command", "script", "module", "run")  # arguments that give a role's command; a role has one of them


def replaced_by(name: str) -> tuple[str, ...]:
    """Return the arguments of a role that have no effect any more once a role, or `--set`, gives the argument `name`.

    A role has one command and one size: `script` replaces `command`, `module` and `run` of a template or of the file,
    `command` replaces `args` as well, and `resources` replaces `cpu`, `gpu` and `memory`.
    """
    if name in WAYS:
        return (*(way for way in WAYS if way != name), *(("args",) if name == "command" else ()))
    return ("cpu", "gpu", "memory") if name == "resources" else ()


@word()
class Template(Frozen):
    """Arguments that several roles share: `base = Template(cpu=4)`, then `t.role("a", like=base, gpu=1)`.

    What the role gives wins over its template, None included; a `command` of None counts as not given. `env` is merged:
    a variable of the role wins over the same variable of the template.

    Args:
        command: As for `Topology.role`.
        like: Another template, from which this one inherits by the same rules.
        fields: As for `Topology.role`.
    """

    _TAKES, _HAS = ROLE_DEFAULTS, ()

    def __init__(
        self, command: str | Sequence[str] | None = None, *, like: Template | None = None, **fields: Unpack[RoleFields]
    ) -> None:
        site = call_site(("command",), 3)
        self.fields, self.sites = _inherit(like, {"command": command, **fields}, site)
        self.site = site


def _inherit(like: Any, given: dict[str, Any], site: CallSite) -> tuple[dict[str, Any], dict[str, CallSite]]:
    """Merge the arguments `given` by the call `site`, a dict that is changed, over those of its template.

    Return the merged arguments, and for each (for `env` also for each variable, as `env.NAME`) the call that wrote it.
    """
    if given["command"] is None:
        del given["command"]
    fields: dict[str, Any] = {}
    sites: dict[str, CallSite] = {}
    if isinstance(like, Template):
        fields, sites = dict(like.fields), dict(like.sites)
    elif like is not None:
        given["like"] = like  # the compiler reports it
        site.lost_arguments = True  # those of the template
    for name in [name for name in given if name not in ROLE_DEFAULTS]:  # the compiler reports it
        meant = closest(name, ROLE_DEFAULTS)
        if meant and meant not in given:
            given[meant] = given[name]
            site.renamed[meant] = name
        site.lost_arguments |= not meant
    for name, value in given.items():
        for other in replaced_by(name) if value is not None else ():
            fields.pop(other, None)
    inherited = fields.get("env")
    fields |= given
    sites |= dict.fromkeys(given, site)
    if isinstance(inherited, Mapping) and isinstance(fields["env"] or {}, Mapping):
        own = given.get("env") or {}
        fields["env"] = {**inherited, **own}
        sites |= {f"env.{name}": site for name in own}
    elif isinstance(fields.get("env"), Mapping):
        sites |= {f"env.{name}": site for name in fields["env"]}
    return fields, sites


class Gate(Frozen):
    """Condition for the start of a role: another role has started, is ready, or has succeeded.

    `Role.started()`, `Role.ready()` and `Role.succeeded()` return gates. A role waits for all gates in its
    `depends_on=`.
    """

    _TAKES = ("on_restart",)

    def __init__(self, role: Role, condition: str, on_restart: str, site: CallSite) -> None:
        self.role, self.condition, self.on_restart, self.site = role, condition, on_restart, site

    def __repr__(self) -> str:
        return f"{self.role.name}.{self.condition}()"

    def _words(self) -> tuple[str, str]:
        return f"the gate {self!r}", f"{self.role.name}.{self.condition}("


class Version(Frozen):
    """Versions of what a role publishes, as another role needs them: `Role.version()` returns it, for `versions=`."""

    _TAKES = ("max_staleness",)

    def __init__(self, role: Role, max_staleness: int, site: CallSite) -> None:
        self.role, self.max_staleness, self.site = role, max_staleness, site

    def __repr__(self) -> str:
        return f"{self.role.name}.version()"

    def _words(self) -> tuple[str, str]:
        return f"the version {self!r}", f"{self.role.name}.version("


class Role(Frozen):
    """Handle of a role, returned by `Topology.role`, for `depends_on=`, `near=` and other arguments of later roles."""

    _TAKES = ("name", *ROLE_DEFAULTS)
    _HAS = ("name", "started", "ready", "succeeded", "version", "addresses")

    def __new__(cls, *given: Any, **_: Any) -> Any:
        """Return an Unknown to users who call the class: only a topology makes roles."""
        if not given or isinstance(given[-1], dict):  # without arguments: copy.copy()
            return object.__new__(cls)
        help = 'write t.role("trainer", ["python", "train.py"])'
        report("FD163", "a Role is made by its topology", help, call_site((), 2).place())
        return unknown()

    def __init__(
        self, topology: Topology, name: str, fields: dict[str, Any], site: CallSite, sites: dict[str, CallSite]
    ) -> None:
        self.topology, self.name, self.fields = topology, str(name), fields
        self.sites = sites  # for each argument the call that wrote it: `Topology.role` or `Template`
        self.overridden: dict[str, Place] = {}  # arguments that the command line has set
        self.site = site

    def __repr__(self) -> str:
        return f"role {self.name!r}"

    def _words(self) -> tuple[str, str]:
        return repr(self), f't.role("{self.name}", ..., '

    @forgiving
    def started(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """Return a gate that opens when this role's replicas run: all with a place on a node, its minimum at least.

        Args:
            on_restart: What the dependent does when this role restarts: "reconnect": it keeps running, and gets the new
                addresses from `flowdist.worker.peers()`; "restart": it restarts, too.
        """
        return Gate(self, "started", on_restart, call_site((), 3))

    @forgiving
    def ready(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """Return a gate that opens when this role's replicas have passed their readiness check, its minimum at least.

        This role needs a `ready_when=`; without one the compiler reports the gate (FD115).

        Args:
            on_restart: As for `started`.
        """
        return Gate(self, "ready", on_restart, call_site((), 3))

    @forgiving
    def succeeded(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """Return a gate that opens when this role has succeeded: all of its replicas have exited with code 0.

        A service never succeeds, so the compiler reports a gate on one (FD116).

        Args:
            on_restart: As for `started`.
        """
        return Gate(self, "succeeded", on_restart, call_site((), 3))

    @forgiving
    def version(self, *, max_staleness: int = 0) -> Version:
        """Return what another role needs of this one, for `versions=`: versions that this role publishes (R23).

        Workers of this role call `flowdist.worker.publish_version(n)`, for instance when new weights can be fetched. A
        replica of the other role is ready only after its workers have called `acknowledge_version(n)` in their present
        attempt, with a version that is fresh enough.

        Args:
            max_staleness: How much lower than the last published version the acknowledged one may be.
        """
        return Version(self, max_staleness, call_site((), 3))

    @forgiving
    def addresses(self, port: str) -> str:
        """Return a macro that stands for the addresses of this role's replicas in a command or an environment variable.

        The macro becomes `host:port,host:port`, in the order of the replicas, each time a worker of the role that uses
        it starts. That role has to have a gate on this one; the compiler reports it otherwise (FD122).

        Args:
            port: Name of a port, one of this role's `ports=`.
        """
        return f"${{addresses:{self.name}:{port}}}"


@word("name")
class Topology(Frozen):
    """A job: its roles, its nodes, and its rules for restarts.

    A topology file makes one. Nothing is checked before the topology is compiled. Durations are text such as `"1m30s"`.

    Args:
        name: Name of the job, with which the name of the run's folder begins: lower case letters, digits, - and _.
        nodes: A number of nodes of the default size, such as 4; `"2:4"`: at least 2, at most 4; or a list of `Node`.
            None: this machine in `run`, and in `simulate` one node that is large enough.
        resources: Sizes by name, for `resources=` of roles.
        heartbeat: Interval between the heartbeats that an agent (flowdist's process on a node) sends to the controller.
        lease: Time for which an agent may be silent. The agent kills its workers 1 s before the lease ends; the
            controller declares the node lost and replaces its workers 1 s after the end.
        cause_window: A failure of a role within this time after a failure of a role that it depends on belongs to the
            incident of the latter, and is not charged (rule R7 of docs/restarts.md). A hang is judged that much later
            than `hang_after` (R15).
        min_uptime: Time after which a world that runs counts as healthy, if it has not reported progress before. More
            than five changes of a world's members in a row, without health between them, fail the job if the last is
            the loss of a node (R8).
        controller_outage: Time for which agents keep their workers while no controller listens (R21).
        move_after: Number of failures of one kind of a replica on one node within an hour, after which the replica runs
            on another node, if there is room (R22).
        cordon_after: Number of failures of one kind on one node within an hour, of any replicas, after which nothing
            new is placed on the node, if the job can run without it (R22).
        checkpoint_dir: Value of the macro `${checkpoint_dir}`. Empty: `checkpoints/` in the folder of the run.
        on_incident: A command, written as a role's, that `run` starts when an incident closes and when the job ends,
            with a JSON object on its stdin. It neither delays nor fails the job.
        grace, stop_grace, drain, ready_timeout, join_window, pending_timeout, finish_timeout, cooldown: Defaults for
            the arguments of these names of `role`.
    """

    _HAS = ("name", "roles", "role", "restart_together", "world")
    _INSTEAD: ClassVar = {"service": 'services are roles: write t.role(..., kind="service")'}

    def __init__(
        self,
        name: str,
        *,
        nodes: int | str | Sequence[Node] | None = None,
        resources: Mapping[str, Resources] | None = None,
        heartbeat: Duration = "500ms",
        lease: Duration = "4s",
        cause_window: Duration = "2s",
        min_uptime: Duration = "1m",
        controller_outage: Duration = "10m",
        move_after: int = 2,
        cordon_after: int = 3,
        checkpoint_dir: str = "",
        on_incident: str | Sequence[str] | None = None,
        grace: Duration | None = None,
        stop_grace: Duration | None = None,
        drain: Duration | None = None,
        ready_timeout: Duration | None = None,
        join_window: Duration | None = None,
        pending_timeout: Duration | None = None,
        finish_timeout: Duration | None = None,
        cooldown: Duration | None = None,
    ) -> None:
        self.fields: dict[str, Any] = {key: value for key, value in locals().items() if key != "self"}
        self.overridden: dict[str, Place] = {}  # arguments that the command line has set
        self.roles: list[Role] = []
        self.domains: list[tuple[str, tuple[Role, ...], CallSite]] = []
        self.worlds: list[tuple[str, tuple[Role, ...], CallSite]] = []
        if (recording := current_recording()) is not None:
            recording.topologies.append(self)

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.fields["name"])

    def _words(self) -> tuple[str, str]:
        return f"topology {self.name!r}", f'Topology("{self.name}", ..., '

    def _no_attribute(self, name: str) -> tuple[str, str, str]:
        """Return what `Frozen` does; if the name is that of a declared role, the help says how to keep its handle."""
        message, help, meant = super()._no_attribute(name)
        role = next((role.name for role in self.roles if role.name.replace("-", "_") == name), None)
        if role is None:
            return message, help, meant
        return message, f'keep what t.role("{role}", ...) returns: {name} = t.role("{role}", ...)', ""

    @forgiving
    def role(
        self,
        name: str,
        command: str | Sequence[str] | None = None,
        *,
        like: Template | None = None,
        **fields: Unpack[RoleFields],
    ) -> Role:
        """Declare a role, a group of equal replicas, and return its handle; the compiler checks the arguments.

        Args:
            name: Lower case, usable as a host name, not `all`, `controller` or the name of a node.
            command: A list, or a string that is split as a shell would; no shell runs. `python` is this interpreter.
            like: A template; arguments given here win over it.
            script, module, args: Instead of a command: `python script.py args` or `python -m module args`.
            run: Instead of a command: a function that can be imported and takes no arguments, or `"module:function"`.
            kind: A task ends by itself; a service runs until it is stopped, and its end is a failure.
            replicas: `[MIN:]MAX[xPROCS]`, with PROCS workers in each replica; N means N replicas, no fewer.
            resources: Name of the size of one replica; `cpu`, `gpu` and `memory` win over it.
            cpu, gpu, memory: Cores (1), GPUs, or a share of one (0), and memory such as `"64GiB"` (0) of one replica.
            placement: `spread` takes the node with the most room first, `pack` the node with the least.
            near: Roles, declared before, of which a replica has to be on the same node.
            apart: True: no two replicas of this role on one node. Roles: no replica on a node with one of theirs.
            where: Labels that the node must have: `where={"zone": "a"}`.
            env: Variables added to the environment of the workers: text, or a `Secret`.
            ports: Names of ports; each replica gets a number for each, and keeps it for later attempts on that node.
            workdir: Working folder of the workers (default: the folder of the topology file).
            depends_on: Gates, all of which have to open first, such as `x.ready()`; a bare role means `x.started()`.
            versions: `x.version(max_staleness=2)`: a replica is ready only with a fresh version of what `x` publishes.
            restart: Restart policy; None: a failure fails the job.
            gang: True: the replicas share one world, and restart as one (but for services and `Restart("replica")`).
            primary: True: the job waits for this task; it succeeds when every primary task has succeeded.
            ready_when: Readiness check: `tcp:PORT`, `http:PORT/PATH`, `file:PATH`, `log:REGEX`, or `call`.
            ready_timeout: Time from the start of a replica to its readiness, after which it has failed (5 minutes).
            snapshots: Snapshots of a gang in the memory of its nodes, `Snapshots(copies=2, every=20)` (None).
            state: Place of the role's state: `none`, `memory` (lost at a restart) or `checkpoint` (reloaded).
            grace, stop_grace, drain: Time from SIGTERM to SIGKILL of a worker: if nothing has failed (10 s), after a
                failure (2 s), and after the job has succeeded (30 s).
            join_window: Time for which a gang that has its minimum waits for more replicas (10 s).
            pending_timeout: Time for which a role may be below its minimum before the job fails (10 minutes).
            finish_timeout: Time for which the rest of a gang may run after its first member has finished (5 minutes).
            cooldown: Time between a re-formation and the next growth (30 s).
            hang_after: Time without progress after which, `cause_window` later, a worker has failed with kind `hang`
                (None: never). Progress is `flowdist.worker.progress()`, else counted steps and output of its world.
            start_timeout: Time from the start to the first `progress()`, after which a worker has failed with kind
                `hang` (None: never); readiness does not count as progress.
            preload: Modules that are imported before workers are forked, after what the script has imported by then.
            numa: "node": each worker runs on the cores of the NUMA node of its GPU; None: on any core.
            count_steps: False: optimizer steps of workers that report no progress are not counted (True).
            virtual_local_rank: True: each worker has LOCAL_RANK=0 and sees one device, as with torchrun's option.
            warm: False: workers are started by exec, never forked; else forked where that is possible.
            parallel: Dimensions of the mesh, `{"pp": 2, "dp": "elastic", "tp": 2}`, for `flowdist.worker.mesh()`.
            workload: Timing of a worker in the simulator (600 steps of 1 s).
            simulate: A class that the simulator runs instead of the workers, or `"module:Class"`: see docs/models.md.
        """
        site = call_site(("name", "command"), 3)
        given, sites = _inherit(like, {"command": command, **fields}, site)
        role = Role(self, name, {**ROLE_DEFAULTS, **given, "name": name}, site, sites)
        self.roles.append(role)
        return role

    @forgiving
    def restart_together(self, name: str, *roles: Role) -> None:
        """Declare a restart domain: whenever one of these roles restarts, all of them do.

        The scope of the failed role's policy does not matter: "role" restarts the domain as well. The scope "domain"
        says the same in the policy, and is an error for a role that is in no domain.

        Args:
            name: Name of the domain.
            roles: Two or more roles of this topology. A role can be in one domain only.
        """
        name, roles = _name_first("restart_together", name, roles)
        self.domains.append((str(name), roles, call_site(("name", *map(str, range(len(roles)))), 3)))

    @forgiving
    def world(self, name: str, *roles: Role) -> None:
        """Declare that several roles form one world, with one RANK space and one process group.

        The roles start, restart and end together. RANK counts over all of them, in the order of their declaration;
        ROLE_RANK counts within a role.

        Args:
            name: Name of the world, which no role and no other world may have.
            roles: Two or more roles of this topology: all are tasks with a gang, all are primary or none is, none waits
                for another one of them, and none is in another world.
        """
        name, roles = _name_first("world", name, roles)
        self.worlds.append((str(name), roles, call_site(("name", *map(str, range(len(roles)))), 3)))


def _name_first(method: str, name: Any, roles: tuple[Role, ...]) -> tuple[Any, tuple[Role, ...]]:
    """Return name and roles of a call such as `world("core", a, b)`; report a role in the place of the name."""
    if not isinstance(name, Role):
        return name, roles
    place = call_site(("name",), 4).place("name")
    report("FD163", f"{method}() has no argument 'name'", f'write {method}("core", ...) with a name first', place)
    return unknown(), (name, *roles)
