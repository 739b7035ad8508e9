"""Manifests of `flowdist export --to jobset`: they fit the schema of JobSet, and a cluster has no objection to them."""

from __future__ import annotations

import copy
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowdist.dsl.load import load_topology
from flowdist.engines.jobset.manifests import JOBSET_VERSION, documents, manifest_text
from flowdist.engines.jobset.options import read_options
from flowdist.engines.jobset.problems import objections
from flowdist.errors import FlowdistError
from flowdist.graph import NODE_POOL, RoleGraph, decode_graph
from tests.engines import jobset_schema
from tests.engines.jobset_rules import own_mistakes
from tests.engines.jobset_schema import JobSet, validate

ROOT = Path(__file__).parents[2]
TOPOLOGIES = [
    *(
        f"scenarios/topologies/{name}.py"
        for name in ("actors", "core", "gang", "mesh", "pools", "ps", "rivals", "stages")
    ),
    *(f"examples/{name}/topology.py" for name in ("char_gpt", "resume_model", "word2vec")),
]
WORDS = ["image=registry.example/team/job:1"]
FULL = [
    *WORDS, "namespace=team", "name=job-7", "workdir=/app", "journal_size=5Gi", "storage_class=fast", "queue=gpus",
    "checkpoint_claim=shared", "image_pull_secret=registry", "restart=Pod", "member_restarts=3",
]  # fmt: skip
RICH = """
from flowdist import Node, Secret, Topology
t = Topology("rich", nodes=16 * [Node(gpu=2, labels={"pool": "cpu"})], grace="45s", drain="1m")
ps = t.role("ps", "true", kind="service", apart=True, memory="4GiB", where={"pool": "cpu"},
            env={"PASSWORD": Secret(file="/run/password")})
t.role("trainer", "true", replicas="2:8x2", placement="pack", cpu=0.5, gpu=2, depends_on=[ps.started()], apart=[ps],
       env={"KEY": Secret(env="MY_KEY")})
"""


def graph_of(path: Path | str) -> RoleGraph:
    return load_topology(str(ROOT / path)).graph


def exported(graph: RoleGraph, *words: str) -> list[dict[str, Any]]:
    return documents(graph, read_options(words or WORDS, graph))


@pytest.fixture
def rich(tmp_path: Path) -> RoleGraph:
    (tmp_path / "topology.py").write_text(RICH)
    return graph_of(tmp_path / "topology.py")


def jobset_of(found: list[dict[str, Any]]) -> JobSet:
    jobset = validate(found[-1])
    assert isinstance(jobset, JobSet)
    return jobset


@pytest.mark.parametrize("words", [WORDS, FULL], ids=["defaults", "all-options"])
@pytest.mark.parametrize("path", TOPOLOGIES)
def test_manifests_of_a_topology_fit_the_schema(path: str, words: list[str]) -> None:
    found = exported(graph_of(path), *words)
    assert [type(validate(each)).__name__ for each in found] == [
        "ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "Service", "JobSet",
    ]  # fmt: skip
    assert objections(found) == [] and not list(own_mistakes(found[-1]["spec"]))


def test_the_schema_is_of_the_version_that_the_manifests_name() -> None:
    assert jobset_schema.JOBSET_VERSION == JOBSET_VERSION


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of each key of a document, those in lists included. Keys that users choose are left out."""
    free = ("labels", "matchLabels", "nodeSelector", "requests", "limits", "data", "selector")
    if isinstance(value, dict) and path[-1:] not in [(name,) for name in free]:
        for key, each in value.items():
            yield (*path, key)
            yield from places(each, (*path, key))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from places(each, (*path, i))


def renamed(document: dict[str, Any], place: tuple[str | int, ...]) -> dict[str, Any]:
    """Return a copy of the document in which the key at a place has another name."""
    changed = copy.deepcopy(document)
    holder: Any = changed
    for part in place[:-1]:
        holder = holder[part]
    holder[f"{place[-1]}s"] = holder.pop(place[-1])
    return changed


def test_a_changed_name_of_any_field_is_found(rich: RoleGraph) -> None:
    """Switch each field of the output to another name, one at a time: the schema refuses every one."""
    count = 0
    for document in exported(rich, *FULL):
        for place in places(document):
            with pytest.raises((msgspec.ValidationError, KeyError)):
                validate(renamed(document, place))
            count += 1
    assert count > 300


def test_a_changed_name_of_any_field_of_the_schema_is_found(rich: RoleGraph) -> None:
    """Each field of the schema stands in some export: under another name in the schema, that export does not fit."""
    written = [*exported(rich, *FULL), *exported(rich)]
    used = {place[-1] for document in written for place in places(document)}
    structs = [each for each in vars(jobset_schema).values() if isinstance(each, type)]
    names = {name for each in structs if issubclass(each, msgspec.Struct) for name in each.__struct_fields__}
    assert len(names) > 80 and names - used == set()


@pytest.mark.parametrize(
    ("struct", "field"),
    [
        ("FailurePolicy", "maxRestarts"),
        ("Network", "subdomain"),
        ("ReplicatedJob", "replicas"),
        ("JobSpec", "template"),
    ],
)
def test_the_schema_with_another_name_refuses_the_manifests(struct: str, field: str, rich: RoleGraph) -> None:
    """Switch the schema: with one field renamed in its source, the manifests that fitted do not fit any more."""
    source = Path(str(jobset_schema.__file__)).read_text()
    head, marker, tail = source.partition(f"class {struct}(Strict):")
    module = types.ModuleType("changed_schema")
    sys.modules[module.__name__] = module  # msgspec resolves annotations there
    exec(head + marker + tail.replace(f"    {field}:", f"    {field}x:", 1), module.__dict__)
    with pytest.raises(msgspec.ValidationError):
        module.validate(exported(rich)[-1])


def test_the_graph_of_the_pods_has_the_paths_of_the_image(rich: RoleGraph) -> None:
    found = exported(rich, *FULL)
    graph = decode_graph(found[1]["data"]["graph.json"])
    assert graph.source == "/app/topology.py"
    assert {role.workdir for role in graph.roles} == {"/app"}
    assert graph.checkpoint_dir == "/checkpoints"
    assert str(Path(rich.source).parent) not in json.dumps(found)


def test_each_member_is_a_job_of_one_pod_on_a_node_for_its_role_alone(rich: RoleGraph) -> None:
    found = exported(rich)
    graph = decode_graph(found[1]["data"]["graph.json"])
    jobs = jobset_of(found).spec.replicatedJobs
    assert [(job.name, job.replicas) for job in jobs] == [("controller", 1), ("ps", 1), ("trainer", 8)]
    assert {(job.template.spec.completions, job.template.spec.parallelism) for job in jobs} == {(1, 1)}
    assert [dict(role.placement.where) for role in graph.roles] == [{NODE_POOL: "ps"}, {NODE_POOL: "trainer"}]
    assert [role.placement.apart for role in graph.roles] == [
        ("ps",),
        ("trainer",),
    ]  # cores are whole, needs may not be
    assert (graph.cluster.min_nodes, graph.cluster.nodes) == (1 + 2, ())


def test_jobset_restarts_one_member_and_flowdist_everything_else(rich: RoleGraph) -> None:
    policy = jobset_of(exported(rich)).spec.failurePolicy
    rules = [(rule.action, rule.targetReplicatedJobs) for rule in policy.rules]
    assert rules == [("FailJobSet", ["controller"]), ("RestartJob", ["ps", "trainer"])]
    assert policy.maxRestarts == 100
    job = jobset_of(exported(rich)).spec.replicatedJobs[1].template.spec
    assert (job.backoffLimit, [rule.action for rule in job.podFailurePolicy.rules]) == (0, ["Ignore"])


def test_without_the_feature_gate_the_job_of_a_member_starts_its_next_pod(rich: RoleGraph) -> None:
    jobset = jobset_of(exported(rich, *WORDS, "restart=Pod", "member_restarts=7"))
    assert {rule.action for rule in jobset.spec.failurePolicy.rules} == {"FailJobSet"}
    assert jobset.spec.replicatedJobs[1].template.spec.backoffLimit == 7


def test_a_pod_has_time_for_its_drain_and_its_grace(rich: RoleGraph) -> None:
    pod = jobset_of(exported(rich)).spec.replicatedJobs[2].template.spec.template.spec
    (container,) = pod.containers
    notice_s = 60 + 45 + 2  # drain="1m", grace="45s", stop_grace
    assert container.lifecycle.preStop.exec.command[-1] == f"kill -USR1 1; sleep {notice_s}"
    assert container.command[container.command.index("--notice") + 1] == f"{notice_s}s"
    assert pod.terminationGracePeriodSeconds == notice_s + 45 + 2 + 30  # then SIGTERM, and flowdist's own


def test_secrets_are_references_and_only_where_they_are_needed(rich: RoleGraph) -> None:
    _, ps, trainer = (job.template.spec.template.spec for job in jobset_of(exported(rich)).spec.replicatedJobs)
    names = [each.name for each in trainer.containers[0].env]
    assert names == ["FLOWDIST_TOKEN", "MY_KEY"]
    assert [each.name for each in ps.containers[0].env] == ["FLOWDIST_TOKEN"]
    (mount,) = (each for each in ps.containers[0].volumeMounts if each.name == "secrets")
    assert (mount.mountPath, mount.subPath, mount.readOnly) == ("/run/password", "PASSWORD", True)
    assert not any(each.name == "secrets" for each in trainer.volumes)


def test_a_member_asks_for_what_its_replica_needs(rich: RoleGraph) -> None:
    _, ps, trainer = (job.template.spec.template.spec for job in jobset_of(exported(rich)).spec.replicatedJobs)
    assert ps.containers[0].resources.limits == {"memory": "4608Mi"}  # 4 GiB, and 512 MiB for flowdist
    assert ps.nodeSelector == {"pool": "cpu"}
    sizes = trainer.containers[0].resources
    assert sizes.requests == {"cpu": "500m", "nvidia.com/gpu": "2"} and sizes.limits == {"nvidia.com/gpu": "2"}
    assert trainer.affinity is not None and trainer.affinity.podAntiAffinity is not None
    (apart,) = trainer.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution
    assert apart.labelSelector.matchLabels["jobset.sigs.k8s.io/replicatedjob-name"] == "ps"


def test_no_pod_gets_a_token_for_the_api_and_nothing_is_bound_to_its_account(rich: RoleGraph) -> None:
    found = exported(rich)
    assert {each["kind"] for each in found}.isdisjoint({"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
    pods = [job.template.spec.template.spec for job in jobset_of(found).spec.replicatedJobs]
    assert not any(pod.automountServiceAccountToken for pod in pods)


@pytest.mark.parametrize("path", TOPOLOGIES[:3])
def test_equal_topologies_give_equal_bytes(path: str) -> None:
    graph = graph_of(path)
    options = read_options(WORDS, graph)
    one, two = (manifest_text(graph, options, documents(graph, options), "jobset", "JobSet") for _ in range(2))
    assert one == two


def test_options_that_are_wrong_are_named_all_at_once(rich: RoleGraph) -> None:
    words = [
        "imag=x",
        "name=Foo",
        "restart=no",
        "member_restarts=-1",
        "workdir=app",
        "journal_size=big",
        "queue",
        "secret=A",
    ]
    with pytest.raises(FlowdistError) as error:
        read_options(words, rich)
    for word in words:
        assert f"-o {word}: " in error.value.message
    assert "-o image=IMAGE is missing" in error.value.message and "did you mean 'image'" in error.value.message


def test_two_secrets_of_one_file_are_one_mount(tmp_path: Path) -> None:
    env = '{"A": Secret(file="/run/key"), "B": Secret(file="/run/key")}'
    (tmp_path / "t.py").write_text(
        f"from flowdist import Secret, Topology\nt = Topology('x')\nt.role('a', 'true', env={env})\n"
    )
    found = exported(graph_of(tmp_path / "t.py"))
    assert validate(found[-1]) and objections(found) == []
