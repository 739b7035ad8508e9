"""Options of `flowdist simulate` that do not go together. None is accepted and then ignored."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource

from flowdist.errors import FlowdistError

OF_ONE_RUN = ("--seed", "--schedule", "--until", "--trace", "--html")
OF_CAMPAIGNS = ("--jobs", "--corpus", "--fail-fast", "--cover")


def refuse_mixtures(*, is_scenario: bool) -> None:
    """Refuse the first option that would change nothing beside the other options of the command line.

    Raises:
        FlowdistError: There is such an option.
    """
    given = _given()
    if "--macro" in given:
        _refuse(given, (*OF_CAMPAIGNS, "--schedule", "--full"), "is not for --macro", "leave it out, or --macro")
        if "--seeds" in given:
            _refuse(given, ("--seed",), "does not go with --seeds", "leave out one of them")
        return
    _refuse(given, ("--cross-check",), "compares macro mode with this one", "write --macro --cross-check")
    if "--explore" in given or "--seeds" in given:
        if "--seeds" in given:
            _refuse(given, ("--explore",), "does not go with --seeds: 3 are the seeds 1:3", "leave out one of them")
        if is_scenario:
            message = "a scenario has its own faults, and a campaign draws them at random"
            raise FlowdistError(message, help="name the topology of the scenario")
        help = "give it to the command that shows a failure again"
        _refuse(given, OF_ONE_RUN, "is of one run; a campaign has many", help)
    else:
        _refuse(given, OF_CAMPAIGNS, "is of campaigns; here is one run", "add --explore 100, or --seeds 1:100")


def _given() -> list[str]:
    """Return the flags of the options that stand on the command line."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]


def _refuse(given: Iterable[str], flags: Iterable[str], why: str, help: str) -> None:
    for flag in flags:
        if flag in given:
            raise FlowdistError(f"{flag} {why}", help=help)
