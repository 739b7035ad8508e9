"""Problems of a topology on Slurm: arguments that Slurm cannot honour, or honours in another way, with their places."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flowdist.dsl.problems.problem import Problem
from flowdist.engines.interface import EngineFailed, Topic
from flowdist.engines.pools import Unsized, pools_of
from flowdist.engines.slurm.commands import call
from flowdist.engines.slurm.options import SlurmOptions
from flowdist.graph import SECOND, RoleSpec, format_duration

KILL_WAIT_NS = 30 * SECOND  # Slurm's default of KillWait


def find_problems(topic: Topic, options: SlurmOptions) -> list[Problem]:
    """Return all problems of a topology with Slurm and these options, in the order of its roles."""
    kill_wait_ns = _kill_wait_ns()
    found: list[Problem] = []
    for role in topic.graph.roles:
        found += _of_times(topic, role, options, kill_wait_ns)
        found += _of_places(topic, role, options)
        found += _of_sizes(topic, role, options)
    try:
        pools_of(topic.graph, options.of_roles, options.shared)
    except Unsized as error:
        found.append(topic.problem("", "nodes", error.message, error.help))
    return found


def _of_times(topic: Topic, role: RoleSpec, options: SlurmOptions, kill_wait_ns: int) -> Iterator[Problem]:
    """Yield the problems of a role with the times that Slurm gives a job to end."""
    if role.grace_ns > kill_wait_ns:
        grace, wait = format_duration(role.grace_ns), format_duration(kill_wait_ns)
        message = f"Slurm kills a cancelled member {wait} after SIGTERM (KillWait), and grace={grace} is longer"
        yield topic.problem(role.name, "grace", message, f"write grace= of at most {wait}, or raise KillWait")
    needed_ns = role.drain_ns + role.grace_ns
    if needed_ns > options.notice_ns:
        notice = format_duration(options.notice_ns)
        message = (
            f"before the time limit a member has {notice} to leave, and drain and grace together take up to "
            f"{format_duration(needed_ns)}"
        )
        help = f"write -o notice={format_duration(needed_ns)} or more, or make drain= shorter"
        yield topic.problem(role.name, "drain", message, help, is_error=False)


def _of_places(topic: Topic, role: RoleSpec, options: SlurmOptions) -> Iterator[Problem]:
    """Yield the problems of a role with hosts that Slurm chooses: labels, checkpoints and secrets."""
    if role.placement.where:
        labels = ", ".join(f"{name}={value}" for name, value in role.placement.where)
        help = f"write -o {role.name}.constraint=FEATURE instead of where="
        yield topic.problem(role.name, "where", f"Slurm's nodes have no label {labels}", help)
    pool = role.name if role.name in options.of_roles else ""
    for other in role.placement.near:
        if (other if other in options.of_roles else "") != pool:
            message = f"it has to run beside {other!r}, and -o gives the two roles different members"
            yield topic.problem(role.name, "near", message, "write the options of both without a role")
    if role.state == "checkpoint" and not topic.graph.checkpoint_dir:
        message = "its checkpoints would be in a folder of one member, which its replacement does not have"
        help = "write checkpoint_dir= of a folder that all nodes share"
        yield topic.problem("", "checkpoint_dir", f"role {role.name!r}: {message}", help, is_error=False)
    if names := [secret.env for secret in role.secrets if secret.env]:
        message = f"Slurm stores the environment of a job, and with it the secret {', '.join(names)}"
        help = "write Secret(file=...) of a file that only you can read"
        yield topic.problem(role.name, "env", message, help, is_error=False)


def _of_sizes(topic: Topic, role: RoleSpec, options: SlurmOptions) -> Iterator[Problem]:
    """Yield the problems of a role whose replica does not fit into the members that the options describe."""
    given = options.of_pool(role.name)
    needs = role.resources
    if "cpus" in given and needs.cpu > int(given["cpus"]):
        message = f"a replica needs {needs.cpu:g} cpu, and a member has {given['cpus']} (-o cpus={given['cpus']})"
        yield topic.problem(role.name, "cpu", message, f"write -o cpus={-(-needs.cpu // 1):.0f}")
    gpus = re.search(r"gpu(?::[^,:(]+)?:(\d+)", given.get("gres", ""))
    if gpus is not None and needs.gpu > int(gpus[1]):
        message = f"a replica needs {needs.gpu} gpu, and a member has {gpus[1]} (-o gres={given['gres']})"
        yield topic.problem(role.name, "gpu", message, f"write -o gres=gpu:{needs.gpu}")


def _kill_wait_ns() -> int:
    """Return KillWait of this cluster; Slurm's default where it cannot be asked."""
    try:
        found = re.search(r"^KillWait\s*=\s*(\d+)", call(["scontrol", "show", "config"]), re.MULTILINE)
    except EngineFailed:
        return KILL_WAIT_NS
    return int(found[1]) * SECOND if found is not None else KILL_WAIT_NS
