"""What a rank can observe of its process once it may touch the world, and how its notes are written.

`probe.first_step` imports this module, no earlier: it reads files, the variables of a rank, and C's environment.
"""

import ctypes
import json
import os
import pickle
import resource
import signal
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path

import probe

NOTES = Path(__file__).resolve().parent.parent / "notes"
STATUS = [
    "Umask",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_allowed",
    "CapEff",
    "Uid",
    "Gid",
    "Groups",
]
PATIENCE_S = 60  # for the other rank's notes


def attempt() -> int:
    """Return the number of the attempt, from 0."""
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def write(notes: list) -> None:
    """Write the notes of this rank, in one step."""
    NOTES.mkdir(exist_ok=True)
    place = NOTES / f"{attempt()}-{os.environ['RANK']}.json"
    part = place.with_suffix(".part")
    part.write_text(json.dumps({"pid": os.getpid(), "notes": notes}, default=repr))
    part.replace(place)


def end_attempt(last_act) -> None:
    """Wait until both ranks have written; then rank 1 kills rank 0 and itself."""
    other = NOTES / f"{attempt()}-{1 - int(os.environ['RANK'])}.json"
    end = time.monotonic() + PATIENCE_S
    while os.environ["RANK"] == "0" or not other.exists():
        time.sleep(0.01)
        if time.monotonic() > end:
            raise TimeoutError(f"{other} was not written within {PATIENCE_S} s")
    if last_act is not None:
        last_act()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.kill(json.loads(other.read_text())["pid"], signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def look() -> dict:
    """Return what can be observed of this process."""
    return {
        "ranked": _ranked(),
        "C's environment": _differences_of_c(),
        "/proc environment": _differences_of_proc(),
        "variables in order": [name for name in os.environ if not name.startswith("FLOWDIST_")],
        "environ": _environ_behaves(),
        "files": _files(),
        "process": _process(),
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")
        },
        "status": _status(),
        "libraries": _libraries(),
        "host": [socket.gethostname(), list(time.tzname), tempfile.gettempdir(), os.path.expanduser("~")],
        "torch threads": _torch_threads(),
    }


def _ranked() -> dict:
    ways = {
        "get": os.environ.get,
        "getenv": os.getenv,
        "dict": dict(os.environ).get,
        "items": {name: text for name, text in os.environ.items()}.get,
        "copy": os.environ.copy().get,
        "bytes": lambda name: (os.environb.get(name.encode()) or b"").decode() or None,
        "C": _c_getenv,
    }
    names = sorted(name for name in os.environ if probe._ranked(name) and not name.startswith("FLOWDIST_"))
    found: dict = {way: {name: read(name) for name in names} for way, read in ways.items()}
    texts = found.pop("get")
    for way, values in found.items():
        found[way] = {name: text for name, text in values.items() if text != texts[name]}
    return {**texts, "other ways differ": found}


def _c_getenv(name: str) -> str | None:
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    found = library.getenv(os.fsencode(name))
    return None if found is None else os.fsdecode(found)


def _differences_of_c() -> dict:
    """Return the variables that C sees with another value than Python."""
    library = ctypes.CDLL(None)
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(library, "environ")
    seen, number = {}, 0
    while entries[number] is not None:
        name, _, text = entries[number].partition(b"=")
        seen[os.fsdecode(name)] = os.fsdecode(text)
        number += 1
    return _unequal(seen)


def _differences_of_proc() -> dict:
    entries = [entry.partition(b"=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0") if entry]
    return _unequal({os.fsdecode(name): os.fsdecode(text) for name, _, text in entries})


def _unequal(seen: dict) -> dict:
    here = dict(os.environ)
    names = sorted({*seen, *here})
    return {name: seen.get(name) for name in names if seen.get(name) != here.get(name) and "FLOWDIST_" not in name}


def _environ_behaves() -> dict:
    """Return what code does with the environment besides reading a name."""
    return {
        "type": f"{type(os.environ).__module__}.{type(os.environ).__qualname__}",
        "repr": repr(os.environ)[:8],
        "copy": type(os.environ.copy()).__name__,
        "union": type(os.environ | {}).__name__,
        "pickled": len(pickle.dumps(dict(os.environ))) > 0,
        "equal": os.environ == dict(os.environ),
        "length": len(os.environ) == len(list(os.environ)),
        "bytes": len(os.environb) == len(os.environ),
        "identity": os.environ is sys.modules["os"].environ,
    }


def _files() -> dict:
    """Return the open files by their number: where they lead, the position, and how they were opened."""
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            details = dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{name}").read_text().splitlines()[:2])
            mode = stat.S_IFMT(os.fstat(int(name)).st_mode)
        except (OSError, ValueError):
            continue  # the folder that was being listed
        # Where an appended file ends depends on what the others have appended.
        is_own = mode == stat.S_IFREG and int(name) > 2 and not int(details["flags"], 8) & os.O_APPEND
        found[name] = [target, details["pos"] if is_own else "-", details["flags"], mode]
    return found


def _process() -> dict:
    own = os.getpid()
    children = Path(f"/proc/self/task/{own}/children")
    return {
        "pid": own,
        "threads": len(os.listdir("/proc/self/task")),
        "children": len(children.read_text().split()) if children.exists() else None,
        "cmdline": [os.fsdecode(word) for word in Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]],
        "comm": Path("/proc/self/comm").read_text().strip(),
        "exe": os.readlink("/proc/self/exe"),
        "cwd": os.readlink("/proc/self/cwd"),
        "leads its group": os.getpgid(0) == own,
        "leads its session": os.getsid(0) == own,
        "terminal": _terminal(),
        "nice": os.nice(0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "policy": os.sched_getscheduler(0),
        "timers": [
            signal.getitimer(which)[0] > 0 for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
        "core": Path("/proc/self/coredump_filter").read_text().strip(),
        "slack": Path("/proc/self/timerslack_ns").read_text().strip(),
        "dumpable, dies with parent, reaps": [_prctl(3), _prctl(2, ctypes.c_int()), _prctl(37, ctypes.c_int())],
    }


def _terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _prctl(option: int, place: ctypes.c_int | None = None) -> int:
    library = ctypes.CDLL(None)
    answer = library.prctl(option, 0 if place is None else ctypes.byref(place), 0, 0, 0)
    return answer if place is None else place.value


def _status() -> dict:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {name: lines.get(name, "").strip() for name in STATUS}


def _libraries() -> list[str]:
    """Return the files of shared libraries that are mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if ".so" in line and line.count("/")})


def _torch_threads() -> list[int] | None:
    torch = sys.modules.get("torch")
    return None if torch is None else [torch.get_num_threads(), torch.get_num_interop_threads()]
