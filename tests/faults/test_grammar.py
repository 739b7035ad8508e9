"""The fault grammar: what it means, and how it says what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from flowdist import Topology
from flowdist.dsl.load import compile_loaded
from flowdist.errors import did_you_mean
from flowdist.faults.grammar import (
    FaultError,
    NodeOrder,
    Plan,
    Scale,
    When,
    parse_add,
    parse_drain,
    parse_fault,
    parse_scale,
)
from flowdist.faults.targets import (
    added_node,
    check_plan,
    check_targets,
    refuse_fault,
    refuse_misplaced,
    refuse_unsupported,
)
from flowdist.graph import MINUTE, SECOND, Cluster, NodeSpec
from tests.control.harness import graph, role


def test_a_node_for_a_while() -> None:
    fault = parse_fault("node2@1m30s+5s/60s")
    assert (fault.target, fault.when, fault.offset_ns) == ("node2", When(at_ns=90 * SECOND), 5 * SECOND)
    assert (fault.kind, fault.duration_ns) == ("kill", MINUTE)


def test_one_worker_at_a_step_with_an_exit_code() -> None:
    fault = parse_fault("trainer/0.1@step=trainer,500:exit=3")
    assert fault.when == When(event="step", role="trainer", number=500)
    assert (fault.replica, fault.local_rank, fault.kind, fault.arg) == (("trainer", 0), 1, "exit", "3")


def marked(shown: str, marks: str) -> str:
    """What stands above the marks."""
    return shown[marks.index("^") : marks.rindex("^") + 1]


@pytest.mark.parametrize(
    "spec",
    [
        "node2@30s",
        "trainer@start=trainer",
        "all@ready=ps",
        "node1@generation=trainer,2",
        "ps/0@checkpoint=trainer,3",
        "trainer/1@every=18m",
        "node1@30s:preempt=30s",
        "trainer/0@30s:hang",
        "node1@5s:pause/10s",
        "node1@5s:slow=4x/1m",
        "node1@5s:lost/20s",
        "node1@5s:leave",
        "node1@1s:partition=node2,node3/5s",
        "node1@1s:cut-to=node2/5s",
        "trainer@1s:torn-checkpoint",
        "trainer@1s:lost-checkpoint",
        "trainer/1@1s:corrupt-checkpoint",
        "trainer@1s:slow-checkpoint=10x/1m",
        "node1@1s:drop=0.1/5s",
        "node1@1s:delay=50ms/5s",
        "node1@1s:disk-full",
        "node1@1s:duplicate=0.1/5s",
        "node1@1s:reorder=0.5/5s",
        "node1@1s:flap=5s/1m",
        "node1@1s:xid=79",
        "node1@1s:xid=79,1",
        "node1@start=trainer,2",
        "trainer@checkpoint=trainer,3:scale=4",
        "node9@5m:add",
        "node1@5m:drain",
        "controller@5s",
    ],
)
def test_the_whole_grammar_is_read(spec: str) -> None:
    assert parse_fault(spec).spec == spec


@pytest.mark.parametrize(("spec", "help"), [("ps/0 5s", "write ps/0@30s"), ("", "write node0@30s")])
def test_a_fault_without_a_time_is_completed(spec: str, help: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault(spec)
    assert caught.value.help == help


@pytest.mark.parametrize(
    ("spec", "underlined", "text"),
    [
        ("node2", "", "there is no @WHEN"),
        ("Node2@30s", "Node2", "target 'Node2' cannot be read"),
        ("node2@soon", "soon", "'soon' is no duration"),
        ("node2@30", "30", "'30' is no duration"),
        ("trainer/1@25s/", "", "the duration after the slash is missing"),
        ("trainer/1@", "", "the duration after the @ is missing"),
        ("trainer/1@3s+", "", "the duration after the + is missing"),
        ("ps/0@redy=ps", "redy", "event 'redy' is unknown"),
        ("ps/0@ready", "ready", "ready of what?"),
        ("ps/0@step=ps", "ps", "step needs a number"),
        ("ps/0@ready=ps,3", "ps,3", "ready takes no number"),
        ("ps/0@start=ps,x", "ps,x", "start needs a number from 1 on after the comma"),
        ("ps/0@30s:reorder=2", "2", "'2' is no probability"),
        ("node1@30s:flap=0s", "0s", "flap needs a period of more than zero"),
        ("ps@30s:scale=many", "many", "'many' is no number of replicas"),
        ("ps@30s:scale", "scale", "scale needs its number of replicas"),
        ("ps/0@30s:exit", "exit", "exit needs its exit code"),
        ("ps/0@30s:exit=0", "0", "'0' is no exit code of a failure"),
        ("ps/0@30s:kil", "kil", "kind 'kil' is unknown"),
        ("ps/0@30s:kill=9", "=9", "kill takes no argument"),
        ("node1@30s:slow=much", "much", "'much' is no factor"),
        ("trainer@30s:slow-checkpoint", "slow-checkpoint", "slow-checkpoint needs its factor"),
        ("trainer@30s:lost-checkpoint=1", "=1", "lost-checkpoint takes no argument"),
        ("node1@30s:drop=2", "2", "'2' is no probability"),
        ("node1@30s:xid=lost", "lost", "'lost' is no Xid"),
        ("node1@30s:xid", "xid", "xid needs its Xid"),
        ("trainer/0@30s/5s", "/5s", "kill of a replica has no duration"),
        ("node1@30s/later", "later", "'later' is no duration"),
        ("node1@3s+soon", "soon", "'soon' is no duration"),
        ("node1@3s:drop=2/5s", "2", "'2' is no probability"),
        ("node1@3s:slow=much/5s", "much", "'much' is no factor"),
        ("ps/0@3s:exit=256/5s", "256", "'256' is no exit code of a failure"),
        ("node1@3s:delay=long/5s", "long", "'long' is no duration"),
        ("node1@999999d", "999999d", "'999999d' is no duration"),
        ("ps/0@every=0s", "0s", "every needs a period of more than zero"),
        ("ps/0@step=ps,\u00b2", "ps,\u00b2", "step needs a number"),
        ("ps/0@3s:exit=\u00b2", "\u00b2", "is no exit code of a failure"),
        ("ps/1234567890@3s", "ps/1234567890", "cannot be read"),
        ("@3s", "@", "target '' cannot be read"),
        ("ps/0@step=", "", "role '' cannot be read"),
        ("ps/0@step=ps,0", "ps,0", "step needs a number from 1 on"),
        ("ps/0@checkpoint=ps,00", "ps,00", "checkpoint needs a number from 1 on"),
        ("ps/0@generation=ps,0", "ps,0", "generation needs a number from 1 on"),
        ("ps/0@start=ps,0", "ps,0", "start needs a number from 1 on after the comma"),
        ("ps/0@step=Ps,3", "Ps", "role 'Ps' cannot be read"),
    ],
)
def test_what_is_wrong_is_underlined(spec: str, underlined: str, text: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault(spec)
    message, shown, marks = str(caught.value).split("\n")
    assert text in message and shown.strip() == spec and caught.value.help
    assert marked(shown, marks) == underlined and marks.count("^") == max(1, len(underlined))


@pytest.mark.parametrize(
    ("spec", "help"),
    [
        ("trainer/1@step=25", "step=trainer,25"),
        ("ps/0.1@step=25", "step=ps,25"),
        ("node0@checkpoint=0", "checkpoint=trainer,2"),
        ("node0@ready=3", "ready=trainer"),
        ("ps/0@generation=", "generation=ps,2"),
    ],
)
def test_the_event_that_the_help_names_can_be_read(spec: str, help: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault(spec)
    assert caught.value.help == f"write {help}"
    assert parse_fault(f"node0@{help}").when.event == help.partition("=")[0]


def test_a_role_may_have_an_underscore_in_its_name() -> None:
    t = Topology("trial_1", nodes=1)
    t.role("big_one", "true", replicas="1:2")
    graph = compile_loaded(t).graph
    assert (graph.name, graph.roles[0].name) == ("trial_1", "big_one")
    fault = parse_fault("big_one/0@20s")
    assert (fault.target, fault.spec) == ("big_one/0", "big_one/0@20s")
    assert parse_scale("big_one=2@1m").role == "big_one"


def test_did_you_mean() -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault("ps/0@30s:presempt=5s")
    assert caught.value.help == "did you mean 'preempt'?"


HANGS = "leave it out, or write pause/10s: that is over then"
TAKES_OVER = "leave it out; the next takes over at once"


@pytest.mark.parametrize(
    ("spec", "underlined", "text", "help"),
    [
        ("trianer/0@3s", "trianer", "there is no 'trianer'", "did you mean 'trainer'?"),
        ("zzz@3s", "zzz", "there is no 'zzz'", "known: trainer, ps, node0, all, controller"),
        ("trainer@3s/5s", "/5s", "kill of a replica has no duration", "leave it out; its policy decides what follows"),
        ("all@3s/5s", "/5s", "kill of a replica has no duration", "leave it out; its policy decides what follows"),
        ("all@3s:hang/5s", "/5s", "hang of a replica has no duration", HANGS),
        ("controller@3s/5s", "/5s", "kill of the controller has no duration", TAKES_OVER),
        ("trainer/2@3s", "trainer/2", "trainer has 2 replicas at most", "write trainer/0 to trainer/1"),
        ("trainer/1.1@3s", "trainer/1.1", "a replica of trainer has one worker", "write trainer/1"),
        ("ps/1@3s", "ps/1", "ps has 1 replica at most", "write ps/0"),
        ("ps/0.4@3s", "ps/0.4", "a replica of ps has 4 workers", "write ps/0.0 to ps/0.3"),
        ("node0/1@3s", "node0/1", "node0 is no role: it has no replicas", "write node0@..."),
        ("controller/0@3s", "controller/0", "controller is no role: it has no replicas", "write controller@..."),
        ("all/1@3s", "all/1", "all is no role: it has no replicas", "write all@..."),
        ("node0@3s:scale=2", "node0", "node0 is no role", "known: trainer, ps"),
        ("trainer/0@ready=trianer+2s", "trianer", "there is no role 'trianer'", "did you mean 'trainer'?"),
    ],
)
def test_targets_that_the_job_does_not_have_are_refused(spec: str, underlined: str, text: str, help: str) -> None:
    topology = graph(role("trainer", min_replicas=2, max_replicas=2), role("ps", procs=4))
    with pytest.raises(FaultError) as caught:
        check_targets([parse_fault(spec)], topology, ["node0"])
    message, shown, marks = str(caught.value).split("\n")
    assert (message, marked(shown, marks), caught.value.help) == (text, underlined, help)


@pytest.mark.parametrize(
    ("spec", "underlined", "text", "help"),
    [
        ("zone=eats@3s", "zone=eats", "no node is zone=eats", "did you mean 'zone=east'?"),
        ("rack=7@3s", "rack=7", "no node is rack=7", "known: zone=east"),
        ("zone=east@step=trianer,3", "trianer", "there is no role 'trianer'", "did you mean 'trainer'?"),
        ("node1@3s:cut-to=node", "node", "there is no node 'node'", "known: controller"),
        ("node1@3s:partition=controller,s/5s", "controller,s", "there is no node 's'", "known: controller"),
        ("node1@3s:partition=controller,node1", "controller,node1", "node1 cannot be cut off from itself", "known: c"),
        ("controller@3s:cut-to=controller", "controller", "controller cannot be cut off from itself", "known: node1"),
    ],
)
def test_labels_and_nodes_that_are_not_there_are_underlined(spec: str, underlined: str, text: str, help: str) -> None:
    cluster = Cluster((NodeSpec("node1", labels=(("zone", "east"),)),))
    topology = msgspec.structs.replace(graph(role("trainer")), cluster=cluster)
    with pytest.raises(FaultError) as caught:
        check_targets([parse_fault(spec)], topology, ["node1"])
    message, shown, marks = str(caught.value).split("\n")
    assert (message, marked(shown, marks)) == (text, underlined) and caught.value.help.startswith(help)


def test_labels_and_other_nodes_that_are_there_are_accepted() -> None:
    cluster = Cluster((NodeSpec("node1", labels=(("zone", "east"),)), NodeSpec("node2")))
    topology = msgspec.structs.replace(graph(role("trainer")), cluster=cluster)
    specs = ["zone=east@3s", "node1@3s:cut-to=node2", "node2@3s:cut-to=controller", "node1@3s:partition=node2"]
    check_targets([parse_fault(spec) for spec in specs], topology, ["node1", "node2"])


def test_a_node_of_any_name_may_come_back() -> None:
    check_targets([parse_fault("big@30s/60s")], graph(role("trainer")), ["big"])


def test_what_the_job_has_is_accepted() -> None:
    topology = graph(role("trainer", min_replicas=2, max_replicas=2))
    specs = ["trainer/1.0@3s", "trainer@ready=trainer", "all@3s", "node0@every=5m/3s", "controller@3s"]
    check_targets([parse_fault(spec) for spec in specs], topology, ["node0"])


def test_a_period_and_an_event_with_an_offset() -> None:
    assert parse_fault("ps/1@every=18m").when == When(every_ns=18 * MINUTE)
    ready = parse_fault("all@ready=ps+2s")
    assert (ready.when, ready.offset_ns, ready.replica, ready.local_rank) == (
        When(event="ready", role="ps"), 2 * SECOND, None, None
    )  # fmt: skip


CAN = {"node": ["kill"], "replica": ["kill", "exit"], "controller": []}


def test_a_kill_is_underlined_at_its_target_where_nobody_carries_out_kills() -> None:
    with pytest.raises(FaultError) as caught:
        refuse_unsupported([parse_fault("trainer/0@3s")], {"node": [], "replica": ["exit"]}, "flowdist dream")
    message, _, marks = str(caught.value).split("\n")
    assert message == "flowdist dream cannot carry out 'kill' of trainer/0 yet" and caught.value.help == "it can: exit"
    assert marks == "  " + "^" * len("trainer/0")


def test_a_kind_that_is_carried_out_passes() -> None:
    faults = [parse_fault(spec) for spec in ("trainer/0@3s:exit=1", "node0@3s", "trainer@3s:exit=1", "all@3s")]
    refuse_unsupported(faults, CAN, "flowdist run")


def test_a_kind_of_nodes_alone_is_left_to_the_check_that_says_so() -> None:
    faults = [parse_fault(spec) for spec in ("trainer/0@3s:lost", "zone=a@3s:exit=1")]
    refuse_unsupported(faults, {**CAN, "node": ["lost"]}, "flowdist run")


def test_a_kind_that_nobody_carries_out_is_refused_never_dropped() -> None:
    for spec, underlined, text in [
        ("trainer/0@3s:hang", "hang", "'hang' of trainer/0"),
        ("trainer@3s:hang", "hang", "'hang'"),
        ("controller@3s", "controller", "'kill' of controller"),
    ]:
        with pytest.raises(FaultError) as caught:
            refuse_unsupported([parse_fault(spec)], CAN, "flowdist run")
        message, shown, marks = str(caught.value).split("\n")
        assert message == f"flowdist run cannot carry out {text} yet" and marked(shown, marks) == underlined


def test_what_only_a_simulated_disk_suffers_is_refused_with_the_reason() -> None:
    for kind, why in [
        ("lost-checkpoint", "your files"),
        ("corrupt-checkpoint", "your files"),
        ("slow-checkpoint=2x", "one of its own"),
    ]:
        with pytest.raises(FaultError, match=why):
            refuse_unsupported([parse_fault(f"trainer@3s:{kind}")], CAN, "flowdist run")
    with pytest.raises(FaultError, match="cannot damage the memory of a vault"):
        refuse_unsupported([parse_fault("node1@3s:broken-copy")], CAN, "flowdist run")


OF_NODES = "lost is a fault of nodes: write "
SUFFERED = "what a replica can suffer: kill, exit"


def test_a_kind_is_refused_for_what_cannot_suffer_it() -> None:
    kinds = {"node": ["kill", "lost"], "replica": ["kill", "exit"], "controller": ["pause"]}
    good = ["node0@3s:lost", "node0@3s", "trainer/0@3s:exit=1", "trainer@3s", "controller@3s:pause"]
    refuse_misplaced([parse_fault(spec) for spec in good], kinds, ["node0"])
    for spec, underlined, text, help in [
        ("node0@3s:exit=1", "exit", "exit of a node means nothing here", "what a node can suffer: kill, lost"),
        ("trainer/0@3s:lost", "lost", "lost of a replica means nothing here", f"{OF_NODES}node0@3s:lost; {SUFFERED}"),
        (
            "trainer@3s:lost/5s",
            "lost",
            "lost of a replica means nothing here",
            f"{OF_NODES}node0@3s:lost/5s; {SUFFERED}",
        ),
        ("trainer@3s:pause", "pause", "pause of a replica means nothing here", SUFFERED),
        (
            "controller@3s",
            "controller",
            "kill of a controller means nothing here",
            "what a controller can suffer: pause",
        ),
    ]:
        with pytest.raises(FaultError) as caught:
            refuse_misplaced([parse_fault(spec)], kinds, ["node0"])
        message, shown, marks = str(caught.value).split("\n")
        assert (message, marked(shown, marks), caught.value.help) == (text, underlined, help)


def test_whoever_carries_out_faults_refuses_one_for_a_reason_of_its_own() -> None:
    with pytest.raises(FaultError) as caught:
        refuse_fault(parse_fault("trainer@3s:slow=1x"), "nobody gets slower", "write slow=2x")
    message, shown, marks = str(caught.value).split("\n")
    assert (message, marked(shown, marks), caught.value.help) == ("nobody gets slower", "slow", "write slow=2x")


def test_a_node_that_is_added_is_like_the_first() -> None:
    first = NodeSpec("node0", cpu=4, gpu=2, memory=3, labels=(("zone", "a"),))
    topology = msgspec.structs.replace(graph(role("trainer")), cluster=Cluster((first, NodeSpec("node1"))))
    assert added_node("late", topology) == msgspec.structs.replace(first, name="late")
    alone = msgspec.structs.replace(topology, cluster=msgspec.structs.replace(topology.cluster, nodes=()))
    assert added_node("late", alone) == NodeSpec("late"), "a node that declares nothing"


def test_scale_add_and_drain() -> None:
    assert parse_scale("trainer=4@60s") == Scale("trainer", 4, MINUTE)
    assert parse_add("node5@90s") == NodeOrder("node5", 90 * SECOND)
    assert parse_drain("node1@2m") == NodeOrder("node1", 2 * MINUTE)


def test_a_plan_may_speak_of_nodes_that_it_adds() -> None:
    plan = Plan(
        faults=(parse_fault("late@2m"),),
        scales=(parse_scale("trainer=4@60s"),),
        adds=(parse_add("late@1m"),),
        drains=(parse_drain("late@3m"), parse_drain("node0@3m")),
    )
    check_plan(plan, graph(role("trainer")))


COMES_BACK = "a node that is to come back is written node1@30s/60s: it is away for 60 s"


@pytest.mark.parametrize(
    ("plan", "underlined", "text", "help"),
    [
        (Plan(faults=(parse_fault("nod0@3s"),)), "nod0", "there is no 'nod0'", "did you mean 'node0'?"),
        (
            Plan(scales=(parse_scale("trianer=4@3s"),)),
            "trianer",
            "there is no role 'trianer'",
            "did you mean 'trainer'?",
        ),
        (Plan(faults=(parse_fault("node5@3s"),)), "node5", "there is no 'node5'", "the only node is node0"),
        (Plan(drains=(parse_drain("node12@3s"),)), "node12", "there is no node 'node12'", "the only node is node0"),
        (
            Plan(faults=(parse_fault("node5@3s"),), adds=(parse_add("node1@1s"),)),
            "node5",
            "there is no 'node5'",
            "the nodes are node0, node1",
        ),
        (
            Plan(faults=(parse_fault("node0@3s:partition=node7"),), adds=(parse_add("node1@1s"),)),
            "node7",
            "there is no node 'node7'",
            "the nodes are node0, node1",
        ),
        (Plan(drains=(parse_drain("trainer@3s"),)), "trainer", "there is no node 'trainer'", "known: node0"),
        (Plan(adds=(parse_add("node0@3s"),)), "node0", "there is a 'node0' already", COMES_BACK),
        (Plan(adds=(parse_add("late@3s"), parse_add("late@4s"))), "late", "there is a 'late' already", COMES_BACK),
        (Plan(adds=(parse_add("trainer@3s"),)), "trainer", "there is a 'trainer' already", COMES_BACK),
        (Plan(adds=(parse_add("all@3s"),)), "all", "there is a 'all' already", COMES_BACK),
    ],
)
def test_a_plan_for_what_the_job_does_not_have_is_refused(plan: Plan, underlined: str, text: str, help: str) -> None:
    with pytest.raises(FaultError) as caught:
        check_plan(plan, graph(role("trainer")))
    message, shown, marks = str(caught.value).split("\n")
    assert (message, marked(shown, marks), caught.value.help) == (text, underlined, help)


@pytest.mark.parametrize(
    ("parse", "text", "underlined"),
    [
        (parse_scale, "trainer@4", "trainer@4"),
        (parse_scale, "trainer=4@soon", "soon"),
        (parse_scale, "", ""),
        (parse_add, "node5", "node5"),
        (parse_add, "node5@x", "x"),
        (parse_add, "", ""),
        (parse_drain, "node1", "node1"),
        (parse_drain, "node1@x", "x"),
        (parse_drain, "Node1@3s", "Node1@3s"),
        (parse_scale, f"trainer={'9' * 5000}@3s", f"trainer={'9' * 5000}@3s"),
        (parse_drain, "", ""),
    ],
)
def test_a_scale_or_a_node_that_cannot_be_read_is_underlined(
    parse: Callable[[str], object], text: str, underlined: str
) -> None:
    with pytest.raises(FaultError) as caught:
        parse(text)
    _, shown, marks = str(caught.value).split("\n")
    assert marked(shown, marks) == underlined and marks.count("^") == max(1, len(underlined))


def test_the_place_of_what_is_not_there_is_after_the_text() -> None:
    for text, example in (("node2", "write node2@30s"), ("", "write node0@30s")):
        with pytest.raises(FaultError) as caught:
            parse_fault(text)
        assert str(caught.value).endswith(f"\n  {text}\n  {' ' * len(text)}^") and caught.value.help == example


def test_an_xid_is_of_the_first_gpu_unless_it_says_another() -> None:
    assert parse_fault("node1@1s:xid=79").xid == (79, 0) and parse_fault("node1@1s:xid=48,3").xid == (48, 3)


def test_of_hundreds_of_nodes_only_some_are_named() -> None:
    known = [f"node{number}" for number in range(125)]
    assert did_you_mean("zzz", known).endswith("node18, node19 and 105 more")
    assert did_you_mean("zzz", known[:3]) == "known: node0, node1, node2"


def test_a_fault_is_shown_as_it_is_written() -> None:
    assert repr(parse_fault("node1@3m:preempt=30s")) == "parse_fault('node1@3m:preempt=30s')"
