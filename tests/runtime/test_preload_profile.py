"""The values of the learned preload, and the files that keep them: what is no profile of this user is not used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleSpec
from flowdist.runtime.preload import cache
from flowdist.runtime.preload.cache import ProfileCache, key_of, profile_cache, script_of
from flowdist.runtime.preload.profile import (
    MODULES_MAX,
    UNSET,
    Profile,
    Recording,
    are_names,
    changes,
    checksum,
    is_installed,
    read_profile,
    read_recording,
    short,
    without,
)
from flowdist.runtime.worker_env import environment
from flowdist.runtime.worker_env.environment import PER_WORKER, RunPaths, per_worker_variables

PROFILE = Profile("/jobs/train.py", "2026-11-22", ("torch._dynamo", "a"), (("b", "it fails"),), (("HF_HOME", 7),))


def test_a_package_that_is_left_out_takes_its_modules_along() -> None:
    modules = ("a", "a.b", "a.b.c", "ab", "b.a", "a_b.c")
    assert without(modules, ["a.b"]) == ("a", "ab", "b.a", "a_b.c")
    assert without(modules, ["a", "x"]) == ("ab", "b.a", "a_b.c")
    assert without(modules, []) == modules


@pytest.mark.parametrize(
    ("names", "sound"),
    [
        (["a", "_a.b1"], True),
        (["a", "a"], False),
        (["a."], False),
        (["a-b"], False),
        (["a b"], False),
        (["é"], False),
        (["../a"], False),
        (["a" * 201], False),
        ([f"a{i}" for i in range(MODULES_MAX + 1)], False),
    ],
)
def test_names_of_modules(names: list[str], sound: bool) -> None:
    assert are_names(names) == sound


def test_only_what_is_installed_is_learned() -> None:
    assert is_installed(os.__file__)
    assert is_installed("/home/u/.venv/lib/python3.11/site-packages/torch/__init__.py")
    assert is_installed("/usr/lib/python3/dist-packages/numpy/__init__.py")
    assert not is_installed("/home/u/project/model.py")
    assert not is_installed("/home/u/my-site-packages/model.py")
    assert not is_installed("<string>")


def test_changes_keep_no_value() -> None:
    before = {"same": "1", "gone": "1", "other": "1"}
    assert changes(before, {"same": "1", "other": "2", "new": "3"}) == (
        ("gone", UNSET),
        ("new", checksum("3")),
        ("other", checksum("2")),
    )


def test_a_file_that_is_none_is_not_read() -> None:
    recording = Recording(("a", "a.b"), (("X", 1),), at_step=True)
    assert read_recording(msgspec.json.encode(recording)) == recording
    assert read_profile(msgspec.json.encode(PROFILE)) == PROFILE
    for data in (b"", b"\xff", b"[]", b"{}", b"[" * 100_000, msgspec.json.encode(recording)):
        assert read_profile(data) is None
    for modules in (("a", "a"), ("a;b",)):
        assert read_recording(msgspec.json.encode(msgspec.structs.replace(recording, modules=modules))) is None
        assert read_profile(msgspec.json.encode(msgspec.structs.replace(PROFILE, modules=modules))) is None
    assert read_profile(msgspec.json.encode(msgspec.structs.replace(PROFILE, left_out=(("a", "\x1b[2J"),)))) is None


def test_a_reason_is_one_printable_line() -> None:
    assert short("two\nlines \x1b[31m \ud800") == "two lines ?[31m ?"
    assert len(short("x" * 1000)) == 500


def test_a_profile_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    kept = ProfileCache(folder)
    assert kept.load("k") is None
    mask = os.umask(0o002)
    try:
        kept.save("k", PROFILE)
    finally:
        os.umask(mask)
    assert kept.load("k") == PROFILE and folder.stat().st_mode & 0o777 == 0o700


def test_a_file_that_others_could_have_written_is_ignored_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ProfileCache(tmp_path / "c")
    kept.save("k", PROFILE)
    file = tmp_path / "c/k.json"
    file.chmod(0o666)
    assert kept.load("k") is None and "other users may write it" in capsys.readouterr().err
    file.write_text("{")
    file.chmod(0o600)
    assert kept.load("k") is None and "no profile of flowdist" in capsys.readouterr().err
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert kept.load("k") is None and "neither a plain file" in capsys.readouterr().err
    (tmp_path / "c").chmod(0o777)
    assert kept.load("k") is None and "other users may write it" in capsys.readouterr().err
    kept.save("k", PROFILE)
    assert "keeps no learned preload" in capsys.readouterr().err


def test_the_profiles_used_longest_ago_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PROFILES_MAX", 2)
    kept = ProfileCache(tmp_path)
    tmp_path.chmod(0o700)
    for i, key in enumerate(("a", "b", "c")):
        kept.save(key, PROFILE)
        os.utime(tmp_path / f"{key}.json", (i, i))
        if key == "b":
            assert kept.load("a") == PROFILE  # which makes it the last used
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "c.json"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    ProfileCache(tmp_path / "file/c").save("k", PROFILE)
    assert "keeps no learned preload: Not a directory" in capsys.readouterr().err


def test_where_the_cache_is(tmp_path: Path) -> None:
    def folder(env: dict[str, str]) -> Path | None:
        found = profile_cache(env)
        return found and found._folder

    assert folder({"HOME": "/h"}) == Path("/h/.cache/flowdist/preload")
    assert folder({"HOME": "/h", "XDG_CACHE_HOME": "/x"}) == Path("/x/flowdist/preload")
    assert folder({"HOME": "/h", "XDG_CACHE_HOME": "x"}) == Path("/h/.cache/flowdist/preload")
    assert folder({}) is None and folder({"HOME": "/h", cache.SWITCH: "0"}) is None


def test_the_key_depends_on_script_interpreter_and_installed_versions(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (site / "torch-2.13.0.dist-info").mkdir(parents=True)
    role = RoleSpec("a", ("python", "train.py", "--epochs", "5"), workdir="/jobs", preload=("torch",))
    assert script_of(role) == "/jobs/train.py"
    assert script_of(RoleSpec("a", ("python", "-m", "train"), workdir="/jobs")) == "-m train in /jobs"
    assert script_of(RoleSpec("a", ("sh",))) == ""

    def key(**changed: object) -> str:
        return key_of(msgspec.structs.replace(role, **changed), sys.executable, [str(site), "/nowhere"])

    known = key()
    assert key(name="b") == known and key(command=("python", "train.py")) == known
    assert key(command=("python", "other.py")) != known and key(command=("python", "-O", "train.py")) != known
    assert key(workdir="/other") != known
    assert key_of(role, "/other/python", [str(site)]) != known
    (site / "torch-2.13.0.dist-info").rename(site / "torch-2.14.0.dist-info")
    assert key() != known


def test_the_variables_of_a_worker_are_those_that_it_gets() -> None:
    role = RoleSpec("a", ("python", "a.py"), env=(("SEED", "${rank}"), ("SAME", "1")))
    start = StartReplica("node0", ReplicaId("a", 0), 1, "", 1, 0, 1, 0, 1, 0, 1, 0, "", 0)
    paths = RunPaths("/run", "r", "/checkpoints", "/socket")
    assert set(PER_WORKER) == set(environment._torchrun_variables(start, role, 0, paths, True))
    assert per_worker_variables(role) == (*PER_WORKER, "SEED")
