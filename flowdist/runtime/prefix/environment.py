"""The environment and arguments of the prefix, which has no rank: reading what differs from rank to rank is a split.

`os.environ` keeps its type. Its data is a dictionary that watches reads. A library that is imported may look through
all variables, as tqdm does for those that begin with TQDM_. It gets an `Unread` text for each variable that is not
known yet: whoever then uses that text, and not only passes it by, has read the variable.
"""

from __future__ import annotations

import os
import posix
import sys
from _weakref import ref

from flowdist.runtime.prefix.caller import is_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

READS_OF_LISTS = (
    "__getitem__ __iter__ __len__ __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __mul__ __rmul__ "
    "__iadd__ __imul__ __reversed__ __repr__ __delitem__ index count copy pop remove reverse sort insert append extend"
)


class Unread(str):
    """Text of a variable that no rank has a value for yet. Each use of it reads the variable.

    In a worker it is the value for this start, so that compiled code, which nobody sees, reads that.
    """

    name: str
    read: Callable[[str], str]


def _using(method: str) -> Callable[..., object]:
    def use(self: Unread, *args: object, **named: object) -> object:
        return getattr(self.read(self.name), method)(*args, **named)

    return use


_OF_OBJECTS = ("__class__", "__delattr__", "__dir__", "__getattribute__", "__init__", "__init_subclass__", "__new__")
for _method in set(dir(str)) - {*_OF_OBJECTS, "__setattr__", "__subclasshook__", "__doc__"}:
    setattr(Unread, _method, _using(_method))
setattr(Unread, "__int__", lambda self: int(self.read(self.name)))  # noqa: B010
setattr(Unread, "__float__", lambda self: float(self.read(self.name)))  # noqa: B010


class _UnreadBytes(bytes):
    """Raw value of a variable of which an `Unread` is made when `os.environ` decodes it."""

    text: Unread

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the text, whatever the encoding."""
        return self.text


class Environment(dict):  # type: ignore[type-arg]
    """Data of `os.environ` in a prefix, by encoded name: variables that all ranks share.

    The names of the others are `unknown`, in the order in which a rank has them. `split` is called before one of these
    is read; it returns when this process is a worker.
    """

    def __init__(self, data: dict[bytes, bytes], unknown: Iterable[str], split: Callable[[str], None]) -> None:
        super().__init__(data)
        self._split = split
        self.unknown = {os.fsencode(name): None for name in unknown}
        for name in self.unknown:
            dict.__setitem__(self, name, b"")
        self._given: list[ref[Unread]] = []
        self._values: dict[str, str] = {}  # of a worker, for this start
        self.guarded: frozenset[bytes] = frozenset()  # a worker must not change them: late imports have read them
        self.on_conflict: Callable[[], None] = lambda: None
        self._notes: set[bytes] | None = None  # variables that were read one by one, while they are noted
        self._unknown_read: bytes | None = None
        self._copied: Iterator[bytes] = iter(())
        self._next: bytes | None = None

    def __iter__(self) -> Iterator[bytes]:
        self._copied = iter(list(super().__iter__()))
        self._next = next(self._copied, None)
        return super().__iter__()

    def __getitem__(self, key: bytes) -> bytes:
        is_copy = key == self._next
        self._next = next(self._copied, None) if is_copy else None
        if self._notes is not None and not is_copy:
            self._notes.add(key)
        if key in self.unknown:
            if is_copy and is_import():
                return self._unread(key)
            self._unknown_read = key
            self._split(f"it reads {os.fsdecode(key)}")
            if key in self.unknown:  # it differs from start to start, too: this is the worker's own first act
                self._split(f"it reads {os.fsdecode(key)}")
            data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
            return data[key] if data is not self else super().__getitem__(key)
        return super().__getitem__(key)  # type: ignore[no-any-return]

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value of a variable, which is read; `default` if it is unset."""
        return self[key] if key in self else default  # noqa: SIM401  # it is this method

    def _read_all(self) -> dict[bytes, bytes]:
        """Read every variable that is not known yet; return the data of `os.environ`, where all are known now."""
        for key in list(self.unknown):
            self[key]
        data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        return data

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Be copied, as `copy.deepcopy(os.environ)` does, as a plain dictionary."""
        return dict, (dict(self._read_all()),)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if key in self.guarded and self.get_known(key) != value:
            self.on_conflict()
        self.unknown.pop(key, None)  # from now on it has the script's value, on every rank
        super().__setitem__(key, value)

    def __delitem__(self, key: bytes) -> None:
        if key in self.guarded:
            self.on_conflict()
        self.unknown.pop(key, None)
        super().__delitem__(key)

    def _unread(self, key: bytes) -> bytes:
        name = os.fsdecode(key)
        text = Unread(self._values.get(name, f"<{name}>"))
        text.name, text.read = name, lambda name: os.environ[name]
        self._given.append(ref(text))
        value = _UnreadBytes()
        value.text = text
        return value

    def begin_notes(self) -> None:
        """Note from now on which variables are read."""
        self._notes, self._unknown_read = set(), None

    def end_notes(self) -> tuple[set[bytes], bytes | None]:
        """Return the variables that were read since `begin_notes`, and one of them that no rank has a value for yet."""
        notes, self._notes = self._notes or set(), None
        return notes, self._unknown_read

    def kept(self) -> str:
        """Return the name of a variable that someone has kept unread; empty if there is none."""
        return next((text.name for text in (given() for given in self._given) if text is not None), "")

    def settle(self, values: dict[str, str], of_start: Iterable[str]) -> None:
        """Give a worker the variables that it has in each of its starts; those in `of_start` stay unknown."""
        self._values = values
        kept = {os.fsencode(name) for name in of_start}
        for key in [key for key in self.unknown if key not in kept]:
            del self.unknown[key]
            value = values.get(os.fsdecode(key))
            if value is None:
                super().__delitem__(key)
            else:
                super().__setitem__(key, os.fsencode(value))
                os.putenv(key, os.fsencode(value))

    def get_known(self, key: bytes) -> bytes | None:
        """Return the value of a variable as it is, without reading it; None if it is unset."""
        return super().get(key)

    def give(self, values: dict[str, str], data: dict[bytes, bytes]) -> None:
        """Give a worker its variables, and `os.environ` the dictionary `data` again, which it had before.

        Variables that the script has set itself before the split are not changed.
        """
        unknown, self.unknown = self.unknown, {}
        data.clear()
        for key, value in self.items_known():
            if key not in unknown:
                data[key] = value
            elif os.fsdecode(key) in values:
                data[key] = os.fsencode(values[os.fsdecode(key)])
        os.environ._data = os.environb._data = data  # type: ignore[attr-defined]
        posix.environ = dict(data)
        for key in unknown:
            if key in data:
                os.putenv(key, data[key])

    def items_known(self) -> list[tuple[bytes, bytes]]:
        """Return all variables as they are, without reading any."""
        return list(super().items())


def _after_reading(method: Callable[..., object]) -> Callable[..., object]:
    return lambda self, *args: method(self._read_all(), *args)


for _whole in (dict.items, dict.values, dict.copy, dict.__repr__, dict.__eq__, dict.__or__, dict.__ror__):
    setattr(Environment, _whole.__name__, _after_reading(_whole))


def watch(unknown: Iterable[str], split: Callable[[str], None]) -> tuple[Environment, dict[bytes, bytes]]:
    """Watch `os.environ`, and `posix.environ`, of which it was made. Return its new data, and the data that it had."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    environment = Environment(data, unknown, split)
    posix.environ = Environment(data, unknown, split)
    os.environ._data = os.environb._data = environment  # type: ignore[attr-defined]
    return environment, data


class Arguments(list):  # type: ignore[type-arg]
    """`sys.argv` before the split: some words are not known yet. `split` is called before one is read or moved."""

    def __init__(self, words: list[str], split: Callable[[str], None]) -> None:
        super().__init__(words)
        self._split = split

    def give(self, argv: list[str]) -> None:
        """Set the words of a worker, whose command is `argv`. The name of the program stays as it is."""
        count = len(list.__iter__(self).__reduce__()[1][0]) - 1
        list.__setitem__(self, slice(1, None), argv[len(argv) - count :] if count else [])


def _reading(name: str) -> Callable[..., object]:
    method = getattr(list, name)

    def read(self: Arguments, *args: Any) -> Any:
        self._split("it reads its arguments")
        return method(self, *args)

    return read


for _name in READS_OF_LISTS.split():
    setattr(Arguments, _name, _reading(_name))


def watch_arguments(split: Callable[[str], None]) -> None:
    """Have `sys.argv` watched, for a command in which words differ from worker to worker."""
    sys.argv = Arguments(sys.argv, split)
