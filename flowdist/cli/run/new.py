"""`flowdist new`: a project that runs, as a beginning of one's own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.options import json_option
from flowdist.projects import NEEDS_TORCH, TEMPLATES, write_project


@verb("new")
@click.argument("name")
@click.option(
    "--template", type=click.Choice(list(TEMPLATES)), default="ddp", show_default=True, help="What it trains."
)
@json_option
def command(name: str, template: str, as_json: bool) -> None:
    """Write a project into a new folder: topology, scripts, tests with failures, a scenario, a workflow for CI.

    \b
    flowdist new night                  DistributedDataParallel with AdamW, whose trainers come and go
    flowdist new words --template ps    a parameter server and trainers; it needs no torch
    flowdist new arms --template rl     a learner, actors with versions of its weights, and a replay buffer; no torch

    The last part of NAME is also the name of the topology.
    """
    written = write_project(Path(name), template)
    if as_json:
        print_json("new", folder=name, template=template, files=[str(path) for path in written])
        return
    for path in written:
        click.echo(path)
    if template in NEEDS_TORCH and find_spec("torch") is None:
        click.echo("\nfirst:  pip install torch: train.py imports it, and it is not installed here")
    click.echo(f"\nnow:  cd {name} && flowdist run        then: pytest, and README.md")
