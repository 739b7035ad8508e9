"""Vaults hold shards in memory, one copy on their own node and one at each buddy, and return none that is damaged."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from flowdist.runtime.vault.memory import digest
from flowdist.runtime.vault.messages import Answer, Broken, Get, Held, Put, Release, Shard, about, line
from flowdist.worker.snapshots.vault_link import NoCopy, Snapshot, getting, putting
from tests.runtime.vault.vaults import MIB, WAIT_S, Relay, VaultProcess, as_worker, some_bytes

pytestmark = pytest.mark.real


def test_a_shard_is_held_on_its_node_and_at_its_buddy_and_comes_back_from_either(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b, VaultProcess(tmp_path, "c") as c:
        a.gives_to(("a", a.address), ("b", b.address))  # it sends nothing to itself
        shard = a.put(some_bytes(1))
        assert isinstance(b.hear(), Held)
        assert a.get(shard) == b.get(shard) == c.get(shard, ("a", a.address)) == some_bytes(1)
        a.kill()
        assert c.get(shard) == some_bytes(1)  # it has kept what it has fetched
        with VaultProcess(tmp_path, "d") as d:
            assert d.get(shard, ("a", a.address), ("b", b.address)) == some_bytes(1)


def test_an_agent_that_attaches_again_learns_of_each_copy(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b:
        a.gives_to(("b", b.address))
        a.put(some_bytes(1))
        first = b.hear()
        for vault in (a, b):
            port = vault.port
            vault.connect_again()
            assert (vault.port, vault.hear()) == (port, first)


def test_a_new_buddy_gets_what_is_held_already(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b:
        shards = [a.put(some_bytes(step), step) for step in (1, 2)]
        a.gives_to(("b", b.address))
        assert [b.hear().step, b.hear().step] == [1, 2]
        assert [b.get(shard) for shard in shards] == [some_bytes(1), some_bytes(2)]


DYING = """
import os, sys
from flowdist.worker.snapshots.vault_link import putting
with putting(1, 100 << 20) as memory:
    memory[: 50 << 20] = bytes(50 << 20)
    print("half", flush=True)
    sys.stdin.read()
"""


def test_a_worker_that_dies_in_the_middle_of_a_put_leaves_nothing(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a", limit=100 * MIB, wait_s=WAIT_S) as a:
        with (
            as_worker(a),
            subprocess.Popen(
                [sys.executable, "-P", "-c", DYING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as worker,
        ):
            assert worker.stdout is not None and worker.stdout.readline() == b"half\n"
            files = a.files()
            worker.kill()
        with pytest.raises(NoCopy, match="nobody has a good copy of trainer step 1 of generation 1, rank 0 of 4"):
            a.get(Shard("trainer", 1, 1, 0, 4))
        a.put(bytes(100 * MIB), step=2)  # there is room for it as soon as the vault has noticed
        assert len(files) == len(a.files()) == 1
        assert not files & a.files()  # a process that the worker has forked may have the old memory still


def test_a_buddy_that_is_killed_in_the_middle_of_a_copy_keeps_nobody_waiting(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b, VaultProcess(tmp_path, "c") as c:
        with Relay(b.port, 8 * MIB, b.kill) as relay:
            a.gives_to(("b", relay.address))
            shard = a.put(some_bytes(1, 16 * MIB))
            b.process.wait(WAIT_S)
        later = a.put(some_bytes(2), step=2)
        a.gives_to(("c", c.address))
        assert [c.hear().step, c.hear().step] == [1, 2]
        assert c.get(shard) == some_bytes(1, 16 * MIB)
        assert c.get(later) == some_bytes(2)


def test_a_buddy_that_stands_still_does_not_keep_workers_waiting(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b:
        a.gives_to(("b", b.address))
        with b.standing_still():
            for step in range(1, 6):
                a.put(some_bytes(step, MIB), step)
        assert [b.hear().step for _ in range(5)] == [1, 2, 3, 4, 5]


def test_each_flipped_bit_is_seen(tmp_path: Path) -> None:
    drawn = random.Random(7)
    with VaultProcess(tmp_path, "a") as a:
        for step in range(1000):
            before = a.blocks()
            shard = a.put(some_bytes(step, 4096), step)
            (block,) = a.blocks() - before or before
            a.flip(block, drawn.randrange(4096 * 8))
            with pytest.raises(NoCopy, match="a: its copy is damaged"):
                a.get(shard)
            told = a.hear()
            assert isinstance(told, Broken) and told.step == step


def test_instead_of_a_damaged_copy_the_next_holder_has_another_one_until_all_are_damaged(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b, VaultProcess(tmp_path, "c") as c:
        holders = [("a", a.address), ("b", b.address), ("c", c.address)]
        a.gives_to(*holders)
        shard = a.put(some_bytes(1))
        b.hear(), c.hear()
        for vault in (a, b):
            for fd in vault.blocks():  # one may be spare
                vault.flip(fd, 12345)
        assert a.get(shard, *holders) == some_bytes(1)
        assert a.hear() == b.hear() == about(Broken, shard, why="its copy is damaged")
        for vault in (a, c):
            for fd in vault.blocks():
                vault.flip(fd, 54321)
        with pytest.raises(NoCopy) as error:
            a.get(shard, *holders)
        assert str(error.value) == (
            "nobody has a good copy of trainer step 1 of generation 1, rank 0 of 4 "
            "(a: its copy is damaged; b: it has no such copy; c: its copy is damaged)"
        )
        assert b.hear() == about(Broken, shard, why="it has no such copy"), "the controller may think otherwise"


def test_a_copy_that_is_damaged_before_it_is_sent_is_held_by_nobody(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b:
        shard = a.put(some_bytes(1))
        a.flip(*a.blocks(), 777)
        a.gives_to(("b", b.address))
        assert isinstance(a.hear(), Broken)
        later = a.put(some_bytes(2), step=2)
        assert b.hear() == about(Held, later, bytes=64 << 10, digest=digest(some_bytes(2)))
        assert b.get(later) == some_bytes(2)
        with pytest.raises(NoCopy):
            b.get(shard, ("a", a.address))


def test_a_shard_that_several_workers_read_is_fetched_once(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b, Relay(a.port) as relay:
        shard = a.put(some_bytes(1, 8 * MIB))
        with as_worker(b), ThreadPoolExecutor() as readers:
            snapshot = Snapshot(1, 1, 4, {"0": [["a", relay.address]]})
            assert set(readers.map(lambda _: _read(snapshot), range(4))) == {some_bytes(1, 8 * MIB)}
        assert b.get(shard) == some_bytes(1, 8 * MIB)
        assert relay.connections == 1


def _read(snapshot: Snapshot) -> bytes:
    with getting(snapshot, 0) as memory:
        return bytes(memory)


def test_what_arrives_damaged_is_not_read_and_the_next_holder_is_asked(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b, Relay(a.port, spoils=True) as relay:
        shard = a.put(some_bytes(1))
        with pytest.raises(NoCopy, match="a: what it has sent is damaged"):
            b.get(shard, ("a", relay.address))
        assert b.get(shard, ("a", relay.address), ("a again", a.address)) == some_bytes(1)


def test_a_copy_that_was_fetched_for_a_reader_counts_once_its_node_is_a_buddy(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b:
        shard = a.put(some_bytes(1))
        b.get(shard, ("a", a.address))
        b.attach()  # nothing was reported, else it would come before the answer
        a.gives_to(("b", b.address))
        assert isinstance(b.hear(), Held)


def test_copies_that_were_fetched_for_readers_make_room(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b", limit=10 * MIB, wait_s=0.0) as b:
        shard = a.put(bytes(6 * MIB))
        b.get(shard, ("a", a.address))
        b.put(bytes(7 * MIB), step=2)


def test_a_shard_waits_for_room_until_a_snapshot_is_released(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a", limit=10 * MIB, wait_s=WAIT_S) as a, socket.socket(socket.AF_UNIX) as worker:
        old = a.put(bytes(6 * MIB), step=1)
        worker.connect(a.path)
        worker.settimeout(WAIT_S)
        worker.sendall(line(about(Put, Shard("trainer", 1, 2, 0, 4), bytes=7 * MIB)))
        a.attach()  # it has read that by now
        a.order(Release("trainer", 1, 1))
        answer, fds, _, _ = socket.recv_fds(worker, 1000, 1)
        assert msgspec.json.decode(answer, type=Answer) == Answer(7 * MIB)
        os.close(*fds)
        with pytest.raises(NoCopy):
            a.get(old)


def test_a_shard_without_room_is_refused_in_words_and_the_next_one_at_once(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a", limit=10 * MIB, wait_s=0.2) as a, as_worker(a):
        with pytest.raises(NoCopy, match=r"^it has 11\.0 MiB, and the vault may hold 10\.0 MiB$"), putting(1, 11 * MIB):
            pass
        a.put(bytes(6 * MIB), step=1)
        for step in (2, 3):
            with pytest.raises(NoCopy, match=r"no room for 6\.0 MiB: 6\.0 MiB of 10\.0 MiB are in use"):
                putting(step, 6 * MIB).__enter__()
        a.order(Release("trainer", 1, 1))
        a.attach()  # it has obeyed
        a.put(bytes(6 * MIB), step=4)


def test_a_second_shard_of_one_step_is_refused_in_words(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a:
        shard = a.put(some_bytes(1), step=20)
        with as_worker(a), pytest.raises(NoCopy, match="rank 0 has put its shard of step 20 already"):
            putting(20, 10).__enter__()
        assert a.get(shard) == some_bytes(1)


def test_workers_that_die_while_their_shard_is_fetched_leave_no_memory_in_use(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b", limit=1 * MIB, wait_s=0.0) as b:
        for step in range(1, 5):
            shard = a.put(bytes(400 << 10), step)
            with socket.socket(socket.AF_UNIX) as worker:
                worker.connect(b.path)
                worker.sendall(line(about(Get, shard, holders=(("a", a.address),))))
            assert len(b.get(shard, ("a", a.address))) == 400 << 10  # it comes after the one before, of the same shard


def test_a_release_drops_one_snapshot_of_one_world(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a:
        shards = [a.put(some_bytes(step), step) for step in (4, 5, 6)]
        a.order(Release("other", 1, 4))
        a.order(Release("trainer", 2, 4))
        a.order(Release("trainer", 1, 5))
        a.attach()
        assert [a.hear().step, a.hear().step] == [4, 6]
        with pytest.raises(NoCopy):
            a.get(shards[1])
        a.put(some_bytes(5), 5)  # one that comes late is reported, so that the controller can release it again


def test_the_memory_of_a_vault_that_is_killed_is_free_at_once(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a:
        a.put(bytes(400 * MIB))
        before = _shared_memory()
        a.kill()
        assert before - _shared_memory() > 200 * MIB  # other tests may have taken some meanwhile


def _shared_memory() -> int:
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) << 10 for row in rows if row.startswith("Shmem:"))


def test_a_vault_goes_on_when_all_processes_of_a_job_are_asked_to_end(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(a.process.pid, number)
        assert a.get(a.put(some_bytes(1))) == some_bytes(1)


PARENT = """
import os, sys
sys.path[:0] = os.environ["TEST_PATH"].split(os.pathsep)
from pathlib import Path
from tests.runtime.vault.vaults import VaultProcess
vault = VaultProcess(Path(sys.argv[1]), "a")
print(vault.process.pid, flush=True)
sys.stdin.read()
"""


def test_a_vault_dies_with_its_parent(tmp_path: Path) -> None:
    env = {**os.environ, "TEST_PATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        vault = os.pidfd_open(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
        assert select.select([vault], [], [], WAIT_S)[0]
        os.close(vault)
