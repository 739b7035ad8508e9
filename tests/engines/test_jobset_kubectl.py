"""The engine of JobSet with a kubectl that fails, answers nonsense, or shows what a cluster does to a member."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowdist.control.fleet.values import Launch, Seen, Size
from flowdist.engines.interface import EngineFailed
from flowdist.engines.jobset.engine import JobSets
from flowdist.engines.jobset.options import JobSetOptions
from tests.engines.fakes import kubectl as fake_kubectl

ENGINE = JobSets(JobSetOptions(image="job:1", name="job", namespace="team", token_secret="token"))
LAUNCH = Launch("m1", "job-m1", "", Size(), ("true",))


def answers(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a kubectl on the path that is this shell script."""
    (folder / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_cluster_that_is_away_is_an_error_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kubectl.install(tmp_path)
    (tmp_path / "away").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for order in (lambda: ENGINE.submit(LAUNCH), lambda: ENGINE.cancel("a"), lambda: ENGINE.observe(["a"])):
        with pytest.raises(EngineFailed, match="exit code 1: The connection to the server was refused"):
            order()


def test_a_missing_kubectl_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineFailed, match="kubectl is not on the path"):
        ENGINE.submit(LAUNCH)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"items": [{}]}', '{"items": 5}', '{"items": [{"metadata": {"name": 5}}]}']
)
def test_an_answer_that_is_no_list_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    answers(tmp_path, monkeypatch, f"printf '%s' '{text}'")
    with pytest.raises(EngineFailed, match="has not answered with a list"):
        ENGINE.observe(["a"])
    with pytest.raises(EngineFailed, match="names no object"):
        ENGINE.submit(LAUNCH)


def test_the_orders_name_the_namespace_and_pass_no_token_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(tmp_path, monkeypatch, f'echo "$@ token=$FLOWDIST_TOKEN" >> {tmp_path}/calls; echo x/job-m1-x')
    monkeypatch.setenv("FLOWDIST_TOKEN", "secret")
    assert ENGINE.submit(LAUNCH) == "job-m1-x"
    ENGINE.cancel("job-m1-x")
    assert (tmp_path / "calls").read_text().splitlines() == [
        "create --namespace team --filename=- --output=name token=",
        "delete jobset.jobset.x-k8s.io job-m1-x --namespace team --ignore-not-found --wait=false token=",
    ]


LABELS = {"jobset.sigs.k8s.io/jobset-name": "a"}
TAKEN = [{"type": "DisruptionTarget", "status": "True"}]
FAILED = {"terminalState": "Failed", "conditions": [{"type": "Failed", "message": "no more"}]}


@pytest.mark.parametrize(
    ("jobset", "pod", "seen"),
    [
        ({}, None, Seen("pending")),
        ({}, {"phase": "Pending"}, Seen("pending", "m")),
        ({}, {"phase": "Running"}, Seen("running", "m")),
        ({"status": FAILED}, {"phase": "Failed"}, Seen("ended", "m", "failed", "Failed: no more")),
        ({"status": FAILED}, {"conditions": TAKEN}, Seen("ended", "m", "preempted", "Failed: no more")),
        ({"status": {"terminalState": "Completed"}}, None, Seen("ended", "", "succeeded", "Completed")),
        ({"deleted": True}, {"phase": "Running"}, Seen("running", "m", reason="deleted")),
        ({"deleted": True}, None, Seen("ended", "", "cancelled", "deleted")),
    ],
)
def test_a_member_is_what_its_jobset_and_its_pod_show(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobset: dict[str, object],
    pod: dict[str, object] | None,
    seen: Seen,
) -> None:
    metadata = {"name": "a", **({"deletionTimestamp": "now"} if jobset.get("deleted") else {})}
    jobsets = [{"metadata": metadata, "status": jobset.get("status", {})}]
    pods = [{"metadata": {"name": "p", "labels": LABELS}, "spec": {"nodeName": "m"}, "status": pod}] if pod else []
    (tmp_path / "jobsets").write_text(json.dumps({"items": jobsets}))
    (tmp_path / "pods").write_text(json.dumps({"items": pods}))
    answers(tmp_path, monkeypatch, f'case "$2" in pods) cat {tmp_path}/pods;; *) cat {tmp_path}/jobsets;; esac')
    assert ENGINE.observe(["a", "b"]) == {"a": seen, "b": Seen("ended")}
