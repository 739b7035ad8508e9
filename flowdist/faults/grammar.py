"""Fault grammar: TARGET@WHEN[+OFFSET][:KIND[=ARG]][/DURATION], as in `node2@30s/60s`; the default KIND is a kill.

The same text, which needs no quotes in a shell, works in `flowdist simulate`, `flowdist run` and scenario files. Each
command refuses the kinds that it cannot carry out.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Literal, NamedTuple, NoReturn, get_args

from flowdist.errors import FlowdistError, did_you_mean, underlined
from flowdist.faults.kinds import KINDS, having
from flowdist.graph import duration_help, format_duration, parse_duration

Event = Literal["start", "ready", "generation", "step", "checkpoint"]
EVENTS: tuple[str, ...] = get_args(Event)
COUNTED_EVENTS = ("generation", "step", "checkpoint")  # these need a number: step=trainer,500
MAY_COUNT = ("start",)  # start=trainer,2 is when a replica of the second generation starts, not when all of them run

EXAMPLES = {
    "exit code": "3",
    "duration": "30s",
    "factor": "4x",
    "nodes": "node2",
    "probability": "0.1",
    "number of replicas": "4",
    "Xid": "79",
}
# For each argument: its pattern, its name in messages, and a help text (empty: the one in EXAMPLES).
_ARGUMENTS = {
    "exit code": (r"(?!\d{10})0*([1-9]\d?|1\d\d|2[0-4]\d|25[0-5])", "exit code of a failure", "exit=1 to exit=255"),
    "number of replicas": (r"\d{1,9}", "number of replicas", ""),
    "Xid": (r"\d{1,4}(,\d{1,4})?", "Xid", "xid=79, or xid=79,1 for GPU 1 of the node"),
    "factor": (r"\d+(\.\d+)?x?", "factor", ""),
    "probability": (r"0(\.\d+)?|1(\.0+)?", "probability", ""),
}
_LABEL = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)=([A-Za-z0-9_.-]+)")
_NAME = re.compile(r"[a-z][a-z0-9_-]*(/\d{1,9}(\.\d{1,9})?)?")
_COUNT = re.compile(r"[1-9]\d{0,8}")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|us|s|m|h|d))+")


class FaultError(FlowdistError):
    """Error for a fault that cannot be read or carried out. The message underlines the wrong part of its text."""


class When(NamedTuple):
    """Moment of a fault. Exactly one of `at_ns` (a time), `event` of `role`, and `every_ns` (a period) is set."""

    at_ns: int | None = None
    event: Event | None = None
    role: str = ""
    number: int = 0  # of the generation, step or checkpoint
    every_ns: int | None = None


class Fault(NamedTuple):
    """One fault, parsed from the text `spec`."""

    target: str  # a node, role, replica (trainer/0), worker (trainer/0.1), label (zone=a), `all` or `controller`
    when: When  # moment from which `offset_ns` counts
    offset_ns: int
    kind: str  # key of KINDS
    arg: str  # argument of the kind as text; empty if the kind takes none
    duration_ns: int | None  # after which the fault heals; None: it does not heal
    spec: str  # the fault in the fault grammar
    where: str = ""  # `file:line` if the fault comes from a file
    rate: str = ""  # name of the rate that brought the fault

    def __repr__(self) -> str:
        return f"parse_fault({self.spec!r})"  # failing tests show it, and users can paste it back

    @property
    def replica(self) -> tuple[str, int] | None:
        """Role and number of the replica that the fault hits, in all its workers or one; None for other targets."""
        role, slash, rest = self.target.partition("/")
        return (role, int(rest.split(".")[0])) if slash else None

    @property
    def label(self) -> tuple[str, str] | None:
        """Key and value of the label if the target is all nodes with a label (`zone=a`); None for other targets."""
        match = _LABEL.fullmatch(self.target)
        return (match[1], match[2]) if match else None

    @property
    def others(self) -> tuple[str, ...]:
        """Nodes (or `controller`) in the argument of a partition or cut-to; empty for other kinds."""
        return tuple(self.arg.split(",")) if KINDS[self.kind].argument == "nodes" else ()

    @property
    def xid(self) -> tuple[int, int]:
        """Xid (number of a GPU error) and number of the GPU on its node: (79, 1) for `xid=79,1`, GPU 0 for `xid=79`."""
        number, _, gpu = self.arg.partition(",")
        return int(number), int(gpu or 0)

    @property
    def local_rank(self) -> int | None:
        """Local rank of the one worker that is the target (`trainer/0.1`); None if the target is not one worker."""
        _, dot, rank = self.target.partition(".")
        return int(rank) if dot else None


class Scale(NamedTuple):
    """Operator's order to change the number of a role's replicas at a time in ns: `--scale trainer=4@60s`."""

    role: str
    replicas: int
    at_ns: int
    where: str = ""


class NodeOrder(NamedTuple):
    """Node that joins at a time in ns, `--add node5@90s`, or is drained at that time: `--drain node1@2m`."""

    node: str
    at_ns: int
    where: str = ""


class Repair(NamedTuple):
    """Distribution of repair times: evenly from `low_ns` to `high_ns`, or exponential with the mean `high_ns`."""

    is_exponential: bool
    low_ns: int
    high_ns: int


class Lemon(NamedTuple):
    """Nodes that come back bad: a part of them, from 0 to 1, fails so many times as often until its next repair."""

    part: float
    times: float


class Rate(NamedTuple):
    """Random faults of one kind at a rate, parsed from the text `spec`: `--rate node-kill=6.5e-3/node-day/15m`."""

    subject: str  # `node`, `replica`, `controller`, a role, a node, or the key of a label; each entity is hit by itself
    kind: str  # key of KINDS
    per_ns: float  # faults per ns, of each entity, or if `shared` of all entities together
    shared: bool  # the rate is per job (`/job-day`)
    arg: str  # argument of the kind as text; empty if the kind takes none
    duration_ns: int | None  # after which each fault heals; None: it does not heal
    spec: str  # the rate as the user wrote it
    where: str = ""  # `file:line` if the rate comes from a file
    cause: str = ""  # name of the cause, as in `nic:node-kill=...`; empty: it has none
    repair: Repair | None = None  # distribution of the time after which a fault heals; None: always `duration_ns`
    lemon: Lemon | None = None  # nodes that come back bad; None: all come back as good as they were
    shape: float | None = None  # of the Weibull distribution of the times between faults; None: exponential

    @property
    def name(self) -> str:
        """Name of the rate's random stream, as `nic:node-kill`, without its number: twice the rate draws alike."""
        return f"{self.cause}:{self.subject}-{self.kind}" if self.cause else f"{self.subject}-{self.kind}"


class Plan(NamedTuple):
    """Everything that happens to a job from outside: faults, rates of faults, the operator's orders, new nodes."""

    faults: tuple[Fault, ...] = ()
    scales: tuple[Scale, ...] = ()
    adds: tuple[NodeOrder, ...] = ()
    drains: tuple[NodeOrder, ...] = ()
    rates: tuple[Rate, ...] = ()

    @property
    def new_nodes(self) -> list[str]:
        """Names of the nodes that the plan adds, by `--add` or by faults of the kind `add`."""
        return [*(add.node for add in self.adds), *(fault.target for fault in self.faults if fault.kind == "add")]

    @property
    def starts(self) -> dict[str, int]:
        """When the nodes start that the plan adds at a time, in ns, by name."""
        faults = [fault for fault in self.faults if fault.kind == "add" and fault.when.at_ns is not None]
        later = {fault.target: (fault.when.at_ns or 0) + fault.offset_ns for fault in faults}
        return {**later, **{add.node: add.at_ns for add in self.adds}}

    @property
    def options(self) -> list[tuple[str, str]]:
        """Options of the command line, `("--fail", "node1@30s")`, for all of the plan but its rates."""
        options = [("--fail", fault.spec) for fault in self.faults]
        orders = [("--scale", f"{scale.role}={scale.replicas}", scale.at_ns) for scale in self.scales]
        orders += [("--add", add.node, add.at_ns) for add in self.adds]
        orders += [("--drain", drain.node, drain.at_ns) for drain in self.drains]
        return options + [(flag, f"{what}@{format_duration(at_ns)}") for flag, what, at_ns in orders]

    @property
    def rate_options(self) -> dict[str, str]:
        """Entry of a record's header from which a replay reads the rates: `{"rates": "..."}`; empty without rates."""
        return {"rates": " ".join(rate.spec for rate in self.rates)} if self.rates else {}


NOTHING = Plan()


def parse_fault(text: str) -> Fault:
    """Return the fault that a text describes; FaultError, with the wrong part underlined, if it cannot be read."""
    target, at, rest = text.partition("@")
    if not at:
        refuse(text, len(text), len(text) + 1, "there is no @WHEN", f"write {(text.split() or ['node0'])[0]}@30s")
    if not _NAME.fullmatch(target) and not _LABEL.fullmatch(target):
        help = "write node2, trainer, trainer/0, all; names are in lower case"
        refuse(text, 0, max(len(target), 1), f"target {target!r} cannot be read", help)
    # WHEN and KIND have no slash, so the first one after @ begins the duration
    body, slash, duration = rest.partition("/")
    when_text, colon, kind_text = body.partition(":")
    start = len(target) + 1
    when, offset = _parse_when(text, when_text, start)
    kind, arg = _parse_kind(text, kind_text, start + len(when_text) + 1) if colon else ("kill", "")
    duration_ns = _duration(text, duration, len(text) - len(duration)) if slash else None
    fault = Fault(target, when, offset, kind, arg, duration_ns, text)
    if "/" in target:
        refuse_duration(fault)
    return fault


def refuse_duration(fault: Fault) -> None:
    """Raise FaultError for a duration of a kind that happens at one moment, such as a kill of a replica."""
    if fault.duration_ns is not None and fault.kind in having("momentary"):
        start, is_controller = fault.spec.rindex("/"), fault.target == "controller"
        whom = "the controller" if is_controller else "a replica"
        help = f"leave it out; {'the next takes over at once' if is_controller else 'its policy decides what follows'}"
        help = "leave it out, or write pause/10s: that is over then" if fault.kind == "hang" else help
        refuse(fault.spec, start, len(fault.spec), f"{fault.kind} of {whom} has no duration", help)


def _parse_when(text: str, when: str, start: int) -> tuple[When, int]:
    """Parse the part of a fault's text from `@` to KIND, which begins at `start`; return moment and offset in ns."""
    base, plus, offset = when.partition("+")
    offset_ns = _duration(text, offset, start + len(base) + 1) if plus else 0
    name, equals, value = base.partition("=")
    if not equals:
        if base in EVENTS:
            refuse(text, start, start + len(base), f"{base} of what?", f"write {base}=ROLE")
        return When(at_ns=_duration(text, base, start)), offset_ns
    place = start + len(name) + 1
    if name == "every":
        every_ns = _duration(text, value, place)
        if not every_ns:
            refuse(text, place, place + len(value), "every needs a period of more than zero", "write every=5m")
        return When(every_ns=every_ns), offset_ns
    if name not in EVENTS:
        refuse(text, start, start + len(name), f"event {name!r} is unknown", did_you_mean(name, [*EVENTS, "every"]))
    role, comma, number = value.partition(",")
    if not _NAME.fullmatch(role):
        help = f"write {_example_of_event(name, text, role)}"
        refuse(text, place, place + max(len(role), 1), f"role {role!r} cannot be read", help)
    is_counted = comma and _COUNT.fullmatch(number)
    if name in COUNTED_EVENTS and not is_counted:
        refuse(text, place, place + max(len(value), 1), f"{name} needs a number from 1 on", f"write {name}={role},2")
    if name not in COUNTED_EVENTS and comma and not (name in MAY_COUNT and is_counted):
        takes = "needs a number from 1 on after the comma" if name in MAY_COUNT else "takes no number"
        refuse(text, place, place + len(value), f"{name} {takes}", f"write {name}={role}")
    return When(event=name, role=role, number=int(number or 0)), offset_ns  # type: ignore[arg-type]


def _example_of_event(name: str, text: str, number: str) -> str:
    """Return an event that can be read, such as `step=trainer,25` for a `step=25` of the fault `text`."""
    target, slash, _ = text.partition("@")[0].partition("/")
    role = target if slash else "trainer"
    counted = f",{number if _COUNT.fullmatch(number) else 2}" if name in COUNTED_EVENTS else ""
    return f"{name}={role}{counted}"


def _parse_kind(text: str, kind_text: str, start: int) -> tuple[str, str]:
    """Parse the part of a fault's text after the `:`, which begins at `start`; return the kind and its argument."""
    kind, equals, arg = kind_text.partition("=")
    if kind not in KINDS:
        refuse(text, start, start + max(len(kind), 1), f"kind {kind!r} is unknown", did_you_mean(kind, KINDS))
    wants = KINDS[kind].argument
    place = start + len(kind) + 1
    if not wants and equals:
        refuse(text, place - 1, len(text), f"{kind} takes no argument", f"write {kind}")
    if wants and not arg:
        refuse(text, start, start + len(kind_text), f"{kind} needs its {wants}", f"write {kind}={EXAMPLES[wants]}")
    if wants == "duration" and not _duration(text, arg, place) and kind == "flap":
        refuse(text, place, place + len(arg), "flap needs a period of more than zero", "write flap=5s")
    pattern, what, help = _ARGUMENTS.get(wants, (".*", "", ""))
    if not re.fullmatch(pattern, arg):
        refuse(text, place, place + len(arg), f"{arg!r} is no {what}", f"write {help or f'{kind}={EXAMPLES[what]}'}")
    return kind, arg


def parse_scale(text: str) -> Scale:
    """Return the order that a text such as `trainer=4@60s` describes; raise FaultError if it cannot be read."""
    match = re.fullmatch(r"([a-z][a-z0-9_-]*)=(\d{1,9})@(.+)", text)
    if match is None:
        refuse(text, 0, max(len(text), 1), "cannot be read", "write --scale trainer=4@60s")
    return Scale(match[1], int(match[2]), _duration(text, match[3], match.start(3)))


def _node_at(text: str, example: str) -> NodeOrder:
    match = re.fullmatch(r"([a-z][a-z0-9_-]*)@(.+)", text)
    if match is None:
        refuse(text, 0, max(len(text), 1), "cannot be read", f"write {example}")
    return NodeOrder(match[1], _duration(text, match[2], match.start(2)))


parse_add = partial(_node_at, example="--add node5@90s")
parse_drain = partial(_node_at, example="--drain node1@2m")


def located(error: FaultError, where: str) -> FaultError:
    """Return the error with `where` (file:line) in front of its message; the same error if `where` is empty."""
    return FaultError(f"{where}: {error.message}", help=error.help) if where else error


def _duration(text: str, value: str, start: int) -> int:
    """Return the ns of the duration `value`, which stands at `start` in the text; raise FaultError if it is none."""
    try:
        ns = parse_duration(value) if _DURATION.fullmatch(value) else None
    except ValueError:  # longer than 64 bits of ns can hold
        ns = None
    if ns is None:
        help = duration_help(value, "write 30s, 1m30s or 400ms")
        refuse(text, start, start + max(len(value), 1), wrong_duration(text, value, start), help)
    return ns


def wrong_duration(text: str, value: str, start: int) -> str:
    """Return what is wrong with the text `value`, which stands at `start` in `text` and is no duration."""
    if value:
        return f"{value!r} is no duration"
    before = text[start - 1]
    return f"the duration after the {'slash' if before == '/' else before} is missing"


def refuse(text: str, start: int, end: int, message: str, help: str, where: str = "") -> NoReturn:
    """Raise FaultError, the text from `start` to before `end` (from 0) underlined; `where` is `file:line` or empty."""
    raise located(FaultError(message + underlined(text, start, end), help=help), where)
