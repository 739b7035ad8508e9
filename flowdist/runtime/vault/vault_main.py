"""The start of a vault: its configuration, its memory and its identity."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys

import msgspec

from flowdist.control.protocol.ids import NodeName
from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes.reaper import die_with_parent
from flowdist.runtime.vault.limits import default_limit
from flowdist.runtime.vault.memory import Memory
from flowdist.runtime.vault.peers import Job
from flowdist.runtime.vault.vault import Vault
from flowdist.runtime.wire.addresses import BACKLOG, family_of
from flowdist.runtime.wire.handshake import TOKEN
from flowdist.runtime.wire.tls import EXTRA, can_encrypt, new_identity

WAIT_S = 2.0  # how long a shard waits for room: training stands still meanwhile


class VaultConfig(msgspec.Struct, frozen=True):
    """Configuration of a vault."""

    node: NodeName
    job: str
    run: str
    local: int  # descriptor of a listening Unix socket, which only this user may open
    parent: int  # the process with which it dies
    address: str = "127.0.0.1"  # where it listens for other vaults
    limit: int | None = None  # bytes; None: half of what is available
    wait_s: float = WAIT_S


def run_vault(config: VaultConfig, token: str) -> None:
    """Run the vault of a node until its process is killed. With a token, other vaults have to know it."""
    die_with_parent(config.parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # who cancels a job may signal all of its processes: workers may save yet
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each copy has a descriptor
    identity = new_identity() if token and can_encrypt() else None
    if token and identity is None:
        words = f"other nodes send snapshots to {config.node} unencrypted: pip install '{EXTRA}' there"
        print(f"flowdist: {words}", file=sys.stderr, flush=True)
    job = Job(config.job, config.run, token, config.node, identity)
    limit = default_limit() if config.limit is None else config.limit
    door = socket.create_server((config.address, 0), family=family_of(config.address), backlog=BACKLOG)
    asyncio.run(_serve(config, job, door, limit))


async def _serve(config: VaultConfig, job: Job, door: socket.socket, limit: int) -> None:
    local = socket.socket(fileno=config.local)
    local.set_inheritable(False)
    await Vault(job, door, Memory(limit, config.wait_s)).serve(local)


def main() -> None:
    """Run the vault process. Its argument is a VaultConfig as JSON; the token is in FLOWDIST_TOKEN."""
    try:
        run_vault(msgspec.json.decode(sys.argv[1], type=VaultConfig), os.environ.pop(TOKEN, ""))
    except Exception as error:
        die_of(error)


if __name__ == "__main__":
    main()
