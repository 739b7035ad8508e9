"""Command line that replays a run, for reports of tests and for the smallest example that Hypothesis finds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from flowdist.dsl.load import load_topology
from flowdist.dsl.problems.problem import shown_path
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.graph import RoleGraph
from flowdist.sim.simulation import with_nodes
from flowdist.testing.campaign import Failure, replay_command

TITLE = "see it again: "


def replay_lines(
    topology: object, faults: Sequence[str | Plan], options: Mapping[str, Any], more: Sequence[str] = ()
) -> list[str]:
    """Return a list with one line, `again: COMMAND`, that replays a run; an empty list for a topology without a file.

    `more` are words of the command line. Properties that a test passes as objects are not part of it; a note says so.
    """
    if not isinstance(topology, str | Path):
        return []
    specs = [fault for fault in faults if isinstance(fault, str)]
    planned = [option for plan in faults if isinstance(plan, Plan) for option in plan.options]
    specs += [text for flag, text in planned if flag == "--fail"]
    words = words_of(options) + [word for option in planned if option[0] != "--fail" for word in option]
    seed, schedule, collective = options.get("seed", 0), options.get("schedule", 0), options.get("collective") or ""
    failure = Failure(seed, "", "", tuple(specs), schedule=schedule, collective=collective)
    own = any(options.get(name) for name in ("always", "eventually", "sometimes"))
    note = "  # without what the test itself demands" if own else ""
    return [f"again: {replay_command(str(topology), [*words, *more], failure)}{note}"]


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line for params, scale, add, drain, until and properties of `simulate`."""
    words = [word for name, value in (options.get("params") or {}).items() for word in ("-p", f"{name}={value}")]
    for flag in ("scale", "add", "drain"):
        words += [word for value in as_texts(options.get(flag, ())) for word in (f"--{flag}", value)]
    words += ["--until", options["until"]] if options.get("until") is not None else []
    return words + (["--properties", str(options["properties"])] if options.get("properties") is not None else [])


def as_texts(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the texts as a tuple; a single text is one element, not one for each letter."""
    return (given,) if isinstance(given, str) else tuple(given)


def bound_words(recovers_within: str | None, lost_work: str | None, goodput: float | None) -> list[str]:
    """Return the words of the command line for bounds of `explore`; no words for a bound that is None."""
    given = {"--recovers-within": recovers_within, "--lost-work": lost_work, "--goodput": goodput}
    return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]


def is_hypothesis_at_work() -> bool:
    """Return whether the caller runs inside a Hypothesis test, of whose many examples only the smallest is reported."""
    hypothesis = sys.modules.get("hypothesis")
    return hypothesis is not None and bool(hypothesis.currently_in_test_context())


def note_for_hypothesis(
    topology: object, graph: RoleGraph, faults: Sequence[str | Plan], options: Mapping[str, Any]
) -> None:
    """Inside a Hypothesis test, make the replay command of a run a note of the present example; do nothing outside.

    For a compiled graph or a Topology, the command names the source file, if that alone still gives the same `graph`.
    """
    if not is_hypothesis_at_work():
        return
    if not isinstance(topology, str | Path):
        topology = shown_path(graph.source) if graph.source and _compiled(graph.source) == graph else None
    for line in replay_lines(topology, faults, options):
        sys.modules["hypothesis"].note(TITLE + line.removeprefix("again: "))


@lru_cache(maxsize=4)
def _compiled(source: str) -> RoleGraph | None:
    try:
        return with_nodes(load_topology(source, {}, (), None).graph)
    except FlowdistError:  # the file needs parameters, or has changed
        return None
