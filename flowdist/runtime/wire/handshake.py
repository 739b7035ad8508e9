"""The handshake between hosts: both have the same job, protocol version and token before any other message.

`Hello`, `Challenge`, TLS if there is a certificate, `Proof`, `Accepted` (or `Refused`). A proof is an HMAC, keyed with
the token, over all that was said, with a fresh nonce of either side. The server's first proof vouches for its
certificate, or for having none, so that no relay can replace it. Names are sent after it alone. The first message
inside TLS is a proof too: bytes that a relay put before it are no message. Without tokens, nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections import Counter
from typing import Literal, NamedTuple

import msgspec

from flowdist.control.protocol.ids import NodeName
from flowdist.errors import FlowdistError

TOKEN, HOST_SECRET = "FLOWDIST_TOKEN", "FLOWDIST_HOST_SECRET"  # environment variables
WIRE = 1  # the version of the protocol: increment it with every change of a message
FRAME_MAX = 64 << 10  # bytes, for frames of a peer that has not proven that it knows the token
HANDSHAKE_S = 10.0  # how long the whole handshake may take
GUESSED_BITS = 64  # who records the beginning of a connection can try all tokens with fewer


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First message of a client."""

    nonce: bytes  # random, new for each handshake
    wire: int = WIRE


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """Answer of the server to `Hello`, with its proof; if there is a `certificate` (DER), what follows is encrypted."""

    nonce: bytes
    proof: bytes
    certificate: bytes = b""


class Proof(msgspec.Struct, frozen=True, tag=True):
    """Second message of a client: its proof, the job that it asks for, and the node that it speaks for.

    A host that is new to the job has no `run` and no `node`. `secret` is what it has chosen: the controller gives a
    node to the host that shows its secret.
    """

    proof: bytes
    job: str
    run: str = ""
    node: NodeName = ""
    secret: str = ""


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """End of a successful handshake: frames of the control channel may follow."""

    proof: bytes


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Refusal of a connection or `JoinRequest`; the server's `proof` if a client with the token is refused for good."""

    reason: str
    help: str = ""  # what the user can do
    retry: bool = False  # True: a later attempt may succeed
    proof: bytes = b""


Side = Literal["controller", "host", "accepted", "refused"]
Answer = Challenge | Accepted | Refused
FROM_CLIENT = msgspec.msgpack.Decoder(Hello | Proof)
FROM_SERVER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Credentials(NamedTuple):
    """The proof of identity on every connection: the token of the job, and this host's own secret.

    An empty token means that the job has none; an empty node, that the host speaks for none yet.
    """

    token: str = ""
    node: NodeName = ""
    secret: str = ""


class ConnectionRejected(FlowdistError):
    """The other side has refused this host, or this host the other side.

    `retry`: a later attempt may succeed. `is_proven`: the refusal is the controller's own, or there is no token.
    """

    def __init__(self, refused: Refused, *, is_proven: bool = False) -> None:
        super().__init__(refused.reason, help=refused.help)
        self.retry, self.is_proven = refused.retry, is_proven


class ClientHandshake:
    """The connecting side of one handshake.

    Send `hello`, pass the answer to `answer`, begin TLS if there is a `certificate`, send the proof that `answer` has
    returned, and pass the answer to that to `finish`. An empty `run` is any run.
    """

    def __init__(self, job: str, run: str, credentials: Credentials) -> None:
        self.hello = Hello(secrets.token_bytes(16))
        self.certificate = b""  # of the server, after `answer`; empty: the connection is not encrypted
        self._job, self._run, self._credentials = job, run, credentials
        self._said: tuple[bytes, ...] = ()  # by either side, up to the proof of this one

    def answer(self, answer: Answer) -> Proof:
        """Return the proof to send; ConnectionRejected if the server refuses this host, or does not know the token."""
        token = self._credentials.token
        if isinstance(answer, Refused):
            raise ConnectionRejected(answer, is_proven=not token)
        if not isinstance(answer, Challenge) or not _is_proof(
            answer.proof, token, "controller", _opening(self.hello, answer)
        ):
            here = "set here" if token else "not set here"
            help = f"set {TOKEN} to the same value on every host, or on none (it is {here})"
            raise ConnectionRejected(Refused("the host that runs the controller has another token", help))
        self.certificate = answer.certificate
        unproven = Proof(b"", self._job, self._run, self._credentials.node, self._credentials.secret)
        self._said = _claims(_opening(self.hello, answer), unproven)
        return msgspec.structs.replace(unproven, proof=_proof(token, "host", self._said))

    def finish(self, answer: Answer) -> None:
        """Check the server's answer to the proof; ConnectionRejected if it is a refusal, or not the server's."""
        token = self._credentials.token
        if isinstance(answer, Refused):
            is_proof = _is_proof(answer.proof, token, "refused", (*self._said, answer.reason.encode()))
            raise ConnectionRejected(answer, is_proven=is_proof or not token)
        if not isinstance(answer, Accepted) or not _is_proof(answer.proof, token, "accepted", self._said):
            raise ConnectionRejected(Refused("what answers in the place of the controller does not know the token"))


class ServerHandshake:
    """The listening side of one handshake.

    Pass the client's first message to `challenge`, send the answer, begin TLS if it has a certificate (DER), and pass
    the second message to `verify`.
    """

    def __init__(self, job: str, run: str, token: str, certificate: bytes = b"") -> None:
        self._job, self._run, self._token, self._certificate = job, run, token, certificate
        self._opening: tuple[bytes, ...] | None = None
        self._said: tuple[bytes, ...] = ()  # by either side, up to the proof of the client

    def challenge(self, hello: Hello | Proof) -> Challenge | Refused:
        """Return the answer to a client's first message: a refusal if the protocol version differs."""
        if not isinstance(hello, Hello):
            return Refused("the first message of a handshake has to be Hello")
        if hello.wire != WIRE:
            message = f"the controller speaks version {WIRE} of the protocol, this host version {hello.wire}"
            return Refused(message, "install the same flowdist on every host")
        unproven = Challenge(secrets.token_bytes(16), b"", self._certificate)
        self._opening = _opening(hello, unproven)
        return msgspec.structs.replace(unproven, proof=_proof(self._token, "controller", self._opening))

    def verify(self, proof: Hello | Proof) -> Accepted | Refused:
        """Return the answer to a client's second message: a refusal if token, job or run differ."""
        if not isinstance(proof, Proof) or self._opening is None:
            return Refused("the second message of a handshake has to be Proof")
        self._said = _claims(self._opening, proof)
        if not _is_proof(proof.proof, self._token, "host", self._said):
            return Refused("this host has another token", f"set {TOKEN} to the same value on every host")
        if proof.job != self._job:
            message = f"the controller runs job {self._job!r}, and this host asked for job {proof.job!r}"
            return self.refuse(message, "give every host the same id, and every job a port of its own")
        if proof.run not in ("", self._run):
            return self.refuse(f"another run of job {self._job!r} has begun: {self._run}")
        return Accepted(_proof(self._token, "accepted", self._said))

    def refuse(self, reason: str, help: str = "") -> Refused:
        """Return the refusal of a client whose proof was right, with the proof that it comes from this side."""
        proof = _proof(self._token, "refused", (*self._said, reason.encode()))
        return Refused(reason, help, proof=proof)


def _opening(hello: Hello, challenge: Challenge) -> tuple[bytes, ...]:
    return hello.nonce, challenge.nonce, challenge.certificate


def _claims(opening: tuple[bytes, ...], proof: Proof) -> tuple[bytes, ...]:
    return *opening, proof.job.encode(), proof.run.encode(), proof.node.encode(), proof.secret.encode()


def _is_proof(proof: bytes, token: str, side: Side, said: tuple[bytes, ...]) -> bool:
    return hmac.compare_digest(_proof(token, side, said), proof)


def _proof(token: str, side: Side, said: tuple[bytes, ...]) -> bytes:
    """Return the proof that one side sends: an HMAC-SHA-256, keyed with the token.

    It names its side, so that neither can send back the proof of the other. Each part of its content follows the part's
    length, so that no two lists of parts give the same content.
    """
    content = b"".join(len(part).to_bytes(4, "big") + part for part in (side.encode(), *said))
    return hmac.new(b"flowdist" + token.encode(), content, hashlib.sha256).digest()


def is_guessable(token: str) -> bool:
    """Return whether a token is too short, or repeats itself too much, to be a random one of GUESSED_BITS.

    A token of n characters counts n times the entropy of its characters' frequencies, which is below that of a random
    token: 16 different characters just pass, words and numbers that people choose do not. Long phrases do.
    """
    shares = [count / len(token) for count in Counter(token).values()]
    return -sum(share * math.log2(share) for share in shares) * len(token) < GUESSED_BITS
