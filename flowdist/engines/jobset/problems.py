"""Problems of a job with JobSet: what of a topology it cannot honour, and what of the documents a cluster would refuse.

`objections` are those of JobSet's admission webhook (v0.12.0) and of Kubernetes beside the schema, from the documented
API. They are checked on what an export writes, as names and pod template are the user's; other rules by tests alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowdist.dsl.problems.problem import Problem
from flowdist.engines.interface import Topic
from flowdist.engines.jobset.options import (
    DNS_LABEL,
    LABEL_MAX,
    SUBDOMAIN,
    SUBDOMAIN_MAX,
    why_no_label_key,
    why_no_label_value,
)
from flowdist.engines.jobset.yaml_text import Document
from flowdist.graph import RoleSpec
from flowdist.graph.role_graph import JobOptions

REPLICAS_MAX = 1024  # of a replicated Job in a JobSet that restarts Jobs one by one
POD_SUFFIX = "-abcde"  # Kubernetes adds so many characters to the name of a pod
CONFIG_MAX = 1 << 20  # bytes of a ConfigMap


def problems(topic: Topic, name: str = "", *, has_checkpoint_claim: bool = False) -> list[Problem]:
    """Return everything in a topology that JobSet cannot honour (errors), or honours in another way (warnings).

    An empty `name` of the JobSet is that of the topology; with a checkpoint claim the members share a volume.
    """
    found: list[Problem] = []
    for role in topic.graph.roles:
        found += [*_of_pods(topic, role), *_of_machines(topic, role), *_of_image(topic, role)]
    for role in topic.graph.roles:
        found += _long_name(topic, role, name or topic.graph.name)
        found += [] if has_checkpoint_claim else _lost_checkpoints(topic, role)
    found += _bad_machines(topic)
    return sorted(found, key=lambda each: (each.place.file, each.place.line, each.place.column))


def _of_pods(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    """Yield the problems of a role whose replicas are pods: with roles beside it, shared GPUs and their number."""
    if role.placement.near:
        others = ", ".join(map(repr, role.placement.near))
        message = f"it runs near {others}, but on JobSet each replica is a pod of its own, with a node of its own"
        yield topic.problem(role.name, "near", message, "start both programs from one command, or leave near= out")
    if role.resources.gpu_share < 1000:
        message = f"it needs {role.resources.gpu_words}, but Kubernetes gives whole GPUs to a pod"
        yield topic.problem(role.name, "gpu", message, "write gpu=1, or gpu=0 and select a GPU in the image")
    if role.max_replicas > REPLICAS_MAX:
        most, help = f"{REPLICAS_MAX:,}", "write fewer replicas with more processes each (xPROCS), or split the role"
        message = f"it has up to {role.max_replicas:,} replicas; JobSet restarts single Jobs of {most} at most"
        yield topic.problem(role.name, "replicas", message, help)


def _of_machines(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    """Yield the problems of a role with machines that the cluster chooses: labels, secrets in a home folder, cores."""
    for key, value in role.placement.where:
        if why := why_no_label_key(key) or why_no_label_value(value):
            message = f"{key}={value} cannot be a label of Kubernetes: {why}"
            yield topic.problem(role.name, "where", message, "write a label that the cluster's machines have")
    for secret in role.secrets:
        if secret.file.startswith("~"):
            message = f"secret {secret.name} is in {secret.file}, and the home folder in the image is not known"
            yield topic.problem(role.name, "env", message, "write an absolute path")
    if role.numa:
        message = "its workers are bound to cores near their GPU, but the kubelet chooses the cores of a pod"
        help = "have the kubelet's topology manager do it (single-numa-node), or leave numa= out"
        yield topic.problem(role.name, "numa", message, help, is_error=False)


def _of_image(topic: Topic, role: RoleSpec) -> Iterator[Problem]:
    """Yield the problems of a role with its container: rules for memory, the working folder in it, and its name."""
    for i, policy in enumerate(role.restart.chain() if role.restart is not None else ()):
        if any(rule.kind == "oom" for rule in policy.rules):
            message = (
                'its rule On("oom") may not be applied: with cgroup v2 all processes of a pod that exceeds its memory '
                "are killed, flowdist's too, and that is the loss of a node"
            )
            help = 'add a rule On("node_lost"), or set singleProcessOOMKill in the configuration of the kubelet'
            yield topic.problem(role.name, "restart" + ".then" * i + ".rules", message, help, is_error=False)
    # The image has the topology's folder at its own workdir.
    folder = topic.graph.source.rpartition("/")[0]
    if role.workdir and folder and role.workdir != folder and not role.workdir.startswith(f"{folder}/"):
        message = f"its workdir {role.workdir} is outside of the topology's folder: the image needs it at the same path"
        help = "put the folder into the image there, or move it into the topology's folder"
        yield topic.problem(role.name, "workdir", message, help, is_error=False)
    if "_" in role.name:
        help = f'write "{role.name.replace("_", "-")}"'
        yield topic.problem(role.name, "name", "names in Kubernetes have no _", help)


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


def objections(documents: Iterable[Document]) -> list[str]:
    """Return in words why a cluster would refuse the documents, each with its place; empty if it would not."""
    found: list[str] = []
    for document in documents:
        metadata = document["metadata"]
        found += _of_metadata(document["kind"], metadata)
        if document["kind"] == "JobSet":
            found += _of_jobset(metadata["name"], document["spec"])
        data = document["data"] if document["kind"] == "ConfigMap" else {}
        if (size := sum(len(key) + len(value.encode()) for key, value in data.items())) > CONFIG_MAX:
            found.append(f"ConfigMap {metadata['name']}: {size:,} bytes, at most {CONFIG_MAX:,}")
    return found


def _of_metadata(kind: str, metadata: Document) -> Iterator[str]:
    name, where = metadata["name"], f"{kind} {metadata['name']}"
    if kind in ("Service", "JobSet"):
        yield from _label(name, where)
    elif not SUBDOMAIN.fullmatch(name) or len(name) > SUBDOMAIN_MAX:
        yield f"{where}: the name is no DNS name"
    for key, value in metadata.get("labels", {}).items():
        if why := why_no_label_key(key) or why_no_label_value(value):
            yield f"{where}: label {key}={value}: {why}"


def _label(name: str, where: str) -> Iterator[str]:
    """Yield why a name is no label of DNS (RFC 1035): lower case letters, digits and hyphens, 63 characters."""
    if not DNS_LABEL.fullmatch(name):
        yield f"{where}: {name!r} has other characters than lower case letters, digits and hyphens, or begins otherwise"
    if len(name) > LABEL_MAX:
        yield f"{where}: {name!r} has {len(name)} characters, at most {LABEL_MAX}"


def _of_jobset(name: str, spec: Document) -> Iterator[str]:
    yield from _label(spec["network"]["subdomain"], "spec.network.subdomain")
    for job in spec["replicatedJobs"]:
        where = f"spec.replicatedJobs[{job['name']}]"
        longest = f"{name}-{job['name']}-{job['replicas'] - 1}"
        yield from _label(longest, f"{where}: name of a Job")
        yield from _label(f"{longest}-0{POD_SUFFIX}", f"{where}: name of a pod")
        pod = job["template"]["spec"]["template"]["spec"]
        for container in pod["containers"]:
            yield from _mounts(container, {volume["name"] for volume in pod["volumes"]}, where)
            yield from _requests(container.get("resources", {}), where)


def _mounts(container: Document, volumes: set[str], where: str) -> Iterator[str]:
    paths: set[str] = set()
    for mount in container.get("volumeMounts", ()):
        if mount["name"] not in volumes:
            yield f"{where}: there is no volume {mount['name']!r}"
        if mount["mountPath"] in paths:
            yield f"{where}: two volumes are mounted at {mount['mountPath']}"
        paths.add(mount["mountPath"])


def _requests(resources: Document, where: str) -> Iterator[str]:
    """Yield resources other than cpu and memory, such as GPUs, whose request is not their limit."""
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name in dict.fromkeys((*requests, *limits)):
        if name not in ("cpu", "memory") and requests.get(name) != limits.get(name):
            yield f"{where}: {name} needs a limit that is equal to its request"
