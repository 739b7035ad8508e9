"""The arguments of a command in which words differ from worker to worker: reading `sys.argv` is a split then."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

READS = (
    "__getitem__ __iter__ __len__ __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __mul__ __rmul__ "
    "__iadd__ __imul__ __reversed__ __repr__ __delitem__ index count copy pop remove reverse sort insert append extend"
)


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


for _name in READS.split():
    setattr(Arguments, _name, _reading(_name))


def watch(split: Callable[[str], None]) -> None:
    """Have `sys.argv` watched."""
    sys.argv = Arguments(sys.argv, split)
