"""What an Xid, the number of an error that NVIDIA's driver reports, says about the GPU."""

from __future__ import annotations

# What NVIDIA's list of Xid errors puts down to the program that used the device: the device itself is sound.
XIDS_OF_PROGRAMS: frozenset[int] = frozenset({13, 31, 43, 45, 68, 109})


# Those that a user will meet, in short; of the others the number has to do.
_WORDS = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "stopped processing",
    45: "preemptive clean-up",
    48: "double bit ECC error",
    61: "microcontroller breakpoint",
    62: "microcontroller halt",
    63: "row remapping or page retirement",
    64: "row remapping failure",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "high single bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP timeout",
    120: "GSP error",
}


def xid_text(xid: int) -> str:
    """`Xid 79 (fallen off the bus)`"""
    return f"Xid {xid} ({_WORDS[xid]})" if xid in _WORDS else f"Xid {xid}"


def is_bad(xid: int) -> bool:
    """Whether it is the end of the GPU; so is what has no number: it was seen, and not reported."""
    return xid not in XIDS_OF_PROGRAMS
