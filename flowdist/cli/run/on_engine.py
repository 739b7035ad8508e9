"""`flowdist run --on ENGINE`: the controller runs here, and an engine starts the hosts that join it."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import click
import msgspec

from flowdist.cli.run.execution import RunSettings
from flowdist.cli.run.hosts import TOKEN, place_of, serve
from flowdist.cli.run.join import read_token
from flowdist.cli.shared.engines import EngineOptions
from flowdist.control.fleet.values import Launch, Pool, Submit
from flowdist.engines import engine_of
from flowdist.engines.interface import Engine
from flowdist.engines.pools import SHARED, on_pools
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, format_duration
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.run_folder.folder import ENGINE, find_run, run_dirs
from flowdist.runtime.run_folder.resume import saved_endpoint
from flowdist.runtime.run_folder.runs import has_begun
from flowdist.runtime.saved_files import DAMAGED
from flowdist.runtime.supervisor.fleet_keeper import Employer
from flowdist.runtime.wire.addresses import Endpoint, endpoint_of, listening_address, reachable_address, reserve

TOKEN_FILE, MEMBERS = "token", "members"  # in the folder of the run
IN_JOB = "--in-controller-job"  # this process is the controller's own job
PORTS = range(29400, 29500)  # the first free one is taken, unless --listen names one


class Employment(msgspec.Struct, frozen=True):
    """How a run employs its engine, as its folder has it for a resume."""

    engine: str  # the word of --on
    options: tuple[str, ...]  # the texts of -o
    roles: tuple[str, ...]
    pools: tuple[Pool, ...]
    folder: str  # in which the commands run

    def start(self) -> Engine:
        """Return the engine; its options are checked already."""
        return engine_of(self.engine).employ(self.options, self.roles, self.folder)


class _Place(NamedTuple):
    """Where the members find the controller, and what they need besides."""

    endpoint: Endpoint
    job_id: str
    runs: Path

    def launch(self, employment: Employment, engine: Engine, name: str, run_dir: Path, order: Submit) -> Launch:
        """Return the launch of a member."""
        size = next(pool.size for pool in employment.pools if pool.name == order.pool)
        words = {
            "--id": self.job_id,
            "--token-file": str(run_dir / TOKEN_FILE),
            "--member": order.member,
            "--pool": (order.pool or SHARED) if len(employment.pools) > 1 else "",
            "--cpus": str(size.cpu),
            "--memory": f"{size.memory}B" if size.memory else "",
            "--notice": format_duration(engine.notice_ns),
            "--workdir": employment.folder,
            "--runs": str(self.runs),
        }
        options = [word for option, value in words.items() if value for word in (option, value)]
        command = (sys.executable, "-m", "flowdist", "join", str(self.endpoint), *options)
        title, logs = _title(name, order.pool, order.member), str(run_dir / MEMBERS)
        return Launch(order.member, title, order.pool, size, command, order.avoid, logs)


def _title(*parts: str) -> str:
    """Return the name of a member or a controller in the engine's own lists, such as `word2vec-trainer-m3`."""
    return "-".join(filter(None, parts))


def employment_of(graph: RoleGraph, engine: EngineOptions) -> Employment:
    """Return how a new run employs the engine."""
    roles = tuple(role.name for role in graph.roles)
    folder = str(Path(graph.source).parent) if graph.source else str(Path.cwd())
    pools = engine_of(engine.on).employ(engine.words, roles, folder).pools(graph)
    return Employment(engine.on, engine.words, roles, tuple(pools), folder)


def print_scripts(graph: RoleGraph, engine: EngineOptions, settings: RunSettings, listen: str | None) -> None:
    """Print what --dryrun shows: the script of one member of each pool, or its command line."""
    employment = employment_of(graph, engine)
    runs = settings.base.resolve()
    here = endpoint_of(listen, PORTS[0]) if listen else Endpoint(socket.gethostname(), PORTS[0])
    place, shown = _Place(here, graph.name, runs), employment.start()
    if controller := _controller_job(graph, shown, settings):
        click.echo(controller)
    for number, pool in enumerate(employment.pools, start=1):
        order = Submit(f"m{number}", pool.name)
        count = f"{pool.min_members} to {pool.max_members} members for {', '.join(pool.roles)}"
        click.echo(f"# {count}; this is the first")
        click.echo(shown.script(place.launch(employment, shown, graph.name, runs / f"{graph.name}-RUN", order)))


def _controller_job(graph: RoleGraph, engine: Engine, settings: RunSettings) -> str:
    """Return the script of a job that runs this command's controller; empty if it runs in this process."""
    kept = [word for word in sys.argv[2:] if word not in ("--detach", "-d", "--dryrun")]
    command = [sys.executable, "-m", "flowdist", "run", IN_JOB, *kept]
    return engine.controller_script(_title(graph.name, "controller"), command, str(settings.base.resolve()))


def _of_controller_job(graph: RoleGraph, job: str, settings: RunSettings) -> RunSettings:
    """Return the settings of a run whose controller has a job of its own: one that starts again resumes its run."""
    prefix = f"{graph.name}-{job}"
    found = [path for path in run_dirs(settings.base) if path.name.startswith(f"{prefix}_") and has_begun(path)]
    return settings._replace(prefix=prefix, resume=found[0].name if found else "")


def run_on(
    graph: RoleGraph | None,
    engine: EngineOptions,
    listen: str | None,
    job_id: str | None,
    settings: RunSettings,
    *,
    in_job: bool,
) -> NoReturn:
    """Run a job whose hosts an engine starts, and exit with its exit code; `in_job`: in the controller's own job."""
    door = None
    if graph is not None:
        employment, name = employment_of(graph, engine), graph.name
        employed = employment.start()
        if in_job:
            settings = _of_controller_job(graph, employed.own_job(), settings)
        elif script := _controller_job(graph, employed, settings):
            settings.base.mkdir(parents=True, exist_ok=True)
            job = employed.start_controller(script)
            click.echo(f"the controller is submitted as job {job} of {engine.on}; its run is {name}-{job}_...")
            sys.exit(0)
        graph = on_pools(graph, employment.pools)
        os.environ.setdefault(TOKEN, secrets.token_urlsafe(32))
    if graph is None or settings.resume:
        graph = None
        run_dir, past = find_run(settings.base, settings.resume)
        employment, door, name = _saved(run_dir), saved_endpoint(run_dir), past.name
        os.environ[TOKEN] = read_token(run_dir / TOKEN_FILE)
    endpoint, address, _reserved = _listen(listen, door.endpoint if door is not None else None)
    job_id = job_id or (door.job if door is not None else f"{name}-{secrets.token_hex(4)}")
    place = _Place(endpoint, job_id, settings.base.resolve())
    meeting = place_of(str(endpoint), job_id, hosts=sum(pool.max_members for pool in employment.pools))
    own = reachable_address(address)
    serve(graph, meeting, settings, [address], own, lambda run_dir: _employ(employment, place, name, run_dir))


def _employ(employment: Employment, place: _Place, name: str, run_dir: Path) -> Employer:
    """Write into the folder of the run what members and a resume need, and return the engine and the pools."""
    (run_dir / MEMBERS).mkdir(exist_ok=True)
    token = run_dir / TOKEN_FILE
    token.unlink(missing_ok=True)
    with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(os.environ[TOKEN] + "\n")
    write_atomically(run_dir / ENGINE, msgspec.json.encode(employment))
    engine = employment.start()
    launch = functools.partial(place.launch, employment, engine, name, run_dir)
    return Employer(engine, employment.pools, launch, str(place.endpoint))


def _saved(run_dir: Path) -> Employment:
    """Return how the run in this folder employs its engine."""
    try:
        return msgspec.json.decode((run_dir / ENGINE).read_bytes(), type=Employment)
    except FileNotFoundError:
        raise FlowdistError(f"run {run_dir.name} has no engine", help="leave --on out") from None
    except (OSError, *DAMAGED) as error:
        raise FlowdistError(f"{ENGINE} of run {run_dir.name} cannot be read: {error}") from None


def _listen(listen: str | None, before: str | None) -> tuple[Endpoint, str, socket.socket]:
    """Return the endpoint for others, the address to bind, and what keeps the port reserved.

    The endpoint is what the user says, else that of `before` on this host, else one with the first free port.
    """
    if listen is not None:
        named = endpoint_of(listen, PORTS[0])
        address = listening_address(named.host)
        return named, address, reserve(address, named.port)
    host = socket.gethostname()
    address = listening_address(host)
    if not address:  # other machines may not know the name, or know it by another address than this one does
        host = reachable_address("")
    ports: Sequence[int] = PORTS
    if before is not None and (past := endpoint_of(before, PORTS[0])).host == host:
        ports = [past.port, *PORTS]
    for port in ports:
        with contextlib.suppress(FlowdistError):
            return Endpoint(host, port), address, reserve(address, port)
    raise FlowdistError(f"ports {PORTS[0]} to {PORTS[-1]} are taken", help="name another one: --listen HOST:PORT")
