"""The handshake between hosts: both sides have the same job, protocol version and token before any other message.

The client sends `Hello`, the server answers `Challenge`, the client sends `Proof`, the server answers `Accepted`; the
server may answer `Refused` instead. Each side proves that it knows the token without sending it: a proof is an HMAC
over the names of the job and the run and a fresh nonce of either side. Where neither side has a token, proofs have to
match as well, but prove nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal, NamedTuple

import msgspec

from flowdist.control.protocol.ids import NodeName
from flowdist.errors import FlowdistError

TOKEN, HOST_SECRET = "FLOWDIST_TOKEN", "FLOWDIST_HOST_SECRET"  # environment variables
WIRE = 4  # the version of the protocol: increment it with every change of a message
FRAME_MAX = 64 << 10  # bytes, for frames of a peer that has not proven that it knows the token
HANDSHAKE_S = 10.0  # how long the whole handshake may take


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First message of a client: the job that it asks for."""

    job: str
    run: str  # the id of the run; empty: a host that is new to the job
    nonce: bytes  # random, new for each handshake
    wire: int = WIRE


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """Answer of the server to `Hello`: a nonce of its own, and its proof that it knows the token."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, tag=True):
    """Second message of a client: its proof, and the node that it speaks for; empty for a host that has none yet.

    `secret` is the host's own, which it has chosen. The controller gives a node to the host that shows its secret.
    """

    proof: bytes
    node: NodeName = ""
    secret: str = ""


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """End of a successful handshake: frames of the control channel may follow."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Refusal of a connection or of a `JoinRequest`."""

    reason: str
    help: str = ""  # what the user can do
    retry: bool = False  # True: a later attempt may succeed


Answer = Challenge | Accepted | Refused
FROM_CLIENT = msgspec.msgpack.Decoder(Hello | Proof)
FROM_SERVER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Credentials(NamedTuple):
    """The proof of identity that a host shows the controller on every connection.

    Attributes:
        token: The secret of the job, which all hosts know; empty: none.
        node: The node that the connection speaks for; empty: none yet.
        secret: The secret of this host, which no other host knows.
    """

    token: str = ""
    node: NodeName = ""
    secret: str = ""


class ConnectionRejected(FlowdistError):
    """The other side has refused this host. If `retry` is true, a later attempt may succeed."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason, help=refused.help)
        self.retry = refused.retry


class ClientHandshake:
    """The connecting side of one handshake. The caller sends `hello`, and then what `answer` returns.

    Args:
        job: The job to ask for.
        run: The id of its run; empty: any run.
        credentials: What this host shows the controller.
    """

    def __init__(self, job: str, run: str, credentials: Credentials) -> None:
        self.hello = Hello(job, run, secrets.token_bytes(16))
        self._credentials, self._token = credentials, credentials.token

    def answer(self, answer: Answer) -> Proof:
        """Return the proof to send, after checking that the server's answer to `hello` is a valid challenge.

        Raises:
            ConnectionRejected: The server refuses this host, or its challenge does not prove that it knows the token.
        """
        if isinstance(answer, Refused):
            raise ConnectionRejected(answer)
        if not isinstance(answer, Challenge) or not self._is_proven_by(answer):
            here = "set here" if self._token else "not set here"
            help = f"set {TOKEN} to the same value on every host, or on none (it is {here})"
            raise ConnectionRejected(Refused("the host that runs the controller has another token", help))
        node, secret = self._credentials.node, self._credentials.secret
        return Proof(_proof(self._token, "host", self.hello, answer.nonce), node, secret)

    def _is_proven_by(self, challenge: Challenge) -> bool:
        expected = _proof(self._token, "controller", self.hello, challenge.nonce)
        return hmac.compare_digest(expected, challenge.proof)


class ServerHandshake:
    """The listening side of one handshake. It passes the client's first message to `challenge`, the second to `verify`.

    Args:
        job: The name of the job here.
        run: The id of its run.
        token: The secret of both sides; empty: none.
    """

    def __init__(self, job: str, run: str, token: str) -> None:
        self._job, self._run, self._token = job, run, token
        self._hello: Hello | None = None
        self._nonce = secrets.token_bytes(16)

    def challenge(self, hello: Hello | Proof) -> Challenge | Refused:
        """Return the answer to a client's first message: a refusal if protocol version, job or run differ."""
        if not isinstance(hello, Hello):
            return Refused("the first message of a handshake has to be Hello")
        if hello.wire != WIRE:
            message = f"the controller speaks version {WIRE} of the protocol, this host version {hello.wire}"
            return Refused(message, "install the same flowdist on every host")
        if hello.job != self._job:
            message = f"the controller runs job {self._job!r}, and this host asked for job {hello.job!r}"
            return Refused(message, "give every host the same id, and every job a port of its own")
        if hello.run not in ("", self._run):
            return Refused(f"another run of job {self._job!r} has begun: {self._run}")
        self._hello = hello
        return Challenge(self._nonce, _proof(self._token, "controller", hello, self._nonce))

    def verify(self, proof: Hello | Proof) -> Accepted | Refused:
        """Return the answer to a client's second message: a refusal if it does not prove that it knows the token."""
        if not isinstance(proof, Proof) or self._hello is None:
            return Refused("the second message of a handshake has to be Proof")
        if not hmac.compare_digest(_proof(self._token, "host", self._hello, self._nonce), proof.proof):
            return Refused("this host has another token", f"set {TOKEN} to the same value on every host")
        return Accepted()


def _proof(token: str, side: Literal["controller", "host"], hello: Hello, nonce: bytes) -> bytes:
    """Return the proof that one side sends: an HMAC-SHA-256, keyed with the token.

    Each part of its content follows the part's length, so that no two lists of parts give the same content.

    Args:
        token: The secret; empty: none.
        side: The side that sends the proof, so that no side can send back the proof of the other.
        hello: The first message of the client.
        nonce: The nonce of the server.
    """
    parts = (side.encode(), hello.job.encode(), hello.run.encode(), hello.nonce, nonce)
    content = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(b"flowdist" + token.encode(), content, hashlib.sha256).digest()
