"""`flowdist.toml`: named resources for all topologies below it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowdist.dsl.load import load_topology
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.graph import Resources
from tests.dsl.test_problems import underlined

SIZES = '[resources."gpu.large"]\ncpu = 8\ngpu = 1\nmemory = "64GiB"\n'


def topology(folder: Path, role: str, **topology: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    given = "".join(f", {name}={value}" for name, value in topology.items())
    body = f'from flowdist import *\nt = Topology("x", nodes=[Node(gpu=8, memory="1TiB")]{given})\n'
    (folder / "topology.py").write_text(body + f't.role("a", "true", {role})\n')
    return folder / "topology.py"


def resources(file: Path) -> Resources:
    return load_topology(str(file)).graph.roles[0].resources


def problems(file: Path) -> list[Problem]:
    with pytest.raises(TopologyProblems) as caught:
        load_topology(str(file))
    return list(caught.value.problems)


def test_a_role_names_a_size_of_the_file_and_may_change_a_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text(SIZES)
    assert resources(topology(tmp_path, 'resources="gpu.large"')) == Resources(8, 1, 64 << 30)
    assert resources(topology(tmp_path, 'resources="gpu.large", cpu=2')) == Resources(2, 1, 64 << 30)


def test_the_nearest_file_upwards_counts_alone(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text(SIZES)
    deep = topology(tmp_path / "jobs/deep", 'resources="gpu.large"')
    assert resources(deep) == Resources(8, 1, 64 << 30)
    (tmp_path / "jobs/flowdist.toml").write_text("[resources.small]\ncpu = 2\n")
    (found,) = problems(deep)
    assert (found.code, found.help) == ("FD110", "known: small")


def test_keys_are_found_among_values_over_several_lines(tmp_path: Path) -> None:
    """A line inside a value is not a key, and a table in an array has the place of the nearest known key."""
    content = '# sizes\n[resources.small]  # for tests\nlabels = [\n  "cpu = 1",\n  [3],\n]\nmemory = "lots"\n'
    (tmp_path / "flowdist.toml").write_text(content)
    found = problems(topology(tmp_path, "cpu=1"))
    assert [(p.code, p.place.line, underlined(p)) for p in found] == [("FD132", 3, "labels"), ("FD107", 7, "memory")]


def test_a_key_that_no_line_shows_has_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text('\n"a=b" = 3\n')
    (found,) = problems(topology(tmp_path, "cpu=1"))
    assert found.message == 'flowdist.toml: "a=b": the key is unknown'
    assert (found.place.line, found.place.column) == (1, 1)


def test_what_is_no_toml_is_told_with_its_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text("[resources.small]\ncpu = two\n")
    (found,) = problems(topology(tmp_path, "cpu=1"))
    assert (found.code, underlined(found), found.place.line, found.place.column) == ("FD142", "t", 2, 7)


def test_a_table_may_be_empty_and_then_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text("[resources.small]\n")
    assert resources(topology(tmp_path, 'resources="small"')) == Resources()
    (tmp_path / "flowdist.toml").unlink()
    assert resources(topology(tmp_path, 'resources="small"', resources='{"small": Resources(cpu=None)}')) == Resources()


def test_tables_in_a_size_are_unknown_keys_or_values_of_the_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text("[resources.gpu]\ncpu = 2\n[resources.gpu.large]\ncpu = 8\n")
    (found,) = problems(topology(tmp_path, "cpu=1"))
    assert (found.code, found.place.line) == ("FD132", 3)
    assert found.message == "flowdist.toml: resources.gpu.large: the key is unknown"
    (tmp_path / "flowdist.toml").write_text("[resources.small.cpu]\nmost = 2\n")
    (found,) = problems(topology(tmp_path, "cpu=1"))
    assert (found.code, underlined(found)) == ("FD134", "[resources.small.cpu]")
    assert found.message == "flowdist.toml: resources.small: cpu={'most': 2} must be a number"


def test_a_key_in_quotes_with_an_equals_sign_has_the_place_of_its_table(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text('[resources]\n"a=b" = 3\n')
    (found,) = problems(topology(tmp_path, "cpu=1"))
    assert found.message == 'flowdist.toml: resources."a=b": it must be a table' and underlined(found) == "[resources]"


def test_dotted_keys_and_indented_ones_have_their_place(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text("resources.small.cpu = 2\nresources.small.gpu = 1.5\n  other = 1\n")
    found = problems(topology(tmp_path, "cpu=1"))
    places = [(p.code, p.place.line, p.place.column, underlined(p)) for p in found]
    assert places == [("FD148", 2, 1, "resources.small.gpu"), ("FD132", 3, 3, "other")]


def test_an_empty_file_and_a_folder_of_that_name_name_no_size(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").touch()
    (found,) = problems(topology(tmp_path, 'resources="small"'))
    assert found.code == "FD110" and found.help.endswith("or a flowdist.toml")
    (tmp_path / "below/flowdist.toml").mkdir(parents=True)
    (tmp_path / "flowdist.toml").write_text(SIZES)
    assert resources(topology(tmp_path / "below", 'resources="gpu.large"')) == Resources(8, 1, 64 << 30)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that nobody can read")
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").symlink_to("/proc/self/mem")
    (found,) = problems(topology(tmp_path, "cpu=1"))
    assert (found.code, found.message) == ("FD142", "flowdist.toml cannot be read: Input/output error")
    assert (found.place.line, found.place.column) == (1, 1)


def test_a_size_of_the_topology_that_makes_no_sense_is_told_at_its_argument(tmp_path: Path) -> None:
    own = '{3: Resources(), "wrong": Resources(cpu="many")}'
    (found,) = problems(topology(tmp_path, 'resources="wrong"', resources=own))
    assert (found.code, found.message) == ("FD134", "resources 'wrong': cpu='many' must be a number")
    assert underlined(found) == '"many"'
    (found,) = problems(topology(tmp_path, 'resources="big"', resources=own))
    assert (found.code, found.help) == ("FD110", "known: 3, wrong")


def test_the_table_of_the_topology_wins(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text(SIZES + "[resources.small]\ncpu = 2\n")
    own = '{"gpu.large": Resources(cpu=3)}'
    assert resources(topology(tmp_path, 'resources="gpu.large"', resources=own)) == Resources(3)
    assert resources(topology(tmp_path, 'resources="small"', resources=own)) == Resources(2)


@pytest.mark.parametrize(
    ("content", "code", "line", "word", "message", "help"),
    [
        ("[resource.small]\ncpu = 2\n", "FD132", 1, "[resource.small]", "resource: the key", '"resources"'),
        (SIZES + "gpus = 2\n", "FD132", 5, "gpus", 'resources."gpu.large".gpus: the key is unknown', '"gpu"'),
        (SIZES.replace("64GiB", "lots"), "FD107", 4, "memory", "memory='lots' cannot be read", "64GiB"),
        (SIZES.replace("gpu = 1", "gpu = 1.5"), "FD148", 3, "gpu", "gpu=1.5: a share is of one GPU", "gpu=2"),
        (SIZES.replace("cpu = 8", "cpu = -8"), "FD105", 2, "cpu", "cpu=-8 must not be negative", "cpu=1"),
        ("[resources.gpu.large]\ncpu = 8\n", "FD132", 1, "[resources.gpu.large]", "holds a table", '"gpu.large"'),
        ("\n[resources]\nsmall = { cpus = 2 }\n", "FD132", 3, "small", "small.cpus: the key", '"cpu"'),
        ("resources = 3\n", "FD134", 1, "resources", "must be a table", "[resources."),
        ("[resources]\nsmall = 3\n", "FD134", 2, "small", "must be a table", "[resources."),
        ("[resources.small]\ncpu = [\n  2,\n]\n", "FD134", 2, "cpu", "cpu=[2] must be a number", "cpu=1"),
        ("[resources\n", "FD142", 1, "", "cannot be read", "correct the file"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line_and_key(
    tmp_path: Path, content: str, code: str, line: int, word: str, message: str, help: str
) -> None:
    (tmp_path / "flowdist.toml").write_text(content)
    (found,) = problems(topology(tmp_path, "cpu=1"))
    assert (found.code, found.place.file, found.place.line) == (code, str(tmp_path / "flowdist.toml"), line)
    assert message in found.message and "flowdist.toml" in found.message and help in found.help
    assert underlined(found) == word


def test_a_file_that_is_no_text_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_bytes(b"\xff\xfe")
    (found,) = problems(topology(tmp_path, "cpu=1"))
    assert found.code == "FD142" and "cannot be read" in found.message


@pytest.mark.parametrize(
    ("role", "own", "message"),
    [
        ("resources=['a']", "{}", "resources=['a'] must be a name"),
        ("resources='a'", "{'a': 3}", "the topology's 'a' is not a Resources"),
        ("cpu=1", "[3]", "resources= must be a dict"),
    ],
)
def test_what_is_no_table_of_sizes_is_refused_in_words(tmp_path: Path, role: str, own: str, message: str) -> None:
    (found,) = problems(topology(tmp_path, role, resources=own))
    assert found.code == "FD134" and message in found.message
