"""A pod template of the user, merged into every pod: security context, tolerations, labels, volumes and the like.

As in `kubectl patch --type=strategic`, fields are added, and entries of lists that have a key. But what flowdist has
written stays, as it rests on it: a template that contradicts is refused, with what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flowdist.engines.jobset.options import why_no_label_key, why_no_label_value
from flowdist.engines.jobset.pods import CONTAINER
from flowdist.errors import FlowdistError, did_you_mean

TTL = "ttlSecondsAfterFinished"  # of the JobSet, not of a pod
INT32_MAX = (1 << 31) - 1
OWNED_LABELS = ("jobset.sigs.k8s.io", "batch.kubernetes.io")  # prefixes of labels that a cluster writes itself
OWNED_FREE = ("serviceAccountName", "automountServiceAccountToken")  # flowdist needs no account: the user's own counts

# By the name of a list of the API, what tells its entries apart. Entries of other lists cannot be told apart.
KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("containers", "initContainers", "volumes", "imagePullSecrets", "env", "resourceClaims"), ("name",)
    ),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "protocol"),
    "hostAliases": ("ip",),
    "tolerations": ("key", "effect", "operator"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
TOP = ("metadata", "spec", TTL)
POD = (
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
    "enableServiceLinks", "hostAliases", "hostIPC", "hostNetwork", "hostUsers", "imagePullSecrets", "initContainers",
    "nodeName", "nodeSelector", "os", "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates",
    "resourceClaims", "resources", "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates",
    "securityContext", "serviceAccountName", "terminationGracePeriodSeconds", "tolerations",
    "topologySpreadConstraints", "volumes",
)  # fmt: skip
OF_CONTAINER = (
    "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
    "readinessProbe", "resizePolicy", "resources", "securityContext", "startupProbe", "terminationMessagePath",
    "terminationMessagePolicy", "volumeDevices", "volumeMounts", "workingDir",
)  # fmt: skip
_SIGNALS = "the hooks of flowdist's pods signal process 1 of their container"
_NAMES = "JobSet names the pods, and flowdist finds them by these names"
REFUSED: Mapping[str, str] = {
    "shareProcessNamespace": _SIGNALS,
    "hostPID": _SIGNALS,
    **dict.fromkeys(("hostname", "subdomain", "setHostnameAsFQDN", "hostnameOverride"), _NAMES),
    "args": "flowdist's command has all of its arguments",
    **dict.fromkeys(("stdin", "stdinOnce", "tty"), "nobody types into a pod of the job"),
}
INSTEAD: Mapping[str, str] = {  # by a field that flowdist writes: where the user says it
    "image": "write -o image=",
    "workingDir": "write -o workdir=",
    "command": "the topology says what runs",
    "resources": "write cpu=, memory= and gpu= in the topology",
    "terminationGracePeriodSeconds": "write grace= and drain= in the topology",
    "nodeSelector": "write where= in the topology",
    "affinity": "write apart= or placement= in the topology",
    "lifecycle": "flowdist's hook empties the pod; write drain= in the topology",
    "restartPolicy": "write -o restart=",
    "volumes": "choose another name",
    "volumeMounts": "choose another path",
}

Fields = dict[str, Any]


class TemplateRefused(FlowdistError):
    """Error of a pod template that cannot be read, or that contradicts what flowdist has to write."""


def read_template(path: str) -> Fields:
    """Return the content of a file with a pod template, in YAML or JSON.

    TemplateRefused, with all reasons, if it cannot be read, is no pod template or asks for what flowdist cannot grant.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateRefused(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    content = _parsed(path, text)
    if wrong := list(_wrong(content)):
        raise TemplateRefused(f"{path}: {'; '.join(wrong)}", help="docs/kubernetes.md says what a template may have")
    assert isinstance(content, dict)
    return content


def _parsed(path: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        if path.endswith(".json"):
            raise TemplateRefused(f"{path} is no JSON: {error}") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TemplateRefused(f"{path} is no YAML: {' '.join(str(error).split())}") from None


def _wrong(content: object) -> Iterator[str]:
    """Yield what is wrong with the content of a template by itself."""
    if not isinstance(content, dict):
        yield "it has no fields"
        return
    yield from _unknown("", content, TOP)
    ttl = content.get(TTL, 0)
    if isinstance(ttl, bool) or not isinstance(ttl, int) or not 0 <= ttl <= INT32_MAX:
        yield f"{TTL} is no number of seconds"
    yield from _wrong_metadata(content.get("metadata") or {})
    pod = content.get("spec") or {}
    if not isinstance(pod, dict):
        yield "spec has no fields"
        return
    yield from _unknown("spec.", pod, POD)
    for name in KEYS.keys() & pod.keys():
        yield from _wrong_list(f"spec.{name}", name, pod[name])
    for container in _entries(pod.get("containers")):
        if container.get("name") != CONTAINER:
            place = f"spec.containers[{container.get('name')}]"
            yield f"{place}: a pod of the job ends with its container {CONTAINER!r}; write others under initContainers"
            continue
        place = f"spec.containers[{CONTAINER}]"
        yield from _unknown(f"{place}.", container, OF_CONTAINER)
        for name in KEYS.keys() & container.keys():
            yield from _wrong_list(f"{place}.{name}", name, container[name])


def _wrong_metadata(metadata: object) -> Iterator[str]:
    if not isinstance(metadata, dict):
        yield "metadata has no fields"
        return
    yield from _unknown("metadata.", metadata, ("labels", "annotations"))
    for kind in ("labels", "annotations"):
        found = metadata.get(kind) or {}
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            yield f"metadata.{kind} has other values than texts"
            continue
        for key, value in found.items():
            if why := why_no_label_key(key) or (why_no_label_value(value) if kind == "labels" else ""):
                yield f"metadata.{kind}: {key}: {why}"
            if key.partition("/")[0] in OWNED_LABELS:
                yield f"metadata.{kind}: {key}: the cluster writes it itself"


def _unknown(place: str, given: Mapping[str, Any], known: Sequence[str]) -> Iterator[str]:
    for name in given:
        if name in REFUSED:
            yield f"{place}{name}: {REFUSED[name]}"
        elif name not in known:
            yield f"{place}{name} is no field of a pod template, {did_you_mean(str(name), known)}"


def _wrong_list(place: str, name: str, given: object) -> Iterator[str]:
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        yield f"{place} is no list of objects"
        return
    keys = [_key(name, entry) for entry in given]
    if len(set(keys)) < len(keys):
        yield f"{place}: two entries have one {' and '.join(KEYS[name])}"


def _entries(given: object) -> list[Fields]:
    return [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []


def merged(pod: Fields, template: Fields) -> Fields:
    """Return the spec of a pod with the user's template merged in; TemplateRefused has all contradictions."""
    conflicts: list[str] = []
    spec = _merged_fields(pod, template.get("spec") or {}, "spec", conflicts)
    if conflicts:
        help = "leave it out of the template"
        raise TemplateRefused(f"the pod template contradicts flowdist: {'; '.join(conflicts)}", help=help)
    metadata = template.get("metadata") or {}
    return {**({"metadata": metadata} if metadata else {}), "spec": spec}


def _merged_fields(own: Fields, given: Fields, place: str, conflicts: list[str]) -> Fields:
    found = dict(own)
    for name, value in given.items():
        if name in found and name not in OWNED_FREE:
            found[name] = _merged_values(name, found[name], value, f"{place}.{name}", conflicts)
        else:
            found[name] = value
    return found


def _merged_values(name: str, own: Any, given: Any, place: str, conflicts: list[str]) -> Any:
    """Return one value of two for a field; if they contradict each other, note it and return flowdist's own."""
    if isinstance(own, dict) and isinstance(given, dict):
        return _merged_fields(own, given, place, conflicts)
    if isinstance(own, list) and isinstance(given, list) and name in KEYS:
        return _merged_lists(name, own, given, place, conflicts)
    if own != given:
        parts = [part.partition("[")[0] for part in place.split(".")]
        help = next((INSTEAD[part] for part in parts if part in INSTEAD), "")
        conflicts.append(f"flowdist writes {place} itself" + (f" ({help})" if help else ""))
    return own


def _merged_lists(name: str, own: list[Any], given: list[Any], place: str, conflicts: list[str]) -> list[Any]:
    found = {_key(name, entry): entry for entry in own}
    for entry in given:
        key = _key(name, entry)
        if key in found:
            where = f"{place}[{', '.join(str(part) for part in key if part is not None)}]"
            if name != "containers" and (more := sorted(entry.keys() - found[key].keys())):
                conflicts.append(
                    f"flowdist has {where} without {', '.join(more)}"
                )  # a volume has one source, and so on
                continue
            found[key] = _merged_fields(found[key], entry, where, conflicts)
        else:
            found[key] = entry
    return list(found.values())


def _key(name: str, entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells an entry of a list apart from the others; a port is one of TCP unless it says otherwise."""
    defaults = {"protocol": "TCP", "operator": "Equal"}
    return tuple(str(entry[part]) if part in entry else defaults.get(part) for part in KEYS[name])
