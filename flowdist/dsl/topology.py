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
    """What `Topology.role` and `Template` take; `Topology.role` says what each means."""

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
WAYS = ("command", "script", "module", "run")


def replaced_by(name: str) -> tuple[str, ...]:
    """What loses its inherited value when `name` is given: a role has one command and one size."""
    if name in WAYS:
        return (*(way for way in WAYS if way != name), *(("args",) if name == "command" else ()))
    return ("cpu", "gpu", "memory") if name == "resources" else ()


class Template:
    """Fields that several roles have in common: `base = Template(cpu=4)`, then `t.role("a", like=base, gpu=1)`.

    Args:
        command: As of a role.
        like: Another template: what is given here wins over it, `env` is merged.
        fields: As of a role.
    """

    def __init__(
        self, command: str | Sequence[str] | None = None, *, like: Template | None = None, **fields: Unpack[RoleFields]
    ) -> None:
        self.fields, self.sites = _inherit(like, {"command": command, **fields}, call_site(("command",)))


def _inherit(like: Any, given: dict[str, Any], site: CallSite) -> tuple[dict[str, Any], dict[str, CallSite]]:
    """What is given here over what the template gives, and where each was written."""
    if given["command"] is None:
        del given["command"]
    fields: dict[str, Any] = {}
    sites: dict[str, CallSite] = {}
    if isinstance(like, Template):
        fields, sites = dict(like.fields), dict(like.sites)
    elif like is not None:
        given["like"] = like  # the compiler refuses it
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
    """An edge: made by `role.started()`, `role.ready()` and `role.succeeded()`."""

    def __init__(self, role: Role, condition: str, on_restart: str, site: CallSite) -> None:
        self.role, self.condition, self.on_restart, self.site = role, condition, on_restart, site

    def __repr__(self) -> str:
        return f"{self.role.name}.{self.condition}()"


class Role:
    """The handle of a role: pass it on to say what depends on it."""

    def __init__(
        self, topology: Topology, name: str, fields: dict[str, Any], site: CallSite, sites: Mapping[str, CallSite]
    ) -> None:
        self.topology, self.name, self.fields, self.site = topology, str(name), fields, site
        self.sites = sites  # where what is given was written, here or in a template
        self.overridden: dict[str, Place] = {}  # by the command line, and where

    def __repr__(self) -> str:
        return f"role {self.name!r}"

    def started(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """I start once every replica of it runs."""
        return Gate(self, "started", on_restart, call_site(()))

    def ready(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """I start once every replica of it has passed its readiness check."""
        return Gate(self, "ready", on_restart, call_site(()))

    def succeeded(self, *, on_restart: OnRestart = "reconnect") -> Gate:
        """I start once it has succeeded."""
        return Gate(self, "succeeded", on_restart, call_site(()))

    def addresses(self, port: str) -> str:
        """`host:port,host:port` of all its replicas, in order; filled in when the dependent starts."""
        return f"${{addresses:{self.name}:{port}}}"


class Topology:
    """What is to run: roles, on nodes, by rules.

    Args:
        name: Names the run's folder.
        nodes: A number, `"2:4"`, or a list of `Node`. None: this machine in `run`, one large enough in `simulate`.
        resources: Named sizes for `resources=` of roles.
        heartbeat, lease: How often an agent is heard, and how long it may go unheard.
        cause_window, min_uptime, controller_outage: See the restart rules R7, R8 and R21 in docs/restarts.md.
        move_after: So many failures of one kind on one node within an hour, and the replica runs elsewhere.
        cordon_after: So many of any replicas, and the node takes no more, if the job can do without it.
        checkpoint_dir: Where `${checkpoint_dir}` points; default: a folder of the run.
        on_incident: A command, written as a role's, that `run` starts for each incident when it closes, and when the
            job ends, with a JSON object on its stdin. It neither delays nor fails the job.
        grace, stop_grace, drain, ready_timeout, join_window, pending_timeout, finish_timeout, cooldown:
            Defaults for roles that do not say otherwise.
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
        self.overridden: dict[str, Place] = {}  # by the command line, and where
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
        """Declare a role; returns its handle.

        Args:
            name: Lower case, usable as a host name.
            command: A list or a string (split by shlex, never given to a shell). `python` is this interpreter.
            like: A template: what is given here wins over it.
            script, module, args: Instead of a command: `python script.py args` or `python -m module args`.
            run: Instead of a command: a function that can be imported and takes no arguments, or `"module:function"`.
            kind: A task ends, a service must not.
            replicas: `[MIN:]MAX[xPROCS]`; a bare N means N replicas.
            resources, cpu, gpu, memory: What one replica needs: cores, GPUs or a share of one (`gpu=0.5`), bytes.
            placement: `spread` takes the node with most room first, `pack` the one with least.
            near: Roles of which a replica has to be on the same node.
            apart: True: no two of its replicas on one node; roles: not on a node with one of theirs.
            where: Labels that a node has to have: `where={"zone": "a"}`.
            env: Added to the environment of its workers: text, or a `Secret`.
            ports: Names of ports; each replica gets its own number, kept for later attempts on that node.
            workdir: Default: the folder of the topology file.
            depends_on: `x.started()`, `x.ready()`, `x.succeeded()`; a bare role means started.
            restart: None: a failure fails the job.
            gang: Replicas share one world. Default: true for tasks, false for services and `Restart("replica")`.
            primary: The job succeeds when every primary task has.
            ready_when: `tcp:PORT`, `http:PORT/PATH`, `file:PATH`, `log:REGEX`, or `call`.
            ready_timeout: How long it may take to get ready.
            state: Where its state lives: nowhere, in memory only, or in a checkpoint that it reloads.
            grace: SIGTERM to SIGKILL where nothing is broken. stop_grace: the same after a failure.
            drain: Time to end well when the job has succeeded.
            join_window: How long a gang that has its minimum waits for more.
            pending_timeout: How long a role may be below its minimum.
            finish_timeout: How long the rest of a gang may run after its first member has finished.
            cooldown: Between a re-formation and growing.
            hang_after: No sign of it for so long is a failure of kind `hang`: no further `flowdist.worker.progress()`
                once that is used, else no output of its world. The stacks of its Python workers go to their logs.
            start_timeout: So long after its start without a first `progress()` is one, too; being ready is none.
            preload: Modules that are imported before its workers are forked; torch is, if its code imports it.
            numa: "node": each worker runs on the cores of the NUMA node of its GPU.
            virtual_local_rank: Each worker has LOCAL_RANK=0 and sees one device, as with that option of torchrun.
            warm: False: its workers are started by exec, never forked.
            parallel: The dimensions of its mesh, `{"pp": 2, "dp": "elastic", "tp": 2}`, for `flowdist.worker.mesh()`.
            workload: How the simulator plays it.
            simulate: A class that the simulator runs in place of its workers, or `"module:Class"`: see docs/models.md.
        """
        site = call_site(("name", "command"))
        given, sites = _inherit(like, {"command": command, **fields}, site)
        role = Role(self, name, {**ROLE_DEFAULTS, **given, "name": name}, site, sites)
        self.roles.append(role)
        return role

    def restart_together(self, name: str, *roles: Role) -> None:
        """A restart domain: when one of the roles restarts, all do."""
        self.domains.append((str(name), roles, call_site(("name",))))

    def world(self, name: str, *roles: Role) -> None:
        """One RANK space and one process group over several roles: they form, restart and end as one.

        RANK counts over all of them, in the order of their declaration; ROLE_RANK within the role.
        """
        members = (str(index) for index in range(len(roles)))  # each has a place of its own
        self.worlds.append((str(name), roles, call_site(("name", *members))))
