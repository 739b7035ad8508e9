"""`flowdist logs --grep` and `--json`: what is found, what is printed around it, and patterns that are none."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.cli.logs.logs import command
from flowdist.cli.logs.printing import LinePrinter, LineSearch, Origin, Search, compiled
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, RoleSpec, encode_graph
from tests.choosing import examples

FIRST = "start\nloss nan\nError: one\ntail\n"
SECOND = "again\n\x1b[31merr\x1b[0mor two\nend\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run with two attempts of one replica, and one of another."""
    folder = tmp_path / "runs/logged"
    for place, text in (("0/attempt_1/0", FIRST), ("0/attempt_2/0", SECOND), ("1/attempt_1/0", "quiet\n")):
        (folder / "trainer" / place).mkdir(parents=True)
        (folder / "trainer" / place / "stdout.log").write_text(text)
        (folder / "trainer" / place / "stderr.log").write_bytes(b"bytes \xff\n")
    (folder / "graph.json").write_bytes(
        encode_graph(RoleGraph("logged", (RoleSpec("trainer", ("true",), min_replicas=2, max_replicas=2),)))
    )
    monkeypatch.chdir(tmp_path)
    return folder


def logs(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(command, ["--run", "logged", *words])
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("--grep error", ["[trainer/0/attempt_2]:\x1b[31merr\x1b[0mor two"]),
        ("--grep error -i", ["[trainer/0/attempt_1]:Error: one", "[trainer/0/attempt_2]:\x1b[31merr\x1b[0mor two"]),
        ("--grep error -i --attempt 1 trainer/0", ["[trainer/0/attempt_1]:Error: one"]),
        ("--grep ^loss --grep ^qui", ["[trainer/0/attempt_1]:loss nan", "[trainer/1/attempt_1]:quiet"]),
        ("--grep E.*n -F", None),
        ("--grep E.*n --no-prefix", ["Error: one"]),
        ("--grep loss -A 1 --no-prefix", ["loss nan", "Error: one"]),
        (
            "--grep nan|ail|aga -B 1 --stdout",
            [
                "[trainer/0/attempt_1]-start",
                "[trainer/0/attempt_1]:loss nan",
                "[trainer/0/attempt_1]-Error: one",
                "[trainer/0/attempt_1]:tail",
                "--",
                "[trainer/0/attempt_2]:again",
            ],
        ),
        ("--grep start|tail -C 0 --no-prefix", ["start", "tail"]),
        ("--grep start|quiet -C 1 --no-prefix", ["start", "loss nan", "--", "quiet"]),
        ("--grep end -n 1 --no-prefix", ["end"]),
        ("--grep again -n 1", None),
        ("--grep end -f --no-prefix", ["end"]),
    ],
)
def test_lines_that_match_are_printed_as_grep_prints_them(run: Path, words: str, lines: list[str] | None) -> None:
    done = logs(*words.split(), code=1 if lines is None else 0)
    assert done.stdout.splitlines() == (lines or [])
    assert bool(re.search(r"no line matches, of \d+ lines", done.stderr)) == (lines is None)


def test_json_has_an_object_for_each_line(run: Path) -> None:
    told = [json.loads(line) for line in logs("--json", "trainer/1").stdout.splitlines()]
    head = {"worker": "trainer/1", "attempt": 1, "host": None}
    assert told == [
        {**head, "stream": "stdout", "line": "quiet"},
        {**head, "stream": "stderr", "line": "bytes \ufffd"},
    ]
    found = [json.loads(line) for line in logs("--json", "--grep", "loss", "-A1").stdout.splitlines()]
    assert [(line["line"], line["match"]) for line in found] == [("loss nan", True), ("Error: one", False)]
    assert json.loads(logs("--json", "trainer/7", code=2).stdout)["kind"] == "problems"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("foo(", "the ( has no ) at character 4 ('(')"),
        ("foo)", "the ) has no ( at character 4"),
        ("[a-", "the [ has no ] at character 1"),
        ("*.log", "there is nothing before it to repeat at character 1"),
        ("a**", "it repeats what is repeated already"),
        ("[z-a]", "the range in [ ] runs backwards"),
        ("a{3,1}", "the least number in { } is greater than the greatest"),
        ("\\", "nothing follows the \\"),
        ("\\q", "the \\ before this character means nothing"),
        ("(?<=a+)b", "(?<=...) needs a pattern of one length"),
        ("(a)\\2", "it refers to a group that is not there"),
        ("(?y)", "there is no such (?...)"),
        ("a(?i)", "flags such as (?i) have to come first"),
        ("a{99999999999}", "is no regular expression"),
        ("(" * 5000 + ")" * 5000, "is no regular expression"),
    ],
)
def test_a_pattern_that_is_none_is_explained(run: Path, pattern: str, why: str) -> None:
    done = logs("--grep", pattern, code=2)
    assert f"error: --grep {pattern!r} is no regular expression" in done.stderr and why in done.stderr
    assert "-F to search for the text as it is" in done.stderr and "Traceback" not in done.output
    logs("--grep", pattern, "-F", code=1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("-i", "-i goes with --grep"),
        ("-C 3", "-C goes with --grep"),
        ("-A 0", "-A goes with --grep"),
        ("--events --grep x", "--events is about the whole run"),
        ("--fetch-max lots", "--fetch-max lots: not a size of memory"),
        ("--grep x --attempt 9", "there is no attempt 9"),
    ],
)
def test_options_that_mean_nothing_are_refused(run: Path, words: str, why: str) -> None:
    assert why in logs(*words.split(), code=2).stderr


def test_patterns_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(FlowdistError, match="cannot be searched together"):
        compiled(["(?P<a>x)", "(?P<a>y)"], is_text=False, ignore_case=False)


@given(
    matching=st.lists(st.booleans(), max_size=30),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
)
@settings(max_examples=examples(40, 300), deadline=None)
def test_context_is_that_of_grep(matching: list[bool], before: int, after: int) -> None:
    """Printed are the lines near a match, each once, in order; a new group begins where lines are left out."""
    search = LineSearch(Search(re.compile("yes"), before, after))
    lines = [f"{number} {'yes' if match else 'no'}" for number, match in enumerate(matching)]
    hits = [hit for line in lines for hit in search.feed(line)]
    near = [number for number in range(len(lines)) if any(matching[max(0, number - after) : number + before + 1])]
    assert [int(hit.line.split()[0]) for hit in hits] == near
    assert [hit.matches for hit in hits] == [matching[number] for number in near]
    firsts = [number for number in near if number - 1 not in near]
    assert [int(hit.line.split()[0]) for hit in hits if hit.is_first] == firsts


def test_matches_are_coloured_on_a_terminal_and_nothing_else_of_the_line_is_obeyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w", newline="") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        printer = LinePrinter(lambda text: text.replace("secret", "***"), Search(re.compile("loss|x*"), after=1))
        for line in ("\x1b]0;title\x07\x1b[31mloss\x1b[0m 3\x1b[2J secret", "after"):
            printer.show(Origin("trainer/0", 2, "stdout", ""), line)
        told = screen.read(1 << 16).decode()
    name = "\x1b[35m[trainer/0/attempt_2]\x1b[0m\x1b[36m:\x1b[0m"
    assert told.splitlines()[0] == f"{name}\x1b[1;31mloss\x1b[0m 3 ***"
    assert "title" not in told and "\x1b[2J" not in told and "\x1b[31m" not in told
