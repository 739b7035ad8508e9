"""Roles that start warm, and the reasons why others do not."""

from __future__ import annotations

import pytest

from flowdist.graph import RoleSpec
from flowdist.graph.warmth import PythonCommand, cold_because, python_command, varies

OURS = "/venv/bin/python"


def spec(*command: str, **fields: object) -> RoleSpec:
    return RoleSpec("trainer", command, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command",
    [
        ("python", "train.py"),
        ("python3", "-u", "-OO", "train.py", "--lr", "3"),
        (OURS, "-W", "error", "-B", "-m", "package.train", "-c"),
    ],
)
def test_a_script_or_module_of_our_python_starts_warm(command: tuple[str, ...]) -> None:
    assert cold_because(spec(*command), OURS, OURS) == ""


@pytest.mark.parametrize(
    ("cold", "why"),
    [
        (spec("python", "train.py", warm=False), "warm=False"),
        (spec("./train"), "./train is not the Python that runs flowdist"),
        (spec("/usr/bin/python3", "train.py"), "/usr/bin/python3 is not the Python that runs flowdist"),
        (spec("python", "-c", "print(1)"), "python -c"),
        (spec("python", "-X", "dev", "train.py"), "python -X"),
        (spec("python", "-uB", "train.py"), "python -uB"),
        (spec("python", "-m"), "python -m"),
        (spec("python", "-W"), "python -W"),
        (spec("python", "-u"), "python without a script"),
        (spec("python", "folder"), "folder is no .py file"),
        (
            spec("python", "x.py", env=(("OMP_NUM_THREADS", "${rank}"),)),
            "OMP_NUM_THREADS differs from worker to worker",
        ),
    ],
)
def test_what_cannot_start_warm_says_why(cold: RoleSpec, why: str) -> None:
    assert cold_because(cold, OURS, OURS) == why


def test_another_interpreter_for_python_starts_cold() -> None:
    assert cold_because(spec("python", "train.py"), "/opt/python", OURS) == "PYTHON_EXEC is /opt/python"
    assert cold_because(spec(OURS, "train.py"), "/opt/python", OURS) == ""


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "TZ", "MKL_NUM_THREADS", "TORCH_LOGS", "PYTORCH_JIT"])
def test_a_variable_that_compiled_code_reads_when_it_is_loaded_may_not_differ(name: str) -> None:
    cold = spec("python", "x.py", env=((name, "/cache/${rank}"),))
    assert cold_because(cold, OURS, OURS) == f"{name} differs from worker to worker"


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "HF_HOME", "TMPDIR", "MY_RANK"])
def test_a_variable_that_python_code_reads_or_that_is_read_at_its_first_use_may_differ(name: str) -> None:
    assert cold_because(spec("python", "x.py", env=((name, "${local_rank}"),)), OURS, OURS) == ""


def test_a_variable_that_compiled_code_reads_may_differ_from_role_to_role() -> None:
    assert cold_because(spec("python", "x.py", env=(("PYTHONPATH", "/x/${role}"),)), OURS, OURS) == ""


def test_a_command_is_taken_apart() -> None:
    command = python_command(["python", "-u", "-W", "error", "train.py", "-u", "x"])
    assert command == PythonCommand(("-u", "-W", "error"), "train.py", False, ("-u", "x"))
    assert python_command(["python", "-m", "a.b", "x"]) == PythonCommand((), "a.b", True, ("x",))


@pytest.mark.parametrize("macro", ["rank", "replica", "generation", "self.port:rpc", "addresses:ps:rpc", "log_dir"])
def test_what_differs_from_start_to_start(macro: str) -> None:
    assert varies(f"x-${{{macro}}}") and not varies("x-${role}-${run_id}") and not varies(macro)
