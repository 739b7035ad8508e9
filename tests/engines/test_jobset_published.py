"""The manifests, and our schema of them, beside what others publish: schemas of Kubernetes, models of JobSet's API.

`kubernetes-validate` has the schemas of Kubernetes, strict ones. `kubeflow_trainer_api` has classes that are generated
from JobSet's API. They ignore unknown fields; so their names are compared with those of our schema.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flowdist.dsl.load import load_topology
from flowdist.engines.jobset.manifests import documents, manifest_text
from flowdist.engines.jobset.options import read_options
from tests.choosing import slow
from tests.engines import jobset_schema as schema

ROOT = Path(__file__).parents[2]
KUBERNETES = "1.36"  # that JobSet v0.12.0 is built with
TOPOLOGIES = ("scenarios/topologies/core.py", "scenarios/topologies/pools.py", "examples/word2vec/topology.py")
MODELS = {
    schema.JobSetSpec: "JobsetV1alpha2JobSetSpec",
    schema.Network: "JobsetV1alpha2Network",
    schema.SuccessPolicy: "JobsetV1alpha2SuccessPolicy",
    schema.FailurePolicy: "JobsetV1alpha2FailurePolicy",
    schema.FailurePolicyRule: "JobsetV1alpha2FailurePolicyRule",
    schema.ReplicatedJob: "JobsetV1alpha2ReplicatedJob",
}


def as_kubernetes_knows_them(path: str) -> list[dict[str, Any]]:
    """Return the documents of an export, with the Jobs in the place of the JobSet, which Kubernetes does not know."""
    graph = load_topology(str(ROOT / path)).graph
    *others, jobset = documents(graph, read_options(["image=job:1", "checkpoint_claim=c", "storage_class=s"], graph))
    jobs = jobset["spec"]["replicatedJobs"]
    head = {"apiVersion": "batch/v1", "kind": "Job"}
    return [*others, *({**head, "metadata": {"name": job["name"]}, **job["template"]} for job in jobs)]


@pytest.mark.parametrize("path", [TOPOLOGIES[0], *slow(TOPOLOGIES[1:])])
def test_the_schemas_of_kubernetes_accept_everything_but_the_jobset(path: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="not installed: pip install flowdist[dev]")
    for document in as_kubernetes_knows_them(path):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_schemas_of_kubernetes_refuse_a_field_with_another_name() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="not installed: pip install flowdist[dev]")
    job = as_kubernetes_knows_them(TOPOLOGIES[0])[-1]
    pod = job["spec"]["template"]["spec"]
    pod["terminationGracePeriod"] = pod.pop("terminationGracePeriodSeconds")
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(job, KUBERNETES, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
@pytest.mark.parametrize("path", [TOPOLOGIES[2], *slow(TOPOLOGIES[:2])])
def test_kubectl_reads_what_was_written(path: str, tmp_path: Path) -> None:
    """The real kubectl, without a cluster, reads the YAML and adds a label to each document."""
    graph = load_topology(str(ROOT / path)).graph
    options = read_options(["image=job:1"], graph)
    (tmp_path / "job.yaml").write_text(manifest_text(graph, options, documents(graph, options), "jobset", "JobSet"))
    words = ["kubectl", "label", "--local", "--output=json", f"--filename={tmp_path / 'job.yaml'}", "seen=yes"]
    text = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(tmp_path)}
    ).stdout
    found = []
    while text := text.lstrip():
        document, end = json.JSONDecoder().raw_decode(text)
        assert document["metadata"]["labels"].pop("seen") == "yes"
        found.append(document)
        text = text[end:]
    assert found == documents(graph, options)


@pytest.mark.slow  # the import alone takes more than a second
@pytest.mark.parametrize(("ours", "theirs"), MODELS.items(), ids=MODELS.values())
def test_each_field_of_our_schema_is_one_of_the_published_models(ours: Any, theirs: str) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="not installed: pip install flowdist[dev]")
    fields = getattr(models, theirs).model_fields
    assert set(ours.__struct_fields__) <= {field.alias or name for name, field in fields.items()}
