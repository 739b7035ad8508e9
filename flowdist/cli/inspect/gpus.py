"""`flowdist gpus`: the GPUs of this machine that `run` would find."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.options import json_option
from flowdist.cli.shared.terminal import paint
from flowdist.graph import format_memory
from flowdist.report.table import table
from flowdist.runtime.gpus.devices import find_gpus
from flowdist.runtime.gpus.driver import Gpu, GpuError, Use, open_devices


@verb("gpus")
@json_option
def command(as_json: bool) -> None:
    """List the GPUs that `run` would give to replicas, within CUDA_VISIBLE_DEVICES.

    \b
    flowdist gpus
    flowdist gpus --json
    """
    gpus = find_gpus(os.environ)
    uses = _uses(gpus)
    if as_json:
        print_json("gpus", gpus=[_as_dict(gpu, use) for gpu, use in zip(gpus, uses, strict=True)])
    elif not gpus:
        click.echo("this machine has no GPU that flowdist can find", err=True)
    else:
        _show(gpus, uses)


def _uses(gpus: Sequence[Gpu]) -> list[Use | None]:
    """Return memory and processes in use on each GPU; None for a GPU of which the driver does not tell."""
    devices = open_devices(os.environ)
    uses: list[Use | None] = []
    for gpu in gpus:
        try:
            uses.append(devices.use(gpu.uuid) if devices is not None and gpu.uuid else None)
        except GpuError:
            uses.append(None)
    return uses


def _as_dict(gpu: Gpu, use: Use | None) -> dict[str, Any]:
    """Return a GPU for --json; `used` (bytes) and `pids` are None if the driver does not tell."""
    values = {key: getattr(gpu, key) for key in ("name", "uuid", "model", "memory", "bus", "numa")}
    used, pids = (use.used, list(use.pids)) if use is not None else (None, None)
    return {**values, "used": used, "pids": pids}


def _show(gpus: Sequence[Gpu], uses: Sequence[Use | None]) -> None:
    rows: list[tuple[str, ...]] = [("gpu", "model", "memory", "used", "processes", "bus", "numa", "uuid")]
    heading, *lines = table([*rows, *(_row(gpu, use) for gpu, use in zip(gpus, uses, strict=True))])
    paint(heading, bold=True)
    click.echo("\n".join(lines))


def _row(gpu: Gpu, use: Use | None) -> tuple[str, ...]:
    memory = format_memory(gpu.memory) if gpu.memory else "-"
    used = f"{use.used / (1 << 20):.0f}MiB" if use is not None else "-"
    pids = " ".join(map(str, use.pids)) if use is not None else ""
    numa = "-" if gpu.numa is None else str(gpu.numa)
    return gpu.name, gpu.model or "-", memory, used, pids or "-", gpu.bus or "-", numa, gpu.uuid or "-"
