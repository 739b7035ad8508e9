"""Output on the terminal and in filtered files, and the links to torchrun's folders."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from flowdist.runtime.run_folder.logs import Follower
from flowdist.torchrun.output import Output
from tests.runtime.test_environment import START
from tests.torchrun.harness import outcome_of, what_becomes_of


def shown(folder: Path, *words: str, env: dict[str, str] | None = None) -> list[str]:
    """Return the terminal after two workers wrote `apple` and `pear` to stdout and `error` to stderr."""
    outcome = outcome_of(*words, "--nproc-per-node", "2", "x.py", env=env)
    start = msgspec.structs.replace(START, replica=START.replica._replace(role=outcome.role.name, index=0), rank=4)
    for local_rank in range(2):
        attempt = folder / outcome.role.name / "0" / f"attempt_{start.attempt}" / str(local_rank)
        attempt.mkdir(parents=True)
        (attempt / "stdout.log").write_text(f"apple {local_rank}\npear {local_rank}\n")
        (attempt / "stderr.log").write_text(f"error {local_rank}\n")
    lines: list[str] = []
    follower = Follower(folder, print, Output(outcome.streams, folder, lambda _, text: lines.append(text)).open)
    follower.follow(start, outcome.role)
    assert follower.read_rest()
    return lines


EVERYTHING = ["apple 0", "pear 0", "error 0", "apple 1", "pear 1", "error 1"]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("", EVERYTHING),
        ("-r 3", []),
        ("-r 1", ["error 0", "error 1"]),
        ("-r 0:3,1:2", ["apple 1", "pear 1"]),
        ("-t 2", ["apple 0", "pear 0", "[default0]:error 0", "apple 1", "pear 1", "[default1]:error 1"]),
        ("-r 3 -t 1:1", ["[default1]:apple 1", "[default1]:pear 1"]),
        ("--local-ranks-filter 1", ["apple 1", "pear 1", "error 1"]),
        ("-t 1 --local-ranks-filter 0", ["[default0]:apple 0", "[default0]:pear 0", "error 0"]),
        ("-r 3 -t 1 --role Chief", ["[Chief0]:apple 0", "[Chief0]:pear 0", "[Chief1]:apple 1", "[Chief1]:pear 1"]),
    ],
)
def test_what_is_on_the_terminal(tmp_path: Path, words: str, lines: list[str]) -> None:
    assert shown(tmp_path, *words.split()) == lines


def test_the_prefix_of_tee_is_the_users_template(tmp_path: Path) -> None:
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank} ${local_rank} ${x}> "}
    assert shown(tmp_path, "-t", "1:2", env=env)[-1] == "<default 5 1 ${x}> error 1"


def test_the_option_for_the_prefix_comes_before_its_variable_and_knows_the_host(tmp_path: Path) -> None:
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "old "}
    words = ["-t", "1:2", "--log-line-prefix-template", "${hostname}:${rank}: "]
    assert shown(tmp_path, *words, env=env)[-1] == f"{socket.gethostname()}:5: error 1"
    assert "no stream is tee'd (-t)" in what_becomes_of([*words[2:], "x.py"]).notes
    assert what_becomes_of([*words, "x.py"]).notes == ""


def test_tees_that_match_a_filter_are_copied(tmp_path: Path) -> None:
    words = ["-t", "1", "--duplicate-stdout-filters", "pear 0,apple 1", "--duplicate-stderr-filters", "error"]
    assert len(shown(tmp_path, *words)) == 6
    attempt = tmp_path / "attempt_4"  # the fifth generation
    assert (attempt / "filtered_stdout.log").read_text() == "[default0]:pear 0\n[default1]:apple 1\n"
    assert not (attempt / "filtered_stderr.log").exists()


def test_files_are_where_torchrun_has_them(tmp_path: Path) -> None:
    shown(tmp_path, "--nnodes", "1")
    assert (tmp_path / "attempt_4/1/stdout.log").read_text() == "apple 1\npear 1\n"
    assert (tmp_path / "attempt_4").readlink() == Path("default/0/attempt_3")  # the folder can be moved


def test_each_of_several_nodes_has_a_folder_of_its_own(tmp_path: Path) -> None:
    shown(tmp_path, "--nnodes", "2")
    assert (tmp_path / "node_0/attempt_4/1/stdout.log").read_text() == "apple 1\npear 1\n"
