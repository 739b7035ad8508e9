"""Files of `--faults FILE`: a plan of faults as lines, one fault each, `# comments`, or as TOML.

A rate is a line, too: `rate node-kill=6.5e-3/node-day/15m`. In TOML the same texts are in lists: `faults`, `rates`,
`scale`, `add` and `drain`, as in a scenario file.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from flowdist.errors import FlowdistError, did_you_mean
from flowdist.faults.grammar import FaultError, Plan, located, parse_add, parse_drain, parse_fault, parse_scale
from flowdist.faults.rates import parse_rate

# The function that parses the texts under each key of a TOML file, in the order of the fields of a plan.
PARSERS: dict[str, Callable[[str], Any]] = {
    "faults": parse_fault,
    "scale": parse_scale,
    "add": parse_add,
    "drain": parse_drain,
    "rates": parse_rate,
}


def read_plan(path: Path) -> Plan:
    """Read a plan: TOML if its name ends in `.toml`, else lines. FlowdistError, with file and line, for a bad text."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FlowdistError(f"{path}: {error.strerror}", help="one fault a line: node2@30s") from None
    except UnicodeDecodeError as error:
        raise FlowdistError(f"{path}: {error}", help="files of faults are UTF-8") from None
    return _from_toml(path, text) if path.suffix == ".toml" else _from_lines(path, text)


def join_plans(plans: Iterable[Plan]) -> Plan:
    """Return one plan with all faults, rates and orders of these plans, in the order of the plans."""
    return Plan(*(tuple(chain(*of_a_kind)) for of_a_kind in zip(*plans, strict=True)))


def parse_plan(
    faults: Iterable[str] = (),
    scales: Iterable[str] = (),
    adds: Iterable[str] = (),
    drains: Iterable[str] = (),
    rates: Iterable[str] = (),
    files: Iterable[str] = (),
) -> Plan:
    """Return the plan of the texts of --fail, --scale, --add, --drain and --rate, after those of the --faults files."""
    texts = zip(PARSERS.values(), (faults, scales, adds, drains, rates), strict=True)
    given = Plan(*(tuple(map(parse, given)) for parse, given in texts))
    return join_plans([*(read_plan(Path(file)) for file in files), given])


def _from_lines(path: Path, text: str) -> Plan:
    faults, rates = [], []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        where = f"{path}:{number}"
        if words.startswith("rate "):
            rates.append(_read(parse_rate, words.removeprefix("rate ").strip(), where))
        elif words:
            faults.append(_read(parse_fault, words, where))
    return Plan(tuple(faults), rates=tuple(rates))


def _from_toml(path: Path, text: str) -> Plan:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FlowdistError(f"{path}: {error}", help='write faults = ["node2@30s"]') from None
    for key, value in content.items():
        if key not in PARSERS:
            raise FlowdistError(f"{path}: key {key!r} is unknown", help=did_you_mean(key, PARSERS))
        if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise FlowdistError(f"{path}: {key} is no list of texts", help=f'write {key} = ["..."]')
    return _listed(path, text, content)


def plan_of_scenario(path: Path) -> Plan:
    """Return the plan of a scenario file that `load_scenario` accepts; FaultError for a text that is wrong."""
    text = path.read_text(encoding="utf-8")
    return _listed(path, text, tomllib.loads(text))


def _listed(path: Path, text: str, content: Mapping[str, Any]) -> Plan:
    """Parse the lists of faults, rates and orders in a TOML file into a plan; each gets its file and line."""
    lines, seen = text.splitlines(), Counter[str]()

    def place(item: str) -> str:
        """Return the line of a text, which `tomllib` does not report: for an equal text its next place in the file."""
        places = [number for number, line in enumerate(lines, 1) for _ in range(line.count(item))]
        seen[item] += 1
        return f"{path}:{places[min(seen[item], len(places)) - 1]}" if places else str(path)

    texts = ((parse, content.get(key, ())) for key, parse in PARSERS.items())
    return Plan(*(tuple(_read(parse, item, place(item)) for item in items) for parse, items in texts))


def _read(parse: Callable[[str], Any], text: str, where: str) -> Any:
    try:
        return parse(text)._replace(where=where)
    except FaultError as error:
        raise located(error, where) from None
