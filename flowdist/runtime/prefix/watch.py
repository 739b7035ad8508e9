"""The hooks of a prefix: what the script does before its split is either the same for all ranks, or is the split.

Python reports most of what a program does to the world as audit events, before it happens. Some functions of `os` have
none, and stand here in a wrapper until the split. What a script only reads is noted as an observation.

A split forks this process in the middle of the script's own call. It returns from that call in each worker.
"""

from __future__ import annotations

import _frozen_importlib
import _thread
import gc
import os
import posix
import stat
import sys

from flowdist.runtime.prefix import caller
from flowdist.runtime.prefix.effects import EFFECTS, EFFECTS_OF_USER, Scratch
from flowdist.runtime.prefix.environment import Environment
from flowdist.runtime.prefix.environment import watch as watch_environment
from flowdist.runtime.prefix.generators import GENERATORS, Generators
from flowdist.runtime.prefix.observations import Observations
from flowdist.runtime.prefix.wrappers import Wrappers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

SILENT_EFFECTS = (
    *("pipe", "pipe2", "mkfifo", "mknod", "memfd_create", "eventfd", "openpty", "posix_openpt"),
    *("setsid", "setpgid", "setpgrp", "_exit"),
)
DEFAULT_TEMPORARY = ("_get_default_tempdir", "/tempfile.py")  # tries whether it can write there
OF_PROCESS = (
    "urandom",
    "getrandom",
    "getpid",
    "getppid",
    "getpgrp",
    "getpgid",
    "getsid",
    "sched_getaffinity",
    "times",
)  # differ from rank to rank
LOOKS = ("stat", "lstat", "access", "readlink")
TIMES = ("getmtime", "getctime", "getatime")  # functions of os.path that ask for more than whether a folder is there
ENTROPY = ("/dev/urandom", "/dev/random", "/proc/sys/kernel/random/")
FOLDERS = ("os.listdir", "os.scandir")
BEGINS = frozenset(f"cpython.run_{what}" for what in ("command", "file", "module", "stdin"))  # the script begins
OF_ITSELF = ("/proc/self", "/proc/thread-self", f"/proc/{posix.getpid()}", "/dev/fd", "/dev/std")
NO_FILES = ("/dev/null", "/dev/zero")
# Functions of other modules, by module, that are no audit events: those of torch initialise CUDA, others wait.
THREADS = ("start_new_thread", "start_joinable_thread")
WAITS = ("pause", "sigwait", "sigwaitinfo", "sigtimedwait", "set_wakeup_fd")
SPLITTING = {
    "torch._C": ("_cuda_init", "_cuda_getDeviceCount"),
    "_socket": ("socketpair",),
    "_posixshmem": ("shm_open", "shm_unlink"),
    "signal": WAITS,
    "time": ("sleep", "process_time", "process_time_ns", "thread_time", "thread_time_ns"),
    "resource": ("getrusage",),
    "select": ("select", "poll", "epoll"),
    "uuid": ("uuid1",),
    "ssl": ("RAND_bytes",),
    "threading": ("get_native_id",),
}
# Reading the clock is the first act of a worker: a restart from the template of its rank reads it again.
CLOCKS = (
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime"),
    *("clock_gettime_ns", "localtime", "gmtime", "ctime", "asctime", "strftime"),
)
# Functions that seed a global generator, by module.
SEEDS = {"random": "seed", "numpy.random.mtrand": "seed", "torch.random": "seed"}
# Compiled code that opens weights by itself, by module: which of its arguments is the path, and how it opens that.
OPENERS = {
    "torch._C": {"PyTorchFileWriter": (0, "w")},
    "safetensors._safetensors_rust": {"safe_open": (0, "r"), "serialize_file": (1, "w")},
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# New objects after which the garbage collector looks at them, while a library is imported: with Python's own
# number the collector takes a quarter of the time that the import of torch takes, and finds nothing.
PATIENT = 50_021  # no number that a program would choose
# The events that `_look` looks at. An import of torch causes 17,000, and few of them are of these.
EVENTS = EFFECTS | EFFECTS_OF_USER | BEGINS | {"import", "exec", "open", "os.mkdir", *FOLDERS}


class _Hook:
    """Holder of the function that the audit hook calls."""

    call: Callable[..., object]


class Watch:
    """The hooks of this process. `split` is called once with the reason, and returns in a worker.

    The variables `unknown` differ from rank to rank or from start to start.
    """

    def __init__(self, unknown: Sequence[str], split: Callable[[str], None]) -> None:
        self._split = split
        self.is_on = True
        self.observations, self.generators = Observations(), Generators()
        self.environment: Environment
        self.environment, self._data = watch_environment(unknown, self.split)
        self._is_busy = self._is_worker = False
        self._thresholds: tuple[int, int, int] | None = None  # of the collector, while it is patient
        self.wrappers = Wrappers(lambda: self.is_on)
        self.scratch = Scratch()
        self.authkey = b""
        self.starters: list[str] = []  # modules whose imports by the user's code have started threads
        self._threads = _count_threads()
        _Hook.call = self._audit
        for name in THREADS:
            self.wrappers.put(_thread, name, self._on_call)
        self.watch_imported()
        for name in SILENT_EFFECTS:
            self.wrappers.put(os, name, lambda name, *args, **named: self.act(f"it calls os.{name}"))
        for name in OF_PROCESS:
            self.wrappers.put(os, name, self._on_question)
        for name in LOOKS:
            self.wrappers.put(os, name, self._on_look)
        bootstrap: Any = _frozen_importlib
        self._find_and_load = bootstrap._find_and_load
        bootstrap._find_and_load = _as_importlib(self._import)
        sys.addaudithook(lambda event, args: event in EVENTS and _Hook.call(event, args))

    def rearm(self, split: Callable[[str], None]) -> None:
        """Watch again, in a worker: `split` is called at its own first act. What was observed stays observed."""
        self._split, self.is_on, self._is_busy, self._is_worker = split, True, False, True

    def stop(self, values: dict[str, str]) -> None:
        """Take all hooks away, and give this process, a worker, its variables."""
        self.is_on = self._is_busy = False
        _Hook.call = {}.get  # the audit hook itself cannot be removed: this is the cheapest call
        _frozen_importlib._find_and_load = self._find_and_load  # type: ignore[attr-defined]
        self.wrappers.take_away()
        self.environment.give(values, self._data)

    def split(self, why: str) -> None:
        """Note that the script has come to its split; `why` says how. Only the first call counts."""
        if self.is_on:
            self.end_patience()
            self._split(why)

    def act(self, why: str) -> None:
        """Note that the script is about to act: this is the split, and then the first act of the worker."""
        self.split(why)
        self.split(why)

    def _on_question(self, name: str, *args: object, **named: object) -> None:
        if not caller.is_import():
            self.act(f"it calls os.{name}")

    def _on_look(self, name: str, path: object = "", *args: object, **named: object) -> None:
        if isinstance(path, (str, bytes)) or hasattr(path, "__fspath__"):
            has_times = name in ("stat", "lstat") and _asks_for_times()
            self._note("status" if has_times else "file", os.fsdecode(path))
            if name in ("lstat", "readlink"):
                self._note("link", os.fsdecode(path))

    def _note(self, asked: str, path: str) -> None:
        """Note that a path is read. If it says something about this process alone, this is the split."""
        if path.startswith(OF_ITSELF) and not caller.is_import():
            self.act(f"it reads {path}")
        elif path not in self.scratch:
            self.observations.note(asked, path)

    def _import(self, name: str, import_: object) -> Any:
        frame = sys._getframe().f_back
        frame = frame.f_back if frame is not None else None  # None: the interpreter itself imports something
        is_from_user = self.is_on and frame is not None and caller.is_user(frame)
        was_patient = self._thresholds is not None
        if is_from_user:
            self.generators.before_import()
        if self.is_on and not was_patient and not self._is_worker:
            self.begin_patience()
        try:
            return self._find_and_load(name, import_)
        finally:
            if not was_patient:
                self.end_patience()
            if self.is_on:
                if (module := sys.modules.get(name)) is not None:
                    self._after_import(name, module, is_from_user)
                elif "." in name:
                    self.observations.note_missing_module(name)

    def begin_patience(self) -> None:
        """Have the garbage collector wait while something is imported, until that comes to a module of the user."""
        self._thresholds = gc.get_threshold()
        if self._thresholds[0]:
            gc.set_threshold(PATIENT, *self._thresholds[1:])

    def end_patience(self) -> None:
        """Give the garbage collector the thresholds that it had before `begin_patience`."""
        usual, self._thresholds = self._thresholds, None
        if usual is not None and gc.get_threshold() == (PATIENT, *usual[1:]):  # else what was imported has set it
            gc.set_threshold(*usual)

    def _after_import(self, name: str, module: Any, is_from_user: bool) -> None:
        if name == "multiprocessing.process":
            self.authkey = bytes(module.current_process().authkey)
        self._wrap_module(name, module)
        if name in GENERATORS:
            self.generators.note_first()
        if name in SEEDS:
            self.wrappers.put(module, SEEDS[name], self._on_seed)
        if name == "random":
            self.wrappers.put_on_method(module.Random, "seed", self._on_seed_of_one)
        if is_from_user and caller.is_of_library(caller.namespace_of(module)):
            self.generators.after_import()
        if is_from_user:
            before, self._threads = self._threads, _count_threads()
            if self._threads > before:
                self.starters.append(name)

    def watch_imported(self) -> None:
        """Watch the modules that were imported before the hooks were set, or while they were off, as late imports are.

        Generators that have come with them count as just imported: each worker seeds them anew.
        """
        for name in {*SPLITTING, *OPENERS, *SEEDS, *GENERATORS, "multiprocessing.process"} & sys.modules.keys():
            self._after_import(name, sys.modules[name], is_from_user=False)

    def _wrap_module(self, name: str, module: Any) -> None:
        for function in SPLITTING.get(name, ()):
            self.wrappers.put(module, function, self._on_call)
        for function in OPENERS.get(name, ()):
            self.wrappers.put(module, function, self._opener(*OPENERS[name][function]))
        if name == "threading":
            self.wrappers.put_on_method(module.Thread, "start", self._on_call)  # a fork amid it would lose the thread
        elif name == "time":
            for function in CLOCKS:
                self.wrappers.put(module, function, self._on_clock)

    def _on_call(self, name: str, *args: object, **named: object) -> None:
        if name.startswith("_cuda") or not caller.is_import():  # libraries try at their import what the system can do
            self.act(f"it calls {name}")

    def _opener(self, place: int, mode: str) -> Callable[..., None]:
        """Return what is done before a function of OPENERS is called."""

        def on_call(name: str, *args: object, **named: object) -> None:
            file = args[place] if len(args) > place else named.get("filename")
            if isinstance(file, (str, bytes, os.PathLike)):  # else something to write to
                self._on_open(file, mode, None, may_write=False)

        return on_call

    def _on_clock(self, name: str, *args: object, **named: object) -> None:
        if self._is_worker:
            self._on_call(name)

    def _on_seed_of_one(self, name: str, generator: object, *args: object, **named: object) -> None:
        self._on_seed(name, *args, **named)

    def _on_seed(self, name: str, *args: object, **named: object) -> None:
        """Note that a generator is seeded. If the system chooses the seed, this is the split."""
        if caller.is_import():
            return
        if all(value is None for value in (*args, *named.values())[:1]):
            self.act("it seeds random numbers with entropy of the system")
        else:
            self.generators.before_seed()

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on or self._is_busy:
            return
        if event == "exec":  # of the code of a module that is being imported, among others
            file = getattr(args[0], "co_filename", "")
            if file.endswith(".py") and not caller.is_installed(file):
                self.end_patience()
                self.observations.note("file", file)
            return
        self._is_busy = True
        try:
            self._look(event, args)
        finally:
            self._is_busy = False

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        frame = sys._getframe(2).f_back  # of the code that has caused the event; None: the interpreter itself
        is_of_import_system = frame is not None and caller.is_import_system(frame)
        if event == "import":
            self.observations.note_module(args[0])
        elif event == "open":
            self._on_open(*args, may_write=is_of_import_system)
        elif is_of_import_system:
            return  # it looks for modules, and writes what it has compiled: any rank may do that for all
        elif event in BEGINS:
            if getattr(sys.modules.get("sitecustomize"), "__file__", "").startswith(caller.OWN):
                del sys.modules["sitecustomize"]
        elif self.scratch.is_tried(event, args, may_begin=not self._is_worker):
            return
        elif event in FOLDERS:
            self._on_listing(event, args[0], frame)
        elif event == "os.mkdir":
            self._on_mkdir(args[0])
        elif event in EFFECTS:
            if event == "os.remove" and caller.is_in(*DEFAULT_TEMPORARY):
                return
            self.act(_in_words(event, args))
        elif event in EFFECTS_OF_USER and not caller.is_import():
            self.act(_in_words(event, args))

    def _on_open(self, file: object, mode: object, flags: int | None, *, may_write: bool) -> None:
        if isinstance(file, int) or file is None:
            return
        path = os.fsdecode(file)  # type: ignore[arg-type]
        if path in NO_FILES or path.endswith((".pyc", ".so")) or "__pycache__" in path:
            return
        if path in self.scratch:
            return
        if _is_write(file, mode, flags):
            if not may_write and not caller.is_in(*DEFAULT_TEMPORARY):
                self.act(f"it opens {path} for writing")
        elif path.startswith(ENTROPY):
            self._on_question(f"open({path!r})")
        elif _is_odd(path):
            self.act(f"it opens {path}")
        else:
            self._note("file", path)

    def _on_listing(self, event: str, path: Any, frame: FrameType | None) -> None:
        """Note a folder that is listed: by the user's `os.scandir` with times, by importlib.metadata for packages."""
        if path is not None and not isinstance(path, (str, bytes)) and not hasattr(path, "__fspath__"):
            return
        asked = "folder"
        if frame is not None and caller.is_search_for_packages(frame):
            asked = "packages"
        elif event == "os.scandir" and frame is not None and caller.is_user(frame):
            asked = "entries"
        self._note(asked, os.fsdecode(path or "."))

    def _on_mkdir(self, path: object) -> None:
        """Note a folder that is made only if it is not there, as each rank would make it; else this is the split."""
        name = os.fsdecode(path)  # type: ignore[arg-type]
        if _is_folder(name):
            self.observations.note("file", name)
        elif _is_any_rank_enough():
            self.observations.note_made(name)
        else:
            self.act(f"it makes the folder {name}")


def _as_importlib(function: Any) -> Any:
    """Return a function whose frame Python leaves out of tracebacks, as it leaves out those of the import system."""

    def _find_and_load(name: str, import_: object) -> object:
        return function(name, import_)

    files = {"co_filename": "<frozen importlib._bootstrap>"}
    _find_and_load.__code__ = _find_and_load.__code__.replace(**files)  # type: ignore[arg-type]
    function.__func__.__code__ = function.__func__.__code__.replace(**files)
    return _find_and_load


def _is_write(file: object, mode: object, flags: int | None) -> bool:
    return bool((flags or 0) & WRITES) or (isinstance(mode, str) and any(letter in mode for letter in "wax+"))


def _is_any_rank_enough() -> bool:
    """Return whether the folder that is being made is one of `os.makedirs(..., exist_ok=True)` or `Path.mkdir`."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith("/tempfile.py"):
        if frame.f_code.co_name in ("makedirs", "mkdir") and frame.f_locals.get("exist_ok"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _count_threads() -> int:
    try:
        return posix.stat("/proc/self/task").st_nlink - 2  # a folder for each; listing them would be an audit event
    except OSError:
        return 0


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(posix.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_odd(path: str) -> bool:
    """Return whether a path leads to something that is no file or device, such as a named pipe.

    What is asked of a folder by its descriptor, nobody sees.
    """
    try:
        mode = posix.stat(path).st_mode
    except (OSError, ValueError):
        return False
    is_odd = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISDIR(mode)
    return is_odd or path.startswith(("/dev/nvidia", "/dev/tty", "/dev/pts"))


def _asks_for_times() -> bool:
    """Return whether the function that has called one of `os` wants to know more than whether something is there."""
    frame = sys._getframe(3)  # below are _on_look and Wrapper.__call__
    while frame.f_back is not None and "/pathlib" in frame.f_code.co_filename and frame.f_code.co_name == "stat":
        frame = frame.f_back
    return frame.f_code.co_name in TIMES or caller.is_user(frame)


def _in_words(event: str, args: tuple[Any, ...]) -> str:
    about = next((os.fsdecode(arg) for arg in args if isinstance(arg, (str, bytes))), "")
    return f"it does {event}" + (f" of {about}" if about and event.startswith("os.") else "")
