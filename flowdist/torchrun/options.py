"""Every option of torchrun (torch 2.13), and its meaning in flowdist.

This table is the only source: it is used to parse the command line, shown by --help and docs/torchrun.md, and compared
with torch's own parser by a test. No option is ignored in silence: it is honoured, reported as without effect, or
refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, NoReturn

from flowdist.dsl.problems.places import CLI
from flowdist.dsl.problems.problem import Problem, TopologyProblems, did_you_mean

Stance = Literal["same", "better", "no effect", "refused"]


class Option(NamedTuple):
    """One option. `names` have dashes, and may be given with underscores. `words` say what the option means here."""

    names: tuple[str, ...]
    stance: Stance
    words: str
    default: str = ""
    flag: bool = False
    choices: tuple[str, ...] = ()
    from_env: bool = True  # True: the variable PET_<NAME> gives a default

    @property
    def key(self) -> str:
        return self.names[-1].removeprefix("--").replace("-", "_")

    def spellings(self) -> list[str]:
        """Return all names, and each long name with underscores."""
        other = ["--" + name.removeprefix("--").replace("-", "_") for name in self.names if name.startswith("--")]
        return list(dict.fromkeys([*self.names, *other]))


OPTIONS = (
    Option(
        ("--nnodes",),
        "same",
        "`N` or `MIN:MAX`: hosts that meet at --rdzv-endpoint; without it, logical nodes of this machine, all started "
        "by one command",
        "1:1",
    ),
    Option(
        ("--nproc-per-node",),
        "same",
        "a number, `cpu`, `gpu` or `auto`; other devices, such as `xpu`, are refused. Logical nodes share the GPUs; "
        "hosts may have different numbers",
        "1",
    ),
    Option(
        ("--rdzv-backend",),
        "better",
        "`c10d` and `static` name the host of the controller, which forms the world at once; others, such as `etcd`, "
        "are refused: no service is needed",
        "static",
    ),
    Option(
        ("--rdzv-endpoint",),
        "better",
        "with several nodes: this command is one host of them, and the host that it names runs the controller; every "
        "generation has a store of its own. With one node it changes nothing, and another host is refused",
    ),
    Option(("--rdzv-id",), "same", "`TORCHELASTIC_RUN_ID`, and the name of the folder under --log-dir", "none"),
    Option(
        ("--rdzv-conf",),
        "better",
        "`join_timeout` (below the minimum), `last_call_timeout` (below the maximum) and `is_host` are honoured, and "
        "`token` is a secret of all hosts; the other timers change nothing, since nothing is polled; unknown names are "
        "refused",
    ),
    Option(("--standalone",), "same", "a run id of its own, and all nodes on this machine", flag=True),
    Option(
        ("--max-restarts",),
        "better",
        "failures of the whole job, not of each agent; a lost or joining node is free. From the second restart on it "
        "waits 1 s, then 2 s, and so on up to 1 min",
        "0",
    ),
    Option(("--monitor-interval",), "no effect", "exits are noticed at once, not by polling", "0.1"),
    Option(
        ("--start-method",),
        "no effect",
        "workers are processes of their own, as torchrun's are for a script",
        "spawn",
        choices=("spawn", "fork", "forkserver"),
    ),
    Option(
        ("--event-log-handler",),
        "refused",
        "except `null`: events are in journal.jsonl, and a hook (`on_incident=`) gets incidents",
        "null",
    ),
    Option(("--role",), "same", "`ROLE_NAME`, and the prefix of --tee", "default"),
    Option(("-m", "--module"), "same", "`python -m`", flag=True),
    Option(("--no-python",), "same", "the program itself, by its path or found on PATH", flag=True),
    Option(
        ("--run-path",),
        "better",
        "the script runs as `python SCRIPT` in an interpreter of its own; PYTHON_EXEC is not used",
        flag=True,
    ),
    Option(
        ("--log-dir",),
        "better",
        "`DIR/<rdzv id>_<random>/attempt_N/<local rank>/` with stdout.log, stderr.log and error.json; all streams are "
        "there, also without -r, and those of earlier attempts are kept. With several nodes: `.../node_K/attempt_N/`",
    ),
    Option(("-r", "--redirects"), "better", "not on the terminal; local ranks may have several digits", "0"),
    Option(
        ("-t", "--tee"),
        "better",
        "on the terminal as `[default0]:line`, or as TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE has it",
        "0",
    ),
    Option(("--local-ranks-filter",), "same", "only these local ranks are on the terminal"),
    Option(("--duplicate-stdout-filters",), "same", "matching lines of --tee, in `attempt_N/filtered_stdout.log`"),
    Option(("--duplicate-stderr-filters",), "same", "matching lines of --tee, in `attempt_N/filtered_stderr.log`"),
    Option(
        ("--node-rank",),
        "better",
        "with `static` and several nodes: the host with 0 runs the controller, and the ranks follow the numbers, in "
        "any order of arrival",
        "0",
    ),
    Option(
        ("--master-addr",),
        "better",
        "with `static` and several nodes: where the hosts meet. MASTER_ADDR is the host of rank 0, also after a loss",
        "127.0.0.1",
    ),
    Option(
        ("--master-port",),
        "better",
        "with `static` and several nodes: the port at which the hosts meet (29500). MASTER_PORT is a fresh port, bound "
        "anew for each generation",
    ),
    Option(
        ("--local-addr",),
        "same",
        "the address by which the other hosts reach this one (default: that of its connection to the controller)",
    ),
    Option(
        ("--logs-specs",),
        "refused",
        "plug-ins of torch's agent have nothing to plug into: use --log-dir, -r and -t",
        from_env=False,
    ),
    Option(
        ("--numa-binding",),
        "same",
        "`node`: each worker runs on the cores of the NUMA node of its GPU from its start on; "
        "`socket`, `exclusive` and `core-complex` are refused",
        choices=("node", "socket", "exclusive", "core-complex"),
        from_env=False,
    ),
    Option(
        ("--signals-to-handle",),
        "no effect",
        "SIGINT, SIGTERM and SIGHUP end the job in order, SIGQUIT at once; others, such as SIGUSR1, are refused",
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    Option(
        ("--shutdown-timeout",),
        "better",
        "seconds from SIGTERM to SIGKILL, at restarts too (torchrun: always 30 there). Without it, and without "
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 2 s after a failure, else 30 s",
    ),
    Option(
        ("--virtual-local-rank",),
        "same",
        "LOCAL_RANK=0 and one device in CUDA_VISIBLE_DEVICES: of the list that is set there, or of the node's share",
        flag=True,
    ),
)
HELP = "flowdist torchrun --help shows every option"
BY_KEY = {option.key: option for option in OPTIONS}


class Given(NamedTuple):
    """Parsed command line of torchrun: the value of every option, and for each given option the words that gave it.

    Flags have the value "1" or "".
    """

    values: Mapping[str, str]
    spelled: Mapping[str, str]
    script: str
    args: tuple[str, ...]


def refuse(code: str, message: str, help: str) -> NoReturn:
    """Raise TopologyProblems with one problem of the command line."""
    raise TopologyProblems([Problem(code, message, help, CLI)], where="on the command line")


class HelpAsked(Exception):
    """The command line has -h or --help before the script."""


class _Parser(argparse.ArgumentParser):
    """Parser of torchrun's options: abbreviations, `-r3` and `--tee=3` work because torchrun uses the same class."""

    def print_help(self, file: object = None) -> NoReturn:
        raise HelpAsked

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        if unknown != message.split()[0]:
            known = [name for option in OPTIONS for name in option.names]
            help = did_you_mean(unknown.partition("=")[0].replace("_", "-"), known, otherwise=HELP)
            refuse("FD152", f"torchrun has no option {unknown}", help)
        if "training_script" in message:
            refuse("FD152", "no script is given", "write flowdist torchrun [options] train.py [its arguments]")
        refuse("FD152", message, HELP)


def read_options(words: Sequence[str], env: Mapping[str, str]) -> Given:
    """Parse the command line; an option that is not given has the value of PET_<NAME>, or its default.

    Raises:
        TopologyProblems: An option is unknown, or there is no script.
        HelpAsked: The user asks for help.
    """
    parser = _Parser(prog="flowdist torchrun")
    for option in OPTIONS:
        if option.flag:
            parser.add_argument(*option.spellings(), dest=option.key, action="store_const", const="1")
        else:
            parser.add_argument(*option.spellings(), dest=option.key)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    found = vars(parser.parse_args(list(words)))
    values: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for option in OPTIONS:
        key, value, variable = option.key, found[option.key], f"PET_{option.key.upper()}"
        if value is not None:
            values[key], spelled[key] = value, option.names[-1] if option.flag else f"{option.names[-1]} {value}"
        elif option.from_env and variable in env:
            values[key], spelled[key] = env[variable], f"{variable}={env[variable]}"
        else:
            values[key] = option.default
    for key in [key for key in spelled if BY_KEY[key].flag and not values[key].strip("0 ")]:
        values[key] = ""  # PET_STANDALONE=0
        del spelled[key]
    return Given(values, spelled, found["training_script"], tuple(found["training_script_args"]))


def option_table() -> str:
    """Return the Markdown table of all torchrun options and what becomes of each here, as in docs/torchrun.md."""
    rows = ["| option | here | |", "|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in option.names)
        rows.append(f"| {names} | {option.stance} | {option.words} |")
    return "\n".join(rows)


def help_text() -> str:
    """Return the options as the terminal shows them."""
    lines = []
    for option in OPTIONS:
        value = "" if option.flag else " " + option.key.upper().rpartition("_")[2]
        lines.append(f"  {', '.join(option.names)}{value}\n      {option.stance}: {option.words.replace('`', '')}")
    return "\n".join(lines)
