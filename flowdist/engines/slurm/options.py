"""Options of `--on slurm`: `-o partition=gpu` for all members, `-o trainer.constraint=a100` for those of one role."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flowdist.engines.interface import Engine
from flowdist.errors import FlowdistError, did_you_mean
from flowdist.graph import parse_duration, parse_memory

LINES = ("setup", "sbatch")  # options that may be given several times: each one adds a line
CONTROLLER = "controller"  # no role has this name: -o controller.partition=cpu is for the controller's own job
OF_CLUSTER = ("partition", "account", "qos", "reservation")  # options of members that count for the controller, too
Check = Callable[[str], str]  # what is wrong with a value, in words that follow it; empty if nothing is


def _like(pattern: str, wrong: str) -> Check:
    return lambda text: "" if re.fullmatch(pattern, text) else wrong


def _above_0(parse: Callable[[str], int], wrong: str) -> Check:
    def check(text: str) -> str:
        try:
            return "" if parse(text) > 0 else wrong
        except ValueError:
            return wrong

    return check


def _one_of(*words: str) -> Check:
    return _like("|".join(words), f"is none of {', '.join(words)}")


_word = _like(r"[^\s\x00-\x1f]{1,500}", "is empty, too long, or has a space in it")
_line = _like(r"(?=.*\S)[^\x00-\x1f]{1,2000}", "is empty, too long, or has several lines")
_count = _like(r"[1-9]\d{0,5}", "is no number from 1 on")


def _raw(text: str) -> str:
    """Return what is wrong with an option that sbatch gets as it is, or empty; it knows `--node=2` as `--nodes`."""
    found = re.fullmatch(r"--([a-z][a-z0-9-]*)(?:=([^\x00-\x1f\"\\]{0,2000}))?", text)
    if found is None:
        return "is no option of sbatch in its long form, such as --comment=night, without double quotes"
    name = found[1]
    return next((f"sets --{own}: {help}" for own, help in SET_HERE.items() if own.startswith(name)), "")


def _sizes(text: str) -> str:
    low, colon, high = text.partition(":")
    wrong = _count(low) or (_count(high) if colon else "")
    return wrong or ("has a minimum above its maximum" if colon and int(low) > int(high) else "")


# What the script of a member says itself, or what would make sbatch do something else than submit it, and what to do.
_NO = "flowdist sets it itself"
_NEVER = "flowdist needs sbatch to submit one job at once, and to print its number"
SET_HERE: Mapping[str, str] = {
    **dict.fromkeys(("job-name", "nodes", "ntasks", "chdir", "output", "open-mode", "wrap"), _NO),
    **dict.fromkeys(("array", "parsable", "wait", "test-only", "help", "usage", "version", "clusters"), _NEVER),
    "cpus-per-task": "write -o cpus=",
    "requeue": "write -o requeue=yes",
    "no-requeue": "write -o requeue=no",
    "nodefile": "write -o nodelist=",
    "signal": "write -o notice=",
    **{
        name: f"write -o {name}="
        for name in (
            *("partition", "account", "qos", "reservation", "constraint", "exclude", "nodelist", "gres", "time", "mem"),
            *("exclusive", "licenses", "mail-type", "mail-user"),
        )
    },
}

# Options of a member, which a role may have for itself, with the check of the value: the text says what is wrong.
OF_MEMBERS: Mapping[str, Check] = {
    **dict.fromkeys(("partition", "account", "qos", "reservation", "constraint", "exclude", "nodelist"), _word),
    **dict.fromkeys(("gres", "licenses", "mail-type", "mail-user", "time"), _word),
    "exclusive": _one_of("yes", "no", "user", "mcs"),
    "cpus": _count,
    "mem": _above_0(parse_memory, "is no size of memory, such as 64GiB"),
    "nodes": _sizes,
    "setup": _line,
    "sbatch": _raw,
}
OF_JOB: Mapping[str, Check] = {
    "controller": _one_of("here", "job"),
    "requeue": _one_of("yes", "no"),
    "notice": _above_0(parse_duration, "is no duration above 0, such as 60s"),
}
OPTION_HELP = f"options: {', '.join((*OF_MEMBERS, *OF_JOB))}; docs/slurm.md describes them"


class SlurmOptions(NamedTuple):
    """Options of `--on slurm`, checked: `shared` by all members, and `of_roles`, which have members of their own.

    The controller runs in this process (`here`) or a Slurm job (`job`). `requeue`: members go back to the queue when
    their node fails or is taken. `notice_ns` before the limit they begin to leave.
    """

    shared: Mapping[str, str]
    of_roles: Mapping[str, Mapping[str, str]]
    controller: str = "here"
    requeue: bool = False
    notice_ns: int = Engine.notice_ns

    def of_controller(self) -> dict[str, str]:
        """Return the options of the controller's own job: the members' own about the cluster, then its own."""
        shared = {key: self.shared[key] for key in OF_CLUSTER if key in self.shared}
        return {**shared, **self.of_roles.get(CONTROLLER, {})}

    def of_pool(self, pool: str) -> dict[str, str]:
        """Return the options of the members of a pool: those of its role win over the shared ones."""
        return {**self.shared, **self.of_roles.get(pool, {})}


def read_options(words: Sequence[str], roles: Sequence[str]) -> SlurmOptions:
    """Return the options in `KEY=VALUE` or `ROLE.KEY=VALUE` texts after -o; the last one counts, in LINES each.

    FlowdistError, with all of them, if some are wrong.
    """
    shared: dict[str, str] = {}
    of_roles: dict[str, dict[str, str]] = {}
    wrong: list[str] = []
    for text in words:
        name, _, value = text.partition("=")
        role, dot, key = name.rpartition(".")
        if problem := _problem(text, role if dot else None, key, value, roles):
            wrong.append(f"-o {text}: {problem}")
        else:
            found = of_roles.setdefault(role, {}) if dot else shared
            found[key] = f"{found[key]}\n{value}" if key in LINES and key in found else value
    if wrong:
        raise FlowdistError("; ".join(wrong), help=OPTION_HELP)
    return SlurmOptions(
        {key: value for key, value in shared.items() if key in OF_MEMBERS},
        of_roles,
        shared.get("controller", "here"),
        shared.get("requeue") == "yes",
        parse_duration(shared["notice"]) if "notice" in shared else Engine.notice_ns,
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
