"""Preloaded modules: those that a role names, and torch if the role's code imports it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from flowdist.dsl.load import load_topology
from flowdist.dsl.read.preload import FILES_MAX, LEARNING_FILES_MAX
from flowdist.graph import RoleSpec
from flowdist.graph.roles import FirstImports

TOPOLOGY = "from flowdist import Topology\nt = Topology('x')\nt.role('main', {})\n"


@pytest.fixture(autouse=True)
def torch_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a module `torch` that can be found but is never imported."""
    (tmp_path / "site" / "torch").mkdir(parents=True)
    for name in ("__init__.py", "_dynamo.py"):
        (tmp_path / "site" / "torch" / name).write_text("raise AssertionError('nothing is imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])


def role(folder: Path, arguments: str, files: dict[str, str] | None = None, **modules: str) -> RoleSpec:
    """Return the role `main` of a topology in a folder with these files and modules."""
    modules["topology"] = TOPOLOGY.format(arguments)
    for name, text in {**(files or {}), **{f"{name}.py": text for name, text in modules.items()}}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return load_topology(str(folder / "topology.py")).graph.role("main")


@pytest.mark.parametrize(
    "code",
    [
        "import torch",
        "import os, torch.nn as nn",
        "from torch import nn",
        "from torchvision import models",
        "import lightning",
        "def late():\n    import torch",
        "try:\n    import torch\nexcept ImportError:\n    pass",
    ],
)
def test_torch_is_where_the_script_imports_it(tmp_path: Path, code: str) -> None:
    assert role(tmp_path, "script='train.py'", train=code).preload == ("torch",)


def test_torch_is_found_behind_modules_of_the_same_folder(tmp_path: Path) -> None:
    spec = role(
        tmp_path, "script='train.py'", train="import first", first="import second\nimport train", second="import torch"
    )
    assert spec.preload == ("torch",)


def test_it_is_found_in_a_package_over_relative_imports(tmp_path: Path) -> None:
    files = {
        "pack/__init__.py": "",
        "pack/run.py": "from . import model\nfrom .. import odd",
        "pack/model.py": "from torch import nn",
    }
    assert role(tmp_path, "module='pack.run'", files).preload == ("torch",)
    files["pack/__main__.py"] = "from .model import Net"
    assert role(tmp_path, "module='pack'", files).preload == ("torch",)


def test_it_is_found_in_the_module_or_file_of_a_function(tmp_path: Path) -> None:
    assert role(tmp_path, "run='work:main'", work="import torch\ndef main(): pass").preload == ("torch",)
    own = TOPOLOGY.replace("t = ", "def main():\n    import torch\nt = ").format("run=main")
    (tmp_path / "topology.py").write_text(own)
    assert load_topology(str(tmp_path / "topology.py")).graph.role("main").preload == ("torch",)


def test_it_is_found_in_a_script_of_which_python_warns_and_the_warning_is_not_shown(tmp_path: Path) -> None:
    code = "import re, torch\nDIGITS = re.compile('\\d+')"
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert role(tmp_path, "script='train.py'", train=code).preload == ("torch",)
    assert shown == []
    assert role(tmp_path, "script='train.py'", train=code).preload == ("torch",)  # as warnings are errors in tests


@pytest.mark.parametrize(
    "code", ["import os", "print('torch')", "this is no Python", "from . import x", "import nothing.there"]
)
def test_without_it_nothing_is_preloaded(tmp_path: Path, code: str) -> None:
    assert role(tmp_path, "script='train.py'", train=code).preload == ()


def test_what_is_no_python_is_not_read(tmp_path: Path) -> None:
    assert role(tmp_path, "command=['true']").preload == ()
    assert role(tmp_path, "module='json.tool'").preload == ()


def test_where_torch_is_not_installed_nothing_is_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not Path(folder, "torch").exists()])
    assert role(tmp_path, "script='train.py'", train="import torch").preload == ()


def test_what_is_named_comes_first_and_once(tmp_path: Path) -> None:
    assert role(tmp_path, "script='train.py', preload=['json']", train="import torch").preload == ("json", "torch")
    assert role(tmp_path, "script='train.py', preload='torch,json'", train="import torch").preload == ("torch", "json")


def test_a_module_beside_the_script_can_be_preloaded(tmp_path: Path) -> None:
    spec = role(tmp_path, "script='sub/train.py', preload=['beside']", {"sub/train.py": "", "sub/beside.py": ""})
    assert spec.preload == ("beside",)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.optim.AdamW([])",
        "from torch.optim import SGD",
        "import torch.optim as optim",
        "import torch\ntorch.nn.parallel.DistributedDataParallel(None)",
        "import torch, beside",
    ],
)
def test_the_learned_preload_of_a_script_that_trains_begins_with_what_every_optimizer_imports(
    tmp_path: Path, code: str
) -> None:
    files = {"train": code, "beside": "from torch import optim"}
    spec = role(tmp_path, "script='train.py'", **files)
    assert (spec.preload, spec.first_imports.modules) == (("torch",), ("torch._dynamo",))
    spec = role(tmp_path, "script='train.py', preload=['json']", **files)
    assert (spec.preload, spec.first_imports) == (("json", "torch"), FirstImports())


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import torch, lightning", ("lightning.pytorch",)),
        ("from lightning.pytorch import Trainer", ("torch._dynamo", "lightning.pytorch")),
        ("import torch\nfrom transformers import GPT2Config", ()),
        ("import torch\nfrom transformers import Trainer", ("torch._dynamo", "transformers.trainer")),
        ("import torch\nimport transformers as t\nt.Trainer()", ("torch._dynamo", "transformers.trainer")),
        ("from accelerate import Accelerator", ("torch._dynamo", "accelerate")),
        ("from transformers import Trainer", ()),  # without torch nothing is preloaded
    ],
)
def test_it_begins_with_the_framework_that_the_script_names(
    tmp_path: Path, code: str, modules: tuple[str, ...]
) -> None:
    for name in ("lightning/pytorch", "transformers/trainer", "accelerate/__main__"):
        (tmp_path / "site" / name).parent.mkdir()
        for file in (f"{name}.py", f"{name.partition('/')[0]}/__init__.py"):
            (tmp_path / "site" / file).write_text("raise AssertionError('nothing is imported')")
    assert role(tmp_path, "script='train.py'", train=code).first_imports.modules == modules


READS = """
import os
from os import environ
import torch.optim, beside
os.environ['READ_A'], os.environ.get('READ_B', '1'), os.getenv('READ_C'), 'READ_D' in os.environ, environ
if 'READ_E' not in os.environ: print('some TEXT', 'lower')
"""


def test_variables_that_the_code_names_other_than_to_read_them_may_be_set(tmp_path: Path) -> None:
    beside = "import os\nos.environ['SET_A'] = '1'\nos.environ.update(SET_B=1, **{'SET_C': 2})\nos.putenv('SET_D', '')"
    beside += "\nos.environ.setdefault('READ_A', '')\ndel os.environ['SET_E']"
    first = role(tmp_path, "script='train.py'", train=READS, beside=beside).first_imports
    assert first.may_set == ("READ_A", "SET_A", "SET_B", "SET_C", "SET_D", "SET_E")


def test_a_torch_without_dynamo_is_preloaded_alone(tmp_path: Path) -> None:
    (tmp_path / "site/torch/_dynamo.py").unlink()
    spec = role(tmp_path, "script='train.py'", train="import torch.optim")
    assert (spec.preload, spec.first_imports) == (("torch",), FirstImports())


def test_the_learned_preload_of_a_program_with_many_files_begins_with_nothing(
    tmp_path: Path,
) -> None:
    def first_imports(files: int) -> tuple[str, ...]:
        beside = {f"m{number}": "" for number in range(files - 1)}
        spec = role(tmp_path, "script='train.py'", train=f"import torch.optim, {', '.join(beside)}", **beside)
        assert spec.preload == ("torch",)
        return spec.first_imports.modules

    assert first_imports(LEARNING_FILES_MAX) == ("torch._dynamo",)
    assert first_imports(LEARNING_FILES_MAX + 1) == ()


def test_large_programs_are_not_read_to_their_end(tmp_path: Path) -> None:
    def preload(files: int) -> tuple[str, ...]:
        """Return what is preloaded for a chain of so many files, of which the last one imports torch."""
        chain = {f"m{number}": f"import m{number + 1}" for number in range(1, files - 1)}
        chain[f"m{files - 1}"] = "import torch"
        return role(tmp_path, "script='train.py'", train="import m1", **chain).preload

    assert preload(FILES_MAX) == ("torch",)
    assert preload(FILES_MAX + 1) == ()
