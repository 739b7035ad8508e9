"""The user's pod template: what it adds to each pod, and what it may not say because flowdist rests on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowdist.cli.run.export import command as export
from flowdist.dsl.load import load_topology
from flowdist.engines.jobset.manifests import documents
from flowdist.engines.jobset.options import read_options
from flowdist.engines.jobset.pod_template import TemplateRefused, merged
from flowdist.engines.jobset.problems import objections
from tests.engines.jobset_schema import validate

TOPOLOGY = Path(__file__).parents[2] / "scenarios/topologies/core.py"
RESTRICTED = """
ttlSecondsAfterFinished: 3600
metadata:
  labels: {team: speech}
  annotations: {example.com/cost: "42"}
spec:
  priorityClassName: research
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
    fsGroup: 1000
    seccompProfile: {type: RuntimeDefault}
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: corpus, readOnly: true}}
  containers:
  - name: flowdist
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
    env:
    - {name: NCCL_DEBUG, value: INFO}
    volumeMounts:
    - {name: data, mountPath: /data, readOnly: true}
"""


def exported(folder: Path, template: str = "") -> list[dict[str, Any]]:
    words = ["image=job:1"]
    if template:
        (folder / "pod.yaml").write_text(template)
        words.append(f"pod_template={folder / 'pod.yaml'}")
    graph = load_topology(str(TOPOLOGY)).graph
    return documents(graph, read_options(words, graph))


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [job["template"]["spec"]["template"] for job in found[-1]["spec"]["replicatedJobs"]]


def test_a_template_is_added_to_each_pod_and_everything_of_flowdist_stays(tmp_path: Path) -> None:
    before, after = exported(tmp_path), exported(tmp_path, RESTRICTED)
    assert before[:-1] == after[:-1] and objections(after) == []
    assert after[-1]["spec"].pop("ttlSecondsAfterFinished") == 3600
    assert len(pods(after)) == len(pods(before)) > 1
    for pod in pods(after):
        assert pod.pop("metadata") == {"labels": {"team": "speech"}, "annotations": {"example.com/cost": "42"}}
        spec = pod["spec"]
        assert spec.pop("priorityClassName") == "research" and spec.pop("securityContext")["runAsNonRoot"] is True
        assert spec["tolerations"].pop()["key"] == "nvidia.com/gpu"
        assert spec["volumes"].pop()["name"] == "data"
        (container,) = spec["containers"]
        assert container.pop("securityContext")["capabilities"] == {"drop": ["ALL"]}
        assert container["env"].pop() == {"name": "NCCL_DEBUG", "value": "INFO"}
        assert container["volumeMounts"].pop()["mountPath"] == "/data"
    validate(after[-1])
    assert after == before


def test_the_merged_jobs_fit_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="not installed: pip install flowdist[dev]")
    for job in exported(tmp_path, RESTRICTED)[-1]["spec"]["replicatedJobs"]:
        document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
        kubernetes_validate.validate(document, "1.36", strict=True)


def test_shared_memory_can_have_a_limit(tmp_path: Path) -> None:
    found = exported(tmp_path, "spec: {volumes: [{name: shm, emptyDir: {sizeLimit: 8Gi}}]}")
    member = pods(found)[1]["spec"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in member["volumes"]


def test_a_template_may_be_json(tmp_path: Path) -> None:
    found = exported(tmp_path, json.dumps({"spec": {"serviceAccountName": "own", "runtimeClassName": "nvidia"}}))
    assert {(pod["spec"]["serviceAccountName"], pod["spec"]["runtimeClassName"]) for pod in pods(found)} == {
        ("own", "nvidia")
    }


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("spec: {restartPolicy: Always}", "flowdist writes spec.restartPolicy itself (write -o restart=)"),
        ("spec: {terminationGracePeriodSeconds: 5}", "(write grace= and drain= in the topology)"),
        (
            "spec: {containers: [{name: flowdist, command: [sh]}]}",
            "flowdist writes spec.containers[flowdist].command itself (the topology says what runs)",
        ),
        (
            "spec: {containers: [{name: flowdist, resources: {limits: {memory: 3Gi}}}]}",
            "resources.limits.memory itself (write cpu=, memory= and gpu= in the topology)",
        ),
        (
            "spec: {containers: [{name: flowdist, lifecycle: {preStop: {exec: {command: [sleep]}}}}]}",
            "lifecycle.preStop.exec.command itself (flowdist's hook empties the pod",
        ),
        (
            "spec: {containers: [{name: flowdist, env: [{name: FLOWDIST_TOKEN, value: x}]}]}",
            "flowdist has spec.containers[flowdist].env[FLOWDIST_TOKEN] without value",
        ),
        (
            "spec: {volumes: [{name: shm, hostPath: {path: /dev/shm}}]}",
            "flowdist has spec.volumes[shm] without hostPath",
        ),
        ("spec: {volumes: [{name: journal, persistentVolumeClaim: {claimName: x}}]}", "(choose another name)"),
        ("spec: {shareProcessNamespace: true}", "spec.shareProcessNamespace: the hooks of flowdist's pods signal"),
        ("spec: {containers: [{name: proxy}]}", "spec.containers[proxy]: a pod of the job ends with its container"),
        ("spec: {tolerationz: []}", "did you mean 'tolerations'?"),
        ("spec: {containers: [{name: flowdist, volumeMount: []}]}", "did you mean 'volumeMounts'?"),
        ("spec: {volumes: {name: data}}", "spec.volumes is no list of objects"),
        ("spec: {volumes: [{name: a}, {name: a}]}", "spec.volumes: two entries have one name"),
        ("metadata: {name: x}", "metadata.name is no field of a pod template"),
        ("metadata: {labels: {team: a b}}", "metadata.labels: team: not at most 63"),
        ("metadata: {labels: {jobset.sigs.k8s.io/jobset-name: x}}", "the cluster writes it itself"),
        ("metadata: {labels: {team: 7}}", "metadata.labels has other values than texts"),
        ("ttlSecondsAfterFinished: soon", "ttlSecondsAfterFinished is no number of seconds"),
        ("replicas: 3", "replicas is no field of a pod template"),
        ("- a", "it has no fields"),
        ("a: [", "is no YAML"),
    ],
)
def test_what_flowdist_has_to_write_itself_is_refused_with_what_to_write(
    template: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(TemplateRefused) as caught:
        exported(tmp_path, template)
    assert words in caught.value.message


def test_all_contradictions_are_named_at_once() -> None:
    own = {"restartPolicy": "Never", "containers": [{"name": "flowdist", "image": "a"}]}
    template = {"spec": {"restartPolicy": "Always", "containers": [{"name": "flowdist", "image": "b"}]}}
    with pytest.raises(
        TemplateRefused, match=r"spec\.restartPolicy .*; flowdist writes spec\.containers\[flowdist\]\.image"
    ):
        merged(own, template)


def test_an_export_refuses_a_template_in_words(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("spec: {hostPID: true}")
    words = ["-o", "image=job:1", "-o", f"pod_template={tmp_path / 'pod.yaml'}"]
    done = CliRunner().invoke(export, [str(TOPOLOGY), "--to", "jobset", *words])
    assert done.exit_code == 2 and "spec.hostPID: the hooks" in done.output, done.output
    done = CliRunner().invoke(
        export, [str(TOPOLOGY), "--to", "jobset", "-o", "image=x", "-o", "pod_template=none.yaml"]
    )
    assert done.exit_code == 2 and "none.yaml cannot be read: No such file" in done.output
