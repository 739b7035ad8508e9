"""Xids: the numbers of errors that NVIDIA's driver reports, and whether a GPU with such an error stays in use.

The source is https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. A reset of a device takes every part
of it (MIG) with it, so an error that needs one makes all parts bad.
"""

from __future__ import annotations

# Errors of the program that used the device, by NVIDIA's list: the device itself is sound.
XIDS_OF_PROGRAMS: frozenset[int] = frozenset({13, 31, 43, 45, 68, 109})
_OF_A_PROGRAM = "that is an error of a program"
# Errors that leave the device usable. On a divided device they concern one part, and no other is touched.
_HARMLESS = {
    63: "the driver has replaced the memory",
    92: "the errors were corrected",
    94: "the error is contained: it ends the programs that used that memory, and no other",
    154: "it says what has to be done about another error",
}


# The errors that users meet. Others are shown by their number.
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
    140: "unrecoverable ECC error",
    154: "recovery action changed",
}


def xid_text(xid: int) -> str:
    """Return the number as text with its meaning, such as `Xid 79 (fallen off the bus)`; `Xid 8` for a rare error."""
    return f"Xid {xid} ({_WORDS[xid]})" if xid in _WORDS else f"Xid {xid}"


def why_kept(xid: int) -> str:
    """Return, as text for the user, why the GPU stays in use after this error; empty if the GPU is bad."""
    return _OF_A_PROGRAM if xid in XIDS_OF_PROGRAMS else _HARMLESS.get(xid, "")


def is_bad(xid: int) -> bool:
    """Return whether no replica gets a GPU with this error any more; True if it is unknown, or 0: not the driver's."""
    return not why_kept(xid)


def parts_hit(xid: int, instance: int | None, parts: dict[int, int | None]) -> list[int]:
    """Return the numbers of the node's GPUs that an error of one device concerns.

    These are all of `parts` if the error makes the device bad or the driver names no instance (MIG). Otherwise they are
    the GPUs that are that instance, or the whole device, which is None in `parts`.
    """
    if instance is None or is_bad(xid):
        return list(parts)
    return [gpu for gpu, of in parts.items() if of in (None, instance)]
