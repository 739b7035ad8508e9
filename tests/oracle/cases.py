"""Cases of the oracle: each file of `scripts/<kind>`, and each folder of it that has a `train.py`.

Most need nothing but their script. `SPECIAL` has the words, variables, needed packages and edits of the others.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("scripts")
TIMEOUT_S = 120


@dataclass(frozen=True)
class Edit:
    """What the user changes before one more run: texts of files (`"old" -> "new"`), the arguments, variables."""

    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    new_files: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def apply(self, job: Path) -> None:
        """Edit the files of a job; a text that is not there is a mistake in the case."""
        for name, (old, new) in self.files.items():
            text = (job / name).read_text()
            if old not in text or len(old) == len(new):
                raise ValueError(f"{name}: {old!r} is not there, or is replaced by a text of the same length")
            (job / name).write_text(text.replace(old, new))
        for name, text in self.new_files.items():
            (job / name).parent.mkdir(parents=True, exist_ok=True)
            (job / name).write_text(text)


@dataclass(frozen=True)
class Case:
    """One script, the command line that runs it, and what is edited between its runs."""

    name: str
    source: Path
    words: tuple[str, ...] = ()  # in place of the script's path
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    edit: Edit | None = None
    needs: tuple[str, ...] = ()
    fails: bool = False  # every rank fails by itself: the first to fail ends the others, wherever they are

    @property
    def script(self) -> str:
        return "train.py" if self.source.is_dir() else self.source.name

    @property
    def about(self) -> str:
        """Return the first line of the script's docstring."""
        path = self.source / "train.py" if self.source.is_dir() else self.source
        return path.read_text().split('"""')[1].strip().splitlines()[0]

    def missing(self) -> list[str]:
        """Return the packages that are not installed here."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def all_cases() -> list[Case]:
    """Return every case, by kind and name."""
    found = []
    for kind in sorted(path for path in SCRIPTS.iterdir() if path.is_dir() and not path.name.startswith("_")):
        for path in sorted(kind.iterdir()):
            if path.suffix == ".py" or (path / "train.py").exists():
                name = f"{kind.name}/{path.stem}"
                ways = WAYS.get(name, ())
                found += [Case(f"{name}[{way}]", path, arguments=(way,)) for way in ways]
                found += [] if ways else [Case(name, path, **SPECIAL.get(name, {}))]
    unknown = {*SPECIAL, *WAYS} - {case.name.partition("[")[0] for case in found}
    if unknown:
        raise ValueError(f"no script for {sorted(unknown)}")
    return found


# Scripts that are played once with each of these arguments: the ways in which they look at something.
RANK_WAYS = """
key get getenv in in_keys dict items values iterate copy deepcopy union starred environb posix getenvb expandvars length
format repr equal match setdefault pop popitem C proc subprocess system
"""
FILE_WAYS = """
exists isfile path stat lstat glob listdir scandir walk iterdir access open size dir_fd readlink realpath statvfs ctypes
"""
READ_WAYS = "fopen sqlite fileio os_open relative mapped codecs resources linecache"
FOLDER_WAYS = "getmtime stat pathlib scandir readlink realpath resolve descriptor fwalk"
DRAWN_WAYS = "torch_seed generator uuid1 ssl native kernel"
LOOK_WAYS = "mtime samefile resolve which rglob descriptor stat_folder isdir mode usage"
WAYS = {
    "environment/rank_ways": RANK_WAYS.split(),
    "files/checkpoint_appears": FILE_WAYS.split(),
    "files/looked_at": LOOK_WAYS.split(),
    "files/newest_folder": FOLDER_WAYS.split(),
    "randomness/drawn_past_python": DRAWN_WAYS.split(),
    "files/read_by_c": READ_WAYS.split(),
}
# Without it, a restarted rank under torchrun reads addresses of the attempt before and connects to nobody.
OWN_STORE = {"env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}}
SPECIAL: dict[str, dict[str, Any]] = {
    "environment/json_config": {"edit": Edit(files={"config.json": ('"MY_OFFLINE": "1"', '"MY_OFFLINE": "no"')})},
    "environment/mode": {"env": {"MODE": "fast"}, "edit": Edit(env={"MODE": "slow"})},
    "randomness/hash_seed": {"env": {"PYTHONHASHSEED": "5"}, "edit": Edit(env={"PYTHONHASHSEED": "123"})},
    "imports/third_party": {"arguments": ("--third-party",), "edit": Edit(arguments=()), "needs": ("tqdm",)},
    "imports/patched": {"arguments": ("--patched",), "edit": Edit(arguments=())},
    "imports/arguments": {
        "arguments": ("--rate", "0.5", "a b"),
        "edit": Edit(arguments=("--name", "${HOME} *", "--", "-x")),
    },
    "imports/as_module": {
        "words": ("-m", "package.task"),
        "arguments": ("one",),
        "edit": Edit(files={"package/__init__.py": ("NAME = __name__", 'NAME = "edited, for a later run"')}),
    },
    "imports/as_main_package": {"words": ("-m", "package"), "arguments": ("--x=1",)},
    "imports/edited_later": {
        "edit": Edit(files={"helper.py": ("helper 1", "helper two"), "train.py": (" old", " edited")})
    },
    "imports/site_customized": {"env": {"PYTHONPATH": "site"}},
    "imports/other_folder": {"words": ("sub/../../job/train.py",)},
    "imports/edited_path": {"env": {"PYTHONPATH": "library"}},
    "imports/no_suffix": {"words": ("run_me",)},
    "imports/as_folder": {"words": ("app",), "arguments": ("one",)},
    "torch/safetensors_file": {"needs": ("safetensors",)},
    "imports/hides_stdlib": {"needs": ("tqdm",)},
    "files/config_edited": {"edit": Edit(files={"config.json": ("1", "22")})},
    "interpreter/options": {
        "env": {"PYTHONWARNINGS": "ignore,error::UserWarning", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
        "edit": Edit(
            env={"PYTHONUTF8": "1", "PYTHONDEVMODE": "1", "PYTHONOPTIMIZE": "1", "PYTHONINTMAXSTRDIGITS": "0"}
        ),
    },
    **{f"failures/{name}": {"fails": True} for name in ("aborts", "interrupted", "kills_itself", "missing_module")},
    **{f"failures/{name}": {"fails": True} for name in ("os_exit", "raises", "raises_later", "syntax")},
    **{f"ends/{name}": {"fails": True} for name in ("exit_code", "exit_text")},
    "interpreter/hooks": {"fails": True},
    "ends/usage": {"arguments": ("--epochs", "many"), "fails": True},
    "ends/helps": {"arguments": ("--help",)},
    "frameworks/datasets_shuffled": {"needs": ("datasets",)},
    "frameworks/pandas_arrow": {"needs": ("pandas", "pyarrow")},
    "frameworks/hydra_app": {
        "needs": ("hydra",),
        "arguments": ("model.rate=0.5",),
        "edit": Edit(arguments=("model.rate=2",), env={"MODE": "x"}),
    },
    "frameworks/wandb_offline": {"needs": ("wandb",)},
    "frameworks/deepspeed_imported": {**OWN_STORE, "needs": ("deepspeed",)},
    "frameworks/torchft_imported": {"needs": ("torchft",)},
    "frameworks/stateful_loader": {"needs": ("torchdata",)},
    "frameworks/lightning_fit": {**OWN_STORE, "needs": ("lightning",)},
    "frameworks/accelerated": {**OWN_STORE, "needs": ("accelerate",)},
    "frameworks/trainer": {**OWN_STORE, "needs": ("transformers", "accelerate")},
    "frameworks/transformers_config": {
        "needs": ("transformers",),
        "edit": Edit(files={"config.json": ('"HF_HUB_OFFLINE": "1"', '"HF_HUB_OFFLINE": "no"')}),
    },
    "frameworks/ddp_adamw": OWN_STORE,
    "frameworks/fsdp2_dcp": OWN_STORE,
}
