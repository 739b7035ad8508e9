"""Words of a topology file that build the job: topologies, roles, templates and gates.

As in `words.py`, nothing is checked here, and each call remembers where the user wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from flowdist.dsl.problems.places import CallSite, Place, call_site
from flowdist.dsl.words import Duration, Memory, Node, Resources, Restart, Secret, Workload

OnRestart = Literal["reconnect", "restart"]


class RoleFields(TypedDict, total=False):
    """Arguments of `Topology.role` and `Template`; the docstring of `Topology.role` explains each."""

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
    restart: Restart | None
    gang: bool | None
    primary: bool
    ready_when: str | None
    ready_timeout: Duration | None
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
}
WAYS = ("command", "script", "module", "run")  # arguments that give the command; the first that is given counts


def replaced_by(name: str) -> tuple[str, ...]:
    """Return the arguments that `name` replaces in what is inherited: a role has one command and one size."""
    if name in WAYS:
        return (*(way for way in WAYS if way != name), *(("args",) if name == "command" else ()))
    return ("cpu", "gpu", "memory") if name == "resources" else ()


class Template:
    """Arguments that several roles share: `base = Template(cpu=4)`, then `t.role("a", like=base, gpu=1)`.

    Args:
        command: As for `Topology.role`.
        like: Another template. Arguments given here win over it; `env` is merged.
        fields: As for `Topology.role`.
    """

    def __init__(
        self, command: str | Sequence[str] | None = None, *, like: Template | None = None, **fields: Unpack[RoleFields]
    ) -> None:
        self.fields, self.sites = _inherit(like, {"command": command, **fields}, call_site(("command",)))


def _inherit(like: Any, given: dict[str, Any], site: CallSite) -> tuple[dict[str, Any], dict[str, CallSite]]:
    """Merge the given arguments over those of the template; return them, and the call that wrote each."""
    if given["command"] is None:
        del given["command"]
    fields: dict[str, Any] = {}
    sites: dict[str, CallSite] = {}
    if isinstance(like, Template):
        fields, sites = dict(like.fields), dict(like.sites)
    elif like is not None:
        given["like"] = like  # the compiler reports it
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


class Gate:
    """Dependency on a role, made by `role.started()`, `role.ready()` or `role.succeeded()`."""

    def __init__(self, role: Role, condition: str, on_restart: str, site: CallSite) -> None:
        self.role, self.condition, self.on_restart, self.site = role, condition, on_restart, site

    def __repr__(self) -> str:
        return f"{self.role.name}.{self.condition}()"


class Role:
    """Handle of a role, for `depends_on=`, `near=` and other arguments of later roles."""

    def __init__(
        self, topology: Topology, name: str, fields: dict[str, Any], site: CallSite, sites: Mapping[str, CallSite]
    ) -> None:
        self.topology, self.name, self.fields, self.site = topology, str(name), fields, site
        self.sites = sites  # the call that wrote each argument, of the role or of a template
        self.overridden: dict[str, Place] = {}  # arguments that the command line has set

    def __repr__(self) -> str:
        return f"role {self.name!r}"

    def started(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """Return a gate that opens when every replica of this role runs."""
        return Gate(self, "started", on_restart, call_site(()))

    def ready(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """Return a gate that opens when every replica of this role has passed its readiness check."""
        return Gate(self, "ready", on_restart, call_site(()))

    def succeeded(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """Return a gate that opens when this role has succeeded."""
        return Gate(self, "succeeded", on_restart, call_site(()))

    def addresses(self, port: str) -> str:
        """Return a macro for `host:port,host:port` of all replicas in order, filled in when the dependent starts."""
        return f"${{addresses:{self.name}:{port}}}"


class Topology:
    """A job: its roles, nodes, and rules for restarts.

    Args:
        name: Name of the job, with which the name of the run's folder begins.
        nodes: A number, `"2:4"`, or a list of `Node`. None: this machine in `run`, and in `simulate` one node that is
            large enough.
        resources: Named sizes for `resources=` of roles.
        heartbeat: Interval between the heartbeats of an agent.
        lease: Time for which an agent may be silent. The agent stops its workers 1 s before the lease ends, and the
            controller replaces them 1 s after.
        cause_window, min_uptime, controller_outage: See the restart rules R7, R8 and R21 in docs/restarts.md.
        move_after: Failures of one kind of a replica on one node within an hour, after which it runs on another node.
        cordon_after: Failures of one kind on one node within an hour, of any replicas, after which the node is
            cordoned, if the job can run without it.
        checkpoint_dir: Value of `${checkpoint_dir}` (default: a folder of the run).
        on_incident: A command, written as a role's, that `run` starts when an incident closes and when the job ends,
            with a JSON object on its stdin. It neither delays nor fails the job.
        grace, stop_grace, drain, ready_timeout, join_window, pending_timeout, finish_timeout, cooldown:
            Defaults for the roles.
    """

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
        self.site = call_site(("name",))
        self.fields: dict[str, Any] = {key: value for key, value in locals().items() if key != "self"}
        self.overridden: dict[str, Place] = {}  # arguments that the command line has set
        self.name = str(name)
        self.roles: list[Role] = []
        self.domains: list[tuple[str, tuple[Role, ...], CallSite]] = []
        self.worlds: list[tuple[str, tuple[Role, ...], CallSite]] = []

    def role(
        self,
        name: str,
        command: str | Sequence[str] | None = None,
        *,
        like: Template | None = None,
        **fields: Unpack[RoleFields],
    ) -> Role:
        """Declare a role and return its handle.

        Args:
            name: Lower case, usable as a host name.
            command: A list, or a string that is split as a shell would; no shell runs. `python` is this interpreter.
            like: A template; arguments given here win over it.
            script, module, args: Instead of a command: `python script.py args` or `python -m module args`.
            run: Instead of a command: a function that can be imported and takes no arguments, or `"module:function"`.
            kind: A task ends by itself, a service must not.
            replicas: `[MIN:]MAX[xPROCS]`; a bare N means N replicas.
            resources: Named size of one replica; `cpu`, `gpu` and `memory` win over it.
            cpu, gpu, memory: Cores, GPUs or a share of one (`gpu=0.5`), and bytes of one replica.
            placement: `spread` takes the node with the most room first, `pack` the node with the least.
            near: Roles of which a replica has to be on the same node.
            apart: True: no two replicas of this role on one node. Roles: no replica on a node with one of theirs.
            where: Labels that the node must have: `where={"zone": "a"}`.
            env: Variables added to the environment of the workers: text, or a `Secret`.
            ports: Names of ports; each replica gets a number for each, and keeps it for later attempts on that node.
            workdir: Working folder of the workers (default: the folder of the topology file).
            depends_on: `x.started()`, `x.ready()`, `x.succeeded()`; a bare role means started.
            restart: Restart policy; None: a failure fails the job.
            gang: True: the replicas share one world. Default: true for tasks, false for services and
                `Restart("replica")`.
            primary: True: the job waits for this task; it succeeds when every primary task has succeeded.
            ready_when: `tcp:PORT`, `http:PORT/PATH`, `file:PATH`, `log:REGEX`, or `call`.
            ready_timeout: Time from the start of a replica to its readiness, after which it has failed.
            state: Place of the role's state: `none`, `memory` (lost at a restart) or `checkpoint` (reloaded).
            grace: Time from SIGTERM to SIGKILL if nothing has failed.
            stop_grace: Time from SIGTERM to SIGKILL after a failure.
            drain: Time from SIGTERM to SIGKILL after the job has succeeded.
            join_window: Time for which a gang that has its minimum waits for more replicas.
            pending_timeout: Time for which a role may be below its minimum before the job fails.
            finish_timeout: Time for which the rest of a gang may run after its first member has finished.
            cooldown: Time between a re-formation and the next growth.
            hang_after: Time without progress after which a worker has failed with kind `hang`. Progress is a call of
                `flowdist.worker.progress()` once it has been called, else any output of its world. The stacks of Python
                workers are written to their logs.
            start_timeout: Time from the start to the first `progress()`, after which a worker has failed with kind
                `hang`; readiness does not count as progress.
            preload: Modules that are imported before workers are forked; torch is added if the code imports it.
            numa: "node": each worker runs on the cores of the NUMA node of its GPU.
            virtual_local_rank: True: each worker has LOCAL_RANK=0 and sees one device, as with torchrun's option.
            warm: False: workers are started by exec, never forked.
            parallel: Dimensions of the mesh, `{"pp": 2, "dp": "elastic", "tp": 2}`, for `flowdist.worker.mesh()`.
            workload: Timing of a worker in the simulator.
            simulate: A class that the simulator runs instead of the workers, or `"module:Class"`: see docs/models.md.
        """
        site = call_site(("name", "command"))
        given, sites = _inherit(like, {"command": command, **fields}, site)
        role = Role(self, name, {**ROLE_DEFAULTS, **given, "name": name}, site, sites)
        self.roles.append(role)
        return role

    def restart_together(self, name: str, *roles: Role) -> None:
        """Declare a restart domain: roles with the scope "domain" restart together."""
        self.domains.append((str(name), roles, call_site(("name",))))

    def world(self, name: str, *roles: Role) -> None:
        """Declare one RANK space and one process group over several roles, which form, restart and end as one.

        RANK counts over all of them, in the order of their declaration; ROLE_RANK within the role.
        """
        members = (str(index) for index in range(len(roles)))  # so that each role has a place of its own
        self.worlds.append((str(name), roles, call_site(("name", *members))))
