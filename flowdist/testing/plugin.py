"""Plugin of pytest: a `simulate` fixture with the seed of the command line, and commands that replay a failed test.

pytest loads it wherever flowdist is installed, so the simulator is imported only by tests that use the fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

TITLE = "flowdist: see it again"
_CALLS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--flowdist-seed` to pytest."""
    group = parser.getgroup("flowdist")
    group.addoption("--flowdist-seed", type=int, default=0, help="the seed of simulations by the `simulate` fixture")


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Function `flowdist.testing.simulate`, with the seed of --flowdist-seed: `simulate("topology.py", "node1@5m")`."""
    from flowdist.testing.kit import simulate as run  # the simulator: pytest loads this plugin in every run
    from flowdist.testing.repro_command import is_hypothesis_at_work, replay_lines

    calls = request.node.stash.setdefault(_CALLS, [])

    def simulate_with_seed(topology: Any, *faults: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        options.setdefault("seed", request.config.getoption("--flowdist-seed"))
        if not is_hypothesis_at_work():  # Hypothesis itself reports the command of the smallest example
            calls.extend(line.removeprefix("again: ") for line in replay_lines(topology, faults, options))
        return run(topology, *faults, **options)

    yield simulate_with_seed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add the commands that replay the simulations of a failed test to its report, and to what `--junitxml` writes."""
    report: pytest.TestReport = yield
    calls = item.stash.get(_CALLS, [])
    if report.failed and calls:
        report.sections.append((TITLE, "\n".join(dict.fromkeys(calls))))
        item.user_properties += [(TITLE, call) for call in dict.fromkeys(calls)]  # `--junitxml` writes these
    return report
