"""Wrappers: calls of functions are looked at until the worker acts, wherever the script keeps these functions."""

from __future__ import annotations

import gc
import posix
import sys

from flowdist.runtime.prefix import caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Wrappers:
    """Wrappers that are put in the place of functions one by one, and taken away together.

    While `is_on` returns False, a wrapped function is called without a look.
    """

    def __init__(self, is_on: Callable[[], bool]) -> None:
        self._is_on = is_on
        self._methods: list[tuple[type, str, Any, Any]] = []  # that are wrapped, with what stands in their place
        self._functions: list[Wrapper] = []
        self._holders: list[Any] = []  # dictionaries and lists that have a wrapper, or may get one
        self._places: list[tuple[dict[str, Any], str]] = []  # names of libraries that are one

    def put(self, module: Any, name: str, before: Callable[..., object]) -> None:
        """Have `before` called, with the name and the arguments, before each call of a module's function."""
        function = getattr(module, name, None)
        # `importlib.import_module` comes here with modules that are imported already.
        if function is not None and type(function) is not Wrapper:
            self._functions.append(Wrapper(self._is_on, module.__name__, name, function, before))
            setattr(module, name, self._functions[-1])

    def put_on_method(self, owner: Any, name: str, before: Callable[..., object]) -> None:
        """Have `before` called before each call of a class's method."""
        method = getattr(owner, name)
        if all(method is not wrapper for *_, wrapper in self._methods):
            as_object: Any = Wrapper(self._is_on, owner.__module__, name, method, before)
            wrapper: Any = lambda *args, **named: as_object(*args, **named)  # noqa: E731, PLW0108  # to be bound
            self._methods.append((owner, name, method, wrapper))
            setattr(owner, name, wrapper)

    def note_holders(self) -> None:
        """Note what holds a wrapper, or may do so later, before the objects of this process are frozen.

        Of libraries the very names are noted: a worker that looked through all modules would copy their memory.
        """
        modules = (caller.namespace_of(module) for module in list(sys.modules.values()))
        self._holders += [names for names in modules if not caller.is_of_library(names)]
        for holder in self._referrers():
            if type(holder) is dict and "__spec__" in holder and caller.is_of_library(holder):
                self._places += [(holder, key) for key in _wrapped_in(holder)]
            else:
                self._holders.append(holder)

    def take_away(self) -> None:
        """Put the functions and methods back in their places."""
        for holder in [*self._holders, *self._referrers()]:
            for key in _wrapped_in(holder):
                holder[key] = holder[key].function
        for names, key in self._places:
            if type(value := names.get(key)) is Wrapper:
                names[key] = value.function
        self._holders, self._places, self._functions = [], [], []
        for owner, name, method, wrapper in self._methods:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, method)

    def _referrers(self) -> list[Any]:
        """Return what holds a wrapper: modules (`from time import time`), objects, dictionaries, lists.

        The collector shows nothing that was frozen before. Namespaces of classes are left out: Python has to know when
        they change.
        """
        found = []
        for each in gc.get_referrers(*self._functions):
            holder = each if type(each) in (dict, list) else caller.namespace_of(each)
            if each is not self._functions and (type(holder) is list or "__module__" not in holder):
                found.append(holder)
        return found


class Wrapper:
    """A function that is called after a look at the call. It equals the function: sets of functions have it."""

    def __init__(
        self,
        is_on: Callable[[], bool],
        holder: str,
        name: str,
        function: Callable[..., Any],
        before: Callable[..., object],
    ) -> None:
        self._is_on, self._holder, self._name = is_on, holder, name
        self.function, self._before = function, before
        self.__name__ = self.__qualname__ = name
        self.__doc__ = function.__doc__
        self.__module__ = getattr(function, "__module__", None) or "posix"
        self.__self__ = getattr(function, "__self__", posix)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self._is_on():
            self._before(self._name, *args, **named)
        return self.function(*args, **named)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return repr(self.function)

    def __reduce__(self) -> str | tuple[object, ...]:
        if getattr(sys.modules.get(self.__module__), self.__name__, None) is self:
            return str(self.__name__)  # as the function itself is pickled
        return getattr, (_Module(self._holder, self._name), self._name)

    def __copy__(self) -> Wrapper:
        return self

    def __deepcopy__(self, memo: object) -> Wrapper:
        return self


class _Module:
    """A module for pickles, which is imported where it is loaded from one."""

    def __init__(self, name: str, part: str) -> None:
        self._name, self._part = name, part

    def __reduce__(self) -> tuple[object, ...]:
        return __import__, (self._name, None, None, [self._part])


def _wrapped_in(holder: Any) -> list[Any]:
    """Return the keys or indices of the wrappers in a dictionary or list."""
    items = holder.items() if type(holder) is dict else enumerate(holder)
    return [key for key, value in list(items) if type(value) is Wrapper]
