"""Variables and secrets of a role: the graph has the values of variables, and only the sources of secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.graph import SecretRef, encode_graph
from tests.dsl.test_load import Loaded, loaded, refused, underlined

HEAD = "from pathlib import Path\nfrom flowdist import Secret, Topology\nt = Topology('x')\n"
DICT = 'write env={"NAME": "value"}'
SECRET = 'write Secret(env="KEY") or Secret(file="~/.key")'


def with_env(tmp_path: Path, env: str) -> Loaded:
    return loaded(tmp_path, HEAD + f't.role("a", "true", env={env})')


def test_text_is_in_the_graph_and_a_secret_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "very secret")
    (tmp_path / "token").write_text("more secret")
    found = with_env(tmp_path, '{"LEVEL": 3, "KEY": Secret(env="OURS"), "TOKEN": Secret(file="token")}')
    (role,) = found.graph.roles
    assert role.env == (("LEVEL", "3"),)
    assert role.secrets == (SecretRef("KEY", env="OURS"), SecretRef("TOKEN", file=str(tmp_path / "token")))
    assert found.warnings == () and b"secret" not in encode_graph(found.graph).replace(b"secrets", b"")


def test_a_file_may_be_a_path_or_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".token").touch()
    found = with_env(tmp_path, '{"A": Secret(file="~/.token"), "B": Secret(file=Path(".token"))}')
    assert found.graph.roles[0].secrets == (
        SecretRef("A", file="~/.token"),
        SecretRef("B", file=str(tmp_path / ".token")),
    )
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("secret", "message", "argument"),
    [
        ('Secret(env="NOT_SET_HERE")', "the variable NOT_SET_HERE is not set here", '"NOT_SET_HERE"'),
        ('Secret(env="EMPTY_HERE")', "the variable EMPTY_HERE is not set here", '"EMPTY_HERE"'),
        ('Secret(file="/")', "there is no file / here", '"/"'),
        (f'Secret(file="/{"x" * 300}")', f"there is no file /{'x' * 300} here", None),
        ('Secret(file="/no/such")', "there is no file /no/such here", '"/no/such"'),
        ('Secret(file="~nobody-of-that-name/x")', "there is no file ~nobody-of-that-name/x here", None),
    ],
)
def test_a_secret_without_a_value_is_a_warning_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, message: str, argument: str | None
) -> None:
    monkeypatch.setenv("EMPTY_HERE", "")
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    (warning,) = with_env(tmp_path, f'{{"KEY": {secret}}}').warnings
    assert (warning.code, warning.severity) == ("FD303", "warning")
    assert warning.message == f"role 'a': the secret KEY has no value: {message}"
    assert warning.help == "flowdist run refuses to start without it"
    assert argument is None or underlined(warning) == argument


@pytest.mark.parametrize(
    ("env", "code", "message", "argument", "help"),
    [
        ("3", "FD134", "env= must be a dict", "3", DICT),
        ('{"": "x"}', "FD134", "env= has '', which cannot name a variable", '{"": "x"}', DICT),
        ('{3: "x"}', "FD134", "env= has 3, which cannot name a variable", '{3: "x"}', DICT),
        (
            '{"A": "x\\0"}',
            "FD134",
            "env= has 'A', which cannot name a variable, or whose value has a NUL",
            '{"A": "x\\0"}',
            DICT,
        ),
        ('{"A": 1, "B": None}', "FD134", "env['B'] is None", "None", 'write "" for an empty one, or leave it out'),
        ('{"KEY": Secret(file="")}', "FD134", "file='' must be a text", '""', 'write Secret(file="...")'),
        ('{"KEY": Secret(env="A\\0")}', "FD134", "env='A\\x00' must be a text", '"A\\0"', 'write Secret(env="...")'),
        ('{"KEY": Secret()}', "FD138", "the secret KEY has no source", "Secret", SECRET),
        ('{"KEY": Secret(env="A", file="b")}', "FD138", "the secret KEY has two sources", '"b"', SECRET),
    ],
)
def test_a_variable_that_makes_no_sense(
    tmp_path: Path, env: str, code: str, message: str, argument: str, help: str
) -> None:
    problem = refused(tmp_path, HEAD + f't.role("a", "true", env={env})')
    assert problem.message.startswith(f"role 'a': {message}")
    assert (problem.code, underlined(problem), problem.help) == (code, argument, help)
