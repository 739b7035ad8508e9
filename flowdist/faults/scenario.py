"""Scenario files: each has a topology, a cluster, faults, and what is expected at the end."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from flowdist.errors import FlowdistError, did_you_mean
from flowdist.graph import RoleGraph, duration_help, parse_duration


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Expectations at the end of a scenario. A key that is None or empty is not checked."""

    outcome: str | None = None
    restarted: dict[str, int] = {}  # by role: number of restarts of a gang as one, or of all replicas together
    generations: dict[str, int] = {}  # by role: number of its last generation
    world_sizes: dict[str, list[int]] = {}  # by role or world: the number of replicas in each generation
    members: dict[str, list[str]] = {}  # by role or world: replica numbers of each generation by rank: "0 1 3"
    charged: dict[str, int] = {}  # by role: number of incidents charged to its budget
    says: list[str] = []  # texts in messages of the controller
    lost_work_max: str | None = None  # the longest work that any world did again: "1m"
    recovered_within: str | None = None  # the longest time of any incident until its worlds step again: "6s"
    goodput_min: float | None = None  # the productive share of the time of tasks, 0 to 1
    seen: list[str] = []  # points that the run reaches: built-in ones such as "failure during restore", or the user's
    reason_contains: str | None = None


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scenario file: `topology` is relative to it; the other keys are options of `flowdist simulate`, as texts."""

    title: str
    topology: str
    nodes: int | str | None = None
    seed: int = 0
    until: str | None = None
    faults: list[str] = []
    rates: list[str] = []
    scale: list[str] = []
    add: list[str] = []
    drain: list[str] = []
    params: dict[str, Any] = {}
    set: dict[str, Any] = {}
    expect: Expect = Expect()


EXAMPLES = {
    "title": '"a node is lost"',
    "topology": '"topology.py"',
    "nodes": "4",
    "seed": "3",
    "until": '"30m"',
    "faults": '["node2@3m/2m"]',
    "rates": '["node-kill=6.5e-3/node-day/15m"]',
    "scale": '["trainer=2@5m"]',
    "add": '["node9@10s"]',
    "drain": '["node1@3m"]',
    "params": '{ replicas = "2:4" }',
    "set": '{ "trainer.cooldown" = "10s" }',
    "expect.outcome": '"succeeded"',
    "expect.restarted": "{ trainer = 2 }",
    "expect.generations": "{ trainer = 3 }",
    "expect.world_sizes": "{ trainer = [4, 3, 4] }",
    "expect.members": '{ trainer = ["0 1 2 3", "0 1 3"] }',
    "expect.charged": "{ trainer = 0 }",
    "expect.says": '["node2 lost"]',
    "expect.lost_work_max": '"1m"',
    "expect.recovered_within": '"6s"',
    "expect.goodput_min": "0.9",
    "expect.seen": '["failure during restore"]',
    "expect.reason_contains": '"node2"',
}


def load_scenario(path: Path) -> Scenario:
    """Read a scenario; FlowdistError, with file and key, if it is none. Names and faults are checked later."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FlowdistError(f"{path}: {error.strerror}", help="name a scenario file that you may read") from None
    except UnicodeDecodeError as error:
        raise FlowdistError(f"{path}: {error}", help="scenario files are UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise FlowdistError(f"{path}: {error}", help="scenario files are TOML") from None
    _refuse_unknown(path, content, Scenario, "")
    _refuse_unknown(path, content.get("expect", {}), Expect, "expect.")
    try:
        scenario = msgspec.convert(content, Scenario)
    except msgspec.ValidationError as error:
        raise _no_such_value(path, content, str(error)) from None
    if scenario.expect.outcome not in (None, "succeeded", "failed", "cancelled"):
        message = f"{path}: expect.outcome = {scenario.expect.outcome!r} is unknown"
        raise FlowdistError(message, help='write "succeeded" or "failed"')
    return scenario


def _no_such_value(path: Path, content: dict[str, Any], text: str) -> FlowdistError:
    """Return an error in words of the file for what msgspec says: "Expected `int`, got `str` - at `$.expect.seen`"."""
    _, found, place = text.partition("`$.")
    if not found:
        missing = "topology" if "topology" not in content else "title"
        return FlowdistError(f"{path}: there is no {missing}", help=f"write {missing} = {EXAMPLES[missing]}")
    key = place.rstrip("`").partition("[")[0]
    value = content
    for name in key.split("."):
        value = value[name]
    example = f"write [{key}]" if key == "expect" else f"write {key.removeprefix('expect.')} = {EXAMPLES[key]}"
    return FlowdistError(f"{path}: {key} = {value!r} cannot be read", help=example)


def check_expectations(path: Path, expect: Expect, graph: RoleGraph) -> None:
    """Check expectations of the scenario file `path` against its job; FlowdistError for unknown names, bad bounds."""
    roles = [role.name for role in graph.roles]
    worlds = [*roles, *(world.name for world in graph.worlds)]
    worlds += [f"{role.name}/{i}" for role in graph.roles if not role.gang for i in range(role.max_replicas)]
    for key in ("restarted", "generations", "charged", "world_sizes", "members"):
        known = worlds if key in ("world_sizes", "members") else roles
        for name in getattr(expect, key):
            if name not in known:
                raise FlowdistError(f"{path}: expect.{key}: there is no {name!r}", help=did_you_mean(name, known))
    for key in ("lost_work_max", "recovered_within"):
        text = getattr(expect, key)
        try:
            parse_duration(text or "0s")
        except ValueError:
            message = f"{path}: expect.{key} = {text!r} is no duration"
            raise FlowdistError(message, help=duration_help(text)) from None
    if expect.goodput_min is not None and not 0 <= expect.goodput_min <= 1:
        message = f"{path}: expect.goodput_min = {expect.goodput_min}: a share of the time is from 0 to 1"
        raise FlowdistError(message, help="write 0.9 for 90 %")


def _refuse_unknown(path: Path, content: Any, struct: type[msgspec.Struct], prefix: str) -> None:
    """Raise FlowdistError for the first key of the table that the struct does not have."""
    known = struct.__struct_fields__
    for key in content if isinstance(content, dict) else ():
        if key not in known:
            raise FlowdistError(f"{path}: key {prefix + key!r} is unknown", help=did_you_mean(key, known))
