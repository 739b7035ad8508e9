"""`flowdist gpus`: the GPUs of this machine that `run` would find."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import click

from flowdist.cli.shared.common import paint, print_json, verb
from flowdist.cli.shared.options import json_option
from flowdist.graph import format_memory
from flowdist.runtime.gpus.devices import find_gpus
from flowdist.runtime.gpus.driver import Devices, Gpu, GpuError, open_devices
from flowdist.text.printable import table


@verb("gpus")
@json_option
def command(as_json: bool) -> None:
    """List the GPUs that `run` would give to replicas, within CUDA_VISIBLE_DEVICES.

    \b
    flowdist gpus
    flowdist gpus --json
    """
    devices = open_devices(os.environ)
    gpus = [_values(gpu, devices) for gpu in find_gpus(os.environ)]
    if as_json:
        print_json("gpus", gpus=gpus)
    elif not gpus:
        click.echo("this machine has no GPU that flowdist can find", err=True)
    else:
        rows: list[tuple[str, ...]] = [("gpu", "model", "memory", "used", "processes", "bus", "numa", "uuid")]
        heading, *lines = table([*rows, *map(_row, gpus)])
        paint(heading, bold=True)
        click.echo("\n".join(lines))


def _values(gpu: Gpu, devices: Devices | None) -> dict[str, Any]:
    """Return a GPU for --json; `used` (bytes) and `pids` are None if the driver does not tell."""
    use = None
    with contextlib.suppress(GpuError):
        use = devices.use(gpu.uuid) if devices is not None and gpu.uuid else None
    values = {key: getattr(gpu, key) for key in ("name", "uuid", "model", "memory", "bus", "numa")}
    used, pids = (use.used, list(use.pids)) if use is not None else (None, None)
    return {**values, "used": used, "pids": pids}


def _row(gpu: dict[str, Any]) -> tuple[str, ...]:
    memory = format_memory(gpu["memory"]) if gpu["memory"] else "-"
    used = f"{gpu['used'] / (1 << 20):.0f}MiB" if gpu["used"] is not None else "-"
    pids, numa = " ".join(map(str, gpu["pids"] or ())), "-" if gpu["numa"] is None else str(gpu["numa"])
    return gpu["name"], gpu["model"] or "-", memory, used, pids or "-", gpu["bus"] or "-", numa, gpu["uuid"] or "-"
