"""The global random numbers of Python, numpy and torch, at the split.

A process that seeds none of them draws other numbers than every other rank. Where the script has seeded one, its forks
go on where the script stands, as every rank does that has run the script by itself. What a library draws when it is
imported counts as nothing: the numbers that follow are as good as those before.
"""

from __future__ import annotations

import sys

from flowdist.runtime.prefix.caller import is_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TWISTS_MAX = 1000  # a generator of Python gives 624 numbers between two twists of its state


class Generators:
    """The global generators from their import to the split."""

    def __init__(self) -> None:
        self._first: dict[str, object] = {}  # states by name, as the import of the module has left them
        self._known: dict[str, object] = {}  # states after the last import of something installed
        self._drawn: set[str] = set()  # generators that the user's code has changed
        self._seeded: set[str] = set()
        self._seeded_late: set[str] = set()  # after numbers were drawn

    def before_import(self) -> None:
        """Note what the user's code has drawn or seeded, just before it imports something installed."""
        self._drawn.update(name for name, state in self._states().items() if state != self._known[name])

    def before_seed(self) -> None:
        """Note what the user's code has drawn, just before it seeds a generator."""
        self.before_import()
        self._seeded_late.update(name for name in self._drawn - self._seeded if not self._is_seeded(name))

    def after_import(self) -> None:
        """Note the states that the import of something installed has left."""
        self.note_first()
        self._known = self._states()

    def note_first(self) -> None:
        """Note the states of generators that have come with an import, before anybody draws."""
        for name, (module, state_of) in _STATES.items():
            if name not in self._first and module in sys.modules:
                state = state_of(sys.modules[module])
                if state is not None:
                    self._first[name] = self._known[name] = state

    def _states(self) -> dict[str, object]:
        return {name: _STATES[name][1](sys.modules[_STATES[name][0]]) for name in self._first}

    def _is_seeded(self, name: str) -> bool:
        module, first = sys.modules[_STATES[name][0]], self._first[name]
        state = _STATES[name][1](module)
        return state != first and _SEEDED[name](module, first, state)

    def why_different(self) -> str:
        """Note which generators are seeded. Return which one has given the user's code numbers unseeded, in words."""
        self.before_import()
        for name in self._first:
            if name not in self._seeded_late and (name in self._seeded or self._is_seeded(name)):
                self._seeded.add(name)
            elif name in self._drawn:
                return f"it draws numbers of {name}, which it has not seeded, before it knows its rank"
        return ""

    def give(self) -> None:
        """In a fork, go on with the seeded generators, and seed the others anew."""
        if "random" in self._first and "random" not in self._seeded:
            sys.modules["random"]._inst.seed()  # the script may have put something else in place of `random.seed`
        if "numpy" in self._first and "numpy" not in self._seeded:
            sys.modules["numpy.random.mtrand"]._rand.seed()
        if "torch" in self._first and "torch" not in self._seeded:
            sys.modules["torch.random"].default_generator.seed()
        self._first |= {name: state for name, state in self._states().items() if name not in self._seeded}
        self._known, self._drawn, self._seeded_late = self._states(), set(), set()


def _of_python(module: object) -> object:
    return module.getstate() if hasattr(module, "getstate") else None


def _of_numpy(module: object) -> object:
    rand = getattr(module, "_rand", None)
    if rand is None:
        return None
    state = rand._bit_generator.state["state"]
    return state["key"].tobytes(), int(state["pos"])


def _of_torch(module: object) -> object:
    generator = getattr(module, "default_generator", None) if is_imported("torch") else None  # else torch crashes
    if generator is None:
        return None
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # of modes that the script is in
        return generator.initial_seed(), generator.get_state().numpy().tobytes()


def _is_python_seeded(module: object, first: object, now: object) -> bool:
    """Return whether the state is none that draws alone can have led to."""
    clone = module.Random()  # type: ignore[attr-defined]
    clone.setstate(first)
    for _ in range(TWISTS_MAX):
        state = clone.getstate()
        if state[1][:-1] == now[1][:-1]:  # type: ignore[index]
            return False
        clone.getrandbits(32 * 624)
    return True


_STATES: dict[str, tuple[str, Callable[[object], object]]] = {
    "random": ("random", _of_python),
    "numpy": ("numpy.random.mtrand", _of_numpy),
    "torch": ("torch.random", _of_torch),
}
_SEEDED: dict[str, Callable[[object, object, object], bool]] = {
    "random": _is_python_seeded,
    "numpy": lambda module, first, now: module._rand._bit_generator._seed_seq is None,  # type: ignore[attr-defined]
    "torch": lambda module, first, now: now[0] != first[0],  # type: ignore[index]
}
GENERATORS = frozenset(module for module, _ in _STATES.values())
