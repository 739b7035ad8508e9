"""The pytest plugin: a `simulate` fixture whose seed is the command line's, and a line that shows a failure again.

Loaded by pytest where flowdist is installed; the simulator is imported only by tests that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

_CALLS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flowdist")
    group.addoption("--flowdist-seed", type=int, default=0, help="the seed of simulations by the `simulate` fixture")


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`simulate("topology.py", "node1@5m")`, as `flowdist.testing.simulate`, with the seed of --flowdist-seed."""
    from flowdist.testing.campaign import Failure, replay_command
    from flowdist.testing.kit import simulate as run

    calls = request.node.stash.setdefault(_CALLS, [])

    def simulate_with_seed(topology: Any, *faults: str, **options: Any) -> Any:
        seed = options.setdefault("seed", request.config.getoption("--flowdist-seed"))
        if isinstance(topology, str) or hasattr(topology, "__fspath__"):
            params = [w for name, value in (options.get("params") or {}).items() for w in ("-p", f"{name}={value}")]
            calls.append(replay_command(str(topology), params, Failure(seed, "", "", faults)))
        return run(topology, *faults, **options)

    yield simulate_with_seed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report: pytest.TestReport = yield
    calls = item.stash.get(_CALLS, [])
    if report.failed and calls:
        report.sections.append(("flowdist: see it again", "\n".join(dict.fromkeys(calls))))
    return report
