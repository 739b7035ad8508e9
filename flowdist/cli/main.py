"""`flowdist`: the group of all verbs. A verb is imported when it is called, so that `--help` is quick."""

from __future__ import annotations

import difflib
import errno
import io
import os
import pkgutil
import signal
import sys
from typing import Any, NamedTuple, NoReturn, TextIO

import click

from flowdist import __version__
from flowdist.cli import COMPLETION
from flowdist.errors import FlowdistError
from flowdist.runtime.replaced import replacement
from flowdist.text.streams import open_closed_streams, print_printable_only

REPLACED_HELP = "install into another environment while runs go on; flowdist list shows how they ended"
TOPOLOGIES, STATE, OPERATE = "inspect.topologies", "inspect.run_state", "operate"  # files of several verbs
BEFORE, RUN, DURING, AFTER = "Before anything runs", "Run", "While it runs", "Afterwards"
AS_JSON = "flowdist.as_json"


class Verb(NamedTuple):
    """One verb: its heading in `flowdist --help`, the folder of its file (or the file itself), and its line of help."""

    group: str
    folder: str
    help: str


VERBS = {
    "new": Verb(BEFORE, "run", "Write a project that runs: topology, scripts, tests, a workflow for CI."),
    "check": Verb(BEFORE, TOPOLOGIES, "Report every problem of a topology, each at its place in the file."),
    "plan": Verb(
        BEFORE, TOPOLOGIES, "Show sizes, placement, start waves, restart policies, and what restarts with what."
    ),
    "graph": Verb(BEFORE, TOPOLOGIES, "Draw the role graph as Mermaid, dot, svg or png."),
    "explain": Verb(
        BEFORE, TOPOLOGIES, "Explain an error code; or what a failure restarts, in which order, and which role pays."
    ),
    "export": Verb(BEFORE, "run", "Write a job as manifests for Kubernetes (JobSet, TrainJob)."),
    "gpus": Verb(BEFORE, "inspect", "List the GPUs of this machine and the processes that use them."),
    "simulate": Verb(BEFORE, "simulate", "Run a topology or a scenario in virtual time, with failures."),
    "advise": Verb(BEFORE, "simulate", "Say what to change so that failures cost less, and how sure that is."),
    "validate": Verb(BEFORE, "simulate", "Compare published results with what the simulator computes for them."),
    "prove": Verb(BEFORE, "run", "Kill a script at every point that matters, and compare with a run without a kill."),
    "run": Verb(RUN, "run", "Run a topology or a script on this machine."),
    "join": Verb(RUN, "run", "Join the job of another host as a node."),
    "torchrun": Verb(RUN, "run", "Run a command line of torchrun unchanged."),
    "status": Verb(DURING, STATE, "Show the state of a run: roles, nodes, warnings and recent decisions."),
    "ui": Verb(DURING, "run", "Show a run in the browser: its timeline, live, with reasons and logs."),
    "logs": Verb(DURING, "logs", "Print the output of workers on all hosts, search it, or print events; -f follows."),
    "scale": Verb(DURING, OPERATE, "Set the number of replicas of a role in a run."),
    "drain": Verb(DURING, OPERATE, "Move all work off a node, in order."),
    "cordon": Verb(DURING, OPERATE, "Place no new replicas on a node."),
    "uncordon": Verb(DURING, OPERATE, "Use a cordoned or drained node again."),
    "cancel": Verb(DURING, OPERATE, "End a run."),
    "list": Verb(AFTER, "inspect", "List runs: running, succeeded, failed, cancelled, or died without an end."),
    "report": Verb(AFTER, STATE, "Report how a run ended and why, with each incident."),
    "timeline": Verb(AFTER, "inspect", "Draw a run or a simulation as an HTML page, or a trace for ui.perfetto.dev."),
    "replay": Verb(
        AFTER, "inspect", "Replay the journal of a run: event by event, as a log, or the state after one event."
    ),
    "why": Verb(AFTER, "inspect", "Find which faults cost a run most: play it again without each of them."),
    "calibrate": Verb(AFTER, "simulate", "Measure the times of the workers in runs, for the simulator."),
    "diff": Verb(AFTER, "inspect", "Compare two runs or simulations: the first difference, or incident by incident."),
}


WORDS_OF_OTHERS = {  # what users try that is no verb, and the command line that they mean
    "help": "flowdist --help, or flowdist run --help",
    "version": "flowdist --version",
    "resume": "flowdist run --resume latest, or with the name of a run",
    "start": "flowdist run",
    "launch": "flowdist run",
    "restart": "flowdist run --resume latest, or with the name of a run",
    "attach": "flowdist logs -f, or flowdist status --watch",
    "stop": "flowdist cancel",
    "kill": "flowdist cancel --now",
    "ps": "flowdist list",
    "ls": "flowdist list",
    "init": "flowdist new NAME",
}


class _LazyGroup(click.Group):
    """Group of all verbs; the file of a verb is imported when the verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        folder = VERBS[cmd_name].folder
        place = f"{folder}:{cmd_name}" if folder in (TOPOLOGIES, STATE, OPERATE) else f"{folder}.{cmd_name}:command"
        command: click.Command = pkgutil.resolve_name(f"flowdist.cli.{place}")
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note whether --json stands before any `--`, so that errors in the command line can be reported as JSON."""
        ctx.meta[AS_JSON] = "--json" in args[: args.index("--") if "--" in args else None]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. With --json, report a wrong command line as every other problem: as one object on stdout."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not ctx.meta[AS_JSON]:
                raise
            usage = error.ctx.command_path if error.ctx is not None else "flowdist"
            help: str = getattr(error, "help", "")  # of an `UnknownOption`
            message = error.message if help else error.format_message()
            _fail(FlowdistError(message, help=help or f"see {usage} --help"), as_json=True)
        except KeyboardInterrupt:  # while the verb is imported: click would say "Aborted!", and end with 1
            sys.exit(130)
        except EOFError as error:  # likewise
            if "marshal" not in str(error):
                raise
            damaged = "a compiled module is cut off, as a full disk leaves it"
            help = f"delete the folders __pycache__ below {__file__.rpartition('/cli/')[0]}"
            _fail(FlowdistError(damaged, help=help), as_json=ctx.meta[AS_JSON])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs for --help, under the headings of `VERBS`."""
        width = max(map(len, VERBS))
        for heading in dict.fromkeys(verb.group for verb in VERBS.values()):
            with formatter.section(heading):
                verbs = [(name.ljust(width), verb.help) for name, verb in VERBS.items() if verb.group == heading]
                formatter.write_dl(verbs)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for an unknown one, raise a usage error that names what is meant, or all verbs."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            raise click.UsageError(f"no such command {args[0]!r}; {_meant(*args)}", ctx)
        return super().resolve_command(ctx, args)


def _fail(error: FlowdistError, *, as_json: bool) -> NoReturn:
    """Report the error as `common.fail` does."""
    from flowdist.cli.shared.common import fail  # json and pathlib: not needed by --help

    fail(error, as_json=as_json)


def _meant(word: str, *words: str) -> str:
    """Return what a user may have meant by a word that is no verb, with `words` after it; else all verbs."""
    if word == "help" and words and words[0] in VERBS:
        return f"write flowdist {words[0]} --help"
    if word.endswith(".py"):
        return f"write flowdist run {word}"
    if word in WORDS_OF_OTHERS:
        return f"write {WORDS_OF_OTHERS[word]}"
    close = difflib.get_close_matches(word, VERBS, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(VERBS)}"


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="flowdist")
def cli() -> None:
    """Declare multi-role distributed training, run it elastically, and test its failures before they happen.

    Verbs about a topology take its file. The default is topology.py in the current folder. Verbs about a run take the
    run's name, the beginning of its name, or its folder. The default is the newest run in runs/.
    """


def main() -> None:
    """Run the command line of this process, and exit with its exit code."""
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # output of workers may have characters that this terminal lacks
    if COMPLETION not in os.environ:  # click writes what a shell asks for as bytes, and the shell quotes it
        print_printable_only()
    try:
        cli(prog_name="flowdist", complete_var=COMPLETION)
    except SystemExit as end:
        _flush(sys.stderr)
        lost = _flush(sys.stdout)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # else one while Python ends would replace the exit code
        if lost is not None and not end.code:
            _die_of_lost(lost)
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # of the help: verbs handle their own errors
            _flush(sys.stdout)
            _die_of_lost(error)
        if not (cause := replacement()):
            raise
        text = f"error: flowdist itself has failed: {cause} ({type(error).__name__}: {error})"
        click.echo(f"{text}\nhelp: {REPLACED_HELP}", err=True)
        sys.exit(os.EX_SOFTWARE)  # `fail` would import more


def _die_of_lost(lost: OSError) -> NoReturn:
    click.echo(f"error: stdout could not be written, and lacks some of the output: {lost.strerror}", err=True)
    sys.exit(2)


def _flush(stream: TextIO) -> OSError | None:
    """Flush a stream, and return the error if some of the output could not be written; a reader that has gone is none.

    A flush may wait for a reader. An interrupt ends the wait, and the rest goes to /dev/null. Else Python would flush
    the stream again at its end, when interrupts are ignored, and wait for ever; or replace the exit code by its own.
    """
    lost = None
    try:
        stream.flush()
        return None
    except OSError as error:
        lost = error if error.errno != errno.EPIPE else None
    except KeyboardInterrupt:
        pass
    except ValueError:  # it is closed
        return None
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return lost
