"""The export to Kubeflow Trainer: a JobSet inside a TrainingRuntime, as the published models of its API know it."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowdist.cli.run.export import command as export
from flowdist.control.protocol.events import ReplicaProgressed
from flowdist.dsl.load import load_topology
from flowdist.engines.jobset.manifests import documents
from flowdist.engines.jobset.options import read_options
from flowdist.engines.jobset.trainer_status import TrainerStatus, progress
from flowdist.engines.jobset.trainjob import trainjob_documents
from tests.control.harness import Talk, graph, r, role
from tests.engines.jobset_schema import validate
from tests.runtime.harness import Job

TOPOLOGY = Path(__file__).parents[2] / "scenarios/topologies/core.py"
WORDS = ["image=job:1", "name=job-7", "namespace=team", "queue=gpus"]


def exported(*words: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the documents for JobSet, and those for Kubeflow Trainer."""
    graph = load_topology(str(TOPOLOGY)).graph
    options = read_options([*WORDS, *words], graph)
    return documents(graph, options), trainjob_documents(graph, options)


def test_the_runtime_has_the_jobset_with_the_controller_as_its_trainer() -> None:
    of_jobset, found = exported()
    assert found[:-2] == of_jobset[:-1]
    runtime, job = found[-2:]
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": runtime["metadata"]["name"],
    }  # fmt: skip
    assert {each["metadata"]["namespace"] for each in (runtime, job)} == {"team"}
    controller, *members = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert controller["template"].pop("metadata") == {
        "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    }
    assert controller["replicas"] == controller["template"]["spec"]["parallelism"] == 1
    (container,) = controller["template"]["spec"]["template"]["spec"]["containers"]
    rule = controller["template"]["spec"]["podFailurePolicy"]["rules"][-1]["onExitCodes"]
    assert container["name"] == rule["containerName"] == "node"

    # Everything else is that of the JobSet, which Trainer makes under the name of the TrainJob.
    container["name"] = rule["containerName"] = "flowdist"
    assert runtime["spec"]["template"]["spec"] == of_jobset[-1]["spec"] and members
    assert job["metadata"]["name"] == of_jobset[-1]["metadata"]["name"]
    validate({**of_jobset[-1], "spec": runtime["spec"]["template"]["spec"]})


@pytest.mark.slow  # the import alone takes more than a second
def test_the_published_models_know_each_field() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="not installed: pip install flowdist[dev]")
    *_, runtime, job = exported()[1]
    for model, document in ((models.TrainerV1alpha1TrainingRuntime, runtime), (models.TrainerV1alpha1TrainJob, job)):
        assert is_within(document, model.from_dict(document).to_dict())  # a field that they do not know would be lost


def is_within(ours: Any, theirs: Any) -> bool:
    """Return whether all that we have written is there; they may add defaults."""
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and all(name in theirs and is_within(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(is_within, ours, theirs))
    return bool(ours == theirs)


def test_an_export_to_trainer_is_written_as_yaml_and_as_json(tmp_path: Path) -> None:
    words = [str(TOPOLOGY), "--to", "trainjob", "-o", "image=job:1"]
    done = CliRunner().invoke(export, words)
    assert done.exit_code == 0 and "for Kubeflow Trainer v2.3, written by flowdist export --to trainjob" in done.stdout
    assert done.stdout.count("\nkind: TrainJob\n") == 1
    found = json.loads(CliRunner().invoke(export, [*words, "--json"]).stdout)
    assert (found["to"], found["documents"][-1]["kind"]) == ("trainjob", "TrainJob")


class TrainersServer(http.server.BaseHTTPRequestHandler):
    """What Trainer's server would be told."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.told.append((self.path, self.headers["Authorization"], body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def trainer() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), TrainersServer) as server:
        server.told = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def env_of(server: http.server.ThreadingHTTPServer, folder: Path) -> dict[str, str]:
    (folder / "token").write_text("secret\n")
    url = f"http://127.0.0.1:{server.server_port}/status"
    return {"KUBEFLOW_TRAINER_SERVER_URL": url, "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token")}


def test_progress_is_told_in_the_fields_of_the_api(trainer: http.server.ThreadingHTTPServer, tmp_path: Path) -> None:
    talk = Talk(graph(role("trainer"), nodes=1))
    talk.join("node0")
    talk.tell(ReplicaProgressed(r("trainer/0"), 1, 70))
    assert "progressPercentage" not in progress(talk.job)  # nobody has said how many steps there are
    talk.finish("trainer/0")
    reporter = TrainerStatus(env_of(trainer, tmp_path), lambda kind, text: None, None)
    reporter.close(talk.job)
    ((path, authorization, body),) = trainer.told  # type: ignore[attr-defined]
    assert (path, authorization) == ("/status", "Bearer secret")
    when = body["trainerStatus"].pop("lastUpdatedTime")
    assert abs((datetime.fromisoformat(when) - datetime.now(UTC)).total_seconds()) < 60
    assert body == {
        "trainerStatus": {
            "metrics": [
                {"name": "trainer_step", "value": "70"},
                {"name": "restarts", "value": "0"},
                {"name": "incidents", "value": "0"},
            ],
            "progressPercentage": 100,
            "estimatedRemainingSeconds": 0,
        }
    }


def test_a_server_that_does_not_answer_is_named_once_and_nothing_waits_for_it(tmp_path: Path) -> None:
    talk, shown = Talk(graph(role("trainer"), nodes=1)), list[str]()
    env = {"KUBEFLOW_TRAINER_SERVER_URL": "http://127.0.0.1:1/"}
    reporter = TrainerStatus(env, lambda kind, text: shown.append(text), None)
    reporter.close(talk.job)
    for _ in range(2):
        reporter.look(talk.job, 0)
    (text,) = shown
    assert text.startswith("Kubeflow Trainer takes no progress: ") and "refused" in text


@pytest.mark.real
@pytest.mark.slow
def test_the_controller_of_an_export_reports_the_end_of_the_job(
    trainer: http.server.ThreadingHTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "topology.py").write_text(
        'from flowdist import Topology\nt = Topology("x", nodes=1)\nt.role("a", "true")\n'
    )
    with Job(tmp_path, "--on", "local", env=env_of(trainer, tmp_path)) as job:
        assert job.finish() == 0, job.text
    last = trainer.told[-1][2]["trainerStatus"]  # type: ignore[attr-defined]
    assert last["progressPercentage"] == 100


def test_a_priority_for_members_is_refused_as_trainer_would(tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text('{"spec": {"priorityClassName": "high"}}')
    words = [str(TOPOLOGY), "-o", "image=job:1", "-o", f"pod_template={tmp_path / 'pod.json'}"]
    assert CliRunner().invoke(export, [*words, "--to", "jobset"]).exit_code == 0
    done = CliRunner().invoke(export, [*words, "--to", "trainjob"])
    assert done.exit_code == 2 and "only the pod of the controller may have a priorityClassName" in done.output
