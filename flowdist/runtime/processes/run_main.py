"""Running of the user's script or module in a forked worker, as `python script.py` would run it.

The worker gets an empty `__main__`, its own arguments, environment and random numbers. An exception of the script
reaches the interpreter, which ends as usual; only the frames of flowdist are removed from the printed traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import runpy
import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

import flowdist.worker.process_groups as process_groups
from flowdist.graph.warmth import PythonCommand, python_command
from flowdist.runtime.preload.ranks import set_ranks
from flowdist.runtime.preload.recorder import Recorder
from flowdist.runtime.processes.spawn_protocol import Spawn
from flowdist.runtime.umask import restore_umask
from flowdist.worker.step_counter import step_counter

_OWN_FILES = (__file__, str(Path(__file__).with_name("fork_server_boot.py")))


def run(request: Spawn) -> None:
    """Run the script or module of the request as `__main__` of this process, a forked worker, until it returns.

    Exceptions of the user's code, SystemExit included, are raised here. A missing script ends the worker with exit code
    2, as it ends the interpreter.
    """
    command = python_command(request.argv)
    assert isinstance(command, PythonCommand)
    if request.cpus:
        os.sched_setaffinity(0, request.cpus)
    restore_umask(request.env)
    os.environ.clear()
    os.environ.update(request.env)
    set_ranks(request.env)
    sys.orig_argv[:] = request.argv
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11 keeps the id of the parent's thread
    sys.argv[:] = ["-m" if command.is_module else command.target, *command.args]
    importlib.invalidate_caches()  # files may have been created since the imports
    _reseed()
    step_counter.watch()
    step_counter.at_first_step(process_groups.keep)
    main = _emptied_main()
    recorder = Recorder(request.folder) if request.records else None
    try:
        if command.is_module:
            runpy._run_module_as_main(command.target)  # type: ignore[attr-defined]
        else:
            _run_script(command.target, main)
        has_succeeded = True
    except BaseException as error:
        has_succeeded = isinstance(error, SystemExit) and not error.code
        _trim_traceback(error)
        raise
    finally:
        if recorder is not None and has_succeeded:  # a script that fails may have imported a part of what it needs
            recorder.record_end()


def _emptied_main() -> ModuleType:
    """Return the module `__main__`, empty as that of an interpreter which has run nothing yet.

    It stays the same object: modules such as multiprocessing and dill have kept `__main__` when they were imported.
    """
    main = sys.modules["__main__"]
    builtins = main.__dict__["__builtins__"]
    main.__dict__.clear()
    main.__dict__.update(ModuleType("__main__").__dict__)
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    return main


def _run_script(script: str, main: ModuleType) -> None:
    file = script if script.startswith("/") else f"{Path.cwd()}/{script}"
    main.__file__ = file
    main.__dict__["__cached__"] = None
    main.__loader__ = SourceFileLoader("__main__", file)
    try:
        with io.open_code(file) as stream:
            source = stream.read()
    except OSError as error:
        text = f"{sys.orig_argv[0]}: can't open file {file!r}: [Errno {error.errno}] {error.strerror}"
        print(text, file=sys.stderr)
        sys.exit(2)
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def _reseed() -> None:
    """Seed the generators of numpy and torch anew, and renew the key of multiprocessing, as far as these are imported.

    Else all workers of one fork server would draw the same numbers. Python seeds `random` itself after a fork.
    """
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()
    if (torch := sys.modules.get("torch.random")) is not None:
        torch.default_generator.seed()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)


def _trim_traceback(error: BaseException) -> None:
    """Have the interpreter print the traceback of the error without the frames of flowdist.

    It prints none of SystemExit, for which sys.excepthook stays what the user expects.
    """
    if isinstance(error, SystemExit):
        return
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    hook = sys.excepthook

    def trimmed(kind: type[BaseException], value: BaseException, _: TracebackType | None) -> None:
        sys.excepthook = hook
        sys.last_traceback = value.__traceback__ = trace
        hook(kind, value, trace)

    sys.excepthook = trimmed
