"""Late imports: what a library imports when it is used for the first time, done once for all workers at the split.

torch imports the 800 modules of `torch._dynamo` when an optimizer or DDP() is made. Each rank would do so by itself, in
each start. The template imports them instead, and looks at which variables they read. A script that sets one of these
after its split, before it acts, is forked anew from a template without the late imports. If it acts already, its log
says that the variable comes too late.
"""

from __future__ import annotations

import os
import posix
import sys

from flowdist.runtime.prefix.caller import is_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowdist.runtime.prefix.watch import Watch

LATE = ("torch._dynamo",)
TOO_LATE = "is changed after a late import has read it"


class Late:
    """The late imports of one template; `asked` are those that the user names with `preload=`."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked
        self.read: frozenset[bytes] = frozenset()  # variables that the imports have read or set
        self._left: dict[bytes, tuple[bytes | None, bytes | None]] = {}  # those set: values before and after

    def wanted(self) -> list[str]:
        """Return the modules that are worth importing now: the user's, and those of libraries that are imported."""
        names = [*self._asked, *(name for name in LATE if is_imported(name.partition(".")[0]))]
        return [name for name in names if name not in sys.modules]

    def import_all(self, watch: Watch) -> str:
        """Import the modules. Return why workers must not be forked from here; empty if they may be."""
        import importlib  # a template has imported as little as it can

        before = dict(watch.environment.items_known())
        watch.environment.begin_notes()
        watch.begin_patience()
        try:
            for name in self.wanted():
                variables = watch.environment.items_known()
                importlib.import_module(name)
                if name in self._asked and variables != watch.environment.items_known():
                    return f"{name} sets variables when it is imported"
        except BaseException as error:  # SystemExit too
            return f"{type(error).__name__}: {error}"
        finally:
            watch.end_patience()
        watch.watch_imported()
        read, unknown = watch.environment.end_notes()
        after = dict(watch.environment.items_known())
        changed = {key for key in {**before, **after} if before.get(key) != after.get(key)}
        self._left = {key: (before.get(key), after.get(key)) for key in changed}
        for key, (value, _) in self._left.items():  # the script has not imported anything yet
            _set(key, value)
        self.read = frozenset(read | changed)
        return f"a late import reads {os.fsdecode(unknown)}" if unknown is not None else ""

    def end_guard(self) -> None:
        """Say which variables that the imports have read were removed. From now on changes are the script's own."""
        if isinstance(data := os.environ._data, Guard):  # type: ignore[attr-defined]
            for key in [key for key, value in data.names.items() if data.get(key) != value]:
                data.say(key)
            data.names = {}

    def leave_variables(self) -> None:
        """Set what the imports have set, unless the script has. Call this once it has used what they import."""
        self.end_guard()
        for key, (before, after) in self._left.items():
            if os.environb.get(key) == before:
                _set(key, after)

    def guard(self) -> None:
        """In a worker that has begun to act, say once if the script sets a variable that the late imports have read."""
        if self.read:
            os.environ._data = os.environb._data = Guard(os.environ._data, self.read)  # type: ignore[attr-defined]


def _set(key: bytes, value: bytes | None) -> None:
    if value is not None:
        os.environb[key] = value
    elif key in os.environb:
        del os.environb[key]


class Guard(dict):  # type: ignore[type-arg]
    """Data of `os.environ` in a worker with late imports, which have read the variables `names`.

    Only a new value counts: some libraries empty `os.environ` for a moment, and put everything back.
    """

    def __init__(self, data: dict[bytes, bytes], names: frozenset[bytes]) -> None:
        super().__init__(data)
        self.names = {name: data.get(name) for name in names}

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if self.names.get(key, value) != value:
            self.say(key)
        super().__setitem__(key, value)

    def say(self, key: bytes) -> None:
        """Say once that a variable was changed too late."""
        del self.names[key]
        posix.write(
            2, f"flowdist: {os.fsdecode(key)} {TOO_LATE}: set it before RANK is read, or start with --cold\n".encode()
        )
