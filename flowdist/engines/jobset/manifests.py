"""All documents of one export: the JobSet, and what its pods need.

One Job has the controller's pod; each role has as many Jobs as replicas at most, each with one pod: one member. JobSet
starts a failed member's Job again, and nothing else: flowdist decides everything finer.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from msgspec.structs import replace

from flowdist.engines.jobset import pods
from flowdist.engines.jobset.options import JobSetOptions
from flowdist.engines.jobset.pod_template import TTL, merged, read_template
from flowdist.engines.jobset.yaml_text import Document, to_yaml
from flowdist.graph import NODE_POOL, Cluster, RoleGraph, RoleSpec, encode_graph

JOBSET_VERSION = "v0.12.0"
API = "jobset.x-k8s.io/v1alpha2"
MANAGED_BY = {"app.kubernetes.io/managed-by": "flowdist"}
FINAL_EXITS = [1, 2, 130]  # of `flowdist run`: the job has failed, it cannot start as it is, it was cancelled


def documents(graph: RoleGraph, options: JobSetOptions) -> list[Document]:
    """Return the manifests of a job in the order in which they are applied; the JobSet is the last."""
    checkpoints = pods.CHECKPOINT_DIR if options.checkpoint_claim and not graph.checkpoint_dir else ""
    job = pods.Job(graph_in_image(graph, options.workdir, checkpoints), graph, options)
    return [_service_account(options), _graph(job), _journal(options), _service(options), _jobset(job)]


def graph_in_image(graph: RoleGraph, workdir: str, checkpoint_dir: str = "") -> RoleGraph:
    """Return the graph that the pods run, with paths below the topology's folder moved to `workdir`.

    Replicas of a role run on the nodes of its own members alone. Labels of `where=` are those of machines, which the
    pods ask for. The job has no nodes of its own, and begins when the members of all minima have joined. An empty
    `checkpoint_dir` is that of the topology.
    """
    roles = tuple(_role_in_image(role, graph.source, workdir) for role in graph.roles)
    members = sum(role.min_replicas for role in graph.roles)
    return replace(
        graph,
        roles=roles,
        cluster=Cluster(min_nodes=members),
        source=moved(graph.source, graph.source, workdir),
        checkpoint_dir=checkpoint_dir or moved(graph.checkpoint_dir, graph.source, workdir),
        on_incident=tuple(moved(word, graph.source, workdir) for word in graph.on_incident),
    )


def _role_in_image(role: RoleSpec, source: str, workdir: str) -> RoleSpec:
    # One replica for each member: a member offers whole cores, and two replicas of half a core would fit.
    placement = replace(role.placement, where=((NODE_POOL, role.name),), near=(), apart=(role.name,))
    return replace(
        role,
        command=tuple(moved(word, source, workdir) for word in role.command),
        secrets=tuple(replace(secret, file=moved(secret.file, source, workdir)) for secret in role.secrets),
        env=tuple((name, moved(value, source, workdir)) for name, value in role.env),
        workdir=moved(role.workdir, source, workdir) or workdir,
        simulate=moved(role.simulate, source, workdir),
        placement=placement,
    )


def moved(path: str, source: str, workdir: str) -> str:
    """Return a path in the folder of the topology file `source` as a path in `workdir`; other texts are not changed."""
    folder = str(PurePosixPath(source).parent) if source else ""
    if folder in ("", "/", ".") or not (path == folder or path.startswith(f"{folder}/")):
        return path
    return workdir.rstrip("/") + path[len(folder) :]


def manifest_text(graph: RoleGraph, options: JobSetOptions, found: list[Document], form: str, system: str) -> str:
    """Return the manifests as one file for `kubectl apply -f`, with a comment that says what else it needs.

    `form` is the word of --to; `system` is what they are for, with its version.
    """
    namespace = f" -n {options.namespace}" if options.namespace else ""
    head = [
        f"Job {options.name!r} for {system}, written by flowdist export --to {form}. docs/kubernetes.md",
        "explains it. The cluster needs the Secret with the token that the processes of the job have in common:",
        f"  kubectl create secret generic {options.token_secret}{namespace} \\",
        '    --from-literal=token="$(head -c 32 /dev/urandom | base64)"',
    ]
    if any(role.secrets for role in graph.roles):
        names = dict.fromkeys(secret.env or secret.name for role in graph.roles for secret in role.secrets)
        head.append(f"and the Secret {options.secret}{namespace} with the keys {', '.join(names)}.")
    if options.restart == "RestartJob":
        head.append("JobSet's controller needs the feature gate RestartJob, which is off by default.")
    return "".join(f"# {line}\n" for line in head) + to_yaml(found)


def _document(api: str, kind: str, name: str, options: JobSetOptions, **content: Any) -> Document:
    namespace = {"namespace": options.namespace} if options.namespace else {}
    labels = {"app.kubernetes.io/name": options.name, **MANAGED_BY}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, **namespace, "labels": labels},
        **content,
    }


def _service_account(options: JobSetOptions) -> Document:
    """Return the account of all pods. No role is bound to it: flowdist's processes never call the API of Kubernetes."""
    return _document("v1", "ServiceAccount", options.name, options, automountServiceAccountToken=False)


def _graph(job: pods.Job) -> Document:
    text = json.dumps(json.loads(encode_graph(job.graph)), indent=1) + "\n"
    data = {pods.GRAPH_FILE: text}
    return _document("v1", "ConfigMap", f"{job.options.name}-graph", job.options, immutable=True, data=data)


def _journal(options: JobSetOptions) -> Document:
    storage = {"storageClassName": options.storage_class} if options.storage_class else {}
    size = {"requests": {"storage": options.journal_size}}
    spec = {"accessModes": ["ReadWriteOnce"], **storage, "resources": size}
    return _document("v1", "PersistentVolumeClaim", f"{options.name}-journal", options, spec=spec)


def _service(options: JobSetOptions) -> Document:
    """Return the headless Service that gives each pod a DNS name; JobSet finds it by its name and makes no other."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # members reach the controller, and each other, as soon as they run
        "selector": {pods.NAME_LABEL: options.name},
        "ports": [{"name": "flowdist", "port": pods.PORT, "targetPort": pods.PORT}],
    }
    return _document("v1", "Service", options.name, options, spec=spec)


def _jobset(job: pods.Job) -> Document:
    options = job.options
    template = read_template(options.pod_template) if options.pod_template else {}
    roles = [role.name for role in job.graph.roles]
    controller = _job(pods.controller_pod(job), template, options.controller_restarts, FINAL_EXITS)
    jobs = [(pods.CONTROLLER, 1, controller)]
    own_restarts = options.member_restarts if options.restart == "Pod" else 0
    for role in job.graph.roles:
        jobs.append((role.name, role.max_replicas, _job(pods.member_pod(job, role), template, own_restarts, [])))
    spec: Document = {
        "network": {"enableDNSHostnames": True, "subdomain": options.name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [pods.CONTROLLER]},
        "failurePolicy": _failure_policy(options, roles),
        "replicatedJobs": [{"name": name, "replicas": count, "template": {"spec": one}} for name, count, one in jobs],
        **({TTL: template[TTL]} if TTL in template else {}),
    }
    document = _document(API, "JobSet", options.name, options, spec=spec)
    if options.queue:
        document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = options.queue
    return document


def _failure_policy(options: JobSetOptions, roles: list[str]) -> Document:
    """Return which Jobs JobSet restarts: the controller's failure is that of the job, a member's Job is run again.

    The first rule that fits any failed Job counts. Members fail with their job: the controller's rule stands first, so
    that none of them is restarted then.
    """
    ends = {"name": "jobEnds", "action": "FailJobSet", "targetReplicatedJobs": [pods.CONTROLLER]}
    if options.restart == "Pod":
        given_up = {"name": "memberGivenUp", "action": "FailJobSet", "targetReplicatedJobs": roles}
        return {"maxRestarts": 0, "rules": [ends, given_up]}
    again = {"name": "memberFails", "action": "RestartJob", "targetReplicatedJobs": roles}
    return {"maxRestarts": options.member_restarts, "rules": [ends, again]}


def _job(pod: Document, template: Document, restarts: int, final: list[int]) -> Document:
    """Return the spec of a Job of one pod, with the user's template merged into that.

    It starts pods anew after so many failures, but not after a `final` exit code. Pods that the cluster has taken away
    are replaced and do not count.
    """
    rules: list[Document] = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    if final:
        exits = {"containerName": pods.CONTAINER, "operator": "In", "values": final}
        rules.append({"action": "FailJob", "onExitCodes": exits})
    return {
        "completionMode": "Indexed",  # the pods of a Job with an index have DNS names
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": restarts,
        "podReplacementPolicy": "Failed",  # never two pods of one member
        "podFailurePolicy": {"rules": rules},
        "template": merged(pod, template),
    }
