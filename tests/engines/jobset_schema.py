# ruff: noqa: N815  # the names are those of the API
"""Strict schema of what an export to JobSet writes: the fields that flowdist uses, and no others.

JobSet v0.12.0, `jobset.x-k8s.io/v1alpha2`, and the parts of Kubernetes 1.36 that its documents contain (v1, batch/v1),
written anew from the documented API. A field with another name, another type or another word than these fails.

* https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
* https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

JOBSET_VERSION = "v0.12.0"

Label = Annotated[str, Meta(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]  # RFC 1035
Name = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]
Quantity = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?)?$")]
Env = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Key = Annotated[str, Meta(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
Path = Annotated[str, Meta(pattern=r"^/[^:]*$")]
Port = Annotated[int, Meta(ge=1, le=65535)]
PortName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=15)]
Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Labels = dict[str, Annotated[str, Meta(max_length=63)]]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Fields without a default have to be there; others than these may not."""


class Metadata(Strict):
    name: Name
    namespace: Label = ""
    labels: Labels = {}


# Pods (v1)


class KeyRef(Strict):
    name: Name
    key: Key


class FieldRef(Strict):
    fieldPath: Annotated[str, Meta(pattern=r"^metadata\.labels\['[-a-z0-9./]+'\]$")]


class Source(Strict):
    secretKeyRef: KeyRef | None = None
    fieldRef: FieldRef | None = None


class Variable(Strict):
    name: Env
    valueFrom: Source


class Sizes(Strict):
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class Exec(Strict):
    command: Annotated[list[str], Meta(min_length=1)]


class Handler(Strict):
    exec: Exec


class Lifecycle(Strict):
    preStop: Handler


class Mount(Strict):
    name: Label
    mountPath: Path
    subPath: Key = ""
    readOnly: bool = False


class ContainerPort(Strict):
    name: PortName
    containerPort: Port


class Container(Strict):
    name: Label
    image: Annotated[str, Meta(min_length=1)]
    command: Annotated[list[str], Meta(min_length=1)]
    workingDir: Path
    env: list[Variable]
    resources: Sizes
    volumeMounts: list[Mount] = []
    lifecycle: Lifecycle | None = None
    ports: list[ContainerPort] = []


class ConfigMapVolume(Strict):
    name: Name


class ClaimVolume(Strict):
    claimName: Name


class SecretVolume(Strict):
    secretName: Name
    defaultMode: Annotated[int, Meta(ge=0, le=0o777)]


class EmptyDir(Strict):
    medium: Literal["Memory", ""] = ""


class Volume(Strict):
    name: Label
    configMap: ConfigMapVolume | None = None
    persistentVolumeClaim: ClaimVolume | None = None
    secret: SecretVolume | None = None
    emptyDir: EmptyDir | None = None

    def __post_init__(self) -> None:
        sources = [self.configMap, self.persistentVolumeClaim, self.secret, self.emptyDir]
        if sum(source is not None for source in sources) != 1:
            raise ValueError("a volume has one source")


class Toleration(Strict):
    key: str
    operator: Literal["Exists", "Equal"]
    effect: Literal["NoExecute", "NoSchedule", "PreferNoSchedule"]
    tolerationSeconds: Count


class Selector(Strict):
    matchLabels: Labels


class Term(Strict):
    labelSelector: Selector
    topologyKey: str


class WeightedTerm(Strict):
    weight: Annotated[int, Meta(ge=1, le=100)]
    podAffinityTerm: Term


class PodAffinity(Strict):
    preferredDuringSchedulingIgnoredDuringExecution: list[WeightedTerm] = []
    requiredDuringSchedulingIgnoredDuringExecution: list[Term] = []


class Affinity(Strict):
    podAffinity: PodAffinity | None = None
    podAntiAffinity: PodAffinity | None = None


class SecretName(Strict):
    name: Name


class PodSpec(Strict):
    restartPolicy: Literal["Never", "OnFailure"]
    serviceAccountName: Name
    automountServiceAccountToken: bool
    terminationGracePeriodSeconds: Count
    tolerations: list[Toleration]
    containers: Annotated[list[Container], Meta(min_length=1)]
    volumes: list[Volume] = []
    imagePullSecrets: list[SecretName] = []
    nodeSelector: Labels = {}
    affinity: Affinity | None = None
    shareProcessNamespace: bool = False


class PodTemplate(Strict):
    spec: PodSpec


# Jobs (batch/v1)


class ExitCodes(Strict):
    containerName: Label
    operator: Literal["In", "NotIn"]
    values: Annotated[list[int], Meta(min_length=1, max_length=255)]


class PodCondition(Strict):
    type: Literal["DisruptionTarget"]
    status: Literal["True", "False", "Unknown"]


class PodFailureRule(Strict):
    action: Literal["FailJob", "FailIndex", "Ignore", "Count"]
    onExitCodes: ExitCodes | None = None
    onPodConditions: list[PodCondition] | None = None


class PodFailurePolicy(Strict):
    rules: Annotated[list[PodFailureRule], Meta(max_length=20)]


class JobSpec(Strict):
    completionMode: Literal["Indexed", "NonIndexed"]
    completions: Count
    parallelism: Count
    backoffLimit: Count
    podReplacementPolicy: Literal["Failed", "TerminatingOrFailed"]
    podFailurePolicy: PodFailurePolicy
    template: PodTemplate


class JobTemplate(Strict):
    spec: JobSpec


# JobSet (jobset.x-k8s.io/v1alpha2, v0.12.0)

Action = Literal[
    "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts"
]  # fmt: skip


class FailurePolicyRule(Strict):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=128)]
    action: Action
    targetReplicatedJobs: list[str] = []


class FailurePolicy(Strict):
    maxRestarts: Count
    rules: list[FailurePolicyRule]


class SuccessPolicy(Strict):
    operator: Literal["All", "Any"]
    targetReplicatedJobs: list[str]


class Network(Strict):
    enableDNSHostnames: bool
    publishNotReadyAddresses: bool
    subdomain: Label = ""


class ReplicatedJob(Strict):
    name: Label
    replicas: Count
    template: JobTemplate


class JobSetSpec(Strict):
    network: Network
    successPolicy: SuccessPolicy
    failurePolicy: FailurePolicy
    replicatedJobs: Annotated[list[ReplicatedJob], Meta(min_length=1)]


# Documents


class JobSet(Strict, tag_field="kind", tag="JobSet"):
    apiVersion: Literal["jobset.x-k8s.io/v1alpha2"]
    metadata: Metadata
    spec: JobSetSpec


class ServiceAccount(Strict, tag_field="kind", tag="ServiceAccount"):
    apiVersion: Literal["v1"]
    metadata: Metadata
    automountServiceAccountToken: bool


class ConfigMap(Strict, tag_field="kind", tag="ConfigMap"):
    apiVersion: Literal["v1"]
    metadata: Metadata
    data: dict[Key, str]
    immutable: bool


class ClaimSpec(Strict):
    accessModes: list[Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]]
    resources: Sizes
    storageClassName: Name = ""


class PersistentVolumeClaim(Strict, tag_field="kind", tag="PersistentVolumeClaim"):
    apiVersion: Literal["v1"]
    metadata: Metadata
    spec: ClaimSpec


class ServicePort(Strict):
    name: PortName
    port: Port
    targetPort: Port


class ServiceSpec(Strict):
    clusterIP: Literal["None"]
    publishNotReadyAddresses: bool
    selector: Labels
    ports: list[ServicePort]


class Service(Strict, tag_field="kind", tag="Service"):
    apiVersion: Literal["v1"]
    metadata: Metadata
    spec: ServiceSpec


Document = JobSet | ServiceAccount | ConfigMap | PersistentVolumeClaim | Service


def validate(document: dict[str, Any]) -> Document:
    """Return the document as a value of the schema.

    Raises:
        msgspec.ValidationError: A field is unknown or missing, or has a value that the API does not allow.
    """
    return msgspec.convert(document, Document)  # type: ignore[no-any-return, call-overload]
