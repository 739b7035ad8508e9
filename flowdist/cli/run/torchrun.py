"""`flowdist torchrun`: run a command line of torchrun unchanged, on this machine or with other hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from flowdist.cli import COMPLETION
from flowdist.cli.run.execution import RunSettings, cold_option, execute, interface_option, needs_linux, with_cold
from flowdist.cli.run.hosts import meet
from flowdist.cli.shared.common import Guarded, paint, show_problems, verb
from flowdist.cli.shared.options import options_with_values
from flowdist.dsl.load import compile_loaded
from flowdist.errors import FlowdistError
from flowdist.runtime.gpus.devices import machine_cpus, machine_gpus
from flowdist.torchrun.options import CompletionAsked, HelpAsked, completions, help_text, read_options, refuse
from flowdist.torchrun.output import Output
from flowdist.torchrun.rendezvous import as_here, check_store_port, with_store_at
from flowdist.torchrun.settle import settle

if TYPE_CHECKING:
    from flowdist.runtime.run_folder.logs import OpenSink
    from flowdist.runtime.supervisor.event_printer import Show


class _Command(Guarded):
    """Command whose options are torchrun's own: click passes them on unread, and --help shows torchrun's table."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\nOptions of torchrun:\n" + help_text() + "\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options that begin with `incomplete`: flowdist's own and torchrun's; none after the script."""
        words = ctx.params.get("words") or ()
        own = [] if words else super().shell_complete(ctx, incomplete)
        return own + [CompletionItem(text, help=help) for text, help in completions(words, incomplete)]


def _complete_word(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what torchrun's option before this word may have as its value; where that is not known, file names."""
    found = list(completions(ctx.params.get("words") or (), incomplete))
    return [CompletionItem(text, help=help) for text, help in found] or [CompletionItem(incomplete, type="file")]


@verb(
    "torchrun",
    cls=_Command,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[torchrun's own options]",
)
@cold_option
@interface_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]", shell_complete=_complete_word)
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], cold: bool, interface: str) -> None:
    """Run a command line of torchrun unchanged, as a topology with one role.

    \b
    flowdist torchrun --standalone --nproc-per-node 4 train.py --epochs 5
    flowdist torchrun --nnodes 1:4 --nproc-per-node 2 --max-restarts 3 -m package.train

    Every option is honoured, reported as without effect, or refused with a reason: see docs/torchrun.md.
    Two options are flowdist's own, and come first. --cold: each worker starts in an interpreter of its own.
    --interface eth1: the network interface at which other hosts reach this one.
    """
    try:
        own = options_with_values(ctx.command)
        given = read_options(words, os.environ, lambda: _options_of_run(own), own)
    except HelpAsked:
        click.echo(ctx.get_help())
        return
    except CompletionAsked as asked:
        _print_completion_script(ctx, asked.shell)
        return
    needs_linux("torchrun")

    gpus = machine_gpus(os.environ)
    launch = settle(given, os.environ, gpus, machine_cpus())
    loaded = compile_loaded(launch.topology)
    show_problems(loaded.warnings)
    if launch.store_endpoint:
        check_store_port(launch.store_endpoint)
    graph = with_cold(with_store_at(loaded.graph, launch.store_endpoint), cold)
    for note in launch.notes:
        paint(f"flowdist: {note}", fg="yellow", err=True)
    prefix = re.sub(r"[^\w.-]", "_", launch.run_id)[:100] if launch.run_id else ""
    if launch.log_dir:
        _make_log_dir(launch.log_dir)
    base = Path(launch.log_dir or "runs")
    prefix = (prefix or graph.name) if launch.log_dir else ""

    def opener(run_dir: Path, show: Show) -> OpenSink:
        return Output(launch.streams, run_dir, show).open

    settings = RunSettings(base, prefix=prefix, opener=opener)
    if launch.rendezvous is None:
        if interface:
            raise FlowdistError("--interface is for several hosts", help="name an --rdzv-endpoint, or leave it out")
        execute(graph, settings)
    if interface and launch.rendezvous.local_addr:
        raise FlowdistError("--interface does not go with --local-addr", help="leave one of the two out")
    place = launch.rendezvous._replace(interface=interface)
    meet(graph, place, settings, lambda theirs: as_here(theirs, graph), gpus)


def _print_completion_script(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes flowdist, and with it torchrun's options."""
    kind = get_completion_class(shell)
    if kind is None:
        refuse("FD150", f"--print-completion {shell} cannot be honoured: there is none", "write bash or zsh")
    click.echo(kind(ctx.find_root().command, {}, "flowdist", COMPLETION).source())


def _options_of_run(own: Mapping[str, bool]) -> dict[str, bool]:
    """Return the options of `flowdist run` that are not in `own`, each with whether it takes a value."""
    from flowdist.cli.run.run import command as run  # its options are for messages alone

    return {name: value for name, value in options_with_values(run).items() if name not in own}


def _make_log_dir(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlowdistError(f"--log-dir {folder}: {error.strerror}", help="name a folder that you may write") from None
