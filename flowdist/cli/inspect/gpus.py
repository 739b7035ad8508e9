"""`flowdist gpus`: what `run` would find on this machine."""

from __future__ import annotations

import os

import click

from flowdist.cli.shared.common import guarded, print_json
from flowdist.cli.shared.operating import json_option


@click.command(name="gpus")
@json_option
@guarded
def command(as_json: bool) -> None:
    """List the GPUs that `run` would give to replicas, as CUDA_VISIBLE_DEVICES limits them.

    \b
    flowdist gpus
    flowdist gpus --json
    """
    from flowdist.graph import format_memory  # msgspec and the runtime: not for --help
    from flowdist.report.table import table
    from flowdist.runtime.gpus.devices import find_gpus
    from flowdist.runtime.gpus.driver import GpuError, Use, open_devices

    found, devices = find_gpus(os.environ), open_devices(os.environ)
    uses: list[Use | None] = []
    for gpu in found:
        try:
            uses.append(devices.use(gpu.uuid) if devices is not None and gpu.uuid else None)
        except GpuError:
            uses.append(None)
    if as_json:
        told = [
            {
                "name": gpu.name,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "memory": gpu.memory,
                "bus": gpu.bus,
                "numa": gpu.numa,
                "used": use.used if use is not None else None,
                "pids": list(use.pids) if use is not None else None,
            }
            for gpu, use in zip(found, uses, strict=True)
        ]
        print_json("gpus", gpus=told)
        return
    if not found:
        click.echo("this machine has no GPU that flowdist can find", err=True)
        return
    rows: list[tuple[str, ...]] = [("gpu", "model", "memory", "used", "processes", "bus", "numa", "uuid")]
    for gpu, use in zip(found, uses, strict=True):
        memory = format_memory(gpu.memory) if gpu.memory else "-"
        used = f"{use.used / (1 << 20):.0f}MiB" if use is not None else "-"
        pids = " ".join(map(str, use.pids)) or "-" if use is not None else "-"
        numa = "-" if gpu.numa is None else str(gpu.numa)
        rows.append((gpu.name, gpu.model or "-", memory, used, pids, gpu.bus or "-", numa, gpu.uuid or "-"))
    heading, *lines = table(rows)
    click.secho(heading, bold=True)
    for line in lines:
        click.echo(line)
