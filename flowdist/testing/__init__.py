"""The test kit: simulate a topology in tests, demand that it recovers, explore; strategies of Hypothesis; the proofs.

`strategies` needs the extra `flowdist[testing]`; the rest does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    "check_determinism",
    "eventually",
    "explore",
    "graph_of",
    "simulate",
    "sometimes",
]

_DECLARED = ("always", "eventually", "sometimes")


def __getattr__(name: str) -> Any:
    """Imported when asked for: pytest loads this package for its plugin in every run."""
    if name in __all__:
        from flowdist.testing import declare, kit

        return getattr(declare if name in _DECLARED else kit, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
