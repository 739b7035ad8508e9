"""Pods of the members and of the controller: containers, volumes, resources, grace and the hooks before their end.

Field names are those of the core/v1 API of Kubernetes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from flowdist.engines.jobset.options import JobSetOptions
from flowdist.graph import SECOND, RoleGraph, RoleSpec

Fields = dict[str, Any]

CONTAINER = "flowdist"
CONTROLLER = "controller"  # no role can have this name
PORT = 29400
GRAPH_DIR, GRAPH_FILE = "/etc/flowdist", "graph.json"
JOURNAL_DIR, CHECKPOINT_DIR = "/var/lib/flowdist", "/checkpoints"
LOGS_DIR = "/var/log/flowdist"
JOBSET_UID = "FLOWDIST_JOBSET_UID"
UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
HOSTNAME_KEY = "kubernetes.io/hostname"

LEAVE_S = 30  # `flowdist join` has left the job so long after the longest grace, whatever happens
OWN_MEMORY = 512 << 20  # of the agent, the spawner and the prefixes of a member, besides its workers
CONTROLLER_CPU, CONTROLLER_MEMORY = "500m", 1 << 30
AWAY_S = 30  # a machine is not ready, or cannot be reached, so long before its pods are replaced
DRAIN_SIGNAL = "USR1"  # says to `flowdist join` that its machine will be taken away


class Job(NamedTuple):
    """A job for Kubernetes: its graph from `graph_in_image`, the topology as `declared`, and the export's options."""

    graph: RoleGraph
    declared: RoleGraph
    options: JobSetOptions

    @property
    def endpoint(self) -> str:
        """The address at which members reach the controller: the DNS name of its pod, and the port."""
        name = self.options.name
        return f"{name}-{CONTROLLER}-0-0.{name}:{PORT}"


def member_pod(job: Job, role: RoleSpec) -> Fields:
    """Return the spec of the pod of one member of a role, which runs `flowdist join`."""
    notice_s = seconds(role.drain_ns + role.grace_ns + role.stop_grace_ns)
    container = _container(job.options, _join(job, role, notice_s), _secret_env(job, role))
    container["resources"] = _resources(job.options, role)
    # Process 1 is flowdist: it leaves at a step, with a checkpoint. SIGTERM follows when the hook has ended.
    container["lifecycle"] = _before_end(f"kill -{DRAIN_SIGNAL} 1; sleep {notice_s}")
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "logs", "emptyDir": {}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "logs", "mountPath": LOGS_DIR}]
    for volume, mount in (*_checkpoints(job), *_secret_files(job, role)):
        volumes += [volume] if volume not in volumes else []
        mounts.append(mount)
    container["volumeMounts"] = mounts
    declared = job.declared.role(role.name)
    where = dict(declared.placement.where)
    return {
        **_common(job.options, end_s(role)),
        **({"nodeSelector": where} if where else {}),
        **_affinity(job, declared),
        "containers": [container],
        "volumes": volumes,
    }


def controller_pod(job: Job) -> Fields:
    """Return the spec of the pod of the controller, whose journal is on a volume that outlives it."""
    runs = f"{JOURNAL_DIR}/$({JOBSET_UID})"
    # The pod knows its own name without DNS, which may not have it yet.
    own = f"{job.options.name}-{CONTROLLER}-0-0:{PORT}"
    command = ["flowdist", "run", f"{GRAPH_DIR}/{GRAPH_FILE}", "--listen", own, "--id", job.options.name]
    command += ["--runs", runs, "--plain"]
    uid = {"name": JOBSET_UID, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{UID_LABEL}']"}}}
    container = _container(job.options, command, [uid])
    memory = quantity(CONTROLLER_MEMORY)
    size = {"cpu": CONTROLLER_CPU, "memory": memory}
    container["resources"] = {"requests": size, "limits": {"memory": memory}}
    container["ports"] = [{"name": "flowdist", "containerPort": PORT}]
    # SIGTERM would cancel the job. The processes are killed instead, once the members have had time to leave:
    # the next pod resumes the job from the journal.
    leave_s = max((end_s(role) for role in job.graph.roles), default=0)
    container["lifecycle"] = _before_end(f"sleep {leave_s}; kill -KILL -1")
    volumes: list[Fields] = [
        {"name": "graph", "configMap": {"name": f"{job.options.name}-graph"}},
        {"name": "journal", "persistentVolumeClaim": {"claimName": f"{job.options.name}-journal"}},
    ]
    container["volumeMounts"] = [
        {"name": "graph", "mountPath": GRAPH_DIR, "readOnly": True},
        {"name": "journal", "mountPath": JOURNAL_DIR},
    ]
    shared = {"shareProcessNamespace": True}  # else flowdist were process 1, which `kill -KILL -1` spares
    return {**_common(job.options, leave_s + LEAVE_S), **shared, "containers": [container], "volumes": volumes}


def end_s(role: RoleSpec) -> int:
    """Return the seconds that a member of the role may take to leave: first the hook, then SIGTERM and its grace."""
    end_ns = role.grace_ns + role.stop_grace_ns
    return seconds(role.drain_ns + end_ns) + seconds(end_ns) + LEAVE_S


def seconds(ns: int) -> int:
    """Return a duration in whole seconds, rounded up."""
    return -(-ns // SECOND)


def quantity(size: int) -> str:
    """Return a size in bytes as Kubernetes writes it, such as `512Mi`."""
    for unit, name in ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def cores(cpu: float) -> str:
    """Return a number of cores as Kubernetes writes it, such as `2` or `250m`."""
    return f"{cpu:.0f}" if cpu == round(cpu) else f"{round(cpu * 1000)}m"


def _join(job: Job, role: RoleSpec, notice_s: int) -> list[str]:
    """Return the command line of a member, whose node has room for one replica of its role."""
    need = role.resources
    offer = ["--pool", role.name, "--cpus", str(max(1, math.ceil(need.cpu)))]
    offer += ["--memory", str(need.memory) + "B"] if need.memory else []
    offer += ["--notice", f"{notice_s}s", "--runs", LOGS_DIR]
    return ["flowdist", "join", job.endpoint, "--id", job.options.name, *offer]


def _container(options: JobSetOptions, command: list[str], env: list[Fields]) -> Fields:
    token = {"secretKeyRef": {"name": options.token_secret, "key": "token"}}
    return {
        "name": CONTAINER,
        "image": options.image,
        "command": command,
        "workingDir": options.workdir,
        "env": [{"name": "FLOWDIST_TOKEN", "valueFrom": token}, *env],
    }


def _common(options: JobSetOptions, end: int) -> Fields:
    """Return the fields that all pods have; `end` is the time in s from the wish to end the pod to its SIGKILL."""
    pull = options.image_pull_secret
    away = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": AWAY_S} for key in away
    ]
    return {
        "restartPolicy": "Never",
        "serviceAccountName": options.name,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": end,
        **({"imagePullSecrets": [{"name": pull}]} if pull else {}),
        "tolerations": tolerations,
    }


def _before_end(script: str) -> Fields:
    return {"preStop": {"exec": {"command": ["sh", "-c", script]}}}


def _resources(options: JobSetOptions, role: RoleSpec) -> Fields:
    """Return what the pod of one replica asks for: cpu, memory and GPUs, and memory for flowdist's own processes."""
    need, limits = role.resources, Fields()
    if need.memory:
        limits["memory"] = quantity(need.memory + OWN_MEMORY)
    if need.gpu:
        limits[options.gpu_resource] = str(need.gpu)
    requests = {**({"cpu": cores(need.cpu)} if need.cpu else {}), **limits}
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _secret_env(job: Job, role: RoleSpec) -> list[Fields]:
    """Return the variables that the secrets of the role come from, each as a reference to a key of the Secret."""
    names = dict.fromkeys(secret.env for secret in role.secrets if secret.env)
    return [{"name": name, "valueFrom": {"secretKeyRef": {"name": job.options.secret, "key": name}}} for name in names]


def _secret_files(job: Job, role: RoleSpec) -> list[tuple[Fields, Fields]]:
    """Return volume and mount of each file that a secret comes from: the key of the Secret has the variable's name."""
    volume = {"name": "secrets", "secret": {"secretName": job.options.secret, "defaultMode": 0o400}}
    files = {secret.file: secret.name for secret in role.secrets if secret.file}  # two secrets may come from one file
    mounts = [{"name": "secrets", "mountPath": file, "subPath": key, "readOnly": True} for file, key in files.items()]
    return [(volume, mount) for mount in mounts]


def _checkpoints(job: Job) -> list[tuple[Fields, Fields]]:
    """Return volume and mount of the claim for checkpoints; none if there is no such claim."""
    claim = job.options.checkpoint_claim
    if not claim:
        return []
    volume = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}
    return [(volume, {"name": "checkpoints", "mountPath": job.graph.checkpoint_dir})]


def _affinity(job: Job, role: RoleSpec) -> Fields:
    """Return the affinity to machines: `apart` as a rule, "spread" and "pack" as a wish about the role's own pods."""
    name = job.options.name
    wish = {"weight": 100, "podAffinityTerm": _term(name, role.name)}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}
    terms = [_term(name, other) for other in role.placement.apart]
    away: Fields = {"requiredDuringSchedulingIgnoredDuringExecution": terms} if terms else {}
    beside = preferred if role.placement.strategy == "pack" else {}
    if not beside and role.name not in role.placement.apart:
        away |= preferred
    found = {key: value for key, value in (("podAffinity", beside), ("podAntiAffinity", away)) if value}
    return {"affinity": found} if found else {}


def _term(jobset: str, role: str) -> Fields:
    labels = {NAME_LABEL: jobset, REPLICATED_JOB_LABEL: role}
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME_KEY}
