"""The engine that submits single members through kubectl, each as a JobSet of one pod.

An exported job needs no engine: JobSet itself starts its members again. The engine serves jobs whose members flowdist
submits one by one, as on Slurm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flowdist.control.fleet.values import Cause, Launch, Seen
from flowdist.dsl.problems.problem import Problem
from flowdist.engines.interface import EngineFailed, Topic
from flowdist.engines.jobset.kubectl import kubectl, kubectl_items
from flowdist.engines.jobset.manifests import member_jobset
from flowdist.engines.jobset.options import DNS_LABEL, JobSetOptions
from flowdist.engines.jobset.pods import CONTAINER, NAME_LABEL
from flowdist.engines.jobset.problems import problems

KIND = "jobset.jobset.x-k8s.io"
MANAGED = "app.kubernetes.io/managed-by=flowdist"
TAKEN_AWAY = "DisruptionTarget"  # the condition of a pod that the cluster takes away


class JobSets:
    """Kubernetes as an engine; a reference is the name of the JobSet of one member.

    Args:
        options: Options of `--on jobset`; `name` plays no part, members have the names of their launch.
    """

    name = "jobset"

    def __init__(self, options: JobSetOptions) -> None:
        self._options = options
        self._in = ["--namespace", options.namespace] if options.namespace else []

    def problems(self, topic: Topic) -> list[Problem]:
        """Return what JobSet cannot honour of a topology."""
        return problems(topic, self._options.name, has_checkpoint_claim=bool(self._options.checkpoint_claim))

    def submit(self, launch: Launch) -> str:
        """Create the JobSet of a member and return its name, to which Kubernetes has added letters of its own."""
        text = json.dumps(member_jobset(launch, self._options))
        answer = kubectl(["create", *self._in, "--filename=-", "--output=name"], text).strip()
        name = answer.rpartition("/")[2]
        if not DNS_LABEL.fullmatch(name):
            raise EngineFailed(f"kubectl create has answered {answer!r}, which names no object")
        return name

    def cancel(self, reference: str) -> None:
        """Delete the JobSet: its pod gets SIGTERM and its grace. Nothing happens if there is none of that name."""
        kubectl(["delete", KIND, reference, *self._in, "--ignore-not-found", "--wait=false"])

    def signal(self, reference: str, signal: str) -> None:
        """Send a signal to the member, which is process 1 of its container, if its pod runs."""
        for pod in self._pods(f"{NAME_LABEL}={reference}"):
            if _phase(pod) == "Running":
                name = pod["metadata"]["name"]
                kubectl(["exec", name, *self._in, f"--container={CONTAINER}", "--", "sh", "-c", f"kill -{signal} 1"])

    def observe(self, references: Iterable[str]) -> Mapping[str, Seen]:
        """Return the members by the states of their JobSets and pods."""
        names = list(references)
        if not names:
            return {}
        jobsets = {
            each["metadata"]["name"]: each for each in kubectl_items(["get", KIND, *self._in, f"--selector={MANAGED}"])
        }
        pods: dict[str, dict[str, Any]] = {}
        for pod in self._pods(NAME_LABEL):
            pods[str(pod["metadata"].get("labels", {}).get(NAME_LABEL))] = pod
        return {name: _seen(jobsets[name], pods.get(name)) if name in jobsets else Seen("ended") for name in names}

    def _pods(self, selector: str) -> list[dict[str, Any]]:
        return kubectl_items(["get", "pods", *self._in, f"--selector={selector}"])


def _seen(jobset: dict[str, Any], pod: dict[str, Any] | None) -> Seen:
    """Return the member as its JobSet and its pod show it; `pod` is None if there is none."""
    status = jobset.get("status", {})
    ended = status.get("terminalState", "")
    host = str(pod.get("spec", {}).get("nodeName", "")) if pod is not None else ""
    if ended:
        said = [str(each.get("message", "")) for each in status.get("conditions", ()) if each.get("type") == ended]
        words = ": ".join(filter(None, (str(ended), *said[:1])))
        return Seen("ended", host, _cause(str(ended), pod), words)
    if "deletionTimestamp" in jobset["metadata"]:
        return Seen("ended", host, "cancelled", "deleted") if pod is None else Seen("running", host, reason="deleted")
    return Seen("running", host) if pod is not None and _phase(pod) == "Running" else Seen("pending", host)


def _cause(ended: str, pod: dict[str, Any] | None) -> Cause:
    conditions = pod.get("status", {}).get("conditions", ()) if pod is not None else ()
    if any(each.get("type") == TAKEN_AWAY and each.get("status") == "True" for each in conditions):
        return "preempted"
    return "succeeded" if ended == "Completed" else "failed"


def _phase(pod: dict[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))
