"""Recorder in a worker: it tells the prover samples, losses, steps and what they began from, and files that are read.

torch calls hooks before and after each step of an optimizer. Both are told as one step, and the worker goes on when the
prover has answered. Values are told as digests, but for losses and learning rates, which people compare.

Nothing here changes what the script computes: no generator draws, no tensor is written.
"""

# ruff: noqa: PTH100  # pathlib would make the paths of links into those of their files

from __future__ import annotations

import functools
import importlib.abc
import marshal
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

from flowdist.prove.in_worker.digests import digest, hashed
from flowdist.prove.in_worker.prover_link import Prover
from flowdist.prove.in_worker.variables import own_generators, plain_attributes, small_values

SAMPLES_MAX = 100_000  # of one step, that are told one by one


def watch(prover: Prover, folder: str) -> None:
    """Tell the prover from now on what this worker does.

    Args:
        prover: The connection to it.
        folder: The folder whose files belong to the run.
    """
    places = _Places(prover, folder)
    recorder = Recorder(prover, places)
    sys.addaudithook(_Files(prover, places))
    _once_imported("torch.serialization", places.watch_saves)
    _once_imported("safetensors.torch", places.watch_safetensors)
    _once_imported("torch.optim.optimizer", recorder.watch_optimizers)
    _once_imported("torch.autograd", recorder.watch_losses)
    _once_imported("torch.utils.data.dataloader", recorder.watch_loader)
    _once_imported("torchdata.stateful_dataloader.stateful_dataloader", recorder.watch_loader)
    _once_imported("torch.amp.grad_scaler", recorder.watch_scalers)
    _once_imported("torch.optim.lr_scheduler", recorder.watch_schedules)
    _once_imported("flowdist.worker.api", recorder.watch_api)
    _once_imported("flowdist.worker.sampling", recorder.watch_samples)


class Recorder:
    """Collector of what happens between two steps."""

    def __init__(self, prover: Prover, places: _Places) -> None:
        self._prover, self._places = prover, places
        self._losses: list[str] = []
        self._samples: list[Any] = []
        self._loaders: list[str] = []
        self._scalers: list[Any] = []
        self._schedules: list[weakref.ref[Any]] = []
        self._before: dict[str, Any] = {}
        self._depth = 0
        self._has_optimizer = False  # one of torch has taken a step

    def watch_optimizers(self, module: ModuleType) -> None:
        """Have torch call this recorder before and after each step."""
        module.register_optimizer_step_pre_hook(self._before_step)
        module.register_optimizer_step_post_hook(self._after_step)

    def watch_losses(self, module: Any) -> None:
        """Note each scalar on which backward() is called, or of which gradients are asked for."""
        torch: Any = sys.modules["torch"]

        def noting(backward: Callable[..., Any]) -> Callable[..., Any]:
            def backward_noted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                if self._depth == 0:
                    self._begin_step()
                    self._losses += [_scalar(tensor) for tensor in _tensors(tensors)]
                self._depth += 1
                try:
                    return backward(tensors, *args, **kwargs)
                finally:
                    self._depth -= 1

            return backward_noted

        for owner, name in ((torch.Tensor, "backward"), (module, "backward"), (module, "grad")):
            setattr(owner, name, noting(getattr(owner, name)))

    def watch_loader(self, module: ModuleType) -> None:
        """Note the indices of each batch when the loop gets it; workers of a loader may have drawn them long before."""
        iterator = module._BaseDataLoaderIter
        drawn, given = iterator._next_index, iterator.__next__

        def next_index(this: Any) -> Any:
            index = drawn(this)
            this.__dict__.setdefault("_flowdist_drawn", deque()).append(index)
            return index

        def next_batch(this: Any) -> Any:
            batch = given(this)
            queue = this.__dict__.get("_flowdist_drawn")
            index = queue.popleft() if queue else None
            self._samples.append(index if _is_numbers(index) else digest(batch))
            self._loaders.append(_name_of(this))
            return batch

        iterator._next_index, iterator.__next__ = next_index, next_batch
        for name in ("DataLoader", "StatefulDataLoader"):
            if (loader := getattr(module, name, None)) is not None:
                self._places.at_call(loader, "__init__", "loader")

    def watch_scalers(self, module: ModuleType) -> None:
        """Note the scale of each gradient scaler."""
        made = module.GradScaler.__init__

        def noted(scaler: Any, *args: Any, **kwargs: Any) -> None:
            made(scaler, *args, **kwargs)
            self._scalers.append(scaler)

        module.GradScaler.__init__ = noted

    def watch_schedules(self, module: Any) -> None:
        """Note each scheduler of learning rates, which may know more than the rates say."""

        def made(kind: type, *_: Any, **__: Any) -> Any:
            scheduler: Any = object.__new__(kind)
            self._schedules.append(weakref.ref(scheduler))
            return scheduler

        module.LRScheduler.__new__ = staticmethod(made)

    def watch_api(self, module: Any) -> None:
        """Take what a script without an optimizer of torch reports as its steps, and note when it commits."""
        report, publish = module.progress, module.commit

        def commit(path: Any, *, step: int | None = None) -> Any:
            whole = os.path.abspath(os.fspath(path))
            self._places.tell(f"write {whole}")
            self._prover.ask(kind="commit", path=whole)
            accepted = publish(path, step=step)
            self._prover.ask(kind="committed", path=whole)
            return accepted

        def log(**values: object) -> None:
            self._losses += [_scalar(values[name]) for name in sorted(values)]

        def tell(step: int) -> None:
            if not self._has_optimizer and ("torch" not in sys.modules or self._losses):
                seen = {"count": int(step), "random": _random(), **self._of_script(), **self._since_last()}
                self._prover.ask(kind="step", **seen)

        def progress(step: int) -> None:
            report(step)
            tell(step)

        frame = sys._getframe()
        while frame is not None:
            if frame.f_code is report.__code__:  # the first report, by which this worker began to act
                tell(frame.f_locals["step"])
            frame = frame.f_back  # type: ignore[assignment]
        package: Any = sys.modules.get("flowdist.worker")
        for each in (module, package):
            if each is not None and "progress" in vars(each):
                each.progress, each.commit, each.log = progress, commit, log

    def watch_samples(self, module: Any) -> None:
        """Note the samples of each batch of `worker.samples()`. A loader that draws by it is watched itself."""
        take = module.Samples.batch

        def batch(samples: Any, step: int) -> Any:
            found = take(samples, step)
            self._samples.append(found.samples)
            self._loaders.append(f"samples {samples.dataset_size}")
            return found

        module.Samples.batch = batch

    def _begin_step(self) -> None:
        """Say that a step begins, at its first loss: workers that take none have done nothing of it yet."""
        if self._prover.tells_steps and not self._losses and self._prover.is_open():
            self._prover.ask(kind="begins")

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_quiet():
            return
        groups = optimizer.param_groups
        self._before = {
            "weights": digest([group["params"] for group in groups]),
            "optimizer": digest(_state(optimizer)),
            "rates": [_number(group.get("lr")) for group in groups],
            "scale": [scaler.get_scale() for scaler in self._scalers],
            "random": _random(),
            "count": _count(optimizer),
            "schedule": "".join(plain_attributes(made) for each in self._schedules if (made := each()) is not None),
            **self._of_script(),
        }

    def _of_script(self) -> dict[str, dict[str, str]]:
        """Return what variables of the script have."""
        folder = self._places.folder
        return {"own": own_generators(folder), "variables": small_values(folder)}

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_quiet():
            return
        weights = [group["params"] for group in optimizer.param_groups]
        if not self._losses and digest(weights) == self._before["weights"]:
            return  # torch.distributed.checkpoint takes such a step, to have the optimizer make its state
        self._has_optimizer = True
        seen = self._since_last()
        self._places.tell("step")
        gradients = digest([each.grad for group in optimizer.param_groups for each in group["params"]])
        self._prover.ask(kind="step", gradients=gradients, **seen, **self._before)

    def _since_last(self) -> dict[str, list[Any]]:
        """Return what was seen since the last step."""
        seen = {"losses": self._losses, "samples": self._samples, "loaders": self._loaders}
        self._losses, self._samples, self._loaders = [], [], []
        return seen

    def _is_quiet(self) -> bool:
        torch: Any = sys.modules["torch"]
        return bool(torch.compiler.is_compiling())


class _Places:
    """The lines of the user's script that do something, told once each."""

    def __init__(self, prover: Prover, folder: str) -> None:
        self._prover, self.folder = prover, folder
        self._told: dict[str, str] = {}

    def tell(self, what: str) -> None:
        """Tell the line of the script from which this is called, if it is a new one for `what`."""
        frame = sys._getframe(1)
        while frame is not None:
            name = os.path.abspath(frame.f_code.co_filename)
            if name.startswith(self.folder + "/"):
                place = f"{name[len(self.folder) + 1 :]}:{frame.f_lineno}"
                if self._told.get(what) != place:
                    self._told[what] = place
                    self._prover.tell(kind="place", what=what, place=place)
                return
            frame = frame.f_back  # type: ignore[assignment]

    def at_call(self, owner: Any, name: str, what: str, path_at: int | None = None) -> None:
        """Tell the place of each call of a function; the argument at `path_at` is the path that it writes."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def told(*args: Any, **kwargs: Any) -> Any:
            path = args[path_at] if path_at is not None and len(args) > path_at else None
            if path_at is None or isinstance(path, (str, os.PathLike)):
                self.tell(what if path is None else f"{what} {os.path.abspath(path)}")
                if path is not None:
                    self._prover.ask_to_change(os.path.abspath(path))
            return function(*args, **kwargs)

        setattr(owner, name, told)

    def watch_saves(self, module: ModuleType) -> None:
        """Note where torch.save is called: its writer is C++, of which no hook of Python sees anything."""
        self.at_call(module, "save", "write", path_at=1)
        torch: Any = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "save"):
            torch.save = module.save

    def watch_safetensors(self, module: ModuleType) -> None:
        """Note where safetensors saves, whose writer is Rust."""
        self.at_call(module, "save_file", "write", path_at=1)


class _Files:
    """Audit hook: tells which files of a folder are read or changed, which folders are listed, and where."""

    def __init__(self, prover: Prover, places: _Places) -> None:
        self._prover, self._places = prover, places
        self._is_busy = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _EVENTS or self._is_busy or not self._prover.is_open():
            return
        self._is_busy = True
        try:
            self._note(event, args)
        except (OSError, ValueError, TypeError):
            return  # a path that is none: the call itself says so
        finally:
            self._is_busy = False

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        path = "." if args[0] is None else args[0]
        if isinstance(path, int):
            return
        whole = os.path.abspath(os.fsdecode(path))
        is_inside = whole.startswith(self._places.folder + "/")
        if event in ("os.listdir", "os.scandir"):
            if is_inside:
                self._prover.tell(kind="listed", path=whole)
        elif event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
            if is_inside:
                self._places.tell(f"read {whole}")
                self._prover.ask(kind="read", path=whole)
        elif event != "os.mkdir" or not os.path.lexists(whole):  # else it fails
            if is_inside:
                self._places.tell(f"write {whole}")
            for each in (path, args[1]) if event == "os.rename" else (path,):
                self._prover.ask_to_change(os.path.abspath(os.fsdecode(each)))


_EVENTS = frozenset({"open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.rmdir"})


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of modules that finds none: it has the module's own loader call a function when the module is loaded."""

    def __init__(self) -> None:
        self.wanted: dict[str, Callable[[ModuleType], None]] = {}

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        then = self.wanted.pop(name, None)
        if then is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None and (spec := find(name, path, target)) is not None:
                if spec.loader is not None:
                    _call_after(spec.loader, then)
                return spec
        return None


def _call_after(loader: Any, then: Callable[[ModuleType], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        then(module)

    loader.exec_module = exec_module


_finder = _Finder()


def _once_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with a module: now if it is imported, else when it has been."""
    if name in sys.modules:
        then(sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.wanted[name] = then


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _scalar(tensor: Any) -> str:
    """Return a loss as its exact number, anything else as a digest."""
    if isinstance(tensor, (int, float)):
        return repr(float(tensor))
    if getattr(tensor, "numel", lambda: 0)() == 1:
        return repr(float(tensor.detach()))
    return digest(tensor)


def _number(value: Any) -> Any:
    return float(value) if value is not None else None


def _name_of(iterator: Any) -> str:
    """Return what tells the loader of training data from others: the kind and size of its dataset."""
    dataset = getattr(iterator, "_dataset", None)
    try:
        size = str(len(dataset))  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        size = ""
    return f"{type(dataset).__name__} {size}"


def _is_numbers(index: Any) -> bool:
    flat = index if isinstance(index, (list, tuple)) else [index]
    return 0 < len(flat) <= SAMPLES_MAX and all(isinstance(each, (int, str)) for each in flat)


def _state(optimizer: Any) -> list[Any]:
    """Return the state of each parameter, in the order of the parameters."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return [sorted(optimizer.state.get(each, {}).items(), key=lambda item: str(item[0])) for each in parameters]


def _count(optimizer: Any) -> int | None:
    """Return how many steps the optimizer itself has counted in its state; None if it does not count."""
    for state in optimizer.state.values():
        if "step" in state:
            return int(state["step"])
    return None


def _random() -> dict[str, str]:
    """Return a digest of each generator's state: of Python, numpy, torch and each device."""
    found = {}
    if "random" in sys.modules:
        found["python"] = hashed(marshal.dumps(sys.modules["random"].getstate(), 2))
    if (numpy := sys.modules.get("numpy")) is not None and "numpy.random" in sys.modules:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = hashed(keys.tobytes() + repr((kind, rest)).encode())
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = digest(torch.get_rng_state())
    if torch is not None and torch.cuda.is_initialized():
        found |= {f"cuda:{at}": digest(state) for at, state in enumerate(torch.cuda.get_rng_state_all())}
    return found
