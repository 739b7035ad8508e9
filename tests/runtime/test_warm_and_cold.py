"""A forked worker behaves as `python script.py` does: each probe runs both ways with equal results."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.choosing import slow
from tests.runtime.spawning import Outcome, Spawning, both, plain_outcome, write

pytestmark = pytest.mark.real
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")

# What each probe prints, and how it ends, is all that is compared; `1 2` are its arguments.
PROBES = {
    "argv": "import sys; print(sys.argv, sys.orig_argv)",
    "main": """
        import sys
        print(__name__, __file__, __package__, __spec__, __doc__, __loader__.get_filename("__main__"), __annotations__)
        print(sys.modules["__main__"].__dict__ is globals(), list(globals()), __builtins__)
    """,
    "path": "import sys; print(sys.path)",
    "beside": "import neighbour; print(neighbour.__name__, neighbour.__file__)",
    "flags": "import sys; print(sys.flags, sys.warnoptions, sys.executable, sys.dont_write_bytecode)",
    "exit_0": "import sys; sys.exit()",
    "exit_3": "import sys; sys.exit(3)",
    "exit_big": "import sys; sys.exit(256 + 7)",
    "exit_text": "import sys; sys.exit('some text')",
    "exit_tuple": "raise SystemExit((1, 2))",
    "exit_none_of_them": "import os; os._exit(9)",
    "raises": """
        def outer():
            inner()
        def inner():
            raise ValueError("some text")
        outer()
    """,
    "raises_in_order": """
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("second") from error
    """,
    "raises_while": """
        try:
            1 / 0
        finally:
            raise OSError(2, "some text")
    """,
    "raises_group": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])",
    "raises_own": """
        class Mine(Exception):
            pass
        raise Mine("its own")
    """,
    "syntax": "print('not printed')\nthis is no Python",
    "interrupt": "raise KeyboardInterrupt",
    "excepthook": """
        import sys
        sys.excepthook = lambda kind, value, trace: print("hook", kind, value, trace.tb_frame.f_code.co_name)
        raise ValueError("seen by the hook")
    """,
    "last_words": """
        import atexit, sys
        atexit.register(lambda: print("at exit", sys.last_type, sys.last_traceback.tb_frame.f_code.co_filename))
        raise ValueError("x")
    """,
    "atexit": """
        import atexit
        for i in range(3):
            atexit.register(print, "at exit", i)
        print("before", end="")
    """,
    "thread_that_outlasts": """
        import threading
        threading.Thread(target=lambda: (threading.main_thread().join(), print("thread ends"))).start()
        print("main ends")
    """,
    "thread_that_raises": """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name="named")
        thread.start()
        thread.join()
    """,
    "threads": """
        import os, threading
        main, pid = threading.main_thread(), os.getpid()
        print(main is threading.current_thread(), main.native_id == os.getpid(), len(threading.enumerate()))
    """,
    "signals": """
        import signal
        print([(s.name, signal.getsignal(s)) for s in sorted(signal.valid_signals()) if hasattr(s, "name")
               if signal.getsignal(s) not in (signal.SIG_DFL, None, signal.default_int_handler)])
        print(signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """,
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "aborts": "import os; os.abort()",
    "handler": """
        import os, signal
        signal.signal(signal.SIGTERM, lambda number, frame: print("handled", number, frame.f_code.co_filename))
        os.kill(os.getpid(), signal.SIGTERM)
    """,
    "pipe": """
        import os
        read, write = os.pipe()
        os.close(read)
        os.write(write, b"x")
    """,
    "environment": """
        import os
        os.environ.pop('FLOWDIST_TESTED_BY')
        print(sorted(os.environ.items()))
        os.system('env | sort')
    """,
    "place": "import os; print(os.getcwd(), os.getpgrp() == os.getpid() == os.getsid(0))",
    "umask": "import os; print(os.umask(0), os.nice(0), os.sched_getaffinity(0))",
    "files": """
        import os
        for fd in range(100):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
                print(fd, os.path.basename(target), os.get_inheritable(fd))
            except OSError:
                pass
        print(os.open("argv.py", os.O_RDONLY))
    """,
    "streams": """
        import sys
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through)
            print(stream.isatty(), stream is getattr(sys, f"__{stream.name.strip('<>')}__"))
        print(repr(sys.stdin.read()))
    """,
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(256)[32:100])); sys.stderr.write('ä\\n')",
    "order": """
        import os, sys
        for i in range(3):
            print("python", i)
            os.write(1, b"system\\n")
    """,
    "argparse": """
        import argparse
        parser = argparse.ArgumentParser(description="of a probe")
        parser.add_argument("--needed", required=True)
        parser.parse_args()
    """,
    "pickle": """
        import pickle
        class Point:
            def __init__(self): self.x = 1
        text = pickle.dumps(Point())
        print(b"__main__" in text, pickle.loads(text).x, Point.__module__, Point)
    """,
    "dataclass": """
        from __future__ import annotations
        import dataclasses, inspect, typing
        @dataclasses.dataclass
        class Point:
            x: int = 0
        print(Point(), typing.get_type_hints(Point),)
        def f(): return 1
        print(inspect.getsource(f), inspect.getfile(f), inspect.getmodule(f).__name__)
    """,
    "subprocess": """
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "import sys; print(sys.argv, sys.path[0])", "x"],
                             capture_output=True, text=True))
    """,
    "runs_itself": """
        import subprocess, sys
        if "again" not in sys.argv:
            print(subprocess.run([sys.executable, *sys.argv, "again"], capture_output=True, text=True).stdout)
        else:
            print("again", sys.argv)
    """,
    "logging": """
        import logging
        logging.warning("some text")
        logging.basicConfig(level="INFO")
        logging.info("more")
    """,
    "warnings": "import warnings; warnings.warn('some text')",
    "imports_main": """
        import __main__
        value = 5
        print(__main__.value)
        exec("value = 6")
        print(__main__.value)
    """,
    "asyncio": """
        import asyncio
        async def main():
            process = await asyncio.create_subprocess_exec("true")
            print(await process.wait(), await asyncio.to_thread(lambda: 3))
        asyncio.run(main())
    """,
    "forks": """
        import os, sys
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            print("child")
            sys.exit(4)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
    "recursion": """
        import sys
        def down(n): return down(n + 1)
        sys.setrecursionlimit(200)
        try:
            down(0)
        except RecursionError as error:
            print(error)
    """,
    "profile": """
        import cProfile, io, pstats
        profile = cProfile.Profile()
        profile.runcall(sum, [1])
        print(pstats.Stats(profile, stream=io.StringIO()).total_calls)
    """,
    "time": "import time; print(time.tzname, time.process_time() < 30)",
    "locale": "import locale, sys; print(locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding())",
    "collects": """
        import gc
        class Node: pass
        a = Node(); a.me = a; del a
        print(gc.isenabled(), gc.get_threshold(), gc.collect() > 0)
    """,
    **{
        f"multiprocessing_{method}": f"""
        import multiprocessing, os, sys
        def square(x):
            return x * x, __name__
        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            with context.Pool(2) as pool:
                print(pool.map(square, range(3)))
            queue = context.Queue()
            process = context.Process(target=queue.put, args=(os.getcwd(),), name="named")
            process.start()
            print(queue.get(), process.name)
            process.join()
            process = context.Process(target=sys.exit, args=(5,))
            process.start()
            process.join()
            print(process.exitcode, multiprocessing.active_children(), multiprocessing.parent_process())
        """
        for method in ("fork", "spawn", "forkserver")
    },
    **{
        f"results_{method}": f"""
        import multiprocessing, sys
        from concurrent.futures import ProcessPoolExecutor
        class Point:
            def __init__(self, x): self.x = x
        def make(x):
            return Point(x)
        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            with context.Pool(2) as pool:
                print([point.x for point in pool.map(make, range(3))], pool.apply(make, (4,)).x)
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                print([point.x for point in pool.map(make, range(3))])
            queue = context.Queue()
            process = context.Process(target=queue.put, args=(Point(5),))
            process.start()
            found = queue.get()
            print(found.x, type(found) is Point, type(found).__module__)
            process.join()
            with context.Manager() as manager:
                shared = manager.dict(point=Point(6))
                print(shared["point"].x)
        """
        for method in ("fork", "spawn", "forkserver")
    },
    "who_has_kept_main": """
        import multiprocessing, sys, types
        main = sys.modules["__main__"]
        print(sys.modules["__mp_main__"] is main, sys.modules["__mp_main__"].__dict__ is globals())
        kept = [(name, value) for name, module in list(sys.modules.items()) for value in list(vars(module).values())
                if isinstance(value, types.ModuleType) and value.__name__ == "__main__" and value is not main]
        print(kept)
    """,
    # Limits, priorities, masks and capabilities, the position in the tree of processes, and what Linux keeps besides.
    "limits": """
        import os, resource
        names = [name for name in dir(resource) if name.startswith("RLIMIT")]
        print([(name, resource.getrlimit(getattr(resource, name))) for name in names])
        # SigQ is left out: it counts queued signals of all processes of the user.
        kept = ("Umask", "Groups", "SigPnd", "SigBlk", "SigIgn", "SigCgt", "Cap", "NoNewPrivs", "Seccomp", "Threads",
                "Cpus_allowed", "Mems_allowed")
        print([line for line in open("/proc/self/status").read().splitlines() if line.startswith(kept)])
        for name in ("oom_score_adj", "timerslack_ns", "personality", "coredump_filter", "cgroup", "loginuid"):
            print(name, open(f"/proc/self/{name}").read())
        print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
    """,
    "sys_and_gc": """
        import faulthandler, gc, signal, sys, threading, warnings
        hooks = ("displayhook", "excepthook", "breakpointhook", "unraisablehook")
        print([getattr(sys, name) is getattr(sys, f"__{name}__") for name in hooks])
        print(threading.excepthook is threading.__excepthook__, sys.gettrace(), sys.getprofile(), sys.exc_info())
        print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags(), sys.get_asyncgen_hooks())
        print(hasattr(sys, "last_type"), hasattr(sys, "ps1"), [getattr(f, "__name__", type(f)) for f in sys.meta_path])
        print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
        print(warnings.filters, warnings.defaultaction, faulthandler.is_enabled(), signal.getitimer(signal.ITIMER_REAL))
        main = threading.main_thread()
        print(main.name, main.ident == threading.get_ident(), threading.stack_size())
    """,
    "excepthook_at_exit": """
        import atexit, sys
        atexit.register(lambda: print(sys.excepthook is sys.__excepthook__, hasattr(sys, "last_type")))
        sys.exit(0)
    """,
    "logging_is_untouched": """
        import logging
        root = logging.root
        print(root.handlers, root.level, root.disabled, root.filters, logging.getLoggerClass(), logging.raiseExceptions)
        logging.basicConfig(format="%(levelname)s %(processName)s %(threadName)s %(filename)s %(lineno)d %(message)s")
        logging.getLogger("mine").error("some text")
        logging.getLogger("mine").exception("other text")
    """,
    "atexit_of_modules": """
        import multiprocessing.util  # first, as in the fork server: handlers are called in the order of the imports
        import atexit, logging, os, threading, weakref
        atexit.register(lambda: os.write(1, b"registered first\\n"))
        multiprocessing.util.Finalize(None, os.write, (1, b"finalized\\n"), exitpriority=5)
        class Node: pass
        node = Node()
        weakref.finalize(node, os.write, 1, b"weak\\n")
        threading._register_atexit(os.write, 1, b"threads\\n")
        logging.getLogger().addHandler(handler := logging.StreamHandler())
        handler.close = lambda: os.write(1, b"handler closed\\n")
        atexit.register(lambda: os.write(1, b"registered last\\n"))
    """,
    "shared_memory": """
        from multiprocessing import shared_memory
        memory = shared_memory.SharedMemory(create=True, size=8)
        memory.buf[0] = 1
        print(memory.buf[0], memory.size)
        memory.close()
        memory.unlink()
    """,
    "concurrent": """
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        if __name__ == "__main__":
            for kind in (ThreadPoolExecutor, ProcessPoolExecutor):
                with kind(2) as pool:
                    print(list(pool.map(abs, [-1, 2])))
    """,
}
ENDS = {  # the others end well: a probe that fails by mistake would fail alike both ways
    "exit_3": 3,
    "exit_big": 7,
    "exit_none_of_them": 9,
    "interrupt": -signal.SIGINT,
    "killed": -signal.SIGTERM,
    "interrupted": -signal.SIGINT,
    "aborts": -signal.SIGABRT,
    "argparse": 2,
    **dict.fromkeys(("exit_text", "exit_tuple", "syntax", "excepthook", "last_words", "pipe"), 1),
    **dict.fromkeys(("raises", "raises_in_order", "raises_while", "raises_group", "raises_own"), 1),
}
TORCH_PROBES = (
    {
        f"loader_{method}": f"""
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Numbers(Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return torch.tensor(i), torch.utils.data.get_worker_info().id >= 0
        if __name__ == "__main__":
            loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="{method}")
            print([batch for batch in loader])
    """
        for method in ("fork", "spawn", "forkserver")
    }
    | {
        f"loader_of_main_{method}": f"""
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Sample:
            def __init__(self, x): self.x = x
        class Batch:
            def __init__(self, samples): self.x, self.samples = torch.stack([s.x for s in samples]), samples
            def pin_memory(self): return self
        class Samples(Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return Sample(torch.tensor(i))
        def collate(samples): return Batch(samples)
        def begin(number): torch.utils.data.get_worker_info().dataset.number = number
        if __name__ == "__main__":
            options = dict(batch_size=4, num_workers=2, multiprocessing_context="{method}", persistent_workers=True)
            loader = DataLoader(Samples(), collate_fn=collate, worker_init_fn=begin, **options)
            for epoch in range(2):
                batches = list(loader)
                print([(type(b) is Batch, type(b.samples[0]) is Sample, b.x.tolist()) for b in batches])
            import torch.multiprocessing as mp
            with mp.get_context("{method}").Pool(2) as pool:
                print([sample.x for sample in pool.map(Sample, [torch.tensor(1), torch.tensor(2)])])
    """
        for method in ("fork", "spawn", "forkserver")
    }
    | {
        "profiler": """
        import torch
        from torch.profiler import ProfilerActivity, profile, record_function
        a = torch.ones(8, 8, requires_grad=True)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as measured:
            with record_function("mine"):
                (a @ a).relu().sum().backward()
        print(sorted((event.key, event.count) for event in measured.key_averages()))
        measured.export_chrome_trace("trace.json")
        import json
        names = {event.get("name") for event in json.load(open("trace.json"))["traceEvents"]}
        print({"mine", "aten::mm", "aten::relu"} <= names)
    """,
        "numbers": """
        import numpy, torch
        a = numpy.arange(90000.0).reshape(300, 300) / 1e4
        print((a @ a).sum(), numpy.linalg.eigvalsh(a + a.T)[-1], numpy.fft.fft(a).real.sum())
        numpy.random.seed(1); torch.manual_seed(1)
        print(numpy.random.rand(2), torch.rand(2), torch.randperm(5), numpy.random.default_rng(2).random())
    """,
        "saves": """
        import io, torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
        file = io.BytesIO()
        torch.save(Net(), file)
        file.seek(0)
        net = torch.load(file, weights_only=False)
        print(type(net) is Net, type(net).__module__)
        file.seek(0)
        try:
            torch.load(file)
        except Exception as error:
            print(type(error), str(error)[:300])
    """,
        "parallel": """
        import torch
        print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.distributed.get_debug_level())
        a = torch.ones(600, 600)
        print((a @ a).sum(), a.exp().sum() > 0, (a.requires_grad_() * 2).sum().backward(), a.grad.sum())
    """,
        "cuda": "import torch.cuda as c; print(c.is_initialized(), c._is_in_bad_fork(), c.device_count())",
        "spawned": """
        import torch.multiprocessing as mp
        def worker(i, text): print(i, text, flush=True)
        if __name__ == "__main__":
            mp.spawn(worker, args=("hello",), nprocs=1)
    """,
        "environment_with_torch": """
            import os, torch
            os.environ.pop('FLOWDIST_TESTED_BY')
            print(sorted(os.environ.items()))
            os.system('env | sort')
        """,
        "seeded": "import torch; torch.manual_seed(3); print(torch.rand(2), torch.initial_seed())",
    }
)


@pytest.fixture(scope="module")
def spawning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawning]:
    folder = tmp_path_factory.mktemp("probes")
    for name, code in {**PROBES, **TORCH_PROBES}.items():
        write(folder, f"probe_{name}", code)
    write(folder, "neighbour", "")
    write(folder, "argv", "")
    package = folder / "package"
    package.mkdir()
    write(package, "__init__", "print('package', __name__)")
    write(
        package, "__main__", "import sys; print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0])"
    )
    write(
        package,
        "tool",
        "import sys\nprint(__name__, __package__, sys.argv)\nfrom . import other\nraise ValueError('x')",
    )
    write(package, "other", "print(__name__)")
    with Spawning(folder) as spawning:
        yield spawning


@pytest.mark.parametrize("probe", PROBES)
def test_a_script(spawning: Spawning, probe: str) -> None:
    may_be_cold = probe == "aborts"  # it ends its prefix, which nothing can foresee
    cold, warm = both(spawning, f"probe_{probe}.py", "1", "2", env={"SOME": "thing"}, may_be_cold=may_be_cold)
    assert warm == cold
    assert cold.code == ENDS.get(probe, 0), cold.err
    assert ("SyntaxError" in cold.err) == (probe == "syntax") and "IndentationError" not in cold.err


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_a_cold_script_behaves_as_by_plain_python(spawning: Spawning, probe: str) -> None:
    """A comparison with cold workers says nothing about what all workers of flowdist have in common."""
    env = {"SOME": "thing"}
    cold = spawning.outcome(spawning.start(f"probe_{probe}.py", "1", "2", env=env))
    assert cold == plain_outcome(spawning, f"probe_{probe}.py", "1", "2", env=env)


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("probe", TORCH_PROBES)
def test_a_script_with_torch(spawning: Spawning, probe: str) -> None:
    may_be_cold = probe in ("parallel", "saves")  # threads before the split; weights that no seed has drawn
    cold, warm = both(spawning, f"probe_{probe}.py", may_be_cold=may_be_cold)
    assert without_times(warm) == without_times(cold)
    assert cold.code == 0, cold.err


def without_times(outcome: Outcome) -> Outcome:
    """Return the outcome without lines of torch's profiler that have a time and a process id."""
    return outcome._replace(err=re.sub(r"USDT:.*\n", "", outcome.err))


@pytest.mark.slow
@needs_torch
def test_threads_and_debug_level_are_what_the_environment_says(spawning: Spawning) -> None:
    """Torch reads both when it is imported, which is why each environment has a prefix of its own."""
    variables = {"OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    cold, warm = both(spawning, "probe_parallel.py", env=variables)
    assert warm == cold
    assert warm.out.startswith("1 ") and "DETAIL" in warm.out


def test_a_warm_one_is_forked_and_has_its_modules_already(spawning: Spawning) -> None:
    code = "import os, time; at = time.perf_counter_ns(); print(os.environ['RANK'], at, os.getppid())"
    write(spawning.folder, "seen", code)
    outcomes = [spawning.outcome(spawning.start("seen.py", env={"RANK": rank}, warm=True)) for rank in "01"]
    assert [outcome.out.split()[0] for outcome in outcomes] == ["0", "1"]
    assert outcomes[0].out.split()[1:] == outcomes[1].out.split()[1:]
    assert int(outcomes[0].out.split()[2]) != spawning.process.pid


@pytest.mark.parametrize(
    "args",
    [
        ("-m", "package", "1"),
        ("-m", "package.tool", "1"),
        ("-m", "probe_argv", "-m"),
        ("-m", "probe_raises"),
        ("-m", "no_such_module"),
        ("-m", "package.no_such_module"),
        ("./probe_main.py",),
        ("package/../probe_main.py",),
        ("link.py", "x"),
        ("no_such_script.py",),
    ],
)
def test_a_command_line(spawning: Spawning, args: tuple[str, ...]) -> None:
    link = spawning.folder / "link.py"
    if not link.is_symlink():
        link.symlink_to("probe_main.py")
    cold, warm = both(spawning, *args)
    assert warm == cold


@pytest.mark.parametrize("flags", [("-O",), ("-u", "-B"), ("-W", "error::UserWarning")])
@pytest.mark.parametrize("probe", ["flags", "warnings", "streams"])
def test_flags_of_the_interpreter(spawning: Spawning, flags: tuple[str, ...], probe: str) -> None:
    cold, warm = both(spawning, *flags, f"probe_{probe}.py")
    assert warm == cold


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONUNBUFFERED": "1"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C"},
        {"PYTHONPATH": "/nowhere"},
        {"PYTHONSAFEPATH": "1"},
    ],
    ids=lambda variables: next(iter(variables)),
)
@pytest.mark.parametrize("probe", ["streams", "binary", "path", "locale"])
def test_variables_of_the_interpreter(spawning: Spawning, variables: dict[str, str], probe: str) -> None:
    cold, warm = both(spawning, f"probe_{probe}.py", env=variables)
    assert warm == cold


def test_stacks_of_a_crash_go_to_its_log(spawning: Spawning) -> None:
    write(spawning.folder, "crashes", "import os\ndef deep():\n    os.getpid()\n    os.abort()\ndeep()")
    cold, warm = both(spawning, "crashes.py", env={"PYTHONFAULTHANDLER": "1"})
    assert warm.code == cold.code == -signal.SIGABRT and "Fatal Python error: Aborted" in cold.err
    assert re.findall(r"File .*", warm.err) == re.findall(r"File .*", cold.err)


DRAWS = """
import multiprocessing, os, random, secrets, tempfile, uuid
print(random.random(), random.Random().random(), secrets.token_hex(8), os.urandom(8).hex(), uuid.uuid4(), uuid.uuid1())
print(os.path.basename(tempfile.mktemp()), multiprocessing.current_process().authkey.hex(), random.getrandbits(64))
"""
DRAWS_WITH_TORCH = """
import numpy, torch
print(torch.rand(1).item(), torch.initial_seed(), torch.Generator().seed(), numpy.random.rand())
print(numpy.random.default_rng().random(), numpy.random.RandomState().rand(), torch.randperm(997)[:9].prod().item())
print(torch.empty((), dtype=torch.int64).random_().item())
"""


def drawn(spawning: Spawning, name: str, **env: str) -> list[list[str]]:
    """What two warm workers draw that run at one time."""
    ids = [spawning.start(f"{name}.py", warm=True, env=env) for _ in range(2)]
    outcomes = [spawning.outcome(id) for id in ids]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    return [outcome.out.split() for outcome in outcomes]


@pytest.mark.parametrize("code", [DRAWS, *slow([DRAWS + DRAWS_WITH_TORCH])], ids=["standard library", "torch"])
@pytest.mark.parametrize("before", ["", "import os; os.environ['RANK']\n"])
def test_two_of_them_draw_different_numbers(spawning: Spawning, code: str, before: str) -> None:
    if "torch" in code and not HAS_TORCH:
        pytest.skip("torch is not installed")
    write(spawning.folder, "draws", before + code)
    first, second = drawn(spawning, "draws", RANK="0")
    assert len(first) == len(second) >= 9
    assert not set(first) & set(second)


CIRCLE = """
import os
class Circle:
    def __del__(self, write=os.write):
        write(1, b"collected")
circle = Circle()
circle.itself = circle
"""


def test_what_an_import_made_is_collected_when_the_program_ends(spawning: Spawning) -> None:
    """Else extensions that count their objects, as triton's does (nanobind), complain of leaks at the end."""
    write(spawning.folder, "circle", CIRCLE)
    write(
        spawning.folder,
        "ends",
        "import atexit, circle, gc, os\natexit.register(lambda: print(gc.get_freeze_count() > 0))\nos.environ['RANK']",
    )
    cold, warm = both(spawning, "ends.py")
    assert (cold.out, warm.out) == ("False\ncollected", "True\ncollected"), "frozen as long as user code runs"


def test_hashes_of_texts_are_those_of_the_prefix_or_of_the_given_seed(spawning: Spawning) -> None:
    """Two cold workers hash alike only if the seed is given; the documentation says that warm ones always do."""
    write(spawning.folder, "hashes", "import sys; print(hash('some text'), sys.flags.hash_randomization)")
    first, second = drawn(spawning, "hashes")
    assert first == second
    seed = {"PYTHONHASHSEED": "7"}
    first, second = drawn(spawning, "hashes", **seed)
    assert first == second == spawning.outcome(spawning.start("hashes.py", env=seed)).out.split()


def test_a_signal_from_outside(spawning: Spawning) -> None:
    code = """
        import os, signal, sys, time
        os.environ["RANK"]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("up", flush=True)
        while True:  # a signal that comes just before signal.pause() would not end it
            time.sleep(0.02)
    """
    write(spawning.folder, "waits", code)
    for number, code in ((signal.SIGTERM, 7), (signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, -signal.SIGINT)):
        id = spawning.start("waits.py", warm=True, env={"RANK": "0"})
        spawning.output_until(id, "up")
        os.killpg(spawning.pid(id), number)
        assert spawning.outcome(id).code == code
