"""Owner files on a real disk: two claims to one folder, and what is left of owners that have died."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import threading
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import msgspec
import pytest

from flowdist.control import ownership
from flowdist.control.ownership import Claim
from flowdist.errors import FlowdistError
from flowdist.graph import MS
from flowdist.runtime.run_folder.owner_file import OWNER, OwnerFile, job_owner_file, new_claim, read_owner

HELP = "end that run"


def owner_file(path: Path, run: str, *, epoch: int = 1, elsewhere: bool = False) -> OwnerFile:
    """The claim of a run; `elsewhere`: of a process on another host, where this one cannot look whether it runs."""
    claim = new_claim(run, epoch)
    claim = msgspec.structs.replace(claim, host="host0", place="another kernel") if elsewhere else claim
    return OwnerFile(path, f"the checkpoint folder {path.parent}", HELP, claim)


def acquired(file: OwnerFile) -> list[str]:
    """Take the claim, and return the lines that were shown."""
    lines: list[str] = []
    file.acquire(lambda kind, text: lines.append(f"{kind}: {text}"))
    return lines


def test_a_claim_is_in_the_file_until_it_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "saved" / OWNER
    file = owner_file(path, "")
    assert acquired(file) == []
    assert file.renew("a-1") == ""
    found = read_owner(path)
    assert found is not None and (found.run, found.epoch, found.beat) == ("a-1", 1, 1)
    assert path.stat().st_mode & 0o777 == 0o644, "another user has to know whose folder it is"
    file.release()
    assert list(path.parent.iterdir()) == []


def test_while_its_owner_renews_a_claim_a_second_run_is_refused_with_both_names(tmp_path: Path) -> None:
    first, over = owner_file(tmp_path / OWNER, "a-1", elsewhere=True), threading.Event()
    acquired(first)

    def keep() -> None:
        while not over.wait(0.3):
            assert first.renew("a-1") == ""

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        with pytest.raises(
            FlowdistError, match=r"belongs to run a-1 on host0, since .* this would be run b-2 on"
        ) as info:
            acquired(owner_file(tmp_path / OWNER, "b-2"))
    finally:
        over.set()
        thread.join()
    assert info.value.help == HELP
    assert first.renew("a-1") == ""


def test_what_an_owner_has_left_is_taken_over_after_the_lease_and_the_owner_finds_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "LEASE_NS", 500 * MS)
    first, second = owner_file(tmp_path / OWNER, "a-1", elsewhere=True), owner_file(tmp_path / OWNER, "b-2")
    acquired(first)
    waits, takes = acquired(second)
    assert "belongs to run a-1 on host0" in waits and "was owned by run a-1 on host0" in takes
    assert "was taken over by run b-2" in first.renew("a-1")
    assert first.renew("a-1") == "", "it has no claim any more: that is said once"
    first.release()
    found = read_owner(tmp_path / OWNER)
    assert found is not None and found.run == "b-2"


def test_what_a_dead_process_of_this_host_owned_is_taken_over_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    dead = msgspec.structs.replace(
        new_claim("a-1", 1), pid=process.pid, started=1
    )  # the process of that pid is a later one
    process.kill()
    (tmp_path / OWNER).write_bytes(msgspec.json.encode(dead))
    (line,) = acquired(owner_file(tmp_path / OWNER, "b-2"))
    process.wait()
    assert "whose process is gone: it is taken over" in line


def test_a_run_that_is_resumed_elsewhere_takes_its_own_claim_at_once_and_its_old_command_finds_out(
    tmp_path: Path,
) -> None:
    first, again = owner_file(tmp_path / OWNER, "a-1", elsewhere=True), owner_file(tmp_path / OWNER, "a-1", epoch=2)
    acquired(first)
    assert acquired(again) == []
    assert "was taken over by run a-1" in first.renew("a-1")


def test_an_owner_file_that_was_removed_or_damaged_is_written_anew_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / OWNER
    file = owner_file(path, "a-1")
    acquired(file)
    path.unlink()
    assert file.renew("a-1") == "" and read_owner(path) is not None
    path.write_bytes(b"\x00" * 100)
    assert file.renew("a-1") == "" and read_owner(path) is not None


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe", b'{"run": 7}', b"[" * 100_000, b"x" * 70_000, b""])
def test_a_damaged_owner_file_is_named_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / OWNER).write_bytes(content)
    with pytest.raises(FlowdistError, match=f"the owner file {tmp_path / OWNER} is damaged: ") as info:
        acquired(owner_file(tmp_path / OWNER, "b-2"))
    assert info.value.help.startswith("remove it")
    assert (tmp_path / OWNER).read_bytes() == content


def test_where_no_file_can_be_written_a_warning_says_that_a_second_run_is_not_noticed() -> None:
    file = owner_file(Path("/proc") / OWNER, "a-1")  # also root can make no file there
    (line,) = acquired(file)
    assert line.startswith("warning: the checkpoint folder /proc has no owner file, and a second run is not noticed")
    assert file.renew("a-1") == ""
    file.release()


def _take(path: Path, run: str, start: Barrier, over: Event, results: Queue[str]) -> None:
    """Wait for the others, try to take the claim, and renew it until the test is over."""
    file = owner_file(path, run)
    start.wait()
    try:
        acquired(file)
    except FlowdistError as error:
        results.put(error.message)
        return
    results.put(run)
    while not over.wait(0.1):
        assert file.renew(run) == ""


@pytest.mark.parametrize("is_left", [False, True])
def test_of_several_runs_that_want_the_same_at_the_same_time_one_gets_it(tmp_path: Path, is_left: bool) -> None:
    if is_left:
        dead = msgspec.structs.replace(new_claim("a-1", 1), pid=1, started=-1)
        (tmp_path / OWNER).write_bytes(msgspec.json.encode(dead))
    fork = multiprocessing.get_context("fork")
    start, over, results = fork.Barrier(4), fork.Event(), fork.Queue()
    runs = [f"b-{number}" for number in range(4)]
    processes = [fork.Process(target=_take, args=(tmp_path / OWNER, run, start, over, results)) for run in runs]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in runs]
    over.set()
    for process in processes:
        process.join()
    owner = read_owner(tmp_path / OWNER)
    assert owner is not None and answers.count(owner.run) == 1
    assert sum("belongs to run" in answer for answer in answers) == 3, answers
    assert [process.exitcode for process in processes] == [0] * 4
    assert [path.name for path in tmp_path.iterdir()] == [OWNER]


def test_the_file_of_an_id_has_a_safe_name(tmp_path: Path) -> None:
    assert job_owner_file(tmp_path, "job1").name == ".job-job1.json"
    for odd in ("../../etc/passwd", "a" * 500, "räksmörgås\n", "\udcff"):
        assert job_owner_file(tmp_path, odd).parent == tmp_path and len(job_owner_file(tmp_path, odd).name) < 120


def test_a_claim_of_a_later_version_with_more_fields_can_be_read(tmp_path: Path) -> None:
    content = {**msgspec.to_builtins(new_claim("a-1", 1)), "more": 1}
    (tmp_path / OWNER).write_text(json.dumps(content))
    assert isinstance(read_owner(tmp_path / OWNER), Claim)
