"""Problems of a topology with JobSet: what it cannot honour, or honours in another way, at its place in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowdist.dsl.problems.problem import Problem
from flowdist.engines.interface import Topic
from flowdist.engines.jobset.options import LABEL_MAX, why_no_label_key, why_no_label_value
from flowdist.graph import RoleSpec
from flowdist.graph.role_graph import JobOptions

REPLICAS_MAX = 1024  # of a replicated Job in a JobSet that restarts Jobs one by one
POD_SUFFIX = "-abcde"  # Kubernetes adds so many characters to the name of a pod


def problems(topic: Topic, name: str = "", *, has_checkpoint_claim: bool = False) -> list[Problem]:
    """Return everything in a topology that JobSet cannot honour (errors), or honours in another way (warnings).

    Args:
        topic: The topology.
        name: Name of the JobSet; empty: that of the topology.
        has_checkpoint_claim: Whether the members share a volume for checkpoints.
    """
    found = [problem for role in topic.graph.roles for rule in _RULES for problem in rule(topic, role)]
    for role in topic.graph.roles:
        found += _long_name(topic, role, name or topic.graph.name)
        found += [] if has_checkpoint_claim else _lost_checkpoints(topic, role)
    found += _bad_machines(topic)
    return sorted(found, key=lambda each: (each.place.file, each.place.line, each.place.column))


def _near(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    if role.placement.near:
        others = ", ".join(map(repr, role.placement.near))
        message = f"it runs near {others}, but on JobSet each replica is a pod of its own, with a node of its own"
        yield topic.problem(role.name, "near", message, "start both programs from one command, or leave near= out")


def _shared_gpu(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    if role.resources.gpu_share < 1000:
        message = f"it needs {role.resources.gpu_words}, but Kubernetes gives whole GPUs to a pod"
        yield topic.problem(role.name, "gpu", message, "write gpu=1, or gpu=0 and select a GPU in the image")


def _too_many(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    if role.max_replicas > REPLICAS_MAX:
        message = (
            f"it has up to {role.max_replicas:,} replicas; JobSet restarts single Jobs of {REPLICAS_MAX:,} at most"
        )
        help = "write fewer replicas with more processes each (xPROCS), or split the role"
        yield topic.problem(role.name, "replicas", message, help)


def _no_selector(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    """Find labels of `where=` that cannot be labels of machines in Kubernetes."""
    for key, value in role.placement.where:
        if why := why_no_label_key(key) or why_no_label_value(value):
            message = f"{key}={value} cannot be a label of Kubernetes: {why}"
            yield topic.problem(role.name, "where", message, "write a label that the cluster's machines have")


def _home(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    for secret in role.secrets:
        if secret.file.startswith("~"):
            message = f"secret {secret.name} is in {secret.file}, and the home folder in the image is not known"
            yield topic.problem(role.name, "env", message, "write an absolute path")


def _numa(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    if role.numa:
        message = "its workers are bound to cores near their GPU, but the kubelet chooses the cores of a pod"
        help = "have the kubelet's topology manager do it (single-numa-node), or leave numa= out"
        yield topic.problem(role.name, "numa", message, help, is_error=False)


def _out_of_memory(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    """Find rules for workers that run out of memory: with cgroup v2 the kernel kills the whole container."""
    for i, policy in enumerate(role.restart.chain() if role.restart is not None else ()):
        if any(rule.kind == "oom" for rule in policy.rules):
            message = (
                'its rule On("oom") may not be applied: with cgroup v2 all processes of a pod that exceeds its memory '
                "are killed, flowdist's too, and that is the loss of a node"
            )
            help = 'add a rule On("node_lost"), or set singleProcessOOMKill in the configuration of the kubelet'
            yield topic.problem(role.name, "restart" + ".then" * i + ".rules", message, help, is_error=False)


def _elsewhere(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    """Find a working folder that is not part of the topology's folder, which is what the image has at `workdir`."""
    folder = topic.graph.source.rpartition("/")[0]
    if role.workdir and folder and role.workdir != folder and not role.workdir.startswith(f"{folder}/"):
        message = f"its workdir {role.workdir} is outside of the topology's folder: the image needs it at the same path"
        help = "put the folder into the image there, or move it into the topology's folder"
        yield topic.problem(role.name, "workdir", message, help, is_error=False)


def _no_dns_name(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    """Find names that cannot be parts of names in Kubernetes, which are labels of DNS."""
    if "_" in role.name:
        yield topic.problem(
            role.name, "name", "names in Kubernetes have no _", f'write "{role.name.replace("_", "-")}"'
        )


def _long_name(topic: Topic, role: RoleSpec, name: str) -> Iterator[Problem]:
    pod = f"{name}-{role.name}-{role.max_replicas - 1}-0{POD_SUFFIX}"
    if len(pod) > LABEL_MAX:
        message = f"its pods are named like {pod}, with {len(pod)} characters; Kubernetes allows {LABEL_MAX}"
        yield topic.problem(role.name, "name", message, "write a shorter name, or choose one with -o name=NAME")


def _lost_checkpoints(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    if role.state == "checkpoint" and not topic.graph.checkpoint_dir:
        message = "its checkpoints are in a folder of each pod, and are lost with the pod"
        help = "name a claim that all members can mount: -o checkpoint_claim=CLAIM; or set checkpoint_dir="
        yield topic.problem(role.name, "state", message, help, is_error=False)


def _bad_machines(topic: Topic) -> Iterator[Problem]:
    """Find limits for bad nodes: the nodes are pods, and the next pod of a member may be on the same machine."""
    usual = JobOptions()
    for argument in ("move_after", "cordon_after"):
        if getattr(topic.graph.options, argument) != getattr(usual, argument):
            message = f"{argument}= counts failures of a pod; Kubernetes may start its next pod on the same machine"
            help = "leave it out, and cordon bad machines with kubectl cordon"
            yield topic.problem("", argument, message, help, is_error=False)


_RULES: tuple[Callable[[Topic, RoleSpec], Iterator[Problem]], ...] = (
    _near,
    _shared_gpu,
    _too_many,
    _no_selector,
    _home,
    _numa,
    _out_of_memory,
    _elsewhere,
    _no_dns_name,
)
