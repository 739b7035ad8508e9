"""Reading of single arguments: their values as flowdist uses them, in ns, bytes and numbers, and their places.

A value that cannot be used becomes a problem at its place, and is replaced by one that causes no further problems, so
that one mistake does not hide the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from flowdist.dsl.frozen import has_unknown
from flowdist.dsl.problems.places import CallSite, Place
from flowdist.dsl.problems.problem import Problems, did_you_mean
from flowdist.dsl.topology import Role, Topology
from flowdist.dsl.words import Restart, Snapshots, Workload
from flowdist.graph import (
    MINUTE,
    MS,
    WHOLE,
    NoUnitError,
    Resources,
    RoleGraph,
    RoleSpec,
    duration_help,
    format_duration,
    format_memory,
    parse_duration,
    parse_memory,
)
from flowdist.graph.units import GPUS_MAX, NUMBER_MAX

RESERVED = ("all", "controller")  # faults use these names: `all@30s`, `controller@30s`
PLAIN = (str, int, float, PurePath)  # types of values that stand for their text in `env=` and `where=`
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
DOUBLE = "name.double"  # marked as wrong for roles whose name is that of an earlier role
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")  # usable as a host name
PART_NAME = re.compile(r"[a-z]([a-z0-9_-]{0,61}[a-z0-9])?")  # of a topology or a role: usable as a folder, too

NESTED = (Restart, Snapshots, Workload)  # arguments that are calls with arguments of their own
_SIZE = re.compile(r"(?:(\d+):)?(\d+)(?:x(\d+))?")  # replicas as users write them: `2:4x2`


class Sizes(NamedTuple):
    """Size of a role: fewest and most replicas, and workers of each replica (`procs`; None if the default applies)."""

    low: int
    high: int
    procs: int | None


def parse_sizes(value: str | int) -> Sizes:
    """Parse `[MIN:]MAX[xPROCS]`, where N means minimum and maximum N; ValueError for anything else."""
    if isinstance(value, bool):
        raise ValueError("not a number of replicas")
    if isinstance(value, int):
        return Sizes(value, value, None)
    match = _SIZE.fullmatch(value.replace(" ", ""))
    if match is None:
        raise ValueError("not a number of replicas")
    high = int(match[2])
    return Sizes(int(match[1]) if match[1] else high, high, int(match[3]) if match[3] else None)


def _readings(number: str, parse: Callable[[str], int], spell: Callable[[int], str]) -> list[str]:
    """Return what a number without a unit may mean, as quoted texts, with the usual spelling if it is another."""
    is_large = "e" in number or float(number) >= 1 << 20
    units = ("s", "ms") if parse is parse_duration else ("B",) if is_large else ("GiB", "MiB")
    found = []
    for text in (f"{number}{unit}" for unit in units):
        try:
            other = spell(parse(text))
        except ValueError:  # too large, or nan
            continue
        found.append(f'"{text}"' if other == text else f'"{text}" ({other})')
    return found


def owner_of(part: Topology | Role | RoleGraph | RoleSpec) -> str:
    """Return the name of a topology or role by which `Problems` knows its arguments, such as `role 'trainer'`."""
    return f"{'role' if isinstance(part, Role | RoleSpec) else 'topology'} {part.name!r}"


class Fields:
    """Arguments of one call, each with its place: in the call, in a template, or on the command line.

    A part of an argument is named with a dot: `env.NAME`, `restart.scope`. A method that reads an argument adds an
    error if the value cannot be used, and then returns its default, 0, an empty value or the least one allowed.

    Messages begin with the `owner`, such as `role 'trainer'`. Errors are reported at the call `site` unless
    `overridden` has a place for the argument (of the command line or flowdist.toml) or `sites` another call, such as
    that of a template. `part` is the path to the arguments from those of the owner, such as `restart.`.
    """

    def __init__(
        self,
        owner: str,
        values: Mapping[str, Any],
        site: CallSite,
        problems: Problems,
        overridden: Mapping[str, Place] | None = None,
        sites: Mapping[str, CallSite] | None = None,
        part: str = "",
    ) -> None:
        self.owner, self.values, self.problems = owner, values, problems
        self._site, self._overridden, self._sites, self._part = site, overridden or {}, sites or {}, part
        self._unknown = {name for name in values if has_unknown(values[name])} if problems.has_unknowns else set()
        lost = ["*"] if any(each.lost_arguments for each in (site, *self._sites.values())) else []
        for name in (*self._unknown, *lost):
            problems.mark_wrong(owner, part + name)

    @classmethod
    def of_role(cls, role: Role, problems: Problems) -> Fields:
        """Return the arguments of a role, those of its template included."""
        return cls(owner_of(role), role.fields, role.site, problems, role.overridden, role.sites)

    def nested(self, name: str, given: Any) -> Fields:
        """Return the arguments of `given`, such as a Restart, which is itself the argument `name` of this call."""
        prefix = f"{name}."
        overridden = {
            key.removeprefix(prefix): place for key, place in self._overridden.items() if key.startswith(prefix)
        }
        return Fields(self.owner, vars(given), given.site, self.problems, overridden, part=f"{self._part}{prefix}")

    def part(self, name: str, value: Any) -> Fields:
        """Return `value`, one entry of a dict argument, as an argument of the name `name`, such as `step_time.4`."""
        return Fields(self.owner, {name: value}, self._site, self.problems, self._overridden, self._sites, self._part)

    def place(self, name: str) -> Place:
        """Return the place of the value of an argument, or of a part of it such as `env.NAME`."""
        argument, _, part = name.partition(".")
        for known in (name, argument):
            if known in self._overridden:
                return self._overridden[known]
        site = self._sites.get(name) or self._sites.get(argument) or self._site
        return site.entry(argument, part) if part else site.place(argument)

    def element(self, name: str, index: int) -> Place:
        """Return the place of one element of a list argument; of the whole argument if the list is not written out."""
        return self._overridden.get(name) or self._sites.get(name, self._site).element(name, index)

    def keyword(self, name: str) -> Place:
        """Return the place of an argument together with its name, such as `cpus=3`."""
        return self._sites.get(name, self._site).keyword(name)

    def is_wrong(self, *names: str) -> bool:
        """Return whether one of the arguments has an error. A check of several arguments then says nothing."""
        return self.problems.is_wrong(self.owner, *(self._part + name for name in names))

    def error(self, code: str, name: str, message: str, help: str, place: Place | None = None) -> None:
        """Add an error about the argument `name`, at its place unless another one is given.

        `help` tells the user what to write. An argument with an Unknown in it has its error already, and gets no other.
        """
        self.problems.mark_wrong(self.owner, self._part + name)
        if name.partition(".")[0] not in self._unknown:
            self.problems.error(code, message, help, place or self.place(name), owner=self.owner)

    def warn(self, code: str, name: str, message: str, help: str) -> None:
        """Add a warning at the argument `name`, unless it has an error; `help` tells the user what to write."""
        if not self.is_wrong(name):
            self.problems.warn(code, message, help, self.place(name), owner=self.owner)

    def duration(self, name: str, default: int, *, zero: bool = True) -> int:
        """Return a duration in ns, not negative, with `zero=False` not 0; `default` if it is None or wrong."""
        value, usual = self.values.get(name), 'write a duration such as "30s"'
        help = duration_help(value, f'{usual}, "1m30s" or "400ms"')
        ns = self._parse("FD106", name, parse_duration, format_duration, help, usual)
        if ns == 0 and not zero:
            self.error("FD105", name, f"{name}={value!r} must be more than zero", usual)
            return default
        return default if ns is None else ns

    def optional_duration(self, name: str) -> int | None:
        """Return a duration in ns, of 1 ms or more; None if the argument is None, which turns the feature off."""
        if self.values[name] is None:
            return None
        ns = self.duration(name, MINUTE, zero=False)
        if ns >= MS:
            return ns
        self.error("FD105", name, f"{name}={self.values[name]!r} is less than 1ms", 'write a duration such as "30s"')
        return MINUTE

    def memory(self, name: str) -> int:
        """Return a size of memory in bytes; 0 if the argument is None or cannot be used."""
        help = 'write a size such as "64GiB" or "500MB"'
        return self._parse("FD107", name, parse_memory, format_memory, help, help) or 0

    def _parse(
        self,
        code: str,
        name: str,
        parse: Callable[[Any], int],
        spell: Callable[[int], str],
        help: str,
        help_if_negative: str,
    ) -> int | None:
        """Return what `parse` makes of the argument, None if that is None; if it raises, add an error and return None.

        The help of a number without a unit (FD164) is what it may mean; other errors have the given code and help.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, int | float) and value < 0:
            self.error("FD105", name, f"{name}={value!r} must not be negative", help_if_negative)
            return None
        try:
            return parse(value)
        except NoUnitError:
            number = value.strip() if isinstance(value, str) else repr(value)
            if meant := _readings(number, parse, spell):
                help = f"write {' or '.join(f'{name}={text}' for text in meant)}"
                self.error("FD164", name, f"{name}={value!r} has no unit", help)
                return None
        except ValueError:
            pass
        self.error(code, name, f"{name}={value!r} cannot be read", help)
        return None

    def whole(self, name: str, *, least: int = 0, default: int | None = None) -> int:
        """Return a whole number, or one in a text; `default`, if given, for None; else `least` and an error."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            self.error(
                "FD134", name, f"{name}={value!r} must be a whole number", f"write {name}={default or least or 1}"
            )
            return least
        if value < least:
            self.error("FD105", name, f"{name}={value} is less than {least}", f"write {name}={least} or more")
            return least
        return int(self._at_most(name, value, least))

    def _at_most(self, name: str, value: float, instead: float) -> float:
        """Return the number; one that the graph cannot hold adds an error, and `instead` is returned."""
        if value <= NUMBER_MAX:
            return value
        self.error("FD105", name, f"{name}={value!r} is more than {NUMBER_MAX:,}", f"write {name}={instead} or so")
        return instead

    def devices(self, name: str) -> int:
        """Return a whole number of GPUs; more than GPUS_MAX adds an error and returns 0."""
        count = self.whole(name)
        if count > GPUS_MAX:
            help = f"write {name}={GPUS_MAX} or less"
            self.error("FD105", name, f"{name}={count} is more than a node can have", help)
            return 0
        return count

    def gpu(self, name: str) -> tuple[int, int]:
        """Return the number of GPUs and the share of each, in thousandths: 2, 1000 for `gpu=2`; 1, 500 for `gpu=0.5`.

        A share of several GPUs, or one finer than a thousandth, adds an error and returns 0, 1000.
        """
        value = self.values.get(name)
        try:
            share = float(value) if isinstance(value, float | str) else 0.0
        except ValueError:
            share = 0.0
        is_count = share.is_integer() and (isinstance(value, str) or share > GPUS_MAX)
        if not math.isfinite(share) or share <= 0 or is_count:
            return self.devices(name), WHOLE
        if share.is_integer():
            return int(share), WHOLE
        thousandths = round(share * WHOLE)
        if share > 1:
            help = f"write {name}={math.ceil(share)}, or a share of one such as {name}=0.5"
            self.error("FD148", name, f"{name}={value}: a share is of one GPU, more are given whole", help)
        elif not 0 < thousandths < WHOLE:
            self.error("FD148", name, f"{name}={value} is finer than a thousandth", f"write {name}=0.5, or {name}=1")
        else:
            return 1, thousandths
        return 0, WHOLE

    def size(self) -> Resources:
        """Return the resources that the arguments `cpu`, `gpu` and `memory` ask for."""
        gpu, share = self.gpu("gpu")
        return Resources(self.number("cpu", 1), gpu, self.memory("memory"), share)

    def number(self, name: str, default: float) -> float:
        """Return a number of at least 0; `default` if the argument is None or cannot be used."""
        value = self.values.get(name)
        if value is None:
            return default
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not math.isfinite(number):
            self.error("FD134", name, f"{name}={value!r} must be a number", f"write {name}={default:g}")
            return default
        if number < 0:
            self.error("FD105", name, f"{name}={value!r} must not be negative", f"write {name}={default:g}")
            return default
        return float(self._at_most(name, number, default))

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false, also for text such as `yes` or `0`; `default` if the argument is None or unusable."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in FLAGS:
            return FLAGS[value.lower()]
        if not isinstance(value, bool):
            self.error("FD134", name, f"{name}={value!r} must be true or false", f"write {name}={default}")
            return default
        return value

    def choice(self, name: str, known: Sequence[str]) -> Any:
        """Return the argument if it is a word in `known`; anything else adds an error and returns the first of them."""
        value = self.values.get(name)
        if value not in known:
            self.error("FD131", name, f"{name}={value!r} is unknown", did_you_mean(str(value), known))
            return known[0]
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return a sequence of strings, or a string split at commas, as the command line gives it; else ()."""
        value = self.values.get(name)
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
            self.error("FD134", name, f"{name}={value!r} must be a list of strings", f'write {name}=["..."]')
            return ()
        return tuple(value)

    def items(self, name: str, *single: type, help: str = "") -> Sequence[Any]:
        """Return a sequence of anything; None counts as an empty list, a value of a type in `single` as a list of one.

        Sets and iterators add an error: a set has no order, and an iterator can be read only once. So does anything
        else.
        """
        value = self.values.get(name)
        if value is None or isinstance(value, single):
            return [] if value is None else [value]
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            self.error("FD134", name, f"{name}={value!r} must be a list", help or f"write {name}=[...]")
            return []
        return value

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return a dict of strings or numbers as pairs of strings, without those that are wrong; () for None."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, Mapping):
            self.error("FD134", name, f"{name}= must be a dict", f'write {name}={{"NAME": "value"}}')
            return ()
        for key, text in value.items():
            if not str(key) or any(letter in str(key) for letter in "=\0"):
                self.error("FD102", name, f"{name}[{key!r}] has no usable name", "use letters and digits")
            if text is None:
                self.error("FD134", name, f"{name}[{key!r}] is None", 'write "" for an empty one, or leave it out')
            elif not isinstance(text, PLAIN):
                message = f"{name}[{key!r}] must be a text, not a {type(text).__name__}"
                self.error("FD134", name, message, f'write {name}={{"{key}": "..."}}')
        return tuple((str(key), str(text)) for key, text in value.items() if isinstance(text, PLAIN))

    def path(self, name: str) -> str:
        """Return the text of a path, unchanged; empty if the argument is None or no path."""
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str | PurePath):
            self.error("FD134", name, f"{name}={value!r} must be a path", f'write {name}="..."')
            return ""
        return str(value)


class Arguments:
    """Lookup of the places at which the arguments of a topology stand.

    An argument is named by its role (empty: the topology itself) and by its name, in which dots lead into a Restart or
    a Workload: `hang_after`, `workload.startup`, `restart.then.within`. What a role does not say itself comes from the
    argument of the same name of the topology, if it has one.
    """

    def __init__(self, topology: Topology) -> None:
        nothing = Problems()
        self._top = Fields(owner_of(topology), topology.fields, topology.site, nothing, topology.overridden)
        self._roles: dict[str, Fields] = {}
        for role in topology.roles:
            self._roles.setdefault(role.name, Fields.of_role(role, nothing))

    def owner(self, role: str) -> str:
        """Return the role, or if the name is empty the topology, as messages begin: `role 'trainer'`."""
        return self._roles.get(role, self._top).owner

    def place(self, role: str, name: str) -> Place:
        """Return the place of the argument; that of the call that could have it, if the user has not written it."""
        fields, last = self._find(role, name)
        return fields.place(last)

    def is_written(self, role: str, name: str) -> bool:
        """Return whether the user has given the argument a value other than its default."""
        fields, last = self._find(role, name)
        if last != name.rpartition(".")[2]:
            return False  # there is no Restart or Workload that could have it
        value = fields.values.get(last)
        return value is not None and value not in [vars(kind).get(last) for kind in NESTED]

    def _find(self, role: str, name: str) -> tuple[Fields, str]:
        """Return the arguments of the innermost call that exists, and the name of the argument in them."""
        fields = self._roles.get(role, self._top)
        *outer, last = name.split(".")
        for part in outer:
            given = fields.values.get(part)
            if not isinstance(given, NESTED):
                return fields, part
            fields = fields.nested(part, given)
        if not outer and fields.values.get(last) is None and self._top.values.get(last) is not None:
            return self._top, last
        return fields, last
