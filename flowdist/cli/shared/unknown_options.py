"""Help for an option that `flowdist run` does not have: it may be the script's own, or one of torchrun's."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import click

from flowdist.dsl.load import looks_like_topology
from flowdist.torchrun.options import torchrun_name, value_of

TORCHRUN = "flowdist torchrun takes torchrun's options"
AFTERWARDS = "a run is predicted when it is over: flowdist report RUN --workload workload.toml"
GONE = {"--predict": AFTERWARDS, "--workload": AFTERWARDS}  # options that `run` once had, each with what does as well


class UnknownOption(click.UsageError):
    """Error for an option that a command does not have, with the help that is printed below the message.

    Args:
        message: What is wrong.
        help: What to write instead; empty if that cannot be said.
        ctx: The context of the command.
    """

    def __init__(self, message: str, help: str, ctx: click.Context) -> None:
        super().__init__(message, ctx)
        self.help = help

    def format_message(self) -> str:
        """Return the message for the terminal."""
        return f"{self.message}\nhelp: {self.help}" if self.help else self.message


def options_with_values(command: click.Command) -> dict[str, bool]:
    """Return all options of a command, as `--set` or `-p`, each with whether it takes a value."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    values = {name: not option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)}
    return {**values, "--help": False, "-h": False}


def help_for_unknown(option: str, words: Sequence[str], known: Mapping[str, bool]) -> str:
    """Return what the user can write instead of an unknown option; empty if that cannot be said.

    Args:
        option: The option, without a value.
        words: The command line without `flowdist run`.
        known: The options of `flowdist run`, each with whether it takes a value.
    """
    script = next((word for word in _before_dashes(words) if word.endswith(".py")), "")
    if meant := torchrun_name(option):
        size = _replicas(words) if meant in ("--nproc-per-node", "--nnodes") else ""
        return f"write flowdist run {script or 'train.py'} --replicas {size}; {TORCHRUN}" if size else TORCHRUN
    texts = [GONE[option]] if option in GONE else []
    if script and not looks_like_topology(script):
        kept, own = _divided(words, script, known)
        line = shlex.join(["flowdist", "run", *kept, "--", *own])
        texts.append(f"the script's own arguments come after --: {line}")
    return "; ".join(texts)


def _before_dashes(words: Sequence[str]) -> Sequence[str]:
    return words[: words.index("--")] if "--" in words else words


def _replicas(words: Sequence[str]) -> str:
    """Return the value of --replicas for the --nnodes and --nproc-per-node among the words; empty if there is none."""
    nodes = value_of("--nnodes", words) or "1"
    procs = value_of("--nproc-per-node", words) or "1"
    return f"{nodes}x{procs}" if nodes.replace(":", "", 1).isdecimal() and procs.isdecimal() else ""


def _divided(words: Sequence[str], script: str, known: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Divide a command line into the words that `flowdist run` reads, and the script's own arguments."""
    before = _before_dashes(words)
    kept: list[str] = []
    own: list[str] = []
    part, values = kept, 0  # where the next word goes that is no option; how many values the last option still takes
    for word in before:
        name, equals, _ = word.partition("=")
        if values:
            values -= 1
        elif word == script:
            part = kept
        elif word.startswith("--") or word[:2] in known:
            is_known = name in known or not word.startswith("--")
            part = kept if is_known else own
            values = int(is_known and not equals and known.get(name, False))
        elif word.startswith("-"):
            part = own
        part.append(word)
    return kept, [*own, *words[len(before) + 1 :]]
