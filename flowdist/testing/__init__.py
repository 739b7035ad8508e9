"""Test kit for topologies: simulate one in a test, demand that it recovers, explore what else could happen.

Users import the functions of `__all__`, and `flowdist.testing.strategies` for Hypothesis, which needs the extra
`flowdist[testing]`. The kit never starts real processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowdist.testing.calibrating import calibrate, calibrated
    from flowdist.testing.declare import always, eventually, sometimes
    from flowdist.testing.kit import (
        assert_recovers,
        assert_same_result,
        check_determinism,
        explore,
        graph_of,
        simulate,
    )

__all__ = [
    "always",
    "assert_recovers",
    "assert_same_result",
    "calibrate",
    "calibrated",
    "check_determinism",
    "eventually",
    "explore",
    "graph_of",
    "simulate",
    "sometimes",
]

_DECLARED = ("always", "eventually", "sometimes")
_CALIBRATING = ("calibrate", "calibrated")


def __getattr__(name: str) -> Any:
    """Import a function of `__all__` when it is first used; raise AttributeError for any other name.

    pytest imports this package for its plugin in every run, and most runs need no simulator.
    """
    if name in __all__:
        from flowdist.testing import calibrating, declare, kit  # the simulator: see above

        return getattr(declare if name in _DECLARED else calibrating if name in _CALIBRATING else kit, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
