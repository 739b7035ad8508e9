"""Options of `--on slurm`: `-o partition=gpu` for all members, `-o trainer.constraint=a100` for those of one role."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flowdist.errors import FlowdistError, did_you_mean
from flowdist.graph import SECOND, parse_duration, parse_memory

NOTICE_NS = 60 * SECOND
CONTROLLER = "controller"  # no role has this name: -o controller.partition=cpu is for the controller's own job
_WORD = re.compile(r"[^\s\x00-\x1f]{1,500}")


def _word(text: str) -> str:
    return "" if _WORD.fullmatch(text) else "is empty, too long, or has a space in it"


def _count(text: str) -> str:
    return "" if re.fullmatch(r"[1-9]\d{0,5}", text) else "is no number from 1 on"


def _sizes(text: str) -> str:
    low, colon, high = text.partition(":")
    wrong = _count(low) or (_count(high) if colon else "")
    return wrong or ("has a minimum above its maximum" if colon and int(low) > int(high) else "")


def _memory(text: str) -> str:
    try:
        return "" if parse_memory(text) > 0 else "is no size of memory"
    except ValueError:
        return "is no size of memory, such as 64GiB"


def _duration(text: str) -> str:
    try:
        return "" if parse_duration(text) > 0 else "is no duration above 0"
    except ValueError:
        return "is no duration, such as 60s"


def _one_of(*words: str) -> Callable[[str], str]:
    return lambda text: "" if text in words else f"is none of {', '.join(words)}"


# Options of a member, which a role may have for itself, with the check of the value: the text says what is wrong.
OF_MEMBERS: Mapping[str, Callable[[str], str]] = {
    "partition": _word,
    "account": _word,
    "qos": _word,
    "reservation": _word,
    "constraint": _word,
    "exclude": _word,
    "gres": _word,
    "time": _word,
    "exclusive": _one_of("yes", "no"),
    "cpus": _count,
    "mem": _memory,
    "nodes": _sizes,
}
OF_JOB: Mapping[str, Callable[[str], str]] = {
    "controller": _one_of("here", "job"),
    "requeue": _one_of("yes", "no"),
    "notice": _duration,
}
OPTION_HELP = f"options: {', '.join((*OF_MEMBERS, *OF_JOB))}; docs/slurm.md describes them"


class SlurmOptions(NamedTuple):
    """Options of `--on slurm`, checked.

    Args:
        shared: Options of all members.
        of_roles: By role, the options that it has for itself. Such a role has members of its own.
        controller: Where the controller runs: in this process (`here`), or in a Slurm job of its own (`job`).
        requeue: Whether Slurm puts a member back into its queue when its node fails or a more urgent job takes it.
        notice_ns: Time before the time limit at which a member begins to leave.
    """

    shared: Mapping[str, str]
    of_roles: Mapping[str, Mapping[str, str]]
    controller: str = "here"
    requeue: bool = False
    notice_ns: int = NOTICE_NS

    def of_controller(self) -> dict[str, str]:
        """Return the options of the controller's own job: the members' own about the cluster, then its own."""
        shared = {
            key: value for key, value in self.shared.items() if key in ("partition", "account", "qos", "reservation")
        }
        return {**shared, **self.of_roles.get(CONTROLLER, {})}

    def of_pool(self, pool: str) -> dict[str, str]:
        """Return the options of the members of a pool: those of its role win over the shared ones."""
        return {**self.shared, **self.of_roles.get(pool, {})}


def read_options(words: Sequence[str], roles: Sequence[str]) -> SlurmOptions:
    """Return the options that the command line gives with -o; of one that is given twice, the last one counts.

    Args:
        words: Texts of the form `KEY=VALUE` or `ROLE.KEY=VALUE`.
        roles: Names of the topology's roles.

    Raises:
        FlowdistError: Some of them are wrong; the message has all of these.
    """
    shared: dict[str, str] = {}
    of_roles: dict[str, dict[str, str]] = {}
    wrong: list[str] = []
    for text in words:
        name, _, value = text.partition("=")
        role, dot, key = name.rpartition(".")
        if problem := _problem(text, role if dot else None, key, value, roles):
            wrong.append(f"-o {text}: {problem}")
        elif dot:
            of_roles.setdefault(role, {})[key] = value
        else:
            shared[key] = value
    if wrong:
        raise FlowdistError("; ".join(wrong), help=OPTION_HELP)
    return SlurmOptions(
        {key: value for key, value in shared.items() if key in OF_MEMBERS},
        of_roles,
        shared.get("controller", "here"),
        shared.get("requeue") == "yes",
        parse_duration(shared["notice"]) if "notice" in shared else NOTICE_NS,
    )


def _problem(text: str, role: str | None, key: str, value: str, roles: Sequence[str]) -> str:
    """Return what is wrong with one option; empty if nothing is. `role` is None for an option of all members."""
    if "=" not in text:
        return "it has no value"
    if role is not None and role not in (*roles, CONTROLLER):
        return f"there is no role {role!r}, {did_you_mean(role, roles)}"
    if role is not None and key in OF_JOB:
        return f"{key} is an option of the whole job"
    if key not in OF_MEMBERS and key not in OF_JOB:
        return f"there is no option {key!r}, {did_you_mean(key, (*OF_MEMBERS, *OF_JOB))}"
    if role is None and key == "nodes":
        return "write --nodes for all members, and -o ROLE.nodes= for those of one role"
    said = {**OF_MEMBERS, **OF_JOB}[key](value)
    return f"{value!r} {said}" if said else ""
