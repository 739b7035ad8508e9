"""TLS between hosts: whose certificate is accepted, what happens without one, and what the user reads."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from flowdist.cli.run.hosts import show_protection
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.runtime.controller.channel import listen
from flowdist.runtime.controller.host_registry import HostRegistry
from flowdist.runtime.controller.limits import READ_AHEAD
from flowdist.runtime.controller.refusals import Refusals
from flowdist.runtime.wire.addresses import Endpoint, open_doors
from flowdist.runtime.wire.dialing import dial, is_encrypted
from flowdist.runtime.wire.endpoint import ControllerEndpoint
from flowdist.runtime.wire.handshake import ConnectionRejected, Credentials
from flowdist.runtime.wire.tls import Identity, can_encrypt, client_context, new_identity

GRAPH = RoleGraph("t", (RoleSpec("default", ("true",)),))


async def connect(folder: Path, token: str, tls: Identity | None) -> bool:
    """Connect a host with the token `hush` to a controller, and return whether the connection is encrypted."""
    registry = HostRegistry(GRAPH, "job1", "run-1", folder, token, (), Refusals(), tls)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the test ends during a handshake
            await registry.admit(reader, writer)
            await reader.read()
        writer.close()

    async with await listen(serve, READ_AHEAD, open_doors(["127.0.0.1"], 0)[0]) as server:
        host, port = server.sockets[0].getsockname()
        _, writer = await dial(ControllerEndpoint(host, port, "job1"), Credentials("hush"))
        writer.close()
        return is_encrypted(writer)


def test_a_connection_is_encrypted_if_the_controller_has_a_certificate(tmp_path: Path) -> None:
    assert asyncio.run(connect(tmp_path, "hush", new_identity()))
    assert not asyncio.run(connect(tmp_path, "hush", None))


def test_the_key_has_to_be_the_one_of_the_certificate(tmp_path: Path) -> None:
    """A relay that knows the certificate has no use for it."""
    ours, theirs = new_identity(), new_identity()
    assert ours.certificate != theirs.certificate
    with pytest.raises(OSError, match=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(connect(tmp_path, "hush", Identity(ours.certificate, theirs.context)))


def test_what_is_no_certificate_is_an_error_of_the_connection() -> None:
    with pytest.raises(OSError):
        client_context(b"no certificate")


def test_another_token_is_refused_before_encryption_begins(tmp_path: Path) -> None:
    with pytest.raises(ConnectionRejected, match="another token"):
        asyncio.run(connect(tmp_path, "other", new_identity()))


@pytest.mark.parametrize(
    ("token", "address", "has_package", "text"),
    [
        ("hush", "", True, "flowdist's connections to other hosts are encrypted (TLS)"),
        ("hush", "127.0.0.1", True, "flowdist's connections to other hosts are encrypted (TLS)"),
        ("hush", "", False, "are not encrypted: pip install 'flowdist[tls]' on this host"),
        ("", "", True, "every machine that reaches any address of this machine, port 29400, may join"),
        ("", "127.0.0.1", True, ""),
    ],
)
def test_the_host_with_the_controller_says_how_connections_are_protected(
    token: str,
    address: str,
    has_package: bool,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert can_encrypt()
    monkeypatch.setattr("flowdist.cli.run.hosts.can_encrypt", lambda: has_package)
    show_protection(token, Endpoint("host0", 29400), address)
    said = capsys.readouterr().err
    assert text in said and bool(said) == bool(text)
