"""Test kit for topologies: simulate one in a test, demand that it recovers, explore what else could happen.

Users import the functions of `__all__`, and `flowdist.testing.strategies` for Hypothesis, which needs the extra
`flowdist[testing]`. The kit starts no real processes, but for `prove`, which is `flowdist prove`.
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
    from flowdist.testing.proving import prove

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
    "prove",
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
        from flowdist.testing import calibrating, declare, kit, proving  # the simulator: see above

        modules = {"prove": proving} | dict.fromkeys(_DECLARED, declare) | dict.fromkeys(_CALIBRATING, calibrating)
        return getattr(modules.get(name, kit), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
