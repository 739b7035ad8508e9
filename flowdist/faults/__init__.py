"""Faults as values: the fault grammar, rates, files, scenarios, random streams.

The simulator and the runtime both carry out these values. Nothing here touches a process or a simulated node.
"""

from flowdist.faults.grammar import (
    NOTHING,
    Add,
    Drain,
    Fault,
    FaultError,
    Plan,
    Rate,
    Scale,
    When,
    check_plan,
    parse_add,
    parse_drain,
    parse_fault,
    parse_scale,
    refuse_misplaced,
    refuse_unsupported,
)

__all__ = [
    "NOTHING",
    "Add",
    "Drain",
    "Fault",
    "FaultError",
    "Plan",
    "Rate",
    "Scale",
    "When",
    "check_plan",
    "parse_add",
    "parse_drain",
    "parse_fault",
    "parse_scale",
    "refuse_misplaced",
    "refuse_unsupported",
]
