"""Checks between roles: domains, gates, nodes, named sizes, and whether a replica fits a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.graph import MS, Domain, Resources
from tests.dsl.test_load import loaded, refused, underlined

HEAD = "from flowdist import Node, Resources, Restart, Topology\n"
TWO = HEAD + 't = Topology("x", nodes=4)\na = t.role("a", "true")\nb = t.role("b", "true")\n'
OTHER = 'other = Topology("y")\nalien = other.role("alien", "true")\n'


@pytest.mark.parametrize(
    ("statement", "code", "message", "argument"),
    [
        ("t.restart_together('core', a)", "FD128", "domain 'core' has fewer than two roles", "t.restart_together"),
        ("t.restart_together('core', a, a)", "FD128", "domain 'core' has fewer than two roles", "t.restart_together"),
        ("t.restart_together('core', a, 'b')", "FD135", "domain 'core': 'b' is not a role of this topology", "'b'"),
        (
            "t.restart_together('core', a, b)\nc = t.role('c', 'true')\nt.restart_together('rest', b, c)",
            "FD128",
            "domain 'rest': role 'b' is in domain 'core' already",
            "b",
        ),
    ],
)
def test_a_domain_that_is_none(tmp_path: Path, statement: str, code: str, message: str, argument: str) -> None:
    problem = refused(tmp_path, TWO + statement)
    assert (problem.code, problem.message) == (code, message)
    assert underlined(problem) == argument and problem.place.line == (TWO + statement).count("\n") + 1


def test_a_domain_is_kept_in_the_order_of_its_roles(tmp_path: Path) -> None:
    assert loaded(tmp_path, TWO + "t.restart_together('core', b, a)").graph.domains == (Domain("core", ("b", "a")),)


ODD = (
    "class Odd:\n    __repr__ = lambda self: 'odd'\n    __eq__ = lambda self, other: [][0]\n"  # as arrays: no == to use
)


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ("alien", "role 'alien' of topology 'y'"),
        ("alien.started()", "role 'alien' of topology 'y'"),
        ("3", "3"),
        ("['a']", "['a']"),
        ("Odd()", "odd"),
    ],
)
def test_what_is_no_gate_is_told_in_the_users_words(tmp_path: Path, gate: str, words: str) -> None:
    body = (
        HEAD + OTHER + ODD + f't = Topology("x")\na = t.role("a", "true")\nt.role("b", "true", depends_on=[a, {gate}])'
    )
    problem = refused(tmp_path, body, name="t")
    assert problem.code == "FD135" and underlined(problem) == gate
    assert problem.message == f"role 'b': {words} is not a gate of this topology"


@pytest.mark.parametrize(
    ("arguments", "help"),
    [
        ("", "a.started() or a.succeeded()"),
        ("ports=['rpc'], ready_when='tcp:rpc'", "a.started() or a.succeeded() or a.ready()"),
        ("kind='service'", "a.started() or a.ready(), which needs a ready_when="),
        ("kind='service', ports=['rpc'], ready_when='tcp:rpc'", "a.started() or a.ready()"),
    ],
)
@pytest.mark.parametrize("given", ["['a']", "'a'"])
def test_for_the_name_of_a_role_the_help_names_the_gates_that_fit_it(
    tmp_path: Path, arguments: str, help: str, given: str
) -> None:
    body = f't = Topology("x")\na = t.role("a", "true", {arguments})\nt.role("b", "true", depends_on={given})'
    assert refused(tmp_path, HEAD + body).help == f"write the role without quotes, as a gate: {help}"


@pytest.mark.parametrize(
    ("arguments", "help"),
    [
        ("ready_when='tcp', ports=['rpc']", 'write "tcp:rpc"'),
        ("ready_when='http:', ports=['rpc', 'web']", 'write "http:rpc" or "http:web"'),
        ("ready_when='tcp'", 'write ready_when="tcp:rpc" and ports=["rpc"]'),
        ("ready_when='file'", 'write "file:PATH"'),
        ("ready_when='log'", 'write "log:REGEX"'),
    ],
)
def test_the_help_for_a_readiness_check_of_nothing_names_what_can_be_checked(
    tmp_path: Path, arguments: str, help: str
) -> None:
    assert refused(tmp_path, HEAD + f't = Topology("x")\nt.role("a", "true", {arguments})').help == help


def test_a_member_of_another_topology_is_told_in_the_users_words(tmp_path: Path) -> None:
    problem = refused(tmp_path, TWO + OTHER + "t.restart_together('core', a, alien)", name="t")
    assert problem.message == "domain 'core': role 'alien' of topology 'y' is not a role of this topology"


@pytest.mark.parametrize("gates", ["'a'", "{a}", "b'a'", "3", "(gate for gate in [a.started()])"])
def test_gates_are_a_list(tmp_path: Path, gates: str) -> None:
    problem = refused(tmp_path, TWO + f"t.role('c', 'true', depends_on={gates})")
    assert problem.code == "FD134" and problem.message.endswith("must be a list")
    assert underlined(problem) == gates


def test_no_gate_may_be_written_as_none(tmp_path: Path) -> None:
    assert loaded(tmp_path, TWO + "t.role('c', 'true', depends_on=None)").graph.roles[2].gates == ()


def test_a_role_that_waits_for_itself_is_refused(tmp_path: Path) -> None:
    problem = refused(tmp_path, TWO + "b.fields['depends_on'] = [b.started()]")
    assert problem.code == "FD117" and "it waits for 'b', which is not declared before it" in problem.message


@pytest.mark.parametrize(
    "statement",
    [
        "t.role('c', 'true', depends_on=[m.started(on_restart='restart')])",
        "t.role('c', 'true', gang=False, restart=Restart('replica', then='ignore'))",
        "t.role('c', 'true', primary=False, restart=Restart(then='ignore'))",
        "t.role('c', 'true', kind='service', primary=False)",
    ],
)
def test_what_goes_well_together_is_no_problem(tmp_path: Path, statement: str) -> None:
    memory = "m = t.role('m', 'true', kind='service', state='memory')\n"
    assert loaded(tmp_path, TWO + memory + statement).warnings == ()


@pytest.mark.parametrize("arguments", ["primary=False", "kind='service'"])
def test_a_job_without_a_primary_task_can_never_end(tmp_path: Path, arguments: str) -> None:
    problem = refused(tmp_path, HEAD + f't = Topology("x")\nt.role("a", "true", {arguments})')
    assert problem.code == "FD127" and "the job can never end" in problem.message


def test_one_gate_needs_no_list(tmp_path: Path) -> None:
    roles = loaded(tmp_path, TWO + "t.role('c', 'true', depends_on=b.succeeded())").graph.roles
    assert [(gate.role, gate.condition) for gate in roles[2].gates] == [("b", "succeeded")]


@pytest.mark.parametrize(
    ("nodes", "code", "message", "argument"),
    [
        ("3.5", "FD134", "topology 'x': nodes=3.5 must be a list", "3.5"),
        ("True", "FD104", "topology 'x': nodes=True cannot be read", "True"),
        ("'2x2'", "FD104", "topology 'x': nodes='2x2' cannot be read", "'2x2'"),
        ("'0:2'", "FD105", "topology 'x': nodes='0:2' has a zero", "'0:2'"),
        ("[]", "FD105", "topology 'x': nodes= is empty", "[]"),
        ("[Node(), 7]", "FD134", "topology 'x': nodes[1] is not a Node", "7"),
        ("[7]", "FD134", "topology 'x': nodes[0] is not a Node", "7"),
        ("[Node('All')]", "FD102", "node 'All': its name cannot be used", "'All'"),
        ("[Node('all')]", "FD102", "node 'all': its name cannot be used", "'all'"),
        ("[Node('')]", "FD102", "node '': its name cannot be used", "''"),
        ("[Node(memory='lots')]", "FD107", "node 'node0': memory='lots' cannot be read", "'lots'"),
        ("[Node(memory=-1)]", "FD105", "node 'node0': memory=-1 must not be negative", "-1"),
        ("[Node(labels='zone')]", "FD134", "node 'node0': labels= must be a dict", "'zone'"),
        ("[Node(labels={'': 'a'})]", "FD102", "node 'node0': labels[''] has no usable name", "{'': 'a'}"),
        ("[Node(labels={'a=b': 1})]", "FD102", "node 'node0': labels['a=b'] has no usable name", "{'a=b': 1}"),
        ("[Node(labels={'a': None})]", "FD134", "node 'node0': labels['a'] is None", "{'a': None}"),
        ("10**6", "FD105", "topology 'x': nodes=1000000 is more than 100,000", "10**6"),
        (
            "100_001 * [Node()]",
            "FD105",
            "topology 'x': nodes= lists 100,001 nodes, more than 100,000",
            "100_001 * [Node()]",
        ),
    ],
)
def test_nodes_that_are_none(tmp_path: Path, nodes: str, code: str, message: str, argument: str) -> None:
    problem = refused(tmp_path, HEAD + f't = Topology("x", nodes={nodes})\nt.role("main", "true")')
    assert (problem.code, problem.message, underlined(problem)) == (code, message, argument)


@pytest.mark.parametrize(
    ("arguments", "resources", "procs"),
    [
        ("resources='small'", Resources(2, 0, 1 << 30), 1),
        ("resources='small', cpu=3", Resources(3, 0, 1 << 30), 1),
        ("resources='large', memory=0", Resources(8, 2, 0), 2),
        ("resources='large', gpu=1", Resources(8, 1, 0), 1),
        ("cpu='0.5'", Resources(0.5, 0, 0), 1),
        ("gpu=0.5", Resources(1, 1, 0, 500), 1),
        ("gpu='0.25'", Resources(1, 1, 0, 250), 1),
        ("gpu=2.0", Resources(1, 2, 0), 2),
        ("gpu='2'", Resources(1, 2, 0), 2),
        ("resources='half'", Resources(1, 1, 0, 500), 1),
        ("resources='half', gpu=1", Resources(1, 1, 0), 1),
    ],
)
def test_a_role_names_a_size_and_its_own_numbers_win(
    tmp_path: Path, arguments: str, resources: Resources, procs: int
) -> None:
    sizes = '{"small": Resources(cpu=2, memory="1GiB"), "large": Resources(cpu=8, gpu=2), "half": Resources(gpu=0.5)}'
    body = HEAD + f't = Topology("x", nodes=[Node(gpu=2)], resources={sizes})\nt.role("a", "true", {arguments})'
    (role,) = loaded(tmp_path, body).graph.roles
    assert (role.resources, role.procs) == (resources, procs)


def test_an_unknown_size_is_answered_with_the_known_one(tmp_path: Path) -> None:
    body = HEAD + 't = Topology("x", resources={"small": Resources()})\nt.role("a", "true", resources="smal")'
    problem = refused(tmp_path, body)
    assert (problem.code, underlined(problem), problem.help) == ("FD110", '"smal"', 'did you mean "small"?')


@pytest.mark.parametrize(
    ("nodes", "arguments", "code", "message", "argument"),
    [
        ("None", "gpu=1", "FD114", "it asks for 1 gpu, but the topology declares no nodes, and so no GPUs", "1"),
        ("[Node()]", "gpu=1", "FD114", "it asks for 1 gpu, but no node has one", "1"),
        ("[Node(gpu=1)]", "gpu=2", "FD112", "a replica is larger than any node (8 cpu, 1 gpu, 32GiB)", "2"),
        ("None", "gpu=0.5", "FD114", "it asks for 0.5 gpu, but the topology declares no nodes, and so no GPUs", "0.5"),
        ("[Node()]", "gpu=0.5", "FD114", "it asks for 0.5 gpu, but no node has one", "0.5"),
        ("[Node(gpu=2)]", "gpu=1.5", "FD148", "gpu=1.5: a share is of one GPU, more are given whole", "1.5"),
        ("[Node(gpu=2)]", "gpu=0.0004", "FD148", "gpu=0.0004 is finer than a thousandth", "0.0004"),
        ("[Node(gpu=2)]", "gpu=0.9999", "FD148", "gpu=0.9999 is finer than a thousandth", "0.9999"),
        ("[Node(gpu=2)]", "gpu=-0.5", "FD134", "gpu=-0.5 must be a whole number", "-0.5"),
        ("[Node(gpu=2)]", "gpu=10**9", "FD105", "gpu=1000000000 is more than a node can have", "10**9"),
        ("[Node(gpu=2)]", "numa='node'", "FD155", "have no GPU to which they could be bound", "'node'"),
        ("[Node(gpu=2)]", "numa='socket', gpu=1", "FD131", "numa='socket' is unknown", "'socket'"),
        ("[Node(gpu=2)]", "gpu=0.6, replicas=3", "FD113", "its minimum of 3 has no room", "3"),
        (
            "[Node(cpu=2), Node()]",
            "memory='1TiB'",
            "FD112",
            "a replica is larger than any node (8 cpu, 0 gpu",
            "'1TiB'",
        ),
        ("4", "replicas=10**6", "FD105", "replicas=1000000 has more than 100,000", "10**6"),
        ("4", "replicas='1x0'", "FD105", "replicas='1x0' has a zero", "'1x0'"),
        ("4", "replicas='4:2x3'", "FD103", "minimum 4 is larger than maximum 2", "'4:2x3'"),
    ],
)
def test_a_size_that_no_node_has(
    tmp_path: Path, nodes: str, arguments: str, code: str, message: str, argument: str
) -> None:
    problem = refused(tmp_path, HEAD + f't = Topology("x", nodes={nodes})\nt.role("a", "true", {arguments})')
    assert (problem.code, underlined(problem)) == (code, argument) and message in problem.message


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("ready_when='log:('", "FD131", "'(' is not a regular expression"),
        ("ready_when='tcp'", "FD131", "ready_when='tcp' names no port"),
        ("ready_when='file:'", "FD131", "ready_when='file:' names no path"),
        ("ready_when='tcp:rcp', ports=['rpc']", "FD119", "it has no port 'rcp'"),
        ("ports=[1]", "FD134", "ports=[1] must be a list of strings"),
        ("workload=3", "FD134", "workload= must be a Workload"),
        ("hang_after=0", "FD105", "hang_after=0 must be more than zero"),
        ('hang_after="10us"', "FD105", "is less than 1ms"),
        ("ready_timeout=-1", "FD105", "ready_timeout=-1 must not be negative"),
    ],
)
def test_an_argument_that_makes_no_sense(tmp_path: Path, arguments: str, code: str, message: str) -> None:
    problem = refused(tmp_path, HEAD + f't = Topology("x")\nt.role("a", "true", {arguments})')
    assert problem.code == code and problem.message.startswith("role 'a': ") and message in problem.message


@pytest.mark.parametrize(
    ("ready_when", "how", "target"),
    [
        ("call", "call", ""),
        ("http:rpc/health", "http", "rpc/health"),
        ("file:done/ready", "file", "done/ready"),
        ("log:listening on .*", "log", "listening on .*"),
    ],
)
def test_readiness_is_read(tmp_path: Path, ready_when: str, how: str, target: str) -> None:
    body = HEAD + f't = Topology("x")\nt.role("a", "true", ports=["rpc"], ready_when="{ready_when}")'
    ready = loaded(tmp_path, body).graph.roles[0].ready
    assert ready is not None and (ready.how, ready.target) == (how, target)


@pytest.mark.parametrize(("lease", "wrong"), [("0", "must be more than zero"), ("-1", "must not be negative")])
def test_a_lease_of_nothing_is_refused(tmp_path: Path, lease: str, wrong: str) -> None:
    problem = refused(tmp_path, HEAD + f't = Topology("x", lease={lease})\nt.role("a", "true")')
    assert (problem.code, problem.message) == ("FD105", f"topology 'x': lease={lease} {wrong}")


@pytest.mark.parametrize(
    ("arguments", "words", "help"),
    [
        ('lease="1500ms"', "lease=1.5s and heartbeat=500ms: ", 'write lease="3s" or more, or '),
        ('lease="2s", heartbeat="1s"', "lease=2s and heartbeat=1s: ", 'heartbeat="400ms" or less'),
        ('heartbeat="5s"', "lease=4s and heartbeat=5s: ", 'lease="21s" or more, or heartbeat="1.4s" or'),
        ('lease="1s", heartbeat=None', "lease=1s and heartbeat=500ms: ", 'write lease="3s" or more'),
    ],
)
def test_a_lease_that_no_heartbeat_can_renew_is_refused_with_what_works(
    tmp_path: Path, arguments: str, words: str, help: str
) -> None:
    problem = refused(tmp_path, HEAD + f't = Topology("x", {arguments})\nt.role("a", "true")')
    assert problem.code == "FD156" and problem.message.startswith(f"topology 'x': {words}")
    assert help in problem.help and ("heartbeat=" in problem.help) != arguments.startswith('lease="1s",')


def test_the_shortest_lease_is_just_more_than_the_margin_and_a_heartbeat(tmp_path: Path) -> None:
    graph = loaded(tmp_path, HEAD + 't = Topology("x", lease="1501ms")\nt.role("a", "true")').graph
    assert graph.options.lease_ns == 1501 * MS


def test_a_heartbeat_that_cannot_be_read_is_no_problem_of_the_lease(tmp_path: Path) -> None:
    problem = refused(tmp_path, HEAD + 't = Topology("x", lease="1500ms", heartbeat="often")\nt.role("a", "true")')
    assert problem.code == "FD106"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("None", "topology 'None': its name cannot name a folder"),
        ("'My Job'", "topology 'My Job': its name cannot name a folder"),
    ],
)
def test_a_topology_has_a_name_for_a_folder(tmp_path: Path, name: str, message: str) -> None:
    problem = refused(tmp_path, HEAD + f't = Topology({name})\nt.role("a", "true")')
    assert (problem.code, problem.message, underlined(problem)) == ("FD102", message, name)


@pytest.mark.parametrize(
    ("given", "kept"), [("None", ""), ("'/data'", "/data"), ("__import__('pathlib').Path('/d')", "/d")]
)
def test_where_checkpoints_are_is_a_path_or_left_to_the_run(tmp_path: Path, given: str, kept: str) -> None:
    body = HEAD + f't = Topology("x", checkpoint_dir={given})\nt.role("a", "true")'
    assert loaded(tmp_path, body).graph.checkpoint_dir == kept
