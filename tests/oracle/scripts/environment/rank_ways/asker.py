import copy
import ctypes
import os
import posix
import subprocess
import sys


def _c(name):
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    return os.fsdecode(library.getenv(os.fsencode(name)) or b"-")


def _keyed(name):
    try:
        return os.environ[name]
    except KeyError:
        return "-"


def _merged(name, **given):
    return given.get(name, "-")


def _proc(name):
    with open("/proc/self/environ", "rb") as file:
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    return os.fsdecode(dict((key, text) for key, _, text in entries).get(name.encode(), b"-"))


def _matched(name):
    match os.environ:
        case {"RANK": text} if name == "RANK":
            return text
        case {"LOCAL_RANK": text}:
            return text
    return "-"


WAYS = {
    "key": _keyed,
    "get": lambda name: os.environ.get(name, "-"),
    "getenv": lambda name: os.getenv(name, "-"),
    "in": lambda name: str(name in os.environ),
    "in_keys": lambda name: str(name in os.environ.keys()),
    "dict": lambda name: dict(os.environ).get(name, "-"),
    "items": lambda name: {key: text for key, text in os.environ.items()}.get(name, "-"),
    "values": lambda name: list(os.environ.values())[list(os.environ).index(name)],
    "iterate": lambda name: ",".join(key + os.environ[key] for key in os.environ if key == name),
    "deepcopy": lambda name: copy.deepcopy(os.environ).get(name, "-"),
    "copy": lambda name: os.environ.copy().get(name, "-"),
    "union": lambda name: (os.environ | {"A": "b"}).get(name, "-"),
    "starred": lambda name: _merged(name, **os.environ),
    "environb": lambda name: os.environb.get(name.encode(), b"-").decode(),
    "posix": lambda name: posix.environ.get(name.encode(), b"-").decode(),
    "getenvb": lambda name: os.getenvb(name.encode(), b"-").decode(),
    "expandvars": lambda name: os.path.expandvars(f"${name}"),
    "length": lambda name: str(sum(1 for key in os.environ if not key.startswith(("FLOWDIST_", "GLOO_", "TP_")))),
    "format": lambda name: "{env[%s]}".replace("%s", name).format(env=os.environ),
    "repr": lambda name: str(f"'{name}': '0'" in repr(os.environ)),
    "equal": lambda name: str(os.environ == {**os.environ}),
    "match": _matched,
    "setdefault": lambda name: os.environ.setdefault(name, "-"),
    "pop": lambda name: os.environ.pop(name, "-"),
    "popitem": lambda name: [os.environ.popitem() for _ in list(os.environ)] and str(len(os.environ)),
    "C": _c,
    "proc": _proc,
    "subprocess": lambda name: subprocess.run(
        f"echo ${name}", shell=True, capture_output=True, text=True
    ).stdout.strip(),
    "system": lambda name: str(os.system(f'exit "${name}"')),
}
WAY = sys.argv[1]
RANK = WAYS[WAY]("RANK")
if WAY in ("pop", "popitem"):
    os.environ.update(RANK=_proc("RANK"), TORCHELASTIC_RESTART_COUNT=_proc("TORCHELASTIC_RESTART_COUNT"))


def again():
    return WAYS[WAY]("LOCAL_RANK") if WAY != "popitem" else "-"
