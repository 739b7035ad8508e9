"""The table of options, compared with torch's own parser: names, defaults, and parsed command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli
from flowdist.dsl.problems.problem import TopologyProblems
from flowdist.torchrun.options import BY_KEY, OPTIONS, HelpAsked, completions, read_options
from tests.torchrun.harness import BESIDE, SAMPLES, what_becomes_of

DOCS = Path(__file__).parents[2] / "docs/torchrun.md"


@pytest.fixture
def torch_parser() -> Any:
    run = pytest.importorskip("torch.distributed.run", reason="torch is not installed")
    return run.get_args_parser()


NEWER = {"log_line_prefix_template", "print_completion"}  # options that torch 2.15 has, and torch 2.13 has not


def torch_options(parser: Any) -> dict[str, Any]:
    return {action.dest: action for action in parser._actions if action.option_strings and action.dest != "help"}


def test_every_option_of_torchrun_is_in_the_table_and_no_other(torch_parser: Any) -> None:
    theirs = torch_options(torch_parser)
    assert set(theirs) in (set(BY_KEY), set(BY_KEY) - NEWER)
    for key, action in theirs.items():
        option = BY_KEY[key]
        assert set(action.option_strings) == set(option.spellings())
        assert option.flag == (action.nargs == 0) and option.choices == tuple(action.choices or ())
        assert option.flag or option.default == ("" if action.default in (None, []) else str(action.default))
        assert option.from_env == (type(action).__name__ in ("env", "check_env"))


def option_table() -> str:
    """Return the table of all options that docs/torchrun.md has."""
    rows = ["| option | here | |", "|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in option.names)
        rows.append(f"| {names} | {option.stance} | {option.words} |")
    return "\n".join(rows)


def test_the_table_is_in_the_docs_as_it_is() -> None:
    assert option_table() in DOCS.read_text()


@pytest.mark.parametrize("key", [key for key in BY_KEY if key != "print_completion"])
def test_no_option_is_ignored_in_silence(key: str) -> None:
    given = [BY_KEY[key].names[-1], *([] if BY_KEY[key].flag else [SAMPLES[key]])]
    said = " ".join(given)
    beside = BESIDE.get(key, [])
    gpus = ("0",) if key == "numa_binding" else ()
    before = what_becomes_of([*beside, "x.py"], gpus=gpus)
    after = what_becomes_of([*beside, *given, "x.py"], gpus=gpus)
    if BY_KEY[key].stance == "refused":
        assert f"{said} cannot be honoured" in after.refused
    elif key == "standalone":
        after = what_becomes_of(["--rdzv-id", "job7", *given, "x.py"])  # alone, it has its default meaning
        assert "change nothing here: --rdzv-id job7" in after.notes
    elif BY_KEY[key].stance == "no effect":
        assert said in after.notes and after.outcome == before.outcome
    elif key == "rdzv_backend":
        assert said in what_becomes_of([*given, "x.py"]).notes and "etcd" in BY_KEY[key].words
    else:
        assert after.refused == "" and after.outcome != before.outcome


def test_every_option_is_read_from_its_variable_as_from_the_command_line() -> None:
    for option in (option for option in OPTIONS if option.from_env):
        value = "1" if option.flag else SAMPLES[option.key]
        given = read_options(["x.py"], {f"PET_{option.key.upper()}": value})
        assert given.values[option.key] == value and f"PET_{option.key.upper()}={value}" in given.spelled[option.key]
    assert read_options(["--tee", "1", "x.py"], {"PET_TEE": "3"}).values["tee"] == "1"
    assert not read_options(["x.py"], {"PET_STANDALONE": "0"}).values["standalone"]
    assert not read_options(["x.py"], {"PET_LOGS_SPECS": "mine"}).values["logs_specs"]


LINES = [
    "x.py",
    "--standalone --nproc_per_node=2 x.py --lr 1 --nnodes 9",
    "--nproc-per-node gpu --max-rest 3 -m package.train -- --x",
    "-r3 -t 0:1,1:2 --log_dir /x y.sh -h",
    "--no-python --nnodes 1:4 -t=3 bash -c 'echo -m'",
    "--rdzv-conf join_timeout=5,timeout=3 --master_port 29501 --monitor-interval=1.5 -- x.py --",
    "--duplicate-stdout-filters a,,b,c --run_path /x.py",
]


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_read_as_torchrun_reads_it(torch_parser: Any, line: str) -> None:
    import shlex

    from flowdist.torchrun.settle import comma_separated

    theirs = vars(torch_parser.parse_args(shlex.split(line)))
    ours = read_options(shlex.split(line), {})
    assert (ours.script, list(ours.args)) == (theirs["training_script"], theirs["training_script_args"])
    for key, option in BY_KEY.items():
        if key in NEWER and key not in theirs:
            assert ours.values[key] == ""
        elif option.flag:
            assert bool(ours.values[key]) == theirs[key]
        elif isinstance(theirs[key], list):
            assert list(comma_separated(ours.values[key])) == theirs[key]
        else:
            assert ours.values[key] == ("" if theirs[key] is None else str(theirs[key]))


@pytest.mark.parametrize(
    ("words", "message", "help"),
    [
        (["--nproc-per-node", "2"], "no script is given", "write flowdist torchrun"),
        (["--nproc_per_nod=2", "--stand", "--nodes", "x.py"], "torchrun has no option --nodes", '"--nnodes"'),
        (["--nprocs", "2", "x.py"], "torchrun has no option --nprocs", 'did you mean "--nproc-per-node"?'),
        (["--num_processes=2", "x.py"], "torchrun has no option --num_processes", 'did you mean "--nproc-per-node"?'),
        (["--nodes", "2", "x.py"], "torchrun has no option --nodes", 'did you mean "--nnodes"?'),
        (
            ["--standalone", "--set", "default.hang_after=5s", "x.py", "--set", "a"],
            "torchrun has no option --set",
            "flowdist run has it: flowdist run x.py --set trainer.hang_after=5s",
        ),
        (["--set=hang_after=5s", "x"], "torchrun has no option --set=", "flowdist run train.py --set hang_after=5s"),
        (["--fail", "default/0@5s", "x.py"], "torchrun has no option --fail", "flowdist run x.py --fail trainer/0@5s"),
        (["--quiet", "x.py"], "torchrun has no option --quiet", "flowdist run x.py --quiet"),
        (["--blub", "x.py"], "torchrun has no option --blub", "flowdist torchrun --help"),
        (["--rdzv", "x", "x.py"], "ambiguous option: --rdzv", "flowdist torchrun --help"),
        (["--tee"], "argument -t/--tee: expected one argument", "flowdist torchrun --help"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused(words: list[str], message: str, help: str) -> None:
    with pytest.raises(TopologyProblems, match="1 error on the command line") as caught:
        read_options(words, {}, lambda: {"--set": True, "--fail": True, "--nodes": True, "--quiet": False})
    (problem,) = caught.value.problems
    assert problem.code == "FD152" and message in problem.message and help in problem.help


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_of_a_shell_is_printed_without_a_script(shell: str) -> None:
    for words in (["--print-completion", shell], ["--nnodes", "2", f"--print_completion={shell}"]):
        shown = CliRunner().invoke(cli, ["torchrun", *words])
        assert shown.exit_code == 0 and f"_FLOWDIST_COMPLETE={shell}_complete" in shown.output
    assert read_options(["x.py", "--print-completion", shell], {}).args == ("--print-completion", shell)


def test_a_completion_that_cannot_be_made_is_refused() -> None:
    refused = CliRunner().invoke(cli, ["torchrun", "--print-completion", "tcsh"])
    assert refused.exit_code == 2 and "FD150" in refused.output and "write bash or zsh" in refused.output
    unknown = CliRunner().invoke(cli, ["torchrun", "--print-completion", "ksh"])
    assert unknown.exit_code == 2 and "FD152" in unknown.output and "'ksh'" in unknown.output


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ("--nnodes 2", "--log", ["--log-dir", "--log-line-prefix-template", "--logs-specs"]),
        ("--standalone", "--log_l", ["--log-line-prefix-template"]),
        ("--nnodes 2 --start-method", "f", ["fork", "forkserver"]),
        ("--start-method fork x.py", "--log", []),
        ("--log-dir", "run", []),
        ("--", "--log", []),
    ],
)
def test_options_are_completed_up_to_the_script(words: str, incomplete: str, found: list[str]) -> None:
    assert sorted(text for text, _ in completions(words.split(), incomplete)) == found


def test_help_shows_every_option_and_only_before_the_script() -> None:
    for words in (["-h"], ["--nproc-per-node", "2", "--help"]):
        with pytest.raises(HelpAsked):
            read_options(words, {})
        shown = CliRunner().invoke(cli, ["torchrun", *words])
        assert shown.exit_code == 0 and all(option.names[-1] in shown.output for option in OPTIONS)
    assert read_options(["x.py", "--help"], {}).args == ("--help",)
