"""The rules of a cluster that no schema expresses: each is switched to a mistake, and the linter names it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowdist.dsl.load import load_topology
from flowdist.engines.jobset.manifests import documents
from flowdist.engines.jobset.options import read_options
from flowdist.engines.jobset.problems import objections
from tests.engines.jobset_rules import own_mistakes

ROOT = Path(__file__).parents[2]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def jobset() -> dict[str, Any]:
    graph = load_topology(str(ROOT / "scenarios/topologies/core.py")).graph
    return documents(graph, read_options(["image=job:1"], graph))[-1]


def rule(document: dict[str, Any], number: int) -> Any:
    return document["spec"]["failurePolicy"]["rules"][number]


def job(document: dict[str, Any], number: int = 1) -> Any:
    return document["spec"]["replicatedJobs"][number]


def pod(document: dict[str, Any], number: int = 1) -> Any:
    return job(document, number)["template"]["spec"]["template"]["spec"]


MISTAKES: list[tuple[Change, str]] = [
    (lambda d: rule(d, 1).update(targetReplicatedJobs=["trainers"]), "there is no replicated Job 'trainers'"),
    (lambda d: d["spec"]["successPolicy"].update(targetReplicatedJobs=["x"]), "there is no replicated Job 'x'"),
    (lambda d: rule(d, 1).update(name="2nd"), "'2nd' cannot name a rule"),
    (lambda d: rule(d, 1).update(name="a" * 129), "cannot name a rule"),
    (lambda d: rule(d, 1).update(name=rule(d, 0)["name"]), "there are two rules 'jobEnds'"),
    (lambda d: rule(d, 1).update(onJobFailureReasons=["OOMKilled"]), "never fails because of 'OOMKilled'"),
    (lambda d: job(d).update(replicas=1025), "1,024 replicas at most"),
    (lambda d: job(d)["template"]["spec"].update(parallelism=1 << 31), "more than 2,147,483,647 pods"),
    (lambda d: job(d).update(name="trainer"), "two of them have one name"),
    (lambda d: job(d).update(name="Ps"), "other characters than lower case"),
    (lambda d: job(d).update(name="p" * 45), "at most 63"),
    (lambda d: d["metadata"].update(name="7up"), "begins otherwise"),
    (lambda d: d["metadata"].update(labels={"a b": "c"}), "label a b=c"),
    (lambda d: d["metadata"].update(labels={"a": "c" * 64}), "at most 63"),
    (lambda d: d["metadata"].update(labels={"-/a": "c"}), "no DNS name"),
    (lambda d: d["spec"]["network"].update(subdomain="a.b"), "spec.network.subdomain"),
    (lambda d: pod(d).update(restartPolicy="Always"), "Never or OnFailure"),
    (lambda d: pod(d).update(restartPolicy="OnFailure"), "needs the restart policy Never"),
    (
        lambda d: job(d)["template"]["spec"].update(podReplacementPolicy="TerminatingOrFailed"),
        "replacement policy Failed",
    ),
    (lambda d: pod(d)["volumes"].clear(), "there is no volume 'shm'"),
    (lambda d: pod(d)["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"}), "two volumes"),
    (lambda d: pod(d)["containers"][0].update(name="other"), ""),
    (lambda d: pod(d, 0)["containers"][0].update(name="other"), "there is no container 'flowdist'"),
    (lambda d: pod(d)["containers"][0].update(resources={"limits": {"x.com/gpu": "1"}}), "equal to its request"),
]


def pod_rules(document: dict[str, Any]) -> Any:
    return job(document, 0)["template"]["spec"]["podFailurePolicy"]["rules"]


POD_RULES: list[tuple[Change, str]] = [
    (lambda d: pod_rules(d)[1]["onExitCodes"].update(values=[0, 1]), "exit code 0 is no failure"),
    (lambda d: pod_rules(d)[1]["onExitCodes"].update(values=[2, 1]), "in order"),
    (lambda d: pod_rules(d)[1]["onExitCodes"].update(values=[]), "in number"),
    (lambda d: pod_rules(d)[1].update(onPodConditions=[]), "one of onExitCodes and onPodConditions"),
    (lambda d: pod_rules(d)[0].pop("onPodConditions"), "one of onExitCodes and onPodConditions"),
    (lambda d: pod_rules(d).extend(pod_rules(d)[:1] * 19), "21 rules for failed pods, at most 20"),
]


def mistakes(document: dict[str, Any]) -> list[str]:
    return [*objections([document]), *own_mistakes(document["spec"])]


def test_the_manifests_of_an_export_have_no_mistake(jobset: dict[str, Any]) -> None:
    assert mistakes(jobset) == []


@pytest.mark.parametrize(("change", "words"), MISTAKES + POD_RULES, ids=[words for _, words in MISTAKES + POD_RULES])
def test_a_mistake_that_a_cluster_refuses_is_named(jobset: dict[str, Any], change: Change, words: str) -> None:
    wrong = copy.deepcopy(jobset)
    change(wrong)
    found = mistakes(wrong)
    assert (any(words in each for each in found), bool(found)) == (True, True) if words else not found


def test_a_graph_that_is_larger_than_a_configmap_is_refused() -> None:
    large = {"kind": "ConfigMap", "metadata": {"name": "x-graph"}, "data": {"graph.json": "x" * (1 << 20)}}
    assert objections([large]) == ["ConfigMap x-graph: 1,048,586 bytes, at most 1,048,576"]
    assert objections([{"kind": "ConfigMap", "metadata": {"name": "X"}, "data": {}}]) == [
        "ConfigMap X: the name is no DNS name"
    ]
