"""Which points a script has, and that each is found again by its name."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.prove.compare import reached_save
from flowdist.prove.history import Attempt, Call, Run
from flowdist.prove.points import TELLING, Kill, Point, points, seeded
from flowdist.prove.watched import Names, Watched, keep_common, saved_files, turns_of
from tests.prove.histories import EVERY, RANKS, STEPS, resumed, save, watched


def names(**settings: bool) -> list[str]:
    return [
        point.name
        for point in points(watched(), resumed(4, killed_after=8), 8, RANKS[0], **{"power": False, **settings})
    ]


def test_each_call_of_two_saves_is_a_point_and_names_are_unique() -> None:
    found = names()
    assert len(found) == len(set(found))
    for save_number, after in ((1, 4), (2, 8)):
        for kind in ("open", "write", "fsync", "rename"):
            assert f"save{save_number}:default.0:{kind}:ckpt/{after}.tmp:before" in found
        assert f"save{save_number}:default.0:rename:ckpt/{after}.tmp:after" in found
        assert f"save{save_number}:default.0:write:ckpt/{after}.tmp:half" in found
    assert not any("save3" in name for name in found)


def test_the_second_save_comes_first_since_it_has_one_to_lose() -> None:
    found = names()
    assert found[0].startswith("save2") and found.index("save1:default.0:open:ckpt/4.tmp:before") > 4


def test_steps_the_end_restores_one_rank_and_two_kills_are_points() -> None:
    found = names()
    assert {"last step", "end", "step6", "step10"} <= set(found)
    assert "restore:default.1:read1:ckpt/4.pt" in found
    assert "save2:default.0:rename:ckpt/8.tmp:before:one" in found
    assert any(name.endswith(":twice") for name in found)


def test_a_loss_of_power_is_a_point_only_if_it_is_asked_for() -> None:
    assert not any("power" in name for name in names())
    assert "save2:default.0:rename:ckpt/8.tmp:after:power" in names(power=True)


def test_of_many_writes_to_one_file_three_are_points() -> None:
    run = watched().clean
    writes = [Call("open", "ckpt/8.tmp", "", 0, 8), *(Call("write", "ckpt/8.tmp", "", 10 + at, 8) for at in range(50))]
    run.attempts[RANKS[0]][0].calls = [*save(4), *writes]
    script = Watched(run, frozenset({"ckpt"}))
    found = [point.name for point in points(script, resumed(4, killed_after=8), 8, RANKS[0], power=False)]
    assert [name for name in found if name.startswith("save2:default.0:write") and name.endswith(":before")] == [
        f"save2:default.0:write{nth}:ckpt/8.tmp:before" for nth in ("", "26", "50")
    ]


def test_seeds_keep_the_most_telling_points_first_and_take_the_others_in_other_orders() -> None:
    plain = [Point(f"p{at}", "", ()) for at in range(100)]
    orders = [seeded(plain, seed) for seed in (0, 1)]
    for order in orders:
        assert order[:TELLING] == plain[:TELLING] and sorted(order, key=plain.index) == plain
    assert orders[0] != orders[1] != plain and orders[1] == seeded(plain, 1)


def test_a_kill_is_at_the_nth_call_of_its_kind_on_its_file() -> None:
    kill = Kill(RANKS[0], "call", 2, "write", "a")
    calls = [Call("write", "a", "", 1, 0), Call("pwrite64", "b", "", 1, 0), Call("writev", "a", "", 1, 0)]
    assert [kill.is_at(calls[: count + 1]) for count in range(3)] == [False, False, True]


def test_names_of_changing_files_keep_what_two_runs_have_in_common() -> None:
    name_of = Names({"ckpt/step_8/tmpab1.tmp", "ckpt/last.pt"}, {"ckpt/step_8/tmpxy2.tmp", "ckpt/last.pt"})
    assert name_of("ckpt/step_8/tmpzz9.tmp") == "ckpt/step_8/*.tmp"
    assert name_of("ckpt/last.pt") == "ckpt/last.pt"


def test_what_a_restart_reads_is_saved_and_a_log_is_not() -> None:
    killed = resumed(4, killed_after=8)
    clean = watched().clean
    clean.attempts[RANKS[0]][0].calls.append(Call("write", "logs/out.txt", "", 9, 4))
    clean.attempts[RANKS[0]][0].calls.append(Call("write", "log.txt", "", 9, 4))
    script = Watched(clean, saved_files(clean, killed))
    assert script.saved == {"ckpt"}
    assert not script.is_saved("logs/out.txt") and not script.is_saved("log.txt") and script.is_saved("ckpt/4.pt")


def test_a_file_beside_the_script_is_saved_with_its_temporary_name() -> None:
    calls = [Call("write", "new", "", 9, 4), Call("rename", "new", "last.pt", 0, 4), Call("write", "log", "", 9, 4)]
    clean = Run({RANKS[0]: [Attempt(calls=calls)]})
    killed = Run({RANKS[0]: [Attempt(calls=calls), Attempt(reads=["last.pt"])]})
    assert saved_files(clean, killed) == {"last.pt", "new"}


def in_folder(after: int, name: str) -> list[Call]:
    """Return the calls of a save that is written as a folder, which has its name when it is complete."""
    file = "new/part/data"
    calls = [
        Call("mkdir", "new", "", 0, after),
        Call("mkdir", "new/part", "", 0, after),
        Call("openat", file, "", 0, after),
        Call("write", file, "", 9, after),
    ]
    return [*calls, Call("rename", "new", name, 0, after)]


@pytest.mark.parametrize("above", ["", "out/"])
def test_what_is_in_a_renamed_folder_is_saved_as_a_whole(above: str) -> None:
    """A restart reads a file under a name that no call has had, and the next save has another one."""
    saves = {after: in_folder(after, f"{above}ckpt-{after}") for after in (4, 8)}
    clean = Run({RANKS[0]: [Attempt(calls=[*saves[4], *saves[8], Call("write", "log", "", 9, 8)])]})
    killed = Run({RANKS[0]: [Attempt(calls=saves[4]), Attempt(reads=[f"{above}ckpt-4/part/data"])]})
    assert saved_files(clean, killed) == {"new", f"{above}ckpt-4", f"{above}ckpt-8"}


def test_a_file_that_a_restart_looks_for_in_vain_is_not_saved() -> None:
    made = [Call("mkdir", "logs", "", 0, 0), Call("write", "logs/out", "", 9, 4), *save(4)]
    clean = Run({RANKS[0]: [Attempt(calls=made)]})
    killed = Run({RANKS[0]: [Attempt(calls=made), Attempt(reads=["ckpt/4.pt"], looked=["logs/stop"])]})
    assert saved_files(clean, killed) == {"ckpt"}


def in_background(after: int, *delays: int) -> list[Call]:
    """Return the calls of a save whose file, its second half and its name come so many steps after it."""
    file, name = f"ckpt/step_{after}/data", "ckpt/latest"
    calls = [
        [Call("mkdir", f"ckpt/step_{after}", "", 0, 0), Call("openat", file, "", 0, 0), Call("write", file, "", 9, 0)],
        [Call("write", file, "", 9, 0), Call("fsync", file, "", 0, 0)],
        [Call("openat", f"{name}.tmp", "", 0, 0), Call("rename", f"{name}.tmp", name, 0, 0)],
        [Call("unlink", f"ckpt/step_{after - EVERY}/data", "", 0, 0)] * (after > EVERY),
    ]
    steps = [after, *(after + delay for delay in delays)]
    return [call._replace(steps=step) for step, some in zip(steps, calls, strict=True) for call in some]


@pytest.mark.parametrize("read", [(), ("ckpt/latest", "ckpt/step_4/data"), ("ckpt/step_4/data",)])
@pytest.mark.parametrize("delays", [(0, 2, 2), (2, 2, 2), (0, 1, 3), (0, 0, 0)])
def test_the_parts_of_a_save_in_the_background_are_one_save(delays: tuple[int, ...], read: tuple[str, ...]) -> None:
    """A busy machine lets a step pass without a call of the threads that write: the file alone is no complete save."""
    run = watched().clean
    run.attempts[RANKS[0]][0].calls = [call for after in (4, 8, 12) for call in in_background(after, *delays)]
    script = Watched(run, frozenset({"ckpt"}), frozenset(read))
    assert [save.step for save in script.saves] == [4, 8, 12]
    files = [call for call in in_background(4, *delays) if "step_4" in call.path]
    killed = Run({rank: [Attempt(calls=files if rank == RANKS[0] else [], done=9)] for rank in RANKS}, kills=1)
    assert reached_save(script, killed) == 0


def test_commits_alone_are_a_save_each() -> None:
    """No other call is seen where the kernel stops none."""
    run = watched().clean
    run.attempts[RANKS[0]][0].calls = [Call("commit", f"ckpt/{after}.pt", "", 0, after) for after in (4, 5, 8)]
    assert [each.step for each in Watched(run, frozenset({"ckpt"})).saves] == [4, 5, 8]


def test_it_does_not_matter_which_rank_makes_the_folder_of_a_save() -> None:
    made = Call("mkdir", "ckpt/8", "", 0, 8)
    script = watched()
    script.clean.attempts[RANKS[0]][0].calls.insert(4, made)
    script = Watched(script.clean, frozenset({"ckpt"}))
    killed = resumed(8)
    killed.attempts[RANKS[1]][0].calls.append(made)
    assert [each.step for each in script.saves] == [4, 8, 12] and reached_save(script, killed) == 8


def test_what_nobody_reads_in_a_restart_is_no_save_of_its_own() -> None:
    """The best model so far is written between two saves."""
    run = watched().clean
    best = [Call("openat", "ckpt/best.pt", "", 0, 6), Call("write", "ckpt/best.pt", "", 9, 6)]
    run.attempts[RANKS[0]][0].calls = [*save(4), *best, *save(8), *save(12)]
    script = Watched(run, frozenset({"ckpt"}), frozenset({"ckpt/4.pt"}))
    assert [each.step for each in script.saves] == [4, 8, 12]


def test_two_files_that_take_turns_are_a_save_each() -> None:
    run = watched().clean
    files = {4: "ckpt/slot0.pt", 8: "ckpt/slot1.pt", 12: "ckpt/slot0.pt"}
    calls = [[Call("openat", path, "", 0, at), Call("write", path, "", 9, at)] for at, path in files.items()]
    run.attempts[RANKS[0]][0].calls = [call for some in calls for call in some]
    script = Watched(run, frozenset({"ckpt"}), frozenset({"ckpt/slot0.pt"}))
    assert [each.step for each in script.saves] == [4, 8, 12]


def in_turns(files: dict[int, str]) -> Run:
    """Return a run without a fault in which rank 0 writes a file in place after some steps."""
    run = watched().clean
    calls = [[Call("openat", path, "", 0, at), Call("write", path, "", 9, at)] for at, path in files.items()]
    run.attempts[RANKS[0]][0].calls = [call for some in calls for call in some]
    return run


def reading(*paths: str) -> Run:
    """Return a run whose restart reads these files."""
    run = resumed(4, killed_after=8)
    for attempts in run.attempts.values():
        attempts[1].reads = [*paths]
    return run


TURNS = {2: "a.pt", 4: "b.pt", 6: "a.pt", 8: "b.pt", 10: "a.pt", 12: "b.pt"}


@pytest.mark.parametrize("read_later", [("b.pt",), ("a.pt", "b.pt")])
def test_files_without_a_number_that_take_turns_are_a_save_each(read_later: tuple[str, ...]) -> None:
    """The newest is looked for by its time, or in the content of both."""
    clean = in_turns(TURNS)
    turns = turns_of(clean, {2: reading("a.pt"), 4: reading(*read_later)})
    script = Watched(clean, frozenset({"a.pt", "b.pt"}), frozenset({"a.pt", "b.pt"}), turns=turns)
    assert [each.step for each in script.saves] == [*TURNS]


@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("reads_all", [False, True])
def test_any_number_of_files_that_take_turns_are_a_save_each(count: int, reads_all: bool) -> None:
    files = [f"{name}.pt" for name in "abcde"[:count]]
    clean = in_turns({2 * at + 2: files[at % count] for at in range(2 * count)})
    read = [files[: at + 1] if reads_all else [files[at]] for at in range(count)]
    turns = turns_of(clean, {2 * at + 2: reading(*some) for at, some in enumerate(read)})
    script = Watched(clean, frozenset(files), frozenset(files), turns=turns)
    assert [each.step for each in script.saves] == [2 * at + 2 for at in range(2 * count)]


def test_what_is_not_read_or_comes_in_each_save_takes_no_turns() -> None:
    """As the best model so far, or an index that is read with the second save as with the first."""
    best = in_turns({4: "ckpt/last.pt", 6: "ckpt/best.pt", 8: "ckpt/last.pt", 12: "ckpt/last.pt"})
    last = frozenset({"ckpt/last.pt"})
    assert turns_of(best, {4: reading("ckpt/last.pt"), 6: reading("ckpt/last.pt")}) == (last,)
    same = in_turns({4: "ckpt/last.pt", 8: "ckpt/last.pt"})
    assert turns_of(same, {4: reading("ckpt/last.pt"), 8: reading("ckpt/last.pt")}) == (last,)
    parts = in_turns({4: "a.pt", 5: "index", 8: "b.pt", 9: "index", 12: "a.pt"})
    turns = turns_of(parts, {4: reading("a.pt", "index"), 8: reading("b.pt", "index")})
    script = Watched(parts, frozenset({"a.pt", "b.pt", "index"}), frozenset({"a.pt", "b.pt", "index"}), turns=turns)
    assert [each.step for each in script.saves] == [4, 8, 12]


def test_saves_after_neighbouring_steps_are_one_and_a_save_at_each_step_is_one_each() -> None:
    clean = watched().clean
    clean.attempts[RANKS[0]][0].calls = [*save(4), *save(8)]
    clean.attempts[RANKS[1]][0].calls = [Call("openat", "ckpt/rank1.pt", "", 0, 5)]
    assert [each.step for each in Watched(clean, frozenset({"ckpt"})).saves] == [4, 8]
    clean.attempts[RANKS[0]][0].calls = [call for after in range(1, STEPS) for call in save(after)]
    assert [each.step for each in Watched(clean, frozenset({"ckpt"})).saves] == list(range(1, STEPS))


def test_a_call_that_another_run_does_not_have_is_no_point() -> None:
    """Two ranks make one folder: whoever comes first."""
    made = Call("mkdir", "ckpt", "", 0, 0)
    one = Run({RANKS[0]: [Attempt(calls=[made, *save(4)])], RANKS[1]: [Attempt(calls=save(8))]})
    keep_common(one, Run({RANKS[0]: [Attempt(calls=save(4))], RANKS[1]: [Attempt(calls=[made, *save(8)])]}))
    assert [attempts[0].calls for attempts in one.attempts.values()] == [save(4), save(8)]


def test_a_generator_that_nobody_seeds_is_not_compared() -> None:
    one, other = watched().clean, watched().clean
    for run in (one, other):
        first = run.attempts[RANKS[0]][0]
        first.steps = [msgspec.structs.replace(each, own={"noise": "n", "order": "o"}) for each in first.steps]
    steps = other.attempts[RANKS[0]][0].steps
    changes = {"random": {**steps[3].random, "python": "other"}, "own": {"noise": "other", "order": "o"}}
    steps[3] = msgspec.structs.replace(steps[3], **changes)
    keep_common(one, other)
    assert {tuple(step.random) for step in one.attempts[RANKS[0]][0].steps} == {("torch",)}
    assert {tuple(step.own) for step in one.attempts[RANKS[0]][0].steps} == {("order",)}
    assert {tuple(step.random) for step in one.attempts[RANKS[1]][0].steps} == {("torch", "python")}


def test_a_variable_of_a_server_that_stays_the_same_or_is_never_the_same_is_not_compared() -> None:
    """As the folder from which it goes on, and the time."""
    runs = watched().clean, watched().clean
    for number, run in enumerate(runs):
        first = run.attempts[RANKS[0]][0]
        first.steps = [
            msgspec.structs.replace(step, variables={"rate": f"{at}", "folder": "None", "time": f"{number}.{at}"})
            for at, step in enumerate(first.steps)
        ]
    keep_common(*runs)
    assert {tuple(step.variables) for step in runs[0].attempts[RANKS[0]][0].steps} == {("rate",)}


def test_a_call_that_nobody_can_do_in_place_of_the_process_has_no_point_after_it() -> None:
    run = watched().clean
    run.attempts[RANKS[0]][0].calls = [
        *save(4),
        Call("openat", "ckpt/8.pt", "", 0, 8),
        Call("sendfile", "ckpt/8.pt", "", 0, 8),
    ]
    script = Watched(run, frozenset({"ckpt"}))
    found = [point.name for point in points(script, resumed(4, killed_after=8), 8, RANKS[0], power=False)]
    assert "save2:default.0:write:ckpt/8.pt:before" in found and "save2:default.0:write:ckpt/8.pt:after" not in found


def test_a_save_in_two_parts_and_the_first_removal_are_tried() -> None:
    """A save in the background: data after one step, its name after another. The third removes the first."""
    run = watched().clean
    calls = []
    for number, after in enumerate((2, 6, 10)):
        calls += [
            Call("openat", f"ckpt/{after}/data", "", 0, after),
            Call("rename", "ckpt/new", "ckpt/last", 0, after + 2),
        ]
        calls += [Call("unlink", f"ckpt/{after - 4}/data", "", 0, after + 2)] if number == 2 else []
    run.attempts[RANKS[0]][0].calls = calls
    script = Watched(run, frozenset({"ckpt"}))
    found = [point.name for point in points(script, resumed(4, killed_after=8), 8, RANKS[0], power=False)]
    tried = [name.split(":", 1)[0] for name in found if name.endswith(":before")]
    assert set(tried) == {"save1", "save2", "save3"} and [save.step for save in script.saves] == [2, 6, 10]
    assert "save3:default.0:unlink:ckpt/6/data:before" in found


def test_an_elastic_role_has_points_with_one_replica_less_and_with_as_many_again() -> None:
    settings = {"power": False, "sizes": {"default": (1, 2)}}
    found = {p.name: p for p in points(watched(), resumed(4, killed_after=8), 6, RANKS[0], **settings)}  # type: ignore[arg-type]
    assert [kill.size for kill in found["default=1@step6"].kills] == [1]
    assert [kill.size for kill in found["default=1@step6,default=2@step9"].kills] == [1, 2]
    settings = {"power": False, "sizes": {"default": (2, 2), "reader": (1, 4)}}
    fixed = points(watched(), resumed(4, killed_after=8), 6, RANKS[0], **settings)  # type: ignore[arg-type]
    assert not any(kill.size for point in fixed for kill in point.kills)


def removing(*saves: tuple[int, int]) -> Watched:
    """Return a script that saves after steps 2, 4, ...; the save after each first step removes the other one."""
    run = watched().clean
    calls = {after: save(after) for after in range(2, STEPS + 1, 2)}
    for after, old in saves:
        calls[after].append(Call("unlink", f"ckpt/{old}.pt", "", 0, after))
    run.attempts[RANKS[0]][0].calls = [call for some in calls.values() for call in some]
    return Watched(run, frozenset({"ckpt"}))


@pytest.mark.parametrize(
    ("saves", "expected"),
    [
        ([(6, 2), (8, 4), (10, 6)], ["ckpt/2.pt", "ckpt/4.pt"]),
        ([(6, 2), (8, 4)], []),  # nothing comes after them that may tidy up
        ([(4, 2), (8, 4), (10, 6), (12, 8)], ["ckpt/4.pt", "ckpt/6.pt"]),
        ([], []),
    ],
)
def test_two_saves_in_a_row_are_killed_while_they_remove_something(
    saves: list[tuple[int, int]], expected: list[str]
) -> None:
    found = points(removing(*saves), resumed(4, killed_after=8), 6, RANKS[0], power=False)
    both = [point for point in found if point.about == "in the removals of two saves"]
    assert [kill.path for point in both for kill in point.kills] == expected
    assert all(point.save and {kill.kind for kill in point.kills} == {"unlink"} for point in both)
