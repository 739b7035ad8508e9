"""What an Xid, the number of an error that NVIDIA's driver reports, says about the GPU.

The source is NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, by what it says
has to be done: restart the program, nothing at all, or reset the device. A reset takes every part of the device (MIG)
with it; so what asks for one is the end of all parts, whichever it was noticed in.
"""

from __future__ import annotations

# What NVIDIA's list of Xid errors puts down to the program that used the device: the device itself is sound.
XIDS_OF_PROGRAMS: frozenset[int] = frozenset({13, 31, 43, 45, 68, 109})
_OF_A_PROGRAM = "that is an error of a program"
# Where a device is divided these are what is left of its errors in one part: no other part is touched by them.
_HARMLESS = {
    63: "the driver has replaced the memory",
    92: "the errors were corrected",
    94: "the error is contained: who used that memory ends, nobody else is touched",
    154: "it says what has to be done about another error",
}


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
    140: "unrecoverable ECC error",
    154: "recovery action changed",
}


def xid_text(xid: int) -> str:
    """`Xid 79 (fallen off the bus)`"""
    return f"Xid {xid} ({_WORDS[xid]})" if xid in _WORDS else f"Xid {xid}"


def why_kept(xid: int) -> str:
    """Why the GPU stays in use all the same; empty when it does not."""
    return _OF_A_PROGRAM if xid in XIDS_OF_PROGRAMS else _HARMLESS.get(xid, "")


def is_bad(xid: int) -> bool:
    """Whether it is the end of the GPU; so is what has no number: it was seen, and not reported."""
    return not why_kept(xid)


def parts_hit(xid: int, instance: int | None, parts: dict[int, int | None]) -> list[int]:
    """Whom an error of a device concerns.

    Args:
        instance: The GPU instance (MIG) that the driver says it is of; None: it does not say, or there is none.
        parts: The GPUs that a node has on that device, by their numbers, with the instance each is in; None: all of it.

    Returns:
        The numbers of those. What is the end of the device is the end of all its parts.
    """
    if instance is None or is_bad(xid):
        return list(parts)
    return [gpu for gpu, of in parts.items() if of in (None, instance)]
