"""Rates, files of faults, and what they say when something is wrong with them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowdist.errors import FlowdistError
from flowdist.faults.files import parse_plan, plan_of_scenario, read_plan
from flowdist.faults.grammar import NOTHING, FaultError, parse_fault
from flowdist.faults.rates import EXAMPLE, Arrivals, check_rates, entities, expected, parse_rate
from flowdist.faults.streams import draw
from flowdist.faults.targets import check_plan, refuse_misplaced, refuse_unsupported
from flowdist.graph import HOUR, MINUTE, Cluster, NodeSpec, RoleGraph
from flowdist.graph.units import DAY
from tests.control.harness import graph, role

ZONES = (NodeSpec("node0", labels=(("zone", "a"),)), NodeSpec("node1", labels=(("zone", "b"),)))
NODES = ["node0", "node1"]


def job() -> RoleGraph:
    topology = graph(role("trainer", min_replicas=2, max_replicas=2), role("ps"))
    return msgspec.structs.replace(topology, cluster=Cluster(ZONES))


def marked(error: FaultError) -> tuple[str, str]:
    """The message, and what of the text stands above the marks."""
    message, shown, marks = str(error).split("\n")
    return message, shown[marks.index("^") : marks.rindex("^") + 1]


def test_a_rate_says_whom_how_often_and_for_how_long() -> None:
    rate = parse_rate("node-kill=6.5e-3/node-day/15m")
    assert (rate.subject, rate.kind, rate.duration_ns, rate.shared) == ("node", "kill", 15 * MINUTE, False)
    assert rate.per_ns == pytest.approx(6.5e-3 / DAY)
    slow = parse_rate("param-server-slow=0.1/replica-hour:4x/10m")
    assert (slow.subject, slow.kind, slow.arg, slow.duration_ns) == ("param-server", "slow", "4x", 10 * MINUTE)
    assert parse_rate("trainer-torn-checkpoint=2/job-week").shared


@pytest.mark.parametrize(
    ("text", "underlined", "message", "help"),
    [
        ("node-kill", "", "there is no =RATE", "write node-kill=6.5e-3/node-day"),
        ("node=1/day", "node", "'node' names no kind of fault", "write node-kill="),
        ("node-kil=1/day", "kil", "kind 'kil' is unknown", "did you mean 'kill'?"),
        ("-kill=1/day", "-", "'' cannot be read", "write node-kill="),
        (
            "trainer-scale=1/day",
            "scale",
            "scale is an order of the operator, and does not",
            "write --fail trainer@5m:scale",
        ),
        ("node-kill=often/day", "often", "'often' is no rate", "write node-kill="),
        ("node-kill=0/day", "0", "'0' is no rate", "write node-kill="),
        (
            "node-kill=1",
            "",
            "a rate of what, and per what time?",
            "write node-kill=1/day for each node, or node-kill=1/job-",
        ),
        (
            "trainer-slow=2",
            "",
            "a rate of what",
            "write trainer-slow=2/day:4x for each replica or node of trainer, or tr",
        ),
        ("trainer-kill", "", "there is no =RATE", EXAMPLE),
        ("node-kill=1/node-dya", "dya", "'dya' is no time", "did you mean 'day'?"),
        ("node-kill=1/nod-day", "nod", "a rate per 'nod' is unknown here", "did you mean 'node'?"),
        ("node-kill=1/day:3", "3", "kill takes no argument", "leave it out"),
        ("trainer-slow=1/day", "day", "slow needs its factor", "write trainer-slow=1/day:4x"),
        ("trainer-slow=1/day:much", "much", "'much' is no factor", "write trainer-slow=1/day:4x"),
        ("node-kill=1/day/later", "later", "'later' is no duration", "write 15m"),
        ("node-kill=1/day/", "", "the duration after the slash is missing", "write 15m"),
    ],
)
def test_what_is_wrong_with_a_rate_is_underlined(text: str, underlined: str, message: str, help: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_rate(text)
    said, what = marked(caught.value)
    assert message in said and what == underlined and caught.value.help.startswith(help)


def test_whom_a_rate_befalls() -> None:
    found = {
        "node": ["node0", "node1"],
        "replica": ["trainer/0", "trainer/1", "ps/0"],
        "trainer": ["trainer/0", "trainer/1"],
        "controller": ["controller"],
        "node1": ["node1"],
        "zone": ["zone=a", "zone=b"],
    }
    for subject, targets in found.items():
        assert entities(parse_rate(f"{subject}-kill=1/day"), job(), NODES) == targets


@pytest.mark.parametrize(
    ("text", "underlined", "message", "help"),
    [
        ("trianer-kill=1/day", "trianer", "there is no 'trianer'", "did you mean 'trainer'?"),
        ("trainer-kill=1/node-day", "node", "trainer-kill is a rate per replica, or per job", "write replica-day or"),
        ("trainer-kill=1/day/5s", "/5s", "kill of a replica has no duration", "leave it out"),
        ("controller-pause=1/day", "pause", "flowdist simulate cannot carry out 'pause' of controller yet", "it can:"),
        ("node-oom=1/day", "oom", "oom of a node means nothing here", "what a node can suffer"),
        (
            "trainer-lost=1/day",
            "lost",
            "lost of a replica means",
            "lost is a fault of nodes: write node-lost=...; what",
        ),
    ],
)
def test_what_a_job_cannot_have_is_refused(text: str, underlined: str, message: str, help: str) -> None:
    kinds = {"node": ("kill", "lost"), "replica": ("kill", "oom"), "controller": ("kill",)}

    def check(faults: list[object]) -> None:
        refuse_unsupported(faults, kinds, "flowdist simulate")  # type: ignore[arg-type]
        refuse_misplaced(faults, kinds, NODES)  # type: ignore[arg-type]

    with pytest.raises(FaultError) as caught:
        check_rates([parse_rate(text)], job(), NODES, check)
    said, what = marked(caught.value)
    assert message in said and what == underlined and caught.value.help.startswith(help)


@pytest.mark.parametrize("text", ["node-kill=1e9/node-second", "node-kill=2e3/job-second", "node-kill=1e12/day/1s"])
def test_more_than_a_fault_a_millisecond_is_a_slip_of_the_pen(text: str) -> None:
    with pytest.raises(FaultError) as caught:
        check_rates([parse_rate(text)], job(), NODES, lambda faults: None)
    said, what = marked(caught.value)
    assert "node-kill brings more than a fault a millisecond" in said and what == text[10:].partition("/")[0]
    check_rates([parse_rate("node-kill=900/job-second")], job(), NODES, lambda faults: None)


def test_two_rates_of_one_name_would_draw_the_same() -> None:
    rates = [parse_rate("node-kill=1/day"), parse_rate("node-kill=2/day")]
    with pytest.raises(FaultError, match="there are two rates of node-kill"):
        check_rates(rates, job(), NODES, lambda faults: None)


def test_rates_that_a_job_can_have_pass() -> None:
    check_rates([parse_rate("node-kill=1/day"), parse_rate("zone-lost=1/day")], job(), NODES, lambda faults: None)
    check_rates([parse_rate("node-kill=1/day")], job(), [], lambda faults: None)  # whom there is nobody of


def drawn(*texts: str, seed: int = 1, nodes: list[str] = NODES, until: int = 100 * DAY) -> list[str]:
    arrivals = Arrivals([parse_rate(text) for text in texts], job(), nodes, seed)
    return [fault.spec for fault in arrivals.until(until)]


def test_what_is_drawn_can_be_written_and_read_again() -> None:
    specs = drawn("node-kill=0.5/node-day/15m", "trainer-slow=0.1/day:4x/10m", "controller-kill=1/week")
    assert [parse_fault(spec).spec for spec in specs] == specs and len(specs) > 100
    times = [parse_fault(spec).when.at_ns for spec in specs]
    assert times == sorted(times)  # type: ignore[type-var]


def test_no_stream_moves_when_another_is_added() -> None:
    """Nor for a node more, nor for a rate more; another seed moves all."""
    alone = drawn("node-kill=0.5/node-day/15m")
    both = drawn("node-kill=0.5/node-day/15m", "zone-lost=0.1/day")
    assert [spec for spec in both if ":lost" not in spec] == alone and len(both) > len(alone)
    more = drawn("node-kill=0.5/node-day/15m", nodes=[*NODES, "node2"])
    assert [spec for spec in more if not spec.startswith("node2")] == alone
    assert drawn("node-kill=0.5/node-day/15m", seed=2) != alone


def test_twice_the_rate_is_the_same_draws_in_half_the_time() -> None:
    slow, fast = (Arrivals([parse_rate(f"node-kill={n}/node-day")], job(), NODES, 7) for n in (1, 2))
    assert (slow.next_ns() or 0) // 2 == pytest.approx(fast.next_ns(), abs=2_000_000)


def test_as_many_come_as_the_rate_says() -> None:
    assert len(drawn("node-kill=2/node-day", until=1000 * DAY)) == pytest.approx(4000, rel=0.05)
    assert len(drawn("node-kill=2/job-day", until=1000 * DAY)) == pytest.approx(2000, rel=0.07)


def test_no_rates_no_arrivals() -> None:
    assert Arrivals([], job(), NODES, 1).next_ns() is None
    assert drawn() == []


def test_a_draw_depends_on_its_names_alone() -> None:
    assert draw(1, "node0", "kill", 3) == draw(1, "node0", "kill", 3) != draw(1, "node0", "kill", 4)
    assert 0 <= draw(1, "a", "b") < 1


def test_what_is_expected_of_a_rate_is_said() -> None:
    assert (
        expected(parse_rate("node-kill=1/node-hour"), 4) == "node-kill=1/node-hour: 4 of them, together a fault in 15m"
    )
    assert expected(parse_rate("node-kill=1000/job-hour"), 4).endswith("together a fault in 3.6s")


FILE = """# two nodes at once
node1@3m/5m   # it comes back

  trainer@10m:scale=4
rate node-kill=6.5e-3/node-day/15m
"""


def test_a_file_has_one_fault_a_line(tmp_path: Path) -> None:
    (tmp_path / "bad.faults").write_text(FILE)
    plan = read_plan(tmp_path / "bad.faults")
    assert [fault.spec for fault in plan.faults] == ["node1@3m/5m", "trainer@10m:scale=4"]
    assert plan.rates[0].name == "node-kill" and plan.rates[0].where == f"{tmp_path}/bad.faults:5"
    assert plan.faults[1].where == f"{tmp_path}/bad.faults:4"


TOML = """faults = [
  "node1@3m/5m",
  "node1@3m/5m",
]
rates = ["node-kill=1/day"]
scale = ["trainer=4@60s"]
add = ["node5@90s"]
drain = ["node1@2m"]
"""


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('drain = ["node1@3m",\n"node77@3m"]', 2, "there is no node 'node77'"),
        ('\nadd = ["node0@3m"]', 2, "there is a 'node0' already"),
        ('scale = ["trainr=1@3m"]', 1, "there is no role 'trainr'"),
    ],
)
def test_orders_of_a_file_that_the_job_cannot_have_are_told_with_their_place(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(FaultError) as caught:
        check_plan(read_plan(tmp_path / "f.toml"), job())
    assert str(caught.value).startswith(f"{tmp_path}/f.toml:{line}: {message}")


def test_or_it_is_toml(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(TOML)
    plan = read_plan(tmp_path / "bad.toml")
    assert [fault.where.rpartition(":")[2] for fault in plan.faults] == ["2", "3"]
    assert (plan.scales[0].replicas, plan.adds[0].node, plan.drains[0].node) == (4, "node5", "node1")
    assert plan.rates[0].kind == "kill" and plan.new_nodes == ["node5"]


def refused(tmp_path: Path, name: str, text: str | bytes) -> FlowdistError:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FlowdistError) as caught:
        read_plan(tmp_path / name)
    return caught.value


def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    error = refused(tmp_path, "f", "node1@3m\n\nnode1@4m:kil\n")
    assert error.message == f"{tmp_path}/f:3: kind 'kil' is unknown\n  node1@4m:kil\n           ^^^"
    assert error.help == "did you mean 'kill'?"
    assert refused(tmp_path, "f", "rate node-kil=1/day").message.startswith(f"{tmp_path}/f:1: kind 'kil'")
    toml = refused(tmp_path, "f.toml", 'faults = ["node1@3m",\n"node2"]')
    assert toml.message.startswith(f"{tmp_path}/f.toml:2: there is no @WHEN")
    escaped = refused(tmp_path, "f.toml", 'faults = ["node1\\u0040soon"]')  # not found as it stands
    assert escaped.message.startswith(f"{tmp_path}/f.toml: 'soon' is no duration")


def test_so_is_what_the_job_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("node1@3m\nnoed1@3m\n")
    with pytest.raises(FaultError) as caught:
        check_plan(read_plan(tmp_path / "f"), job())
    assert caught.value.message.startswith(f"{tmp_path}/f:2: there is no 'noed1'")
    (tmp_path / "f").write_text("node1@3m:leave\n")
    kinds = {"node": ("kill",), "replica": ("kill",), "controller": ("kill",)}
    for check in (lambda faults: refuse_unsupported(faults, kinds, "run"), lambda f: refuse_misplaced(f, kinds, NODES)):
        with pytest.raises(FaultError, match=r"/f:1: "):
            check(read_plan(tmp_path / "f").faults)


def test_what_is_no_file_of_faults_is_refused(tmp_path: Path) -> None:
    assert "invalid start byte" in refused(tmp_path, "f", b"\xff").message
    assert refused(tmp_path, "f.toml", "faults = [").message.startswith(f"{tmp_path}/f.toml: ")
    unknown = refused(tmp_path, "f.toml", 'fautls = ["node1@3m"]')
    assert unknown.message.endswith("key 'fautls' is unknown") and unknown.help == "did you mean 'faults'?"
    assert refused(tmp_path, "f.toml", 'faults = "node1@3m"').message.endswith("faults is no list of texts")
    with pytest.raises(FlowdistError, match="No such file"):
        read_plan(tmp_path / "none")


def test_a_plan_is_read_from_what_the_options_say(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("node7@1s\n")
    plan = parse_plan(
        ["node1@3s"], ["trainer=2@4s"], ["node5@5s"], ["node2@6s"], ["node-kill=1/day"], [str(tmp_path / "f")]
    )
    assert [fault.spec for fault in plan.faults] == ["node7@1s", "node1@3s"]
    assert (plan.scales[0].replicas, plan.adds[0].node, plan.drains[0].node) == (2, "node5", "node2")
    assert plan.rates[0].per_ns == pytest.approx(1 / DAY) and parse_plan() == NOTHING


def test_a_plan_as_options_of_the_command_line_is_the_same_plan() -> None:
    given = (("node1@3m/5m",), ("trainer=2@60s",), ("node5@90s",), ("node2@1m30s",))
    plan = parse_plan(*given)
    options = plan.options
    assert options[:2] == [("--fail", "node1@3m/5m"), ("--scale", "trainer=2@1m")]
    flags = ("--fail", "--scale", "--add", "--drain")
    assert parse_plan(*([text for flag, text in options if flag == of] for of in flags)) == plan


def test_a_rate_per_hour_of_a_label() -> None:
    rate = parse_rate("zone-lost=1/zone-hour/5m")
    assert rate.per_ns == pytest.approx(1 / HOUR) and entities(rate, job(), NODES) == ["zone=a", "zone=b"]


def test_the_faults_of_a_scenario_have_their_places(tmp_path: Path) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        'title = "x"\nfaults = [\n  "node1@3m",\n]\nrates = ["node-kill=1/day"]\ndrain = ["node1@4m"]\n'
    )
    plan = plan_of_scenario(scenario)
    assert [fault.where for fault in plan.faults] == [f"{scenario}:3"] and plan.rates[0].where == f"{scenario}:5"
    assert [drain.node for drain in plan.drains] == ["node1"]
    scenario.write_text('faults = ["node1@3x"]\n')
    with pytest.raises(FaultError, match=r"s\.toml:1: '3x' is no duration"):
        plan_of_scenario(scenario)
