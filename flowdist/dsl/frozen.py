"""Words of the DSL as objects that never change, and calls of them that are read even if they are wrong.

While a topology file is executed, a mistake in the use of a word (a misspelt method, an assignment, an argument too
many) becomes a problem at the user's line, and the file is read on as if the mistake had been corrected: with the
method or argument that was meant if one has a similar name, else with an `Unknown`. So one run reports every mistake.
Elsewhere, as in a test or a notebook, the same mistakes are raised as AttributeError and TypeError.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from opcode import opname
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from flowdist.dsl.problems.places import CallSite, Place, attribute_place, site_of
from flowdist.dsl.problems.problem import MARK, current_recording, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
READS = ("LOAD_ATTR", "LOAD_METHOD")  # instructions of `a.b`; those of `hasattr(a, "b")` are calls


class Unknown:
    """Value of an expression that has a problem, such as `ps.frobnicate()`.

    Every use of it succeeds and gives an Unknown or nothing, so that one mistake is one problem. The compiler reports
    no problem about an argument that has an Unknown in it.
    """

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)  # copy, pickle and inspect ask for methods by name
        return self

    def __setattr__(self, name: str, value: object) -> None: ...
    def __delattr__(self, name: str) -> None: ...
    def __setitem__(self, key: object, value: object) -> None: ...
    def __delitem__(self, key: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 1.0

    def __str__(self) -> str:
        return MARK

    def __format__(self, spec: str) -> str:
        return MARK

    def _same(self, *_: object, **__: object) -> Unknown:
        return self

    __call__ = __getitem__ = __enter__ = __neg__ = __abs__ = _same
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __or__ = __ror__ = _same
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _same
    __lt__ = __le__ = __gt__ = __ge__ = _same

    def __exit__(self, *_: object) -> None: ...


def has_unknown(value: object) -> bool:
    """Return whether a value is an Unknown, a text with the text of one, or a list or dict that has such a value."""
    if isinstance(value, str):
        return MARK in value
    if isinstance(value, Mapping):
        return any(has_unknown(key) or has_unknown(value[key]) for key in value)
    return isinstance(value, Unknown) or (isinstance(value, list | tuple) and any(map(has_unknown, value)))


class Frozen:
    """Base of the words: the constructor completes an object, and nothing changes it afterwards.

    Constructors set `site`, the call that made the object, last; from then on it is frozen.
    """

    site: CallSite
    _TAKES: ClassVar[Iterable[str]] = ()  # the arguments of that call; empty: those of the constructor
    _INSTEAD: ClassVar[Mapping[str, str]] = {}  # help for names that users of other tools may try
    _HAS: ClassVar[Iterable[str] | None] = None  # what users may use of the object; None: all that has a public name

    def _words(self) -> tuple[str, str]:
        """Return the object's name for messages, such as `role 'trainer'`, and how the call that made it begins."""
        name = type(self).__name__
        return f"the {name}", f"{name}(..., "

    def _written(self, argument: str) -> str:
        """Return how the call that made the object is written with an argument, such as `Node(..., cpu=...)`."""
        return f"{self._words()[1]}{argument}=...)"

    def _arguments(self) -> list[str]:
        return [*self._TAKES] or [name for name in inspect.signature(type(self)).parameters if name != "_"]

    def __setattr__(self, name: str, value: object) -> None:
        if "site" not in vars(self):
            object.__setattr__(self, name, value)
        elif not isinstance(value, Unknown):  # `a.ports += [...]` has read `a.ports`, which is a problem already
            self._refuse_change(name, "cannot be changed", sys._getframe(1))

    def __delattr__(self, name: str) -> None:
        self._refuse_change(name, "cannot be deleted", sys._getframe(1))

    def _refuse_change(self, name: str, change: str, frame: FrameType) -> None:
        """Report an assignment or deletion (FD161); raise AttributeError if no file is executed."""
        known = self._arguments()
        meant = name if name in known else closest(name, known)
        help = "keep it in a variable of your own"
        if meant:
            hint = "" if name == meant else f'did you mean "{meant}"? '
            help = f"{hint}write it in the call: {self._written(meant)}"
        report("FD161", f"{name!r} of {self._words()[0]} {change} after its call", help, attribute_place(frame, name))

    if not TYPE_CHECKING:  # a type checker is to find misspelt names itself

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or "site" not in vars(self):
                raise AttributeError(name)  # Python asks objects for methods that they may have
            frame = sys._getframe(1)
            message, help, meant = self._no_attribute(name)
            if opname[frame.f_code.co_code[frame.f_lasti]] not in READS:
                raise AttributeError(message)  # getattr() and hasattr() ask, too
            report("FD162", message, help, attribute_place(frame, name))
            return getattr(self, meant) if meant else unknown()

    def _no_attribute(self, name: str) -> tuple[str, str, str]:
        """Return message and help for an attribute that the object lacks, and the one that was meant; empty: none."""
        known = [name for name in dir(type(self)) if not name.startswith("_")] if self._HAS is None else [*self._HAS]
        arguments = self._arguments()
        argument = meant = name if name in arguments else closest(name, [*known, *arguments])
        if meant not in (*known, name):  # `sucess` is closer to `resources` than to `succeeded`
            meant = next((each for each in known if each[:3] == name[:3]), meant)
        word, otherwise = meant if meant in known else name, None if known else "keep it in a variable of your own"
        help = self._INSTEAD.get(name) or did_you_mean(word, known, otherwise)
        if meant in known:
            argument = ""
        if argument:
            hint = "" if name == argument else f'did you mean "{argument}"? '
            help = f"{hint}arguments are written in the call: {self._written(argument)}"
        return f"{self._words()[0]} has no attribute {name!r}", help, "" if argument else meant


def force(this: Frozen, name: str, value: object) -> None:
    """Set an attribute of a frozen object, as the command line does, which wins over the file."""
    object.__setattr__(this, name, value)


def report(code: str, message: str, help: str, place: Place) -> None:
    """Record an error of the file that is executed; raise AttributeError if none is."""
    recording = current_recording()
    if recording is None:
        error = AttributeError(message)
        error.add_note(f"help: {help}")
        raise error
    recording.problems.error(code, message, help, place)


def unknown() -> Unknown:
    """Return an Unknown after `report`, and record that the file is not known in full."""
    recording = current_recording()
    assert recording is not None  # `report` raises without one
    recording.problems.has_unknowns = True
    return Unknown()


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to a wrong one; empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def word(*positional: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a constructor forgiving and sets `site`; `positional` parameters need no name."""

    def decorated(cls: type[T]) -> type[T]:
        made = forgiving(cls.__init__, cls.__name__, positional)
        setattr(cls, "__init__", made)  # noqa: B010  # mypy refuses an assignment
        return cls

    return decorated


def forgiving(function: Callable[P, R], name: str = "", positional: tuple[str, ...] = ()) -> Callable[P, R]:
    """Return a method that takes wrong calls, too, while a topology file is executed: each becomes a problem.

    The value of a misspelt argument counts for the one that was meant. Other unknown arguments and surplus ones are
    left out, and an Unknown takes the place of a missing one. Exceptions inside the method stay as they are. If no file
    is executed, a wrong call raises TypeError as usual. Of a constructor, `name` is that of its class, and `positional`
    are the names of the parameters that may be given by position.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        wrong = None
        try:
            made = function(*args, **kwargs)
        except TypeError as error:
            is_inside = error.__traceback__ is None or error.__traceback__.tb_next is not None
            if is_inside or current_recording() is None:
                raise
            wrong = _WrongCall(name or function.__name__, inspect.signature(function), sys._getframe(1))
        if wrong is not None:
            arguments, named = wrong.mend(args[1:], kwargs)
            made = function(args[0], *arguments, **named)  # type: ignore[arg-type]
        this = args[0] if name else made  # a constructor returns nothing
        if name and "site" not in vars(this):
            setattr(this, "site", site_of(sys._getframe(1), positional))  # noqa: B010
        if wrong is not None and isinstance(this, Frozen):
            this.site.renamed.update(wrong.site.renamed)
            this.site.lost_arguments |= wrong.site.lost_arguments
        return made

    return call


class _WrongCall:
    """One call in the user's file that Python refuses: `mend` reports why, and returns arguments that it takes."""

    def __init__(self, name: str, signature: inspect.Signature, frame: FrameType) -> None:
        parameters = list(signature.parameters.values())[1:]  # without self
        self._name = name
        self._positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        self._known = {each.name: each for each in parameters if each.kind not in VARIADIC}
        self._takes_any_name = any(each.kind is each.VAR_KEYWORD for each in parameters)
        self._takes_more = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        self.site = site_of(frame, tuple(map(str, range(len(self._positional) + 1))))

    def mend(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Report each wrong argument, and return those that the call takes (without self); `site` has the others."""
        args = self._without_surplus(args)
        taken = {each.name for each in self._positional[: len(args)]}
        named: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in taken:
                message = f"argument {name!r} of {self._name}() is given twice"
                report("FD163", message, "leave one of the two out", self.site.keyword(name))
            elif name in self._known or self._takes_any_name:
                named[name] = value
            else:
                help = did_you_mean(name, self._known)
                report("FD132", f"argument {name!r} is unknown", help, self.site.keyword(name))
                meant = closest(name, self._known)
                if meant and meant not in {*taken, *kwargs, *named}:
                    named[meant], self.site.renamed[meant] = value, name
                elif self._takes_more:
                    args = [*args, value]
                self.site.lost_arguments |= not meant
        for each in self._positional[len(args) :]:
            if each.default is each.empty and each.name not in named:
                message = f"{self._name}() has no argument {each.name!r}"
                report("FD163", message, f"write {self._name}({each.name!r}, ...)", self.site.place())
                named[each.name] = unknown()
        return args, named

    def _without_surplus(self, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments by position that the call takes, and report it if there are more."""
        most = len(self._positional)
        if len(args) > most and not self._takes_more:
            first = ", ".join(each.name for each in self._positional)
            message = f"{self._name}() takes {first or 'no argument'} without a name, and got {len(args)} arguments"
            help = f"write the name before the value; known: {', '.join(self._known)}"
            if self._takes_any_name:
                help = "write the name before the value, as in replicas=4"
            report("FD163", message, help, self.site.place(str(most)))
            self.site.lost_arguments = True
        return args if self._takes_more else args[:most]
