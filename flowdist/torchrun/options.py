"""Every option of torchrun (torch 2.15), and its meaning in flowdist.

The table in `options.md` is the only source: it parses the command line, is shown by --help and docs/torchrun.md, and a
test compares it with torch's parser. Each option is honoured, reported as without effect, or refused.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Literal, NamedTuple, NoReturn

import msgspec

from flowdist.dsl.problems.places import CLI
from flowdist.dsl.problems.problem import Problem, TopologyProblems, did_you_mean

Stance = Literal["same", "better", "no effect", "refused"]
CHOICES = {
    "--start-method": ("spawn", "fork", "forkserver"),
    "--numa-binding": ("node", "socket", "exclusive", "core-complex"),
    "--print-completion": ("bash", "zsh", "tcsh"),
}
OptionsOfRun = Callable[[], Mapping[str, bool]]
NOT_FROM_ENV = ("--logs-specs", "--numa-binding", "--print-completion")


class Option(NamedTuple):
    """One option of torchrun."""

    names: tuple[str, ...]  # with dashes; a user may write underscores in long names
    stance: Stance  # what becomes of the option in flowdist
    words: str  # the same in words, for the user
    default: str  # torchrun's; empty for a flag
    flag: bool  # True: the option has no value
    choices: tuple[str, ...]  # the values that torchrun accepts; empty: any
    from_env: bool  # True: the variable PET_<NAME> gives a default

    @property
    def key(self) -> str:
        """Return the name of the option in `Given`: its long name with underscores, such as `rdzv_id`."""
        return self.names[-1].removeprefix("--").replace("-", "_")

    def spellings(self) -> list[str]:
        """Return all names, and each long name with underscores."""
        other = ["--" + name.removeprefix("--").replace("-", "_") for name in self.names if name.startswith("--")]
        return list(dict.fromkeys([*self.names, *other]))


def _options() -> Iterator[Option]:
    """Yield the options in the table of `options.md`, in its order."""
    text = files("flowdist.torchrun").joinpath("options.md").read_text(encoding="utf-8")
    for row in (line for line in text.splitlines() if line.startswith("| `")):
        spelled, stance, default, words = row.strip("| ").split(" | ")
        *_, name = names = tuple(spelled.replace("`", "").split(", "))
        yield Option(
            names,
            msgspec.convert(stance, Stance),
            words,
            default="" if default == "flag" else default.strip("`"),
            flag=default == "flag",
            choices=CHOICES.get(name, ()),
            from_env=name not in NOT_FROM_ENV,
        )


OPTIONS = tuple(_options())
HELP = "flowdist torchrun --help shows every option"
BY_KEY = {option.key: option for option in OPTIONS}
BY_SPELLING = {name: option for option in OPTIONS for name in option.spellings()}
LIKENESS_MIN = 0.85  # of an unknown option and one of torchrun's, so that one of `flowdist run` is not named instead
OF_OTHERS = {  # what other launchers call an option of torchrun
    "--nprocs": "--nproc-per-node",
    "--nproc": "--nproc-per-node",
    "--num-procs": "--nproc-per-node",
    "--num-processes": "--nproc-per-node",
    "--num-gpus": "--nproc-per-node",
    "--num-nodes": "--nnodes",
    "--num-machines": "--nnodes",
    "--machine-rank": "--node-rank",
    "--main-process-ip": "--master-addr",
    "--main-process-port": "--master-port",
}


class Given(NamedTuple):
    """A parsed command line of torchrun. Options are named by their `key`."""

    values: Mapping[str, str]  # of every option: given, from the environment, or the default; a flag has "1" or ""
    spelled: Mapping[str, str]  # of the options that were given, for messages: `--nnodes 2`, `PET_NNODES=2`
    script: str
    args: tuple[str, ...]  # of the script


def refuse(code: str, message: str, help: str) -> NoReturn:
    """Raise TopologyProblems with a single problem of the command line; `code` is its number, such as FD152."""
    raise TopologyProblems([Problem(code, message, help, CLI)], where="on the command line")


def torchrun_name(option: str) -> str:
    """Return torchrun's name of an option (without value) in the spelling of any launcher; else empty."""
    names = {name: each.names[-1] for each in OPTIONS for name in each.names}
    spelled = "-" * (len(option) - len(option.lstrip("-"))) + option.lstrip("-").replace("_", "-")
    return names.get(spelled) or OF_OTHERS.get(spelled, "")


def value_of(name: str, words: Sequence[str]) -> str:
    """Return the value that the words give an option of torchrun, under any of its names; empty if they give none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith("-") and torchrun_name(option) == name:
            return value if equals else following
    return ""


class HelpAsked(Exception):
    """Raised for a command line that has -h or --help before the script."""


class CompletionAsked(Exception):
    """Raised for a command line that has --print-completion, with its shell, before the script."""

    def __init__(self, shell: str) -> None:
        super().__init__(shell)
        self.shell = shell


class _Completion(argparse.Action):
    """Action of --print-completion. It raises CompletionAsked at once: no script is needed."""

    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> NoReturn:
        raise CompletionAsked(str(values))


class _Parser(argparse.ArgumentParser):
    """Parser of torchrun's options: abbreviations, `-r3` and `--tee=3` work as torchrun uses the same class."""

    def __init__(self, words: Sequence[str], options_of_run: OptionsOfRun, own: Collection[str]) -> None:
        super().__init__(prog="flowdist torchrun")
        self._words, self._options_of_run, self._own = list(words), options_of_run, own

    def print_help(self, file: object = None) -> NoReturn:
        """Raise HelpAsked; argparse calls this for -h and --help."""
        raise HelpAsked

    def error(self, message: str) -> NoReturn:
        """Raise TopologyProblems for a message of argparse, in the words of flowdist where it can be told apart."""
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        if unknown != message.split()[0]:
            refuse("FD152", f"torchrun has no option {unknown}", self._help_for(unknown))
        if "training_script" in message:
            refuse("FD152", "no script is given", "write flowdist torchrun [options] train.py [its arguments]")
        refuse("FD152", message, HELP)

    def _help_for(self, unknown: str) -> str:
        """Return the help line for an unknown option: its place, the one meant, or how `flowdist run` has it."""
        name = unknown.partition("=")[0]
        if name in self._own:
            return f"write it first: flowdist torchrun {name} ..."
        if meant := torchrun_name(name):
            return f'did you mean "{meant}"?'
        known = [each for option in OPTIONS for each in option.names]
        dashed = name.replace("_", "-")
        of_run = self._options_of_run()
        if name in of_run and not difflib.get_close_matches(dashed, known, 1, LIKENESS_MIN):
            return _in_run(unknown, self._words, of_run[name])
        return did_you_mean(dashed, known, HELP)


def _in_run(option: str, words: list[str], has_value: bool) -> str:
    """Return a help line that shows an option of `flowdist run` in a command line; its role is called trainer."""
    place = words.index(option)
    _, equals, value = option.partition("=")
    value = value if equals else " ".join(words[place + 1 : place + 2])
    end = place + 1 + (has_value and not equals)
    script = next((word for word in [*words[:place], *words[end:]] if word.endswith(".py")), "train.py")
    given = [option.partition("=")[0], re.sub("^default(?=[./@=])", "trainer", value)] if has_value else [option]
    return f"flowdist run has it: {shlex.join(['flowdist', 'run', script, *filter(None, given)])}"


def read_options(
    words: Sequence[str], env: Mapping[str, str], options_of_run: OptionsOfRun = dict, own: Collection[str] = ()
) -> Given:
    """Parse a command line of torchrun; an option that is not given has the value of PET_<NAME>, or its default.

    For an unknown option `options_of_run` is called (each with whether it takes a value): if it is one, the error shows
    how it is written there. Options in `own`, flowdist's, come before `words`, as their error says. TopologyProblems if
    an option is unknown or there is no script; HelpAsked or CompletionAsked.
    """
    parser = _Parser(words, options_of_run, own)
    for option in OPTIONS:
        if option.flag:
            parser.add_argument(*option.spellings(), dest=option.key, action="store_const", const="1")
        elif option.key == "print_completion":
            parser.add_argument(*option.spellings(), choices=option.choices, action=_Completion)
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


def help_text() -> str:
    """Return all options of torchrun and what becomes of each in flowdist, as text for --help."""
    lines = []
    for option in OPTIONS:
        value = "" if option.flag else " " + option.key.upper().rpartition("_")[2]
        lines.append(f"  {', '.join(option.names)}{value}\n      {option.stance}: {option.words.replace('`', '')}")
    return "\n".join(lines)


def completions(words: Sequence[str], incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield what the word `incomplete` behind `words` may become, with help; none: it may be a file."""
    has_script, option = _place_after(words)
    if option is not None:
        yield from ((choice, "") for choice in option.choices if choice.startswith(incomplete))
    elif not has_script and incomplete.startswith("-"):
        names = ((each.names[-1], each) for each in OPTIONS)
        yield from ((name, each.words) for name, each in names if name.startswith(incomplete.replace("_", "-")))


def _place_after(words: Sequence[str]) -> tuple[bool, Option | None]:
    """Return whether the words have the script already, and the option whose value they still lack."""
    lacking: Option | None = None
    for word in words:
        if lacking is not None:
            lacking = None
        elif not word.startswith("-") or word == "--":
            return True, None
        elif (option := BY_SPELLING.get(word)) is not None and not option.flag:
            lacking = option
    return False, lacking
