"""The ledger of samples of a run (R25): which steps count, and whether each sample was used once."""

from __future__ import annotations

from typing import Any

from flowdist.control.job.state import JobState, World
from flowdist.control.membership.samples import why_not_once
from flowdist.text.printable import table


def ledgers_of(job: JobState) -> dict[str, Any]:
    """Return the ledger of each world that has reported its samples, as plain values, by the world's name."""
    return {world.name: _ledger(world) for world in job.worlds.values() if world.drawing is not None}


def _ledger(world: World) -> dict[str, Any]:
    assert world.drawing is not None
    of = world.ledger[-1].sampling if world.ledger else world.drawing.sampling
    return {
        "dataset_size": of.dataset_size,
        "global_batch": of.global_batch,
        "seed": of.seed,
        "shuffle": of.shuffle,
        "steps": [
            {"generation": each.generation, "begin": each.begin, "end": each.end, "ranks": each.ranks}
            for each in world.ledger
        ],
        "why_not_once": why_not_once(world.ledger),
    }


def ledgers_text(ledgers: dict[str, Any]) -> str:
    """Return the ledgers of a run for people."""
    if not ledgers:
        return "no worker has called worker.samples(), so that it is not known which samples the steps used\n"
    return "\n".join(_text(name, each) for name, each in ledgers.items())


def _text(name: str, ledger: dict[str, Any]) -> str:
    steps, size, batch = ledger["steps"], ledger["dataset_size"], ledger["global_batch"]
    order = f"seed {ledger['seed']}" if ledger["shuffle"] else "not shuffled"
    lines = [f"{name}: {batch:,} of {size:,} samples in each step, {order}"]
    if not steps:
        return "\n".join([*lines, "  no checkpoint is committed, so that no step counts yet", ""])
    rows: list[tuple[str, ...]] = [("generation", "steps", "samples", "ranks")]
    rows += [
        (str(each["generation"]), f"{each['begin']:,} to {each['end']:,}",
         f"{(each['end'] - each['begin']) * batch:,}", str(each["ranks"])) for each in steps
    ]  # fmt: skip
    lines += table(rows)
    epochs = (steps[-1]["end"] - steps[0]["begin"]) * batch / size
    lines += [f"  not sure: {why}" for why in ledger["why_not_once"]] or [
        f"  {epochs:.2f} epochs are in the last checkpoint; in each of them, each sample was used once"
    ]
    return "\n".join([*lines, ""])
