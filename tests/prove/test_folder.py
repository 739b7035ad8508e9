"""The copy in which runs work: the user's folder is never written, and each run finds what the first found."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.prove.calls import Stop
from flowdist.prove.folder import Folder, Outside
from flowdist.prove.history import Call


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    users = tmp_path / "users"
    (users / "pack").mkdir(parents=True)
    (users / "train.py").write_text("x = 1")
    (users / "pack/code.py").write_text("y = 2")
    (users / ".git").mkdir()
    (users / "runs").mkdir()
    (users / "ckpt").mkdir()
    (users / "ckpt/old.pt").write_text("old")
    made = Folder(users, tmp_path / "copy", tmp_path / "own")
    made.make()
    return made


def content(folder: Folder) -> dict[str, str]:
    return {str(path.relative_to(folder.path)): path.read_text() for path in folder.path.rglob("*") if path.is_file()}


def test_the_copy_has_what_the_script_needs(folder: Folder) -> None:
    assert content(folder) == {"train.py": "x = 1", "pack/code.py": "y = 2", "ckpt/old.pt": "old"}


def test_a_folder_with_results_is_left_out_once_the_script_writes_there(folder: Folder) -> None:
    assert folder.note_written("ckpt/new.pt") and folder.left_out == {"ckpt"}
    folder.make()
    assert not (folder.path / "ckpt").exists()
    assert not folder.note_written("ckpt/new.pt")


def test_a_file_beside_code_is_left_out_alone(folder: Folder) -> None:
    (folder.users / "pack/cache.bin").write_text("c")
    folder.make()
    assert folder.note_written("pack/cache.bin") and folder.left_out == {"pack/cache.bin"}
    folder.make()
    assert (folder.path / "pack/code.py").exists() and not (folder.path / "pack/cache.bin").exists()


def test_a_reset_leaves_the_copy_as_it_was(folder: Folder) -> None:
    before = content(folder)
    for path in ("out/deep/a.pt", "b.pt", "pack/new.bin"):
        folder.note_written(path)
        (folder.path / path).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / path).write_text("new")
    assert sorted(folder.files()) == ["b.pt", "out/deep/a.pt", "pack/new.bin"]
    folder.reset()
    assert content(folder) == before and not (folder.path / "out").exists()


def test_what_is_elsewhere_must_not_be_written(folder: Folder, tmp_path: Path) -> None:
    assert folder.inside(str(folder.path / "ckpt/a")) == "ckpt/a"
    assert folder.inside("/dev/null") is None and folder.inside("pipe:[7]") is None
    assert folder.inside(str(tmp_path / "own/tmp/x")) is None
    with pytest.raises(Outside, match="users/ckpt/a"):
        folder.inside(str(folder.users / "ckpt/a"))
    (folder.path / "link").symlink_to(folder.users / "ckpt")
    with pytest.raises(Outside, match="users/ckpt/a"):
        folder.inside(str(folder.path / "link/a"))


def test_a_link_that_is_renamed_or_removed_is_changed_and_not_its_file(folder: Folder) -> None:
    """A pointer to the newest checkpoint is often a link that is put over the one before."""
    at = f"{folder.path}/ckpt"
    for name in ("latest", "new"):
        (folder.path / "ckpt" / name).symlink_to("old.pt")
    for call, path, target, changed in (
        ("symlink", f"{at}/other", "old.pt", ("ckpt/other", "")),
        ("rename", f"{at}/new", f"{at}/latest", ("ckpt/new", "ckpt/latest")),
        ("unlink", f"{at}/latest", "", ("ckpt/latest", "")),
        ("openat", f"{at}/latest", "", ("ckpt/old.pt", "")),
    ):
        assert folder.changed(Stop(0, 0, 0, call, path, target)) == changed


def test_without_power_a_file_that_was_not_forced_to_the_disk_is_empty(folder: Folder) -> None:
    def save(name: str, *calls: str) -> str:
        for call in calls:
            folder.note_call(Call(call, f"{name}.tmp", name if call == "rename" else "", 3, 1))
        (folder.path / name).write_text("new")
        folder.note_written(name)
        return name

    plain = save("plain", "open", "write", "rename")
    synced = save("synced", "open", "write", "fsync", "rename")
    (folder.path / "over").write_text("old")
    over = save("over", "open", "write", "rename")
    folder.lose_power()
    assert [(folder.path / name).read_text() for name in (plain, synced, over)] == ["", "new", "new"]


def test_without_power_what_a_renamed_folder_holds_is_empty_if_it_was_not_forced(folder: Folder) -> None:
    for name, synced in (("a", True), ("b", False)):
        folder.note_call(Call("write", f"new/{name}", "", 3, 1))
        if synced:
            folder.note_call(Call("fsync", f"new/{name}", "", 0, 1))
    folder.note_call(Call("rename", "new", "step_8", 0, 1))
    (folder.path / "step_8").mkdir()
    for name in ("a", "b"):
        (folder.path / f"step_8/{name}").write_text("new")
    folder.lose_power()
    assert [(folder.path / f"step_8/{name}").read_text() for name in ("a", "b")] == ["new", ""]


def test_what_is_in_a_folder_that_the_run_has_renamed_is_written_by_the_run(folder: Folder) -> None:
    for path in ("out/new", "out/new/a.pt", "out/step_8"):
        folder.note_written(path)
    assert folder.is_written("out/step_8/a.pt") and not folder.is_written("ckpt/old.pt")


def test_folders_that_are_ready_made_are_there_and_empty_after_a_reset(folder: Folder) -> None:
    folder.ready_made = frozenset({"out"})
    folder.note_written("out")
    folder.note_written("out/a.pt")
    (folder.path / "out").mkdir()
    (folder.path / "out/a.pt").write_text("new")
    folder.reset()
    assert list((folder.path / "out").iterdir()) == []


def test_what_a_renamed_folder_holds_is_left_by_the_run(folder: Folder) -> None:
    for path in ("out/new", "out/new/a.pt", "out/step_8"):
        folder.note_written(path)
    (folder.path / "out/step_8").mkdir(parents=True)
    (folder.path / "out/step_8/a.pt").write_text("new")
    assert list(folder.files()) == ["out/step_8/a.pt"]
    folder.keep(folder.path.parent / "kept")
    assert (folder.path.parent / "kept/out/step_8/a.pt").read_text() == "new"


def test_what_a_run_has_left_is_kept_with_its_empty_folders(folder: Folder, tmp_path: Path) -> None:
    (folder.path / "out/tmp").mkdir(parents=True)
    (folder.path / "out/a.pt").write_text("a")
    folder.note_written("out")
    folder.keep(tmp_path / "kept")
    assert sorted(str(path.relative_to(tmp_path / "kept")) for path in (tmp_path / "kept").rglob("*")) == [
        "out",
        "out/a.pt",
        "out/tmp",
    ]
