"""A forked worker behaves as a plain start under the tools that people use: debuggers, profilers, picklers, joblib.

Each probe runs cold and warm with equal results, as in test_warm_and_cold. The packages are those of `flowdist[dev]`.
"""

from __future__ import annotations

import importlib.util
import pstats
from collections.abc import Iterator

import coverage
import pytest

from tests.runtime.spawning import Spawning, both, cold_reasons, write

pytestmark = pytest.mark.real
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

PROBES = {
    "pdb": """
        def f(x):
            import pdb
            pdb.set_trace()
            print("not reached", x)
        f(1)
    """,
    "pdb_with_commands": """
        import io, pdb, sys
        def f(x):
            pdb.Pdb(stdin=io.StringIO("p x\\nn\\nn\\nl\\nb 8\\nc\\np y\\ncl 1\\nc\\n"), stdout=sys.stdout).set_trace()
            y = x + 1
            print("reached", y)
            return y
        f(1)
        y = f(2)
        print("end", sys.gettrace() is None)
    """,
    "cprofile": """
        import cProfile, pstats
        def f(n): return sum(map(abs, range(n)))
        with cProfile.Profile() as profile:
            f(3)
            f(4)
        stats = pstats.Stats(profile).stats
        print(sorted((key, value[:2], sorted(value[4])) for key, value in stats.items()))
    """,
    "coverage": """
        import coverage
        measured = coverage.Coverage(data_file=None, include=["*/probe_coverage.py"])
        measured.start()
        def f(x):
            if x:
                return 1
            return 2
        f(0)
        measured.stop()
        print(measured.analysis2(__file__)[1:])
    """,
    "sources": """
        import inspect, pickle, sys, traceback
        class Outer:
            class Inner:
                def method(self): return 1 / 0
        print(inspect.getsource(Outer.Inner), inspect.getmodule(Outer), inspect.getsourcefile(Outer))
        print(inspect.getsourcelines(Outer), inspect.getfile(inspect.currentframe()))
        print(pickle.loads(pickle.dumps(Outer.Inner)) is Outer.Inner, sys.modules[Outer.__module__].Outer is Outer)
        for wrong in (lambda: pickle.dumps(lambda: 1), Outer.Inner().method):
            try:
                wrong()
            except Exception:
                traceback.print_exc()
    """,
    "dill": """
        import dill, sys
        class Point:
            def __init__(self, x): self.x = x
            def twice(self): return factor * self.x
        factor = 2
        loaded = dill.loads(dill.dumps(Point(4)))
        print(loaded.twice(), type(loaded) is Point, dill.loads(dill.dumps(lambda y: y + factor))(1))
        print(dill._dill._main_module is sys.modules["__main__"], dill._dill._main_module.__file__)
        print(dill.session._main_module is sys.modules["__main__"], dill.source.getsource(Point))
        def recursive(n): return n * recursive(n - 1) if n else factor
        print(dill.loads(dill.dumps(recursive, recurse=True))(3), dill.pickles(Point))
        dill.dump_module("session.pkl")
        del factor, Point
        dill.load_module("session.pkl")
        print(factor, Point(1).twice())
    """,
    "cloudpickle": """
        import cloudpickle, pickle, subprocess, sys
        class Point:
            def __init__(self, x): self.x = x
        def make(x): return Point(x + offset)
        offset = 3
        text = cloudpickle.dumps((make, Point(1), lambda: __name__))
        made, point, name = pickle.loads(text)
        print(made(1).x, type(point) is Point, type(made(1)) is Point, name())
        code = "import pickle, sys; make, p, name = pickle.load(sys.stdin.buffer); print(make(2).x, p.x, name())"
        print(subprocess.run([sys.executable, "-c", code], input=text, capture_output=True))
    """,
}
DYNAMO_PROBES = {
    "compiles": """
        import torch
        seen = []
        def backend(graph, inputs):
            seen.append(len(list(graph.graph.nodes)))
            return graph.forward
        @torch.compile(backend=backend)
        def f(x):
            return torch.sin(x) + scale
        scale = 2
        print(f(torch.zeros(2)), f(torch.ones(2)), f(torch.ones(3)), seen)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    """,
}
JOBLIB_PROBES = {
    f"joblib_{backend}": f"""
        import joblib
        class Point:
            def __init__(self, x): self.x = x
        def make(x): return Point(2 * x)
        if __name__ == "__main__":
            points = joblib.Parallel(n_jobs=2, backend="{backend}")(joblib.delayed(make)(i) for i in range(4))
            print([(point.x, type(point) is Point) for point in points])
            memory = joblib.Memory("cache_{backend}", verbose=0)
            print(memory.cache(abs)(-1), joblib.hash(Point(1)) == joblib.hash(Point(1)))
    """
    for backend in ("loky", "multiprocessing", "threading")
}
MEASURED = "def f(n): return sum(map(abs, range(n)))\nprint(f(3), __name__, sorted(globals()))\n"
EFFECTS = """
    import atexit, logging, os, resource, signal, sys, warnings
    atexit.register(lambda: os.write(1, b"at exit of effects\\n"))
    signal.signal(signal.SIGUSR1, lambda *_: print("handled by effects"))
    logging.getLogger("effects").addHandler(logging.StreamHandler())
    warnings.simplefilter("error", UserWarning)
    sys.path.append("/by/effects")
    sys.setrecursionlimit(1234)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    counted = globals().get("counted", 0) + 1
"""
USES_EFFECTS = """
    import effects, logging, os, resource, signal, sys, warnings
    print(effects.counted, sys.path[-1], sys.getrecursionlimit(), resource.getrlimit(resource.RLIMIT_CORE))
    os.kill(os.getpid(), signal.SIGUSR1)
    logging.getLogger("effects").error("logged by effects")
    try:
        warnings.warn("shown")
    except UserWarning as error:
        print("raised", error)
"""


@pytest.fixture(scope="module")
def spawning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawning]:
    folder = tmp_path_factory.mktemp("probes")
    for name, code in {**PROBES, **DYNAMO_PROBES, **JOBLIB_PROBES}.items():
        write(folder, f"probe_{name}", code)
    write(folder, "measured", MEASURED)
    write(folder, "effects", EFFECTS)
    write(folder, "uses_effects", USES_EFFECTS)
    with Spawning(folder) as spawning:
        yield spawning


@pytest.mark.parametrize("probe", PROBES)
def test_a_script_that_uses_it(spawning: Spawning, probe: str) -> None:
    cold, warm = both(spawning, f"probe_{probe}.py")
    assert warm == cold
    assert cold.code == (1 if probe == "pdb" else 0), cold.err


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("probe", DYNAMO_PROBES)
def test_a_script_that_compiles(spawning: Spawning, probe: str) -> None:
    cold, warm = both(spawning, f"probe_{probe}.py")
    assert warm == cold
    assert cold.code == 0, cold.err


@pytest.mark.slow
@pytest.mark.parametrize("probe", JOBLIB_PROBES)
def test_a_script_that_uses_joblib(spawning: Spawning, probe: str) -> None:
    cold, warm = both(spawning, f"probe_{probe}.py")
    assert warm == cold
    assert cold.code == 0, cold.err


@pytest.mark.parametrize(
    "args",
    [
        ("-m", "coverage", "run", "--data-file=data.{}", "--include=*/measured.py", "measured.py", "x"),
        ("-m", "cProfile", "-o", "profile.{}", "measured.py", "x"),
        ("-m", "pdb", "-c", "continue", "measured.py", "x"),
    ],
    ids=lambda args: args[1],
)
def test_a_script_that_a_tool_runs(spawning: Spawning, args: tuple[str, ...]) -> None:
    cold_id = spawning.start(*(arg.format("cold") for arg in args))
    warm_id = spawning.start(*(arg.format("warm") for arg in args), warm=True)
    cold, warm = spawning.outcome(cold_id), spawning.outcome(warm_id)
    assert warm == cold and cold_reasons(spawning) == []
    assert cold.out.startswith("3 __main__ ") or args[1] == "pdb"
    if args[1] == "coverage":
        assert covered(spawning, "warm") == covered(spawning, "cold") == [[1, 2]]
    if args[1] == "cProfile":
        assert profiled(spawning, "warm") == profiled(spawning, "cold") == {"f": 1, "<module>": 1}


def covered(spawning: Spawning, how: str) -> list[list[int] | None]:
    data = coverage.CoverageData(str(spawning.folder / f"data.{how}"))
    data.read()
    return [data.lines(file) for file in data.measured_files()]


def profiled(spawning: Spawning, how: str) -> dict[str, int]:
    """How often each function of the script was called."""
    stats = pstats.Stats(str(spawning.folder / f"profile.{how}")).stats  # type: ignore[attr-defined]
    return {name: calls[0] for (file, _, name), calls in stats.items() if file.endswith("measured.py")}


def test_what_an_import_does_to_its_process_holds_in_each_worker_and_ends_with_it(spawning: Spawning) -> None:
    cold, warm = both(spawning, "uses_effects.py")
    assert warm == cold
    assert cold.out.count("at exit of effects") == 1 and "handled by effects" in cold.out, cold
