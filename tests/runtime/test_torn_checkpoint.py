"""Torn-checkpoint faults cut the right files, as soon as the pointer names the checkpoint that was accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowdist.control.protocol.events import CheckpointOffered
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import parse_fault
from flowdist.graph import SECOND
from flowdist.record.journal import record
from flowdist.runtime.injection.injector import Injector
from flowdist.runtime.injection.torn_checkpoint import PATIENCE_NS, TornCheckpoints
from tests.control.harness import Talk, graph, r, role


def committed(folder: Path, *pointers: str) -> None:
    for pointer in pointers:
        file = folder / f"{pointer.replace('/', '-')}.ckpt"
        file.write_text("0123456789")
        (folder / pointer).mkdir(parents=True)
        (folder / pointer / "latest.json").write_text(json.dumps({"path": str(file)}))


def torn(folder: Path, target: str) -> list[str]:
    """Return the names of the files that a fault with this target has cut."""
    job = graph(role("trainer", max_replicas=2), role("ps", gang=False, max_replicas=2))
    cut: list[Path] = []
    warnings: list[str] = []
    tearing = TornCheckpoints(job, folder, lambda fault, file: cut.append(Path(file)), warnings.append)
    tearing.begin(parse_fault(f"{target}@3s:torn-checkpoint"), 3 * SECOND)
    tearing.tear(3 * SECOND)
    tearing.give_up()
    assert warnings == [], "a fault does not wait for checkpoints that nothing is known of"
    assert all(path.read_text() == "01234" for path in cut)
    return [path.name for path in cut]


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("trainer", ["trainer.ckpt"]),
        ("trainer/1", ["trainer.ckpt"]),  # a gang has one for all
        ("ps", ["ps-0.ckpt", "ps-1.ckpt"]),
        ("ps/1", ["ps-1.ckpt"]),
        ("all", ["trainer.ckpt", "ps-0.ckpt", "ps-1.ckpt"]),
    ],
)
def test_the_target_selects_the_checkpoints(tmp_path: Path, target: str, names: list[str]) -> None:
    committed(tmp_path, "trainer", "ps/0", "ps/1")
    assert torn(tmp_path, target) == names


def test_the_largest_file_of_a_folder_is_torn_and_a_missing_file_is_no_error(tmp_path: Path) -> None:
    assert torn(tmp_path, "all") == []
    committed(tmp_path, "trainer", "ps/0")
    (tmp_path / "ps-0.ckpt").unlink()
    (tmp_path / "trainer.ckpt").unlink()
    (tmp_path / "trainer.ckpt").mkdir()
    assert torn(tmp_path, "all") == []
    (tmp_path / "trainer.ckpt/small").write_text("0")
    (tmp_path / "trainer.ckpt/large").write_text("0123456789")
    assert torn(tmp_path, "all") == ["large"]


class Control:
    """Records what the injector reports; a torn checkpoint needs nothing else of the supervisor."""

    def __init__(self) -> None:
        self.torn: list[str] = []
        self.warnings: list[str] = []

    def note_fault(self, spec: str, target: str) -> None:
        self.torn.append(Path(target).name)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Story:
    """A job with a gang and a role without, and a fault. `accept` and `publish` play controller and agent."""

    def __init__(self, run_dir: Path, fault: str) -> None:
        topology = graph(role("trainer"), role("ps", gang=False, max_replicas=2))
        self.talk, self.control, self.folder = Talk(topology), Control(), run_dir / "checkpoints"
        self.talk.join("node0")
        self.injector = Injector(parse_plan([fault]), topology, run_dir, self.control)  # type: ignore[arg-type]

    def accept(self, replica_name: str, name: str, step: int) -> None:
        replica = self.talk.replica(replica_name)
        generation = self.talk.job.worlds[replica.world].generation
        event = CheckpointOffered(r(replica_name), replica.attempt, generation, str(self.folder / name), step)
        effects = self.talk.tell(event)
        self.injector.observe(self.talk.job, record(1, self.talk.now, event, effects))
        self.look()

    def publish(self, pointer: str, name: str, step: int) -> None:
        (self.folder / pointer).mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text("0123456789")
        content = {"path": str(self.folder / name), "step": step, "generation": 1}
        (self.folder / pointer / "latest.json").write_text(json.dumps(content))
        self.look()

    def look(self) -> None:
        self.injector.fire(self.talk.job, self.talk.now)


def test_a_pointer_that_is_written_late_is_waited_for(tmp_path: Path) -> None:
    story = Story(tmp_path, "trainer@checkpoint=trainer,1:torn-checkpoint")
    story.accept("trainer/0", "first", 10)
    assert story.control.torn == []
    story.publish("trainer", "first", 10)
    assert story.control.torn == ["first"] and (story.folder / "first").read_text() == "01234"
    story.publish("trainer", "second", 20)
    assert story.control.torn == ["first"] and story.injector.never_fired() == []


def test_an_older_checkpoint_is_not_torn_in_its_place(tmp_path: Path) -> None:
    story = Story(tmp_path, "trainer@checkpoint=trainer,2:torn-checkpoint")
    story.accept("trainer/0", "same", 10)
    story.publish("trainer", "same", 10)
    story.accept("trainer/0", "same", 20)  # a script may write to the same name again
    assert story.control.torn == []
    story.publish("trainer", "same", 20)
    assert story.control.torn == ["same"]


def test_a_checkpoint_that_the_next_has_replaced_is_not_waited_for(tmp_path: Path) -> None:
    story = Story(tmp_path, "trainer@checkpoint=trainer,1:torn-checkpoint")
    story.accept("trainer/0", "first", 10)
    story.accept("trainer/0", "second", 20)
    story.publish("trainer", "second", 20)  # both were between two looks
    assert story.control.torn == ["second"]


def test_each_replica_without_a_gang_is_waited_for_by_itself(tmp_path: Path) -> None:
    story = Story(tmp_path, "ps@checkpoint=ps,2:torn-checkpoint")
    story.accept("ps/0", "a", 1)
    story.accept("ps/1", "b", 1)
    story.publish("ps/1", "b", 1)
    assert story.control.torn == ["b"]
    story.publish("ps/0", "a", 1)
    assert story.control.torn == ["b", "a"]


@pytest.mark.parametrize("how", ["in all that time", "before the job is over"])
def test_a_pointer_that_never_comes_is_reported(tmp_path: Path, how: str) -> None:
    story = Story(tmp_path, "trainer@checkpoint=trainer,1:torn-checkpoint")
    story.accept("trainer/0", "first", 10)
    assert story.control.warnings == []
    if how == "in all that time":
        story.talk.wait(PATIENCE_NS / SECOND)
        story.look()
    else:
        story.injector.end_all()
    pointer = story.folder / "trainer/latest.json"
    why = f"nothing was torn: {pointer} has never named the checkpoint that was committed last"
    assert story.control.warnings == [f"fault trainer@checkpoint=trainer,1:torn-checkpoint: {why}"]
    story.publish("trainer", "first", 10)
    assert story.control.torn == [] and len(story.injector.never_fired()) == 1
