"""The handshake between hosts, the names of their nodes, and refusals of hosts that do not belong to the job."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from pathlib import Path

import msgspec
import pytest

from flowdist.cli.run.hosts import show_protection
from flowdist.control.connection.objections import INCARNATION_MAX
from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import unnamed_nodes
from flowdist.errors import FlowdistError
from flowdist.graph import Cluster, NodeSpec, RoleGraph, RoleSpec
from flowdist.record.reader import BadLine
from flowdist.runtime.controller.host_registry import OWNERS, HostRegistry, node_name
from flowdist.runtime.controller.refusals import Refusals
from flowdist.runtime.wire.addresses import Endpoint, endpoint_of
from flowdist.runtime.wire.frames import JoinRequest, Welcome
from flowdist.runtime.wire.handshake import (
    Accepted,
    Answer,
    Challenge,
    ClientHandshake,
    ConnectionRejected,
    Credentials,
    Hello,
    Proof,
    Refused,
    ServerHandshake,
    is_guessable,
)


def greet(caller: ClientHandshake, server: ServerHandshake) -> Accepted | Refused:
    """Do a whole handshake and return its result."""
    challenge = server.challenge(caller.hello)
    if isinstance(challenge, Refused):
        return challenge
    answer = server.verify(caller.answer(challenge))
    if isinstance(answer, Accepted):
        caller.finish(answer)
    return answer


@pytest.mark.parametrize("run", ["", "run-1"])
@pytest.mark.parametrize(("token", "certificate"), [("", b""), ("hush", b""), ("hush", b"a certificate")])
def test_hosts_with_the_same_job_and_token_are_accepted(run: str, token: str, certificate: bytes) -> None:
    caller = ClientHandshake("job1", run, Credentials(token))
    assert isinstance(greet(caller, ServerHandshake("job1", "run-1", token, certificate)), Accepted)
    assert caller.certificate == certificate


def test_another_job_or_another_run_is_refused_by_name() -> None:
    refused = greet(ClientHandshake("job2", "", Credentials("")), ServerHandshake("job1", "run-1", ""))
    assert isinstance(refused, Refused) and "job 'job1'" in refused.reason and "job 'job2'" in refused.reason
    refused = greet(ClientHandshake("job1", "run-0", Credentials("")), ServerHandshake("job1", "run-1", ""))
    assert isinstance(refused, Refused) and "another run of job 'job1' has begun: run-1" in refused.reason


@pytest.mark.parametrize(("ours", "theirs"), [("hush", "other"), ("", "other"), ("hush", "")])
def test_each_side_detects_a_different_token(ours: str, theirs: str) -> None:
    caller = ClientHandshake("job1", "", Credentials(ours))
    server = ServerHandshake("job2", "run-1", theirs)
    challenge = server.challenge(caller.hello)
    with pytest.raises(ConnectionRejected, match="another token") as caught:
        caller.answer(challenge)
    assert ("not set here" in caught.value.help) == (not ours) and not caught.value.is_proven
    forged = Proof(b"x" * 32, "job1")
    assert server.verify(forged) == Refused(
        "this host has another token", "set FLOWDIST_TOKEN to the same value on every host"
    ), "without the token, nobody learns the name of the job"


def test_a_proof_is_valid_for_one_connection_and_one_side() -> None:
    caller = ClientHandshake("job1", "", Credentials("hush"))
    server = ServerHandshake("job1", "run-1", "hush")
    challenge = server.challenge(caller.hello)
    assert isinstance(challenge, Challenge)
    proof = caller.answer(challenge)
    again = ServerHandshake("job1", "run-1", "hush")
    again.challenge(caller.hello)
    assert isinstance(again.verify(proof), Refused), "a recorded proof does not open another call"
    forged = msgspec.structs.replace(proof, proof=challenge.proof)
    assert isinstance(server.verify(forged), Refused), "the controller's own proof is not the host's"
    for answer in (challenge, Accepted(proof.proof), Accepted(challenge.proof), Accepted(b"")):
        with pytest.raises(ConnectionRejected, match="does not know the token") as caught:
            caller.finish(answer)
        assert not caught.value.is_proven
    answer = server.verify(proof)
    caller.finish(answer)
    with pytest.raises(ConnectionRejected, match="does not know the token"):
        ClientHandshake("job1", "", Credentials("hush")).finish(answer)


@pytest.mark.parametrize("field", ["nonce", "proof", "certificate"])
def test_a_relay_can_change_nothing_of_a_challenge(field: str) -> None:
    caller = ClientHandshake("job1", "", Credentials("hush"))
    challenge = ServerHandshake("job1", "run-1", "hush", b"the certificate").challenge(caller.hello)
    for value in (b"", b"the relay's"):
        with pytest.raises(ConnectionRejected, match="another token"):
            caller.answer(msgspec.structs.replace(challenge, **{field: value}))
    assert caller.certificate == b""


@pytest.mark.parametrize("field", ["job", "run", "node", "secret"])
def test_a_relay_can_change_nothing_of_a_proof(field: str) -> None:
    caller = ClientHandshake("job1", "run-1", Credentials("hush", "gpu07", "secret"))
    server = ServerHandshake("job1", "run-1", "hush")
    proof = caller.answer(server.challenge(caller.hello))
    refused = server.verify(msgspec.structs.replace(proof, **{field: "gpu08"}))
    assert isinstance(refused, Refused) and refused.reason == "this host has another token"


def test_a_refusal_for_good_is_one_of_the_controller() -> None:
    def refusal(server: ServerHandshake, **changes: str) -> ConnectionRejected:
        caller = ClientHandshake("job1", "run-1", Credentials("hush", "gpu07", "secret"))
        refused = server.verify(caller.answer(server.challenge(caller.hello)))
        with pytest.raises(ConnectionRejected) as caught:
            caller.finish(msgspec.structs.replace(refused, **changes))
        return caught.value

    other_job, other_run = ServerHandshake("job2", "run-1", "hush"), ServerHandshake("job1", "run-2", "hush")
    assert refusal(other_job).is_proven and refusal(other_run).is_proven
    assert not refusal(other_job, proof=b"").is_proven and not refusal(other_job, reason="go away").is_proven
    server = ServerHandshake("job1", "run-1", "hush")  # a relay has put a message of its own before the proof
    caller = ClientHandshake("job1", "run-1", Credentials("hush", "gpu07", "secret"))
    caller.answer(server.challenge(caller.hello))
    for injected in (Hello(b""), Proof(b"", "job1")):
        refused = server.verify(injected)
        with pytest.raises(ConnectionRejected) as caught:
            caller.finish(refused)
        assert isinstance(refused, Refused) and not caught.value.is_proven


def test_messages_in_the_wrong_order_are_refused() -> None:
    server, proof = ServerHandshake("job1", "run-1", ""), Proof(b"", "job1")
    assert isinstance(server.challenge(proof), Refused) and isinstance(server.verify(proof), Refused)
    assert isinstance(server.verify(Hello(b"")), Refused)
    refused = server.challenge(Hello(b"", wire=99))
    assert isinstance(refused, Refused) and "this host version 99" in refused.reason
    for token in ("", "hush"):
        caller = ClientHandshake("job1", "", Credentials(token))
        with pytest.raises(ConnectionRejected):
            caller.answer(Accepted(b""))
        with pytest.raises(ConnectionRejected, match="full") as caught:
            caller.answer(Refused("full"))
        assert caught.value.is_proven == (not token), "with a token, only the controller can refuse a host for good"


def test_a_node_has_the_name_of_its_host_as_far_as_that_can_name_a_node() -> None:
    roles = {"trainer"}
    names = {"gpu07.cluster": "gpu07", "GPU_07": "gpu-07", "10-0-0-1": "host-10-0-0-1", "trainer": "trainer-host"}
    names |= {"all": "all-host", "": "host", "x" * 99: "x" * 50}
    assert {host: node_name(host, roles) for host in names} == names


def test_a_token_that_people_choose_is_guessable_and_a_random_one_is_not() -> None:
    chosen = ("4711", "hush", "0" * 64, "correct horse", "Tr0ub4dor&3", "2026-11-23", "my-cluster-token")
    assert [token for token in chosen if not is_guessable(token)] == []
    for turn in range(200):  # as `openssl rand -hex 16`, `head -c 32 /dev/urandom | base64` and uuidgen print them
        for each in (secrets.token_hex(16), secrets.token_urlsafe(32), secrets.token_urlsafe(16), str(uuid.uuid4())):
            assert not is_guessable(each), (turn, each)


def test_a_guessable_token_is_warned_of_where_other_machines_can_try_it(capfd: pytest.CaptureFixture[str]) -> None:
    def said(token: str, address: str) -> str:
        show_protection(token, Endpoint("host0", 29400), address)
        return capfd.readouterr().err

    assert "can be guessed" not in said(secrets.token_hex(16), "") + said("4711", "127.0.0.1")
    text = said("4711", "")
    assert "can be guessed by a machine that reaches any address of this machine, port 29400" in text
    assert "head -c 32 /dev/urandom | base64" in text and "4711" not in text


class Peer:
    """Stands for a connection from an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return self._address, 1


class Registry:
    """A controller's host registry, with objects in the place of connections."""

    def __init__(self, run_dir: Path) -> None:
        graph = RoleGraph("t", (RoleSpec("default", ("true",)),), cluster=Cluster((NodeSpec("gpu"),)))
        self.address = "10.0.0.1"
        self.known, self.refusals = ("gpu", *unnamed_nodes(2, 3)), Refusals()
        self.controller = Controller(graph, self.known)
        self.registry = HostRegistry(graph, "job1", "run-1", run_dir, "", self.known, self.refusals)

    def connect(self, secret: str, node: str = "") -> asyncio.StreamWriter:
        """Return a connection whose peer has proven that it knows the token, and names its node."""
        answer, writer = self.identify(secret, node)
        assert isinstance(answer, Accepted)
        return writer

    def identify(self, secret: str, node: str) -> tuple[Answer, asyncio.StreamWriter]:
        """Do the handshake, and return the answer and the connection."""
        writer: asyncio.StreamWriter = Peer(self.address)  # type: ignore[assignment]
        caller, server = (
            ClientHandshake("job1", "", Credentials("", node, secret)),
            ServerHandshake("job1", "run-1", ""),
        )
        return self.registry._identify(caller.answer(server.challenge(caller.hello)), server, writer), writer

    def arrive(self, host: str, secret: str, node: str = "") -> tuple[Welcome | Refused, asyncio.StreamWriter]:
        writer = self.connect(secret, node)
        return self.registry.welcome(JoinRequest(host), self.controller.state, writer, 0), writer

    def join(self, welcome: Welcome | Refused) -> None:
        assert isinstance(welcome, Welcome)
        joined = ev.NodeJoined(welcome.node, NodeSpec(welcome.node), incarnation=welcome.incarnation)
        self.controller.handle(joined, self.controller.state.now)


@pytest.fixture
def hosts(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


def test_hosts_with_the_same_name_get_different_node_names(hosts: Registry) -> None:
    (one, _), (two, _) = hosts.arrive("gpu", "a"), hosts.arrive("gpu", "b")
    assert isinstance(one, Welcome) and isinstance(two, Welcome)
    assert (one.node, two.node) == ("gpu-2", "gpu-3"), "the controller's own host has the plain name"


def test_no_two_nodes_of_a_job_get_one_number(hosts: Registry) -> None:
    numbers = []
    for step in range(20):
        welcome, writer = hosts.arrive(f"host{step % 7}", f"secret {step}")
        assert isinstance(welcome, Welcome)
        numbers.append(welcome.number)
        if step % 2:
            hosts.join(welcome)
        if step % 3 and step % 2:
            hosts.registry.disconnected(writer)  # the next one of its name gets another: it counts as up
    assert len(set(numbers)) == 20 and min(numbers) >= len(hosts.known)


def test_the_name_of_a_host_that_left_is_reused_with_the_next_incarnation(hosts: Registry) -> None:
    one, writer = hosts.arrive("a", "1")
    hosts.join(one)
    hosts.registry.disconnected(writer)
    two, _ = hosts.arrive("a", "2")
    assert isinstance(two, Welcome) and two.node == "a-2", "it still counts as up"
    hosts.controller.handle(ev.NodeLeft("a"), 0)
    three, _ = hosts.arrive("a", "3")
    assert isinstance(three, Welcome) and (three.node, three.incarnation) == ("a", 1001)


def test_the_name_of_a_host_that_is_out_of_reach_is_not_given_to_another_one(hosts: Registry, tmp_path: Path) -> None:
    """The second host got the node of the first, which was then refused for good."""
    one, writer = hosts.arrive("a.east", "1")
    hosts.join(one)
    hosts.registry.disconnected(writer)
    hosts.controller.handle(ev.NodeSilent("a"), 0)
    for registry in (hosts, Registry(tmp_path)):  # the next controller does not know of the node at first
        registry.address = "10.0.0.2"
        two, other = registry.arrive("a.west", "2")
        assert isinstance(two, Welcome) and two.node == "a-2"
        registry.registry.disconnected(other)
        registry.address = "10.0.0.1"
        again, writer = registry.arrive("a.east", "1", "a")
        assert isinstance(again, Welcome) and again.node == "a"
        registry.registry.disconnected(writer)


def test_a_host_cannot_use_up_the_incarnations_of_its_name(hosts: Registry) -> None:
    one, writer = hosts.arrive("a", "1")
    assert isinstance(one, Welcome)
    hosts.controller.handle(ev.NodeJoined("a", NodeSpec("a"), incarnation=INCARNATION_MAX), 0)
    hosts.controller.handle(ev.NodeLeft("a"), 0)
    hosts.registry.disconnected(writer)
    two, _ = hosts.arrive("a", "2")
    assert isinstance(two, Welcome) and (two.node, two.incarnation) == ("a-2", 1)


def test_a_node_belongs_to_the_host_that_shows_its_secret_also_at_the_next_controller(
    hosts: Registry, tmp_path: Path
) -> None:
    _, writer = hosts.arrive("a", "1")
    assert hosts.registry.node_of(writer) == "a"
    hosts.registry.disconnected(writer)
    assert hosts.registry.node_of(writer) == ""
    for registry in (hosts, Registry(tmp_path)):
        again, _ = registry.arrive("", "1", "a")
        assert isinstance(again, Welcome) and again.node == "a"
        for secret, node in (("2", "a"), ("", "a"), ("1", "gpu"), ("", "host 2 of 3"), ("", "nosuch")):
            refused, stranger = registry.identify(secret, node)
            assert isinstance(refused, Refused) and "a node of another host" in refused.reason
            assert registry.registry.node_of(stranger) == ""
    assert "secret" not in (tmp_path / OWNERS).read_text()


def test_a_crash_in_the_middle_of_an_owners_line_costs_that_line_alone(hosts: Registry, tmp_path: Path) -> None:
    numbers = [hosts.arrive(name, name)[0] for name in ("a", "b")]
    path = tmp_path / OWNERS
    path.write_bytes(path.read_bytes()[:-3])
    after = Registry(tmp_path)
    again, _ = after.arrive("", "a", "a")
    assert isinstance(again, Welcome) and isinstance(numbers[0], Welcome) and again.number == numbers[0].number
    new, _ = after.arrive("c", "c")
    assert isinstance(new, Welcome) and isinstance(numbers[1], Welcome) and new.number == numbers[1].number
    assert len(path.read_bytes().splitlines()) == 2
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(BadLine, match=f"{OWNERS}:1: the line is damaged"):
        Registry(tmp_path)


def test_a_connection_of_a_former_host_does_not_speak_for_the_new_host_of_its_name(hosts: Registry) -> None:
    one, foreground = hosts.arrive("a", "1")
    agent = hosts.connect("1", "a")
    hosts.join(one)
    hosts.controller.handle(ev.NodeLeft("a"), 0)
    hosts.registry.disconnected(foreground)
    assert hosts.registry.node_of(agent) == "a", "its agent may still say something"
    two, other = hosts.arrive("a", "2")
    assert isinstance(two, Welcome) and two.node == "a" and hosts.registry.node_of(other) == "a"
    assert hosts.registry.node_of(agent) == "" and hosts.registry.source_of(agent) == "a host from 10.0.0.1"
    again = hosts.registry.welcome(JoinRequest("a"), hosts.controller.state, agent, 0)
    assert isinstance(again, Welcome) and again.node == "a-2" and hosts.registry.node_of(agent) == "a-2"
    hosts.registry.disconnected(agent)
    assert hosts.registry.connection_of("a") is other


def test_a_connection_joins_once(hosts: Registry) -> None:
    one, writer = hosts.arrive("a", "1")
    assert isinstance(one, Welcome)
    again = hosts.registry.welcome(JoinRequest("b"), hosts.controller.state, writer, 0)
    assert isinstance(again, Welcome) and (again.node, again.number) == (one.node, one.number)


def test_a_job_gives_a_bounded_number_of_names(hosts: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowdist.runtime.controller.host_registry.HOSTS_MAX", 2)
    for secret in "12":
        assert isinstance(hosts.arrive("a", secret)[0], Welcome)
    refused, _ = hosts.arrive("a", "3")
    assert isinstance(refused, Refused) and "has had 2 hosts" in refused.reason and not refused.retry


def test_an_address_brings_a_bounded_number_of_names_and_others_still_find_room(
    hosts: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowdist.runtime.controller.host_registry.NAMES_MAX", 2)
    for name in "ab":
        assert isinstance(hosts.arrive(name, name)[0], Welcome)
    refused, _ = hosts.arrive("c", "c")
    assert isinstance(refused, Refused) and refused.reason == "job 'job1' has had 2 hosts from 10.0.0.1"
    hosts.address = "10.0.0.2"
    assert isinstance(hosts.arrive("c", "c")[0], Welcome)


def test_no_host_may_join_a_job_that_is_ending(hosts: Registry) -> None:
    hosts.controller.handle(ev.CancelRequested("enough"), 0)
    refused, _ = hosts.arrive("a", "1")
    assert isinstance(refused, Refused) and refused.retry, "the next run may be another matter"


def test_endpoints_are_parsed_in_every_usual_form() -> None:
    for text, host, port in (
        ("host0:1234", "host0", 1234),
        ("host0", "host0", 29400),
        ("[::1]:5", "::1", 5),
        ("[2001:db8::1]", "2001:db8::1", 29400),
        ("2001:db8::1", "2001:db8::1", 29400),
        ("10.0.0.1:80", "10.0.0.1", 80),
    ):
        assert endpoint_of(text, 29400) == Endpoint(host, port)
    assert str(Endpoint("::1", 5)) == "[::1]:5" and str(Endpoint("a", 5)) == "a:5"
    for text in ("", ":29400", "host0:port", "host0:99999", "a b:1", "a:1:2", "a..b:1", f"{'x' * 70}:1"):
        with pytest.raises(FlowdistError, match="is no HOST:PORT"):
            endpoint_of(text, 29400)
