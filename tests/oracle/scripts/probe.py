"""What a script can observe, noted at the points that it names: `import probe`, then `probe.note("after the imports")`.

A note must not disturb what it measures. Before the first step, it reads memory of the interpreter and nothing else: no
file, no variable that differs between ranks, no clock, no random number, and it imports nothing. At the first step a
rank looks at everything, and writes all of its notes to a file.
"""

import _signal
import atexit
import gc
import os
import sys

RANKED = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ]
)  # and all that begin with TORCHELASTIC_: what a launcher gives to a rank
LOADED = set(sys.modules)
NOTES: list[tuple[str, dict]] = []
SEEN: set[str] = set()


def note(point: str, **own: object) -> None:
    """Remember what can be observed now without touching the world, and the script's own values."""
    frame = sys._getframe(1)
    NOTES.append((point, {**_interpreter(frame), **_libraries(), "own": own}))


def first_step(point: str = "first step", last_act=None, **own: object) -> None:
    """Look at everything and write it down; in the first attempt rank 1 then kills both ranks, after its `last_act`."""
    import surroundings

    frame = sys._getframe(1)
    NOTES.append((point, {**_interpreter(frame), **_libraries(), **surroundings.look(), "own": own}))
    surroundings.write(NOTES)
    if surroundings.attempt() == 0:
        surroundings.end_attempt(last_act)


def done(point: str = "end", **own: object) -> None:
    """Note the last values of the script, and write everything down again."""
    import surroundings

    note(point, **own)
    surroundings.write(NOTES)


def _interpreter(frame) -> dict:
    data = os.environ._data
    before = os.umask(0o077)
    os.umask(before)
    new = [name for name in sys.modules if name not in SEEN]
    SEEN.update(new)
    return {
        "argv": list(sys.argv),
        "orig_argv": list(sys.orig_argv),
        "environment": {name: text for name, text in _decoded(data).items() if not _ranked(name)},
        "cwd": os.getcwd(),
        "umask": before,
        "sys.path": list(sys.path),
        "modules": [name for name in new if name not in LOADED],
        "modules before": [name for name in new if name in LOADED],
        "origins": {name: _origin(sys.modules[name]) for name in new},
        "hash": hash("oracle"),
        "signals": {str(number): _name(_signal.getsignal(number)) for number in sorted(_signal.valid_signals())},
        "signal mask": sorted(int(number) for number in _signal.pthread_sigmask(_signal.SIG_BLOCK, [])),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "gc frozen": gc.get_freeze_count() > 0,
        "atexit": atexit._ncallbacks(),
        "frames": _frames(frame),
        "main": {name: _plain(value) for name, value in _main().items() if name.startswith("__")},
        "main names": [name for name in _main() if not name.startswith("__")],
        "sys": {name: _plain(getattr(sys, name)) for name in SYS if hasattr(sys, name)},
        "sys names": sorted(name for name in vars(sys) if name not in ("last_value", "last_type", "last_traceback")),
        "builtins": sorted(vars(sys.modules["builtins"])),
        "streams": {name: _stream(getattr(sys, name)) for name in ("stdin", "stdout", "stderr")},
        "importers": [[_name(finder) for finder in finders] for finders in (sys.meta_path, sys.path_hooks)],
        "tracers": [_name(sys.gettrace()), _name(sys.getprofile())],
        "functions": {name: _kind(name) for name in FUNCTIONS},
    }


SYS = [
    "base_prefix",
    "prefix",
    "executable",
    "flags",
    "dont_write_bytecode",
    "pycache_prefix",
    "warnoptions",
    "_xoptions",
    "displayhook",
    "excepthook",
    "unraisablehook",
    "breakpointhook",
    "platlibdir",
]
FUNCTIONS = [
    "os.getenv",
    "os.open",
    "os.stat",
    "os.listdir",
    "os.scandir",
    "os.fork",
    "os._exit",
    "os.urandom",
    "os.getcwd",
    "os.path.exists",
    "os.kill",
    "os.mkdir",
    "builtins.open",
    "builtins.__import__",
    "builtins.print",
    "builtins.exec",
    "builtins.input",
    "sys.exit",
    "sys.settrace",
    "signal.signal",
    "threading.Thread.start",
    "threading.excepthook",
    "socket.socket",
    "subprocess.Popen",
    "random.seed",
    "random.random",
    "time.time",
    "tempfile.mkdtemp",
    "uuid.uuid4",
    "logging.Logger.handle",
    "multiprocessing.Process",
    "torch.manual_seed",
    "torch.randn",
    "torch.optim.Optimizer.step",
    "torch.nn.Module.__call__",
    "torch.cuda.is_available",
    "numpy.random.default_rng",
]


def _libraries() -> dict:
    """Return what modules hold that are loaded already; a module that is being imported is left out."""
    found: dict = {}
    for name, look in LIBRARIES.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            found[name] = look(module)
    return found


def _random(random) -> object:
    return hash_of(repr(random.getstate()))


def _numpy(random) -> object:
    state = random.get_state()
    return hash_of(repr((state[0], state[1].tolist(), *state[2:])))


def _torch(torch) -> object:
    return {
        "initial seed": torch.initial_seed(),
        "random": hash_of(torch.get_rng_state().numpy().tobytes().hex()),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
    }


def _logging(logging) -> object:
    named = {name: log for name, log in logging.root.manager.loggerDict.items() if isinstance(log, logging.Logger)}
    return {
        "root": [logging.root.level, [_name(handler) for handler in logging.root.handlers], logging.root.disabled],
        "off": logging.root.manager.disable,
        "set": {name: [log.level, len(log.handlers)] for name, log in named.items() if log.level or log.handlers},
    }


LIBRARIES = {
    "random": _random,
    "numpy.random": _numpy,
    "torch": _torch,
    "logging": _logging,
    "warnings": lambda warnings: [[str(part) for part in entry] for entry in warnings.filters],
    "threading": lambda threading: [thread.name for thread in threading.enumerate()],
    "decimal": lambda decimal: repr(decimal.getcontext()),
    "locale": lambda locale: locale.setlocale(locale.LC_ALL, None),
    "faulthandler": lambda faulthandler: faulthandler.is_enabled(),
    "contextvars": lambda contextvars: sorted(variable.name for variable in contextvars.copy_context()),
    "multiprocessing": lambda processes: processes.get_start_method(allow_none=True),
    "tempfile": lambda tempfile: tempfile.tempdir,
    "codecs": lambda codecs: sys.getdefaultencoding() + sys.getfilesystemencoding(),
    "sys": lambda sys: [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()],
}


def hash_of(text: str) -> str:
    """Return a short name of a text, computed without an import: equal texts have equal names."""
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogateescape"):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def _ranked(name: str) -> bool:
    return name in RANKED or name.startswith(("TORCHELASTIC_", "FLOWDIST_"))


def _decoded(data: dict) -> dict[str, str]:
    return {
        name.decode("utf-8", "surrogateescape"): text.decode("utf-8", "surrogateescape") for name, text in data.items()
    }


def _origin(module: object) -> str:
    return str(getattr(module, "__file__", None))


def _main() -> dict:
    return vars(sys.modules["__main__"])


def _frames(frame) -> list[str]:
    """Name the frames below a note, from the outermost; those of one file beside each other count once."""
    names: list[str] = []
    while frame is not None:
        place = frame.f_code.co_filename
        if not names or names[-1] != place:
            names.append(place)
        frame = frame.f_back
    return names[::-1]


def _stream(stream) -> list:
    if stream is None:
        return []
    parts = [getattr(stream, part, None) for part in ("name", "mode", "encoding", "errors", "line_buffering", "closed")]
    return [_name(type(stream)), *(_plain(part) for part in parts)]


def _kind(place: str) -> str:
    """Say what stands at a well-known name: whose code it is, so that a function in its place is seen."""
    module, _, rest = place.partition(".")
    if place.startswith("os.path."):
        module, rest = "os.path", place.rpartition(".")[2]
    elif place.startswith("numpy.random."):
        module, rest = "numpy.random", place.rpartition(".")[2]
    value = sys.modules.get(module)
    for part in rest.split("."):
        value = getattr(value, part, None)
    return _name(value) + " " + type(value).__name__


def _name(value: object) -> str:
    if not hasattr(value, "__qualname__") and not isinstance(value, (int, str, type(None))):
        value = type(value)
    place = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
    return place.strip(".")


def _plain(value: object) -> object:
    """Return a value as JSON has it: objects by the name of their kind, without addresses."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (str, int)) for item in value):
        return list(value) if type(value) in (list, tuple) else repr(value)
    spec = getattr(value, "origin", None)
    return f"{_name(value)} {spec}" if isinstance(spec, str) else _name(value)
