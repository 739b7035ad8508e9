"""Rules of JobSet's admission webhook (v0.12.0), and of Kubernetes itself, that no schema expresses.

The rules were written anew from the documented API. They are checked on what an export writes, because the names in it
come from the user: a cluster would refuse the same documents with the same objections, one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from flowdist.engines.jobset.options import (
    DNS_LABEL,
    LABEL_MAX,
    SUBDOMAIN,
    SUBDOMAIN_MAX,
    why_no_label_key,
    why_no_label_value,
)
from flowdist.engines.jobset.yaml_text import Document

RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
RULE_NAME_MAX = 128
REASONS = ("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy")
ONE_JOB = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
REPLICAS_MAX = 1024  # with an action that restarts one Job
INT32_MAX = (1 << 31) - 1
CONFIG_MAX = 1 << 20  # bytes of a ConfigMap
EXITS_MAX = 255  # values of one rule for exit codes
POD_RULES_MAX = 20


def objections(documents: Iterable[Document]) -> list[str]:
    """Return in words why a cluster would refuse the documents, each with its place; empty if it would not."""
    found: list[str] = []
    for document in documents:
        metadata = document["metadata"]
        found += _of_metadata(document["kind"], metadata)
        if document["kind"] == "JobSet":
            found += _of_jobset(metadata["name"], document["spec"])
        if document["kind"] == "ConfigMap" and (size := _size(document["data"])) > CONFIG_MAX:
            found.append(f"ConfigMap {metadata['name']}: {size:,} bytes, at most {CONFIG_MAX:,}")
    return found


def _size(data: dict[str, str]) -> int:
    return sum(len(key) + len(value.encode()) for key, value in data.items())


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
    jobs = spec["replicatedJobs"]
    names = [job["name"] for job in jobs]
    if len(set(names)) < len(names):
        yield "spec.replicatedJobs: two of them have one name"
    if subdomain := spec.get("network", {}).get("subdomain", ""):
        yield from _label(subdomain, "spec.network.subdomain")
    for job in jobs:
        yield from _of_replicated(name, job)
    yield from _targets(spec.get("successPolicy", {}), names, "spec.successPolicy")
    yield from _of_failure_policy(spec.get("failurePolicy", {}), names, jobs)


def _of_replicated(jobset: str, job: Document) -> Iterator[str]:
    where = f"spec.replicatedJobs[{job['name']}]"
    spec, replicas = job["template"]["spec"], job.get("replicas", 1)
    if replicas * spec.get("parallelism", 1) > INT32_MAX:
        yield f"{where}: more than {INT32_MAX:,} pods"
    longest = f"{jobset}-{job['name']}-{replicas - 1}"
    yield from _label(longest, f"{where}: name of a Job")
    if spec.get("completionMode") == "Indexed" and "completions" in spec:
        yield from _label(f"{longest}-{spec['completions'] - 1}-abcde", f"{where}: name of a pod")
    yield from _of_job(spec, where)


def _of_job(spec: Document, where: str) -> Iterator[str]:
    """Yield what is wrong with the spec of a Job: its policy for failed pods, and what its pod mounts and runs."""
    pod = spec["template"]["spec"]
    policy = spec.get("podFailurePolicy")
    containers = {each["name"]: each for each in pod["containers"]}
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield f"{where}: pods of a Job have the restart policy Never or OnFailure"
    if policy is not None:
        if pod.get("restartPolicy") != "Never":
            yield f"{where}: a policy for failed pods needs the restart policy Never"
        if spec.get("podReplacementPolicy", "Failed") != "Failed":
            yield f"{where}: a policy for failed pods needs the replacement policy Failed"
        yield from _pod_rules(policy["rules"], set(containers), where)
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in containers.values():
        yield from _mounts(container, volumes, where)
        yield from _requests(container.get("resources", {}), where)


def _pod_rules(rules: list[Document], containers: set[str], where: str) -> Iterator[str]:
    if len(rules) > POD_RULES_MAX:
        yield f"{where}: {len(rules)} rules for failed pods, at most {POD_RULES_MAX}"
    for i, rule in enumerate(rules):
        place = f"{where}: podFailurePolicy.rules[{i}]"
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield f"{place}: it needs one of onExitCodes and onPodConditions"
        exits = rule.get("onExitCodes", {})
        if exits and exits.get("containerName", "") not in (*containers, ""):
            yield f"{place}: there is no container {exits['containerName']!r}"
        values = exits.get("values", [1])
        if not 0 < len(values) <= EXITS_MAX or values != sorted(set(values)):
            yield f"{place}: exit codes stand once each, in order, and are 1 to {EXITS_MAX} in number"
        if exits.get("operator") == "In" and 0 in values:
            yield f"{place}: exit code 0 is no failure"


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


def _of_failure_policy(policy: Document, names: list[str], jobs: list[Document]) -> Iterator[str]:
    rules: list[Document] = policy.get("rules", [])
    seen: set[str] = set()
    for i, rule in enumerate(rules):
        place, name = f"spec.failurePolicy.rules[{i}]", rule["name"]
        if not RULE_NAME.fullmatch(name) or len(name) > RULE_NAME_MAX:
            yield f"{place}: {name!r} cannot name a rule"
        if name in seen:
            yield f"{place}: there are two rules {name!r}"
        seen.add(name)
        yield from _targets(rule, names, place)
        for reason in rule.get("onJobFailureReasons", ()):
            if reason not in REASONS:
                yield f"{place}: a Job never fails because of {reason!r}"
    if any(rule["action"] in ONE_JOB for rule in rules):
        for job in jobs:
            if job.get("replicas", 1) > REPLICAS_MAX:
                yield f"spec.replicatedJobs[{job['name']}]: restarts of one Job allow {REPLICAS_MAX:,} replicas at most"


def _targets(holder: dict[str, Any], names: list[str], place: str) -> Iterator[str]:
    for target in holder.get("targetReplicatedJobs", ()):
        if target not in names:
            yield f"{place}: there is no replicated Job {target!r}"
