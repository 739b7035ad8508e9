"""Folders of runs: private to their user, or readable by a group, whatever the umask; and told plainly to others."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli
from flowdist.errors import FlowdistError
from flowdist.runtime.run_folder import runs as runs_module
from flowdist.runtime.run_folder.access import GROUP, is_private, owner_of
from flowdist.runtime.run_folder.folder import lock_run, new_joined_run, new_run, private_runs, run_dirs
from flowdist.runtime.run_folder.runs import ControllerIsPrivate
from flowdist.runtime.umask import INHERITED, UMASK, take_umask_of, umask_for, umask_of, users_umask
from tests.control.harness import graph, role
from tests.runtime.harness import Job

NOBODY = 65534
JOB = graph(role("trainer"), nodes=1, cpu=1.0)
OWN_GROUP = grp.getgrgid(os.getegid()).gr_name


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextlib.contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def another_user(folder: Path) -> Iterator[None]:
    """Context manager in which this process may not read the folder: as another user, or as one who shut it."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    before = mode(folder)
    folder.chmod(0)
    try:
        yield
    finally:
        folder.chmod(before)


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of runs that all users may enter, in a folder that is the current one."""
    here = Path(tempfile.mkdtemp(prefix="flowdist-test-", dir="/tmp"))
    here.chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.delenv(GROUP, raising=False)
    yield here / "runs"
    shutil.rmtree(here)


@pytest.mark.parametrize("users", [0o000, 0o002, 0o022, 0o077])
def test_the_folder_of_a_run_is_private_whatever_the_umask(base: Path, users: int) -> None:
    with umask(users):
        for folder in (new_run(base, JOB), new_joined_run(base, "x-1", "host1", JOB)):
            assert mode(folder) == 0o700
            for path in folder.iterdir():
                assert mode(path) & 0o022 == 0, f"{path.name} can be changed by others, if the folder is ever opened"
        assert os.umask(users) == users
    assert mode(base) & 0o022 == 0, "nobody else puts a run there, or another link `latest`"


@pytest.mark.parametrize("users", [0o000, 0o002, 0o022, 0o027, 0o077])
def test_a_group_may_read_and_not_write_whatever_the_umask(
    base: Path, users: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GROUP, OWN_GROUP)
    with umask(users):
        folder = new_run(base, JOB)
        os.close(lock_run(folder))
    assert mode(folder) == 0o2750 and folder.stat().st_gid == os.getegid()
    assert mode(folder / "graph.json") & 0o070 == 0o040
    assert mode(folder / "checkpoints") & 0o070 == 0o050


def test_a_folder_in_a_folder_of_a_group_is_private_all_the_same(base: Path) -> None:
    base.mkdir()
    base.chmod(0o2775)
    assert mode(new_run(base, JOB)) == 0o700


def test_a_group_that_does_not_exist_is_refused_and_no_folder_is_left(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GROUP, "no-such-group")
    with pytest.raises(FlowdistError, match="FLOWDIST_GROUP=no-such-group: there is no such group"):
        new_run(base, JOB)
    assert list(base.iterdir()) == []


def test_a_group_of_others_is_refused_and_no_folder_is_left(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(group.gr_name for group in grp.getgrall() if group.gr_gid not in {*os.getgroups(), os.getegid()})
    base.mkdir()
    base.chmod(0o777)
    monkeypatch.setenv(GROUP, other)

    def may_not(path: Path, uid: int, gid: int) -> None:
        raise PermissionError

    if os.geteuid() == 0:  # may do all
        monkeypatch.setattr(os, "chown", may_not)
    with pytest.raises(FlowdistError, match=f"FLOWDIST_GROUP={other}: you are not in that group"):
        new_run(base, JOB)
    assert list(base.iterdir()) == []


@pytest.mark.parametrize(
    ("folder_mode", "users", "own"),
    [(0o700, 0o000, 0o022), (0o700, 0o077, 0o077), (0o2750, 0o002, 0o022), (0o2750, 0o077, 0o027)],
)
def test_own_processes_let_a_group_read_and_workers_have_the_umask_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_mode: int, users: int, own: int
) -> None:
    monkeypatch.delenv(UMASK, raising=False)
    assert users_umask(os.environ) == INHERITED
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(folder_mode)
    assert umask_for(folder, users) == own
    with umask(users):
        with umask_of(folder):
            (tmp_path / "file").touch()
        assert mode(tmp_path / "file") == 0o666 & ~own
        take_umask_of(folder)
        assert os.umask(users) == own and users_umask(os.environ) == users
    monkeypatch.delenv(UMASK)
    assert [users_umask({UMASK: text}) for text in ("junk", "9", "7777", "")] == [INHERITED] * 4


VERBS = ("status", "report", "logs --run", "timeline", "replay", "cancel", "run --resume", "diff latest")


def test_a_private_run_is_named_with_its_user_and_no_verb_raises(base: Path) -> None:
    folder = new_run(base, JOB)
    os.close(lock_run(folder))
    assert not is_private(folder) and private_runs(base) == []
    for verb in VERBS:
        CliRunner().invoke(cli, [*verb.split(), "no-such-run"])  # import what it needs, which another user may not read
    CliRunner().invoke(cli, ["list"])
    with another_user(folder):
        assert is_private(folder) and private_runs(base) == [folder] and run_dirs(base) == []
        for verb in VERBS:
            for name in (folder.name, "latest", f"runs/{folder.name}"):
                done = CliRunner().invoke(cli, [*verb.split(), name])
                said = f"{folder.name} is private to the user {owner_of(folder)}"
                assert done.exit_code == 2 and said in done.stderr, f"{verb} {name}: {done.output} {done.exception!r}"
                assert f"{GROUP}=NAME" in done.stderr
        done = CliRunner().invoke(cli, ["list"])
        assert f"{folder.name} is private to the user {owner_of(folder)}\n" in done.stderr and done.exit_code == 0
        found = json.loads(CliRunner().invoke(cli, ["list", "--json"]).stdout)
        assert found["runs"] == [] and found["private"] == [{"run": folder.name, "owner": owner_of(folder)}]


def test_a_folder_of_runs_that_is_private_itself_is_said_to_be(base: Path) -> None:
    folder = new_run(base, JOB)
    for verb in ("list", f"status {folder.name}"):
        CliRunner().invoke(cli, verb.split())
    base.chmod(0o700)
    with another_user(base):
        for verb in ("list", f"status {folder.name}"):
            done = CliRunner().invoke(cli, verb.split())
            assert done.exit_code == 2 and "runs is private to the user" in done.stderr, done.output


def test_a_user_who_may_read_a_run_may_not_ask_its_controller(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GROUP, OWN_GROUP)
    folder = new_run(base, JOB)
    folder.chmod(0o755)
    lock = lock_run(folder)
    (folder / "lock").chmod(0o644)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "control.sock"))
        listening.listen()
        (folder / "control.sock").chmod(0o600 if os.geteuid() == 0 else 0)
        with (
            another_user(folder) if os.geteuid() == 0 else contextlib.nullcontext(),
            pytest.raises(
                ControllerIsPrivate, match=f"the controller of {folder.name} answers the user {owner_of(folder)} alone"
            ),
        ):
            runs_module.describe(folder)
    os.close(lock)


WORKER = """
import os
umask = os.umask(0)
os.umask(umask)
print(f"umask {umask:04o}", flush=True)
open(os.environ["OUT"] + os.environ["RANK"], "w").close()
"""
TOPOLOGY = """
from flowdist import Topology
t = Topology("x", on_incident=["sh", "-c", "umask"])
t.role("cold", ["sh", "-c", "umask; : > $OUT-cold"], env={"OUT": OUT})
t.role("warm", ["python", "worker.py"], preload=["json"], env={"OUT": OUT})
"""


@pytest.mark.real
@pytest.mark.parametrize(("users", "group"), [(0o000, ""), (0o002, OWN_GROUP), (0o077, OWN_GROUP)])
def test_files_of_a_run_have_the_modes_that_are_promised(tmp_path: Path, users: int, group: str) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    out = str(tmp_path / "made")
    (tmp_path / "topology.py").write_text(TOPOLOGY.replace("OUT}", f"{out!r}}}"))
    with umask(users), Job(tmp_path, env={GROUP: group}) as run:
        assert run.finish() == 0, run.text
        assert f"[warm/0] umask {users:04o}" in run.text and f"[cold/0] {users:04o}" in run.text
        assert f"\n{users:04o}\n" in (run.run_dir / "hooks.log").read_text()
        made = list(tmp_path.glob("made*"))
        assert len(made) == 2 and all(mode(path) == 0o666 & ~users for path in made)
        assert mode(run.run_dir) == (0o2750 if group else 0o700)
        for path in run.run_dir.rglob("*"):
            assert mode(path) & 0o022 == 0, f"{path} {mode(path):o}"
            needed = 0o050 if path.is_dir() else 0o040
            assert not group or mode(path) & needed == needed, f"{path} {mode(path):o}"
