"""Files of published results, read and checked. Each TOML file has one row, or claims that cannot be simulated."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from flowdist.errors import FlowdistError

RESULTS = Path(__file__).parent / "results"
Quantity = Literal[
    "goodput", "waiting", "interruptions", "hours between interruptions", "hours lost per interruption", "best interval"
]


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gang that represents the published job, one replica on each node, and more arguments of `Topology` and `role`."""

    nodes: int  # nodes that the gang needs
    spares: int = 0
    gpus: int = 8  # of each node
    topology: dict[str, Any] = {}
    role: dict[str, Any] = {}
    workload: dict[str, Any] = {}


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Published number, and the simulations that are compared with it."""

    title: str  # what is compared, in a line
    source: str  # authors, title, where and when it was published
    place: str  # equation, table, figure or section
    says: str  # what the source says there, as a quotation or in its own numbers
    represents: str  # how the job represents the published one, and what had to be assumed
    quantity: Quantity
    published: float  # in the unit of the quantity
    tolerance: float  # the largest difference between the two that counts as agreement, in the same unit
    why: str  # why the tolerance is what it is
    job: Job
    rates: list[str]  # of faults, as for `--rate`
    until: str  # virtual time of each run
    seeds: int  # how many runs there are, with the seeds from 1 on
    bound: Literal["", "at least", "at most"] = ""  # the published number is one; empty: it is a value
    miss: str = ""  # why the simulation is known not to agree; empty: it has to agree
    intervals: list[str] = []  # checkpoint intervals that are tried for the quantity "best interval"
    name: str = ""  # of the file, without its suffix


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Published result that cannot be simulated, and why."""

    source: str
    says: str
    why: str


class _Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cannot: list[Claim]


def row_files() -> list[Path]:
    """Return the files of the rows that belong to the package, in the order of the table."""
    return sorted(path for path in RESULTS.glob("*.toml") if path.name != "cannot.toml")


def load_rows(files: Sequence[Path]) -> list[Row]:
    """Return the row of each file; FlowdistError names the file and the key."""
    return [_checked(path, msgspec.structs.replace(_converted(path, Row), name=path.stem)) for path in files]


def load_claims() -> list[Claim]:
    """Return the published results that cannot be simulated."""
    claims: _Claims = _converted(RESULTS / "cannot.toml", _Claims)
    return claims.cannot


def _converted(path: Path, kind: type[Any]) -> Any:
    """Return the content of a TOML file as a struct of this kind; raise FlowdistError if it is none."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), kind)
    except OSError as error:
        raise FlowdistError(f"{path}: {error.strerror}", help="name a file of a published result") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FlowdistError(f"{path}: {error}", help="files of published results are TOML, in UTF-8") from None
    except msgspec.ValidationError as error:
        help = "docs/evidence.md describes each key of such a file"
        raise FlowdistError(f"{path}: {str(error).replace('`', '')}", help=help) from None


def _checked(path: Path, row: Row) -> Row:
    """Return the row; raise FlowdistError if its numbers cannot be used."""
    if row.seeds < 2:
        raise FlowdistError(f"{path}: seeds = {row.seeds} gives no interval", help="write seeds = 2 or more")
    if row.tolerance < 0:
        raise FlowdistError(f"{path}: tolerance = {row.tolerance:g} is negative", help="write 0 or more")
    if (row.quantity == "best interval") != (len(row.intervals) >= 5):
        message = f"{path}: quantity = {row.quantity!r} with {len(row.intervals)} intervals"
        raise FlowdistError(message, help='write five intervals or more for "best interval", and none otherwise')
    return row
