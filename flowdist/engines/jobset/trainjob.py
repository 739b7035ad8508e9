"""A job for Kubeflow Trainer: the JobSet of an export inside a TrainingRuntime, and the TrainJob that runs it.

Trainer v2 makes the JobSet from the runtime, with the TrainJob's name, and copies its end into that. The controller's
pod is the runtime's trainer: Trainer tells that pod alone where to report progress (`trainer_status`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from flowdist.engines.jobset import pods
from flowdist.engines.jobset.manifests import MANAGED_BY, documents
from flowdist.engines.jobset.options import JobSetOptions
from flowdist.engines.jobset.yaml_text import Document
from flowdist.graph import RoleGraph

TRAINER_VERSION = "v2.3"
GROUP = "trainer.kubeflow.org"
API = f"{GROUP}/v1alpha1"
STEP = {f"{GROUP}/trainjob-ancestor-step": "trainer"}  # the label of the Job that Trainer takes for the training
NODE = "node"  # Trainer wants this name for the container of that Job
QUEUE = "kueue.x-k8s.io/queue-name"


def trainjob_documents(graph: RoleGraph, options: JobSetOptions) -> list[Document]:
    """Return the manifests for Kubeflow Trainer in order, the TrainJob last; arguments as for `manifests.documents`."""
    *others, jobset = documents(graph, options)
    spec = copy.deepcopy(jobset["spec"])
    for job in spec["replicatedJobs"]:
        if job["name"] == pods.CONTROLLER:
            _make_trainer(job["template"])
    metadata = jobset["metadata"]
    queue = {name: value for name, value in metadata["labels"].items() if name == QUEUE}
    plain = {**metadata, "labels": {name: value for name, value in metadata["labels"].items() if name != QUEUE}}
    runtime = {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": plain,
        "spec": {"template": {"metadata": {"labels": dict(MANAGED_BY)}, "spec": spec}},
    }
    train_job = {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {**plain, "labels": {**plain["labels"], **queue}},
        "spec": {"runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": options.name}},
    }
    return [*others, runtime, train_job]


def _make_trainer(template: Document) -> None:
    """Make the Job of the controller the one that Trainer takes for the training."""
    template["metadata"] = {"labels": dict(STEP)}
    job = template["spec"]
    for container in job["template"]["spec"]["containers"]:
        if container["name"] == pods.CONTAINER:
            container["name"] = NODE
    for rule in job["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            rule["onExitCodes"]["containerName"] = NODE


def objections_of_trainer(found: list[Document]) -> Iterator[str]:
    """Yield why Kubeflow Trainer would refuse the documents, besides what JobSet and Kubernetes object to."""
    runtime = next(each for each in found if each["kind"] == "TrainingRuntime")
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        is_trainer = job["template"].get("metadata", {}).get("labels") == STEP
        if pod.get("priorityClassName") and not is_trainer:
            yield f"replicatedJobs[{job['name']}]: only the pod of the controller may have a priorityClassName"
            return
