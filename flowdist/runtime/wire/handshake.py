"""The first words on a connection between hosts: the same job, the same version, the same token.

Each side proves that it knows the token without saying it: an HMAC over the names of the job and the run and a fresh
number of either side. Without a token on both sides the proofs still have to fit, but prove nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal

import msgspec

from flowdist.errors import FlowdistError

TOKEN = "FLOWDIST_TOKEN"  # the variable
WIRE = 2  # grows with every change of a message
FRAME_MAX = 64 << 10  # of somebody who has not proven anything yet
PATIENCE_S = 10.0


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Of who calls. `run` is empty for a host that is new to the job."""

    job: str
    run: str
    nonce: bytes
    wire: int = WIRE


class Challenge(msgspec.Struct, frozen=True, tag=True):
    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, tag=True):
    proof: bytes


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """Now frames of any kind may come."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Why not, and whether it may be another matter in a moment."""

    reason: str
    help: str = ""
    again: bool = False


Answer = Challenge | Accepted | Refused
CALLED = msgspec.msgpack.Decoder(Hello | Proof)
CALLING = msgspec.msgpack.Decoder(Answer)
_ENCODER = msgspec.msgpack.Encoder()


class TurnedAway(FlowdistError):
    """The other side does not want us; with `again` it may in a moment."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason, help=refused.help)
        self.again = refused.again


class ClientHandshake:
    """The side that dials."""

    def __init__(self, job: str, run: str, token: str) -> None:
        self.hello = Hello(job, run, secrets.token_bytes(16))
        self._token = token

    def answer(self, heard: Answer) -> Proof:
        """TurnedAway when the other side refuses, or does not know the token."""
        if isinstance(heard, Refused):
            raise TurnedAway(heard)
        expected = _proof(self._token, "controller", self.hello, heard.nonce) if isinstance(heard, Challenge) else b""
        if not isinstance(heard, Challenge) or not hmac.compare_digest(expected, heard.proof):
            here = "set here" if self._token else "not set here"
            help = f"set {TOKEN} to the same on every host, or on none (it is {here})"
            raise TurnedAway(Refused("the host that runs the controller has another token", help))
        return Proof(_proof(self._token, "host", self.hello, heard.nonce))


class ServerHandshake:
    """The side that is called, for one call."""

    def __init__(self, job: str, run: str, token: str) -> None:
        self._job, self._run, self._token = job, run, token
        self._hello: Hello | None = None
        self._nonce = secrets.token_bytes(16)

    def challenge(self, hello: Hello | Proof) -> Challenge | Refused:
        if not isinstance(hello, Hello):
            return Refused("that is no greeting")
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

    def judge(self, proof: Hello | Proof) -> Accepted | Refused:
        if not isinstance(proof, Proof) or self._hello is None:
            return Refused("that is no proof")
        if not hmac.compare_digest(_proof(self._token, "host", self._hello, self._nonce), proof.proof):
            return Refused("another token", f"set {TOKEN} to the same on every host")
        return Accepted()


def encode(message: msgspec.Struct) -> bytes:
    """One frame: 4 bytes of length, then msgpack."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(4, "big") + body


def _proof(token: str, side: Literal["controller", "host"], hello: Hello, nonce: bytes) -> bytes:
    """Each part has its length before it, so that no two sets of parts make the same bytes."""
    parts = (side.encode(), hello.job.encode(), hello.run.encode(), hello.nonce, nonce)
    content = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(b"flowdist" + token.encode(), content, hashlib.sha256).digest()
