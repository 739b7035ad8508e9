"""`flowdist prove` on real processes: a small script without torch, right and wrong in several ways."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowdist.cli.run.prove import ProveOptions, _again, _Launch
from flowdist.cli.shared.options import TopologyOptions
from flowdist.testing import prove
from tests.prove.__main__ import BUGS
from tests.prove.__main__ import proved as proved_topology

pytestmark = pytest.mark.real

# Each of two workers draws numbers, sums them up, and saves: the sum is the model.
SCRIPT = """import json, os, random
import flowdist.worker as worker

rank = int(os.environ["RANK"])
random.seed(rank)
begun, total = 0, 0.0
if os.path.exists(f"out/{rank}.json"):
    begun, total, state = json.load(open(f"out/{rank}.json"))
    random.setstate((state[0], tuple(state[1]), state[2]))
os.makedirs("out", exist_ok=True)
for step in range(begun, 12):
    total += random.random()
    worker.progress(step + 1)
    if (step + 1) % 4 == 0:
        with open(f"out/{rank}.new", "w") as file:
            json.dump([step + 1, total, random.getstate()], file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"out/{rank}.new", f"out/{rank}.json")
"""


def planted(folder: Path, *replacements: tuple[str, str]) -> Path:
    """Write the script with some of its text replaced, and return its folder."""
    text = SCRIPT
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "train.py").write_text(text)
    return folder


def proved(folder: Path, *options: str) -> dict[str, Any]:
    """Return what `flowdist prove --json` says of the script."""
    words = [sys.executable, "-m", "flowdist", "prove", "train.py", "--json", *options]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    if "found" in answer:
        assert done.returncode == (3 if answer["found"] else 0), done.stderr
    else:
        assert done.returncode == 2, done.stderr
    return answer


def test_a_right_script_shows_nothing_and_the_users_folder_is_left_alone(tmp_path: Path) -> None:
    planted(tmp_path)
    (tmp_path / "out").mkdir()
    old = json.dumps([8, 3.5, random.Random(7).getstate()])
    (tmp_path / "out/0.json").write_text(old)  # the result of an earlier training
    answer = proved(tmp_path)
    assert answer["found"] == [] and answer["left_alone"] == ["out"] and answer["saved"] == ["out"]
    assert [save["step"] for save in answer["saves"]] == [4, 8, 12]
    missed = [tried["point"] for tried in answer["tried"] if not tried["came"]]
    assert all(name.startswith("restore:trainer.1") for name in missed)  # rank 1 may have saved nothing by then
    assert len(answer["tried"]) > 25
    assert sorted(os.listdir(tmp_path)) == ["out", "train.py"]  # noqa: PTH208
    assert (tmp_path / "out/0.json").read_text() == old


def test_a_save_in_place_is_torn_by_the_first_kill_in_it_and_the_line_is_named(tmp_path: Path) -> None:
    planted(
        tmp_path,
        ('open(f"out/{rank}.new", "w")', 'open(f"out/{rank}.json", "w")'),
        ("        os.replace(", "        ("),
    )
    with pytest.raises(AssertionError, match=r"torn save: the job cannot resume: .*JSONDecodeError.* \(train.py:\d+\)"):
        prove("train.py", folder=tmp_path, budget="20s")
    again = proved(tmp_path, "--fail-fast")["found"][0]
    assert again["place"] == f"train.py:{1 + SCRIPT[: SCRIPT.index('with open')].count(chr(10))}"
    one = proved(tmp_path, "--only", again["point"])
    assert [found["kind"] for found in one["found"]] == ["torn save"] and len(one["tried"]) == 1


def test_a_value_that_was_not_restored_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    answer = proved(planted(tmp_path, ("begun, total, state = json", "begun, _, state = json")), "--fail-fast")
    (found,) = answer["found"]
    assert found["kind"] == "the end"
    assert found["text"].startswith("out/0.json: [1] differs at the end; other values: total (0.")


@pytest.mark.parametrize("restored", ["begun, total, state", "begun, total, _"])
def test_points_of_one_run_show_what_each_shows_in_a_run_of_its_own(tmp_path: Path, restored: str) -> None:
    """The oracle of chains: all points, tried both ways, and compared one by one."""
    state = "random.setstate((state[0]" if restored.endswith("state") else "# ((state[0]"
    planted(tmp_path, ("begun, total, state = json", f"{restored} = json"), ("random.setstate((state[0]", state))
    quick, slow = (proved(tmp_path, "--procs", "1", *alone) for alone in ([], ["--alone"]))
    for answer in (quick, slow):
        answer["tried"] = sorted((each["point"], each["came"], *each["found"]) for each in answer["tried"])
    assert quick["tried"] == slow["tried"] and len(quick["tried"]) == len(quick["points"])
    assert bool(quick["found"]) != restored.endswith("state")


def test_a_script_that_writes_elsewhere_is_refused_before_it_has(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = tmp_path / "folder"
    folder.mkdir()
    planted(
        folder, ('os.makedirs("out", exist_ok=True)', f'os.makedirs("out", exist_ok=True); open("{elsewhere}/x", "w")')
    )
    (problem,) = proved(folder)["problems"]
    assert f"writes {elsewhere}/x, which is outside of the copy of its folder" in problem["message"]
    assert list(elsewhere.iterdir()) == []


def test_a_script_that_fails_without_a_fault_is_refused_with_its_error(tmp_path: Path) -> None:
    planted(tmp_path, ("begun, total = 0, 0.0", "begun, total = 0, 1 / 0"))
    (problem,) = proved(tmp_path)["problems"]
    assert "without any fault, the script fails: ZeroDivisionError" in problem["message"]


def test_a_file_that_differs_without_a_fault_is_not_compared(tmp_path: Path) -> None:
    answer = proved(planted(tmp_path, ("random.seed(rank)", "random.seed()")), "--budget", "3s")
    assert answer["found"] == [] and answer["uneven"] == ""  # steps without torch show no values


def test_a_script_that_never_resumes_is_found_though_it_ends_as_without_a_kill(tmp_path: Path) -> None:
    answer = proved(planted(tmp_path, ('os.path.exists(f"out/{rank}.json")', "False")))
    assert answer["saved"] == [] and [found["kind"] for found in answer["found"]] == ["no resume"]


def test_a_script_that_begins_to_act_with_its_first_report_has_that_step_too(tmp_path: Path) -> None:
    lines = ["import flowdist.worker as worker", "for step in range(3):", "    worker.progress(step + 1)"]
    (tmp_path / "train.py").write_text("\n".join(lines))
    answer = proved(tmp_path, "--procs", "1")
    assert "step3" in answer["points"] and [one for one in answer["tried"] if not one["came"]] == []


def test_a_script_that_fails_before_it_does_anything_else_is_seen(tmp_path: Path) -> None:
    """It reads half a file in front of the split of its ranks: its worker never begins to act."""
    planted(
        tmp_path,
        ('rank = int(os.environ["RANK"])', "rank = 0"),
        ('open(f"out/{rank}.new", "w")', 'open(f"out/{rank}.json", "w")'),
        ("        os.replace(", "        ("),
    )
    (found,) = proved(tmp_path, "--procs", "1", "--only", "save2:trainer.0:write2:out/0.json:before")["found"]
    assert found["kind"] == "torn save" and "JSONDecodeError" in found["text"]


def test_the_command_that_shows_a_finding_again_has_all_that_was_given() -> None:
    launch = _Launch("train.py", [], args=("--steps", "24"))
    line = _again(launch, TopologyOptions("train.py", (), ()), ProveOptions(procs="3", power=True), "last step")
    assert line == "flowdist prove train.py --procs 3 --power --only 'last step' -- --steps 24"


def test_a_loss_of_power_leaves_what_was_not_forced_to_the_disk_empty(tmp_path: Path) -> None:
    """A rename to a new name comes to the disk before the data of the file does, whatever its temporary name is."""
    names = 'f"out/{rank}.new"', 'f"out/{rank}.{os.getpid()}.new"'
    text = SCRIPT.replace("            os.fsync(file.fileno())\n", "").replace(*names)
    (tmp_path / "train.py").write_text(text)
    point = "save1:trainer.0:rename:out/*.new:after"
    assert proved(tmp_path, "--procs", "1", "--only", point)["found"] == []
    (found,) = proved(tmp_path, "--procs", "1", "--power", "--only", f"{point}:power")["found"]
    assert found["kind"] == "torn save"


def test_the_points_are_listed_as_json_and_none_is_tried(tmp_path: Path) -> None:
    answer = proved(planted(tmp_path), "--list")
    assert "last step" in answer["points"] and answer["tried"] == []


def test_a_seed_goes_with_a_budget_and_is_reported(tmp_path: Path) -> None:
    """One worker: of two that do not wait for each other, one may have saved nothing when the other is killed."""
    options = "--procs", "1", "--budget", "1ms"
    answers = [proved(planted(tmp_path), *options, *seed) for seed in ([], ["--seed", "7"])]
    assert [answer["seed"] for answer in answers] == [0, 7]
    one, other = (answer["points"] for answer in answers)
    assert one != other and sorted(one) == sorted(other)
    (problem,) = proved(tmp_path, "--seed", "7")["problems"]
    assert "--seed changes nothing" in problem["message"]


def test_a_missing_file_and_an_option_of_the_script_are_answered_in_words_of_prove(tmp_path: Path) -> None:
    (problem,) = proved(tmp_path, "--list")["problems"]
    assert "flowdist prove train.py" in problem["help"] and "flowdist run" not in problem["help"]
    (problem,) = proved(planted(tmp_path), "--budget", "3s", "--save-every", "4")["problems"]
    assert problem["help"].endswith("after --: flowdist prove train.py --json --budget 3s -- --save-every 4")


def test_a_topology_whose_workers_start_cold_is_refused_with_the_reason(tmp_path: Path) -> None:
    role = 't.role("trainer", ["bash", "-c", "exit 0"])'
    (tmp_path / "train.py").write_text(f'from flowdist import Topology\nt = Topology("cold", nodes=1)\n{role}\n')
    (problem,) = proved(tmp_path)["problems"]
    assert "starts cold, so that its workers cannot be stopped" in problem["message"]


@pytest.mark.parametrize("options", [("--role", "trainr"), ("--", "--steps"), ("--procs", "3")])
def test_what_a_topology_does_not_have_is_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text('from flowdist import Topology\nt = Topology("a")\nt.role("trainer", "true")\n')
    (problem,) = proved(tmp_path, *options)["problems"]
    assert any(text in problem["message"] for text in ("no such role", "takes no arguments", "--procs is for scripts"))


def test_a_restart_that_waits_for_ever_is_a_hang(tmp_path: Path) -> None:
    planted(
        tmp_path,
        ("    begun, total, state = json", "    __import__('time').sleep(3600)\n    begun, total, state = json"),
    )
    (found,) = proved(tmp_path, "--within", "3s", "--only", "step6")["found"]
    assert found["kind"] == "hang" and "waits for trainer." in found["text"]


def test_a_restart_that_looks_at_a_file_again_and_again_is_a_hang_as_soon(tmp_path: Path) -> None:
    """A worker that waits for another one so does something all the time, and is no nearer to its end."""
    reads = "    while True: open(f'out/{rank}.json').read(); __import__('time').sleep(0.01)\n"
    planted(tmp_path, ("    begun, total, state = json", f"{reads}    begun, total, state = json"))
    answer = proved(tmp_path, "--within", "5s", "--only", "step6")
    assert [found["kind"] for found in answer["found"]] == ["hang"] and answer["tried"][0]["seconds"] < 20


def test_a_script_that_hangs_without_a_fault_is_refused_with_the_worker_that_is_waited_for(tmp_path: Path) -> None:
    polls = "begun, total = 0, 0.0\nwhile rank: open('train.py').read(); __import__('time').sleep(0.01)\n"
    (problem,) = proved(planted(tmp_path, ("begun, total = 0, 0.0", polls)), "--within", "5s")["problems"]
    assert "the script hangs, and waits for trainer.1, which has 0 steps behind it" in problem["message"]


def test_what_no_kill_shows_alone_is_found_where_two_come_in_one_run(tmp_path: Path) -> None:
    """After a restart each save but the last is wrong, and only a second restart reads one of these."""
    text = "[step + 1, total, random", "[step + 1, total + (begun > 0 and step < 8), random"
    points = ("step6", "step10", "step6 + step10")
    answer = proved(planted(tmp_path, text), "--procs", "1", *(word for name in points for word in ("--only", name)))
    shown = {tried["point"]: tried["found"] for tried in answer["tried"]}
    assert shown == {"step6": [], "step10": [], "step6 + step10": ["the end"]}


@pytest.mark.parametrize("ended", [12, 8])
def test_results_of_a_training_that_has_ended_are_left_out_too(tmp_path: Path, ended: int) -> None:
    """The first run would read them, take the few steps that are left or none, and show nothing."""
    planted(tmp_path, ("random.setstate((state[0]", "# ((state[0]"))
    (tmp_path / "out").mkdir()
    for rank in range(2):
        (tmp_path / f"out/{rank}.json").write_text(json.dumps([ended, 3.5, random.Random(7).getstate()]))
    (tmp_path / "data.json").write_text("{}")
    answer = proved(tmp_path, "--only", "step6")
    assert answer["left_alone"] == ["out"] and answer["steps"] == 12
    assert [found["kind"] for found in answer["found"]] == ["the end"]


def test_data_that_a_script_reads_stays(tmp_path: Path) -> None:
    planted(tmp_path, ("begun, total = 0, 0.0", 'begun, total = 0, json.load(open("data/start.json"))'))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/start.json").write_text("2.5")
    answer = proved(tmp_path, "--only", "step6")
    assert answer["left_alone"] == [] and answer["found"] == []


def test_a_script_that_takes_no_step_and_saves_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import os\nprint(os.environ["RANK"])\nopen("log", "w").write("done")\n')
    (problem,) = proved(tmp_path)["problems"]
    assert "takes no step, and saves nothing that a restart reads" in problem["message"]


SAMPLED = """import json, os
import flowdist.worker as worker

rank = int(os.environ["RANK"])
begun, total = 0, 0
if os.path.exists(f"out/{rank}.json"):
    begun, total = json.load(open(f"out/{rank}.json"))
os.makedirs("out", exist_ok=True)
samples = worker.samples(100, global_batch=8, micro_batch=2, seed=3)
for batch in samples.steps(begun, 12):
    total += sum(batch.samples)
    worker.log(loss=total)
    worker.progress(batch.step + 1)
    if (batch.step + 1) % 4 == 0:
        with open(f"out/{rank}.new", "w") as file:
            json.dump([batch.step + 1, total], file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"out/{rank}.new", f"out/{rank}.json")
"""


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("", "", []),
        ("seed=3", "seed=3 + (begun > 0)", ["data again"]),
        ("loss=total", "loss=total + begun", ["losses"]),
    ],
)
def test_samples_of_worker_samples_and_losses_of_worker_log_are_compared(
    tmp_path: Path, old: str, new: str, kinds: list[str]
) -> None:
    (tmp_path / "train.py").write_text(SAMPLED.replace(old, new))
    assert [found["kind"] for found in proved(tmp_path, "--fail-fast")["found"]] == kinds


REMOVING = """import json, os
import flowdist.worker as worker

rank = int(os.environ["RANK"])
os.makedirs("out", exist_ok=True)
saved = lambda: sorted(int(name[:-5]) for name in os.listdir("out") if name.endswith(".json"))
begun, total = json.load(open(f"out/{saved()[-1]}.json")) if saved() else (0, 0)
for step in range(begun, 12):
    total += step
    worker.progress(step + 1)
    if (step + 1) % 2 == 0:
        with open("out/new", "w") as file:
            json.dump([step + 1, total], file)
            file.flush()
            os.fsync(file.fileno())
        os.replace("out/new", f"out/{step + 1}.json")
        for old in saved()[:-2]:
            trash = f"out/old.{os.getpid()}"
            os.replace(f"out/{old}.json", trash)
            os.unlink(trash)
"""


@pytest.mark.parametrize(("trash", "kinds"), [("old.{os.getpid()}", ["leftovers"]), ("old", [])])
def test_what_a_kill_in_a_removal_leaves_is_found_if_each_leaves_one_more(
    tmp_path: Path, trash: str, kinds: list[str]
) -> None:
    (tmp_path / "train.py").write_text(REMOVING.replace("old.{os.getpid()}", trash))
    answer = proved(tmp_path, "--procs", "1")
    assert [found["kind"] for found in answer["found"]] == kinds
    assert any(" + " in tried["point"] and "unlink" in tried["point"] and tried["came"] for tried in answer["tried"])
    if kinds:
        assert answer["found"][0]["place"] == "train.py:20"


TURNS = """import json, os, random
import flowdist.worker as worker

rank = int(os.environ["RANK"])
random.seed(rank)
begun, total = 0, 0.0
names = NAMES
there = [name for name in names if os.path.exists(name)]
NEWEST
for step in range(begun, 16):
    total += random.random()
    worker.progress(step + 1)
    if (step + 1) % 4 == 0:
        name = names[step // 4 % len(names)]
        with open(name, "w") as file:
            json.dump([step + 1, total, random.getstate()], file)
            file.flush()
            os.fsync(file.fileno())
"""
MARKED = """
        with open("new", "w") as file:
            file.write(name)
            file.flush()
            os.fsync(file.fileno())
        os.replace("new", "good")
"""
BY_MARKER = """
if os.path.exists("good"):
    begun, total, state = json.load(open(open("good").read()))
    random.setstate((state[0], tuple(state[1]), state[2]))
"""
BY_CONTENT = """
for name in there:
    try:
        saved = json.load(open(name))
    except ValueError:
        continue  # it was being written
    if saved[0] > begun:
        begun, total, state = saved
        random.setstate((state[0], tuple(state[1]), state[2]))
"""
BY_TIME = """
if there:
    begun, total, state = json.load(open(max(there, key=os.path.getmtime)))
    random.setstate((state[0], tuple(state[1]), state[2]))
"""


@pytest.mark.parametrize(
    ("files", "newest", "marked", "kinds"),
    [
        (2, BY_MARKER, MARKED, []),
        (2, BY_CONTENT, "", []),
        (2, BY_TIME, "", ["torn save"]),
        (2, BY_TIME, MARKED, ["torn save"]),
        (3, BY_CONTENT, "", []),
    ],
)
def test_files_that_are_written_in_turns_are_a_save_each(
    tmp_path: Path, files: int, newest: str, marked: str, kinds: list[str]
) -> None:
    """The files are beside the script: each counts if a restart reads it, and the first restart reads one of them."""
    names = ["a.json", "b.json", "c.json"][:files]
    text = TURNS.replace("NEWEST", newest.strip()).replace("NAMES", str(names))
    (tmp_path / "train.py").write_text(text + marked.removeprefix("\n"))
    answer = proved(tmp_path, "--procs", "1", *(["--fail-fast"] if kinds else []))
    assert [found["kind"] for found in answer["found"]] == kinds
    assert [save["step"] for save in answer["saves"]] == [4, 8, 12, 16]
    assert {*names} <= {*answer["saved"]}


@pytest.mark.parametrize("above", ["", "out/"])
def test_a_save_whose_folder_gets_its_name_at_last_has_points_in_a_restore(tmp_path: Path, above: str) -> None:
    """A restart reads files under names that no call has had. In the folder of the script, it need not be listed."""
    reads = [
        ('os.path.exists(f"out/{rank}.json")', f'os.path.exists("{above}last")'),
        ('json.load(open(f"out/{rank}.json"))', f'json.load(open(open("{above}last").read() + "/state.json"))'),
    ]
    writes = [
        ('with open(f"out/{rank}.new", "w")', f'os.makedirs("{above}new/", exist_ok=True)\n'
         f'        with open("{above}new/state.json", "w")'),
        ('os.replace(f"out/{rank}.new", f"out/{rank}.json")', f'name = f"{above}ckpt-{{step + 1}}"\n'
         f'        if not os.path.exists(name):\n            os.rename("{above}new", name)\n'
         f'        open("{above}last.new", "w").write(name)\n        os.replace("{above}last.new", "{above}last")'),
    ]  # fmt: skip
    answer = proved(planted(tmp_path, *reads, *writes), "--procs", "1")
    assert answer["found"] == [] and [save["step"] for save in answer["saves"]] == [4, 8, 12]
    restores = [f"restore:trainer.0:read{at}:{above}{name}" for at, name in ((1, "last"), (2, "ckpt-4/state.json"))]
    assert [tried["point"] for tried in answer["tried"] if tried["came"] and "restore" in tried["point"]] == restores


def test_what_a_restarted_server_has_not_loaded_is_named_by_its_variable() -> None:
    pytest.importorskip("torch")
    (bug,) = [each for each in BUGS if each[0] == "ps-momentum-lost"]
    answer, _ = proved_topology(bug[1], bug[3], "--fail-fast")
    (found,) = answer["found"]
    assert (found["kind"], found["place"].split(":")[0]) == ("server state", "ps_server.py")
    assert "shard.momentum of ps.0, shard.momentum of ps.1" in found["text"]
