"""`flowdist`: a group whose verbs are imported when they are called, so that `--help` is quick."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

import click

from flowdist import __version__
from flowdist.errors import FlowdistError

VERBS = {
    "check": "Report every problem of a topology, each at its place.",
    "plan": "Show what will happen: sizes, placement, start waves, policies, and what restarts with what.",
    "graph": "Draw the role graph: Mermaid, dot, svg or png.",
    "explain": "Explain an error code; or tell what a failure restarts, in which order, and who pays.",
    "gpus": "List the GPUs of this machine, and who uses them.",
    "run": "Run a topology, or a script, on this machine.",
    "join": "Take part, as a node, in the job of another host.",
    "torchrun": "Run a command line of torchrun as it is.",
    "list": "List runs: running, succeeded, failed, cancelled, or died without an end.",
    "status": "Show how a run is: roles, nodes, what is not as usual, what was decided lately.",
    "logs": "Print what workers have printed, or the events of the run; -f as it comes.",
    "scale": "Set how many replicas a role of a run has.",
    "drain": "Have a node left in order.",
    "cordon": "Place nothing new on a node.",
    "uncordon": "Use a node again.",
    "cancel": "End a run.",
    "report": "Report how a run ended and why, with each incident.",
    "simulate": "Run a topology, or a scenario, in virtual time, with failures.",
    "replay": "Feed the journal of a run to a fresh controller: event by event, as a log, or the state after one.",
    "timeline": "Draw a run or a simulation: one HTML file, or a trace for ui.perfetto.dev.",
    "diff": "Show where two runs or simulations part.",
}
# Verbs that are in none of these come last, under a heading of their own.
GROUPS = {
    "Before anything runs": ("check", "plan", "graph", "explain", "gpus", "simulate"),
    "Run": ("run", "join", "torchrun"),
    "While it runs": ("status", "logs", "scale", "drain", "cordon", "uncordon", "cancel"),
    "Afterwards": ("list", "report", "timeline", "replay", "diff"),
}


FOLDERS = {
    "run": ("run", "join", "torchrun"),
    "simulate": ("simulate",),
    "operate": ("scale", "drain", "cordon", "uncordon", "cancel"),
}
FOLDER_OF = {verb: folder for folder, verbs in FOLDERS.items() for verb in verbs}  # the others are in `inspect`

AS_JSON = "flowdist.as_json"


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(
            f"flowdist.cli.{FOLDER_OF.get(cmd_name, 'inspect')}.{cmd_name}"
        ).command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[AS_JSON] = "--json" in args[: args.index("--") if "--" in args else None]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Under --json a command line that cannot be read is told as any other problem is: one object on stdout."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not ctx.meta[AS_JSON]:
                raise
            from flowdist.cli.shared.common import fail  # only when something is wrong

            usage = error.ctx.command_path if error.ctx is not None else "flowdist"
            fail(FlowdistError(error.format_message(), help=f"see {usage} --help"), as_json=True)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped = [verb for verbs in GROUPS.values() for verb in verbs]
        rest = tuple(verb for verb in VERBS if verb not in grouped)
        width = max(map(len, VERBS))
        for heading, verbs in {**GROUPS, "Others": rest}.items():
            if verbs:
                with formatter.section(heading):
                    formatter.write_dl([(verb.ljust(width), VERBS[verb]) for verb in verbs])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            import difflib

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(VERBS)}"
            raise click.UsageError(f"no such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flowdist")
def cli() -> None:
    """Declare multi-role distributed training, run it elastically, and test its failures before they happen.

    Verbs about a topology take its file; without one they take topology.py in the current folder. Verbs about a run
    take its name, the beginning of it, or its folder; without one they take the newest in runs/.
    """


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what workers print need not be in the encoding of this terminal
    cli(prog_name="flowdist")
