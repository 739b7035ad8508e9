"""Differences from torchrun that flowdist names: each with its reason and the words of the document that names it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.oracle.judge import MISSING, Difference, subject


def _always(expected: str, found: str) -> bool:
    return True


@dataclass(frozen=True)
class Named:
    """A difference that is meant: the entries that have it, and where a user reads of it."""

    reason: str
    document: str  # below the root of the repository
    words: str  # of that document, on one line
    subjects: str  # a regular expression for the whole subject of an entry
    fits: Callable[[str, str], bool] = _always

    def matches(self, difference: Difference) -> bool:
        """Whether this is the reason of a difference."""
        if re.fullmatch(self.subjects, subject(difference.key)) is None:
            return False
        return self.fits(difference.expected, difference.found)


def name_of(difference: Difference) -> Named | None:
    """Return the entry of the table that names a difference."""
    return next((named for named in NAMED if named.matches(difference)), None)


def _is(expected: object, found: object) -> Callable[[str, str], bool]:
    return lambda left, right: (left, right) == (json.dumps(expected), json.dumps(found))


def _added(left: str, right: str) -> bool:
    return left == MISSING


def _removed(left: str, right: str) -> bool:
    return right == MISSING


def _of_lists(check: Callable[[list[Any], list[Any]], bool]) -> Callable[[str, str], bool]:
    """Return a check of the entries whose two values are lists; no other fits."""

    def fits(left: str, right: str) -> bool:
        return left[:1] == right[:1] == "[" and check(json.loads(left), json.loads(right))

    return fits


@_of_lists
def _without_unbuffered(left: list[Any], right: list[Any]) -> bool:
    return [word for word in left if word != "-u"] == right


@_of_lists
def _appended(left: list[Any], right: list[Any]) -> bool:
    (before, _, flags, kind), (after, _, appending, same) = left, right  # without the position: see surroundings.py
    return (
        before == after
        and str(before).startswith("<log>")
        and kind == same
        and int(appending, 8) == int(flags, 8) | 0o2000
    )


@_of_lists
def _dies_with_parent(left: list[Any], right: list[Any]) -> bool:
    return [left[0], 9, left[2]] == right and left[1] == 0


@_of_lists
def _of_hooks(left: list[Any], right: list[Any]) -> bool:
    more = [path for path in right if path not in left]
    return set(left) <= set(right) and all("/lib-dynload/" in path or "/libffi" in path for path in more)


@_of_lists
def _more_modules(left: list[Any], right: list[Any]) -> bool:
    begin = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), len(left))
    ends = [i for i, name in enumerate(right) if name.startswith("torch._dynamo")]
    late = set(right[begin : max(ends, default=0) + 1])  # what the script imports of these has another place, too
    others = iter(name for name in right if name not in late)
    kept_in_order = set(left) <= set(right) and all(name in others for name in left if name not in late)
    return kept_in_order and any(name.startswith(("torch._dynamo", "flowdist.")) for name in [*late, *right])


@_of_lists
def _without_ascii(left: list[Any], right: list[Any]) -> bool:
    """Return whether only the codec is missing that Python's development mode loads with a compiled module."""
    return [name for name in left if name != "encodings.ascii"] == right


@_of_lists
def _has_all(left: list[Any], right: list[Any]) -> bool:
    return not Counter(left) - Counter(right)


@_of_lists
def _codecs_in_another_order(left: list[Any], right: list[Any]) -> bool:
    found = [[name for name in names if not name.startswith("_codecs_")] for names in (left, right)]
    return found[0] == found[1] and sorted(left) == sorted(right)


@_of_lists
def _same_filters(left: list[Any], right: list[Any]) -> bool:
    return sorted(map(str, left)) == sorted(map(str, right)) and "sympy" in str(left)


@_of_lists
def _without_store(left: list[Any], right: list[Any]) -> bool:
    return not Counter(right) - Counter(left)


def _no_null_device(left: str, right: str) -> bool:
    return left.startswith('["/dev/null"') and right == MISSING


def _cyclic_garbage(left: str, right: str) -> bool:
    return left == MISSING and "/job/data.db" in right  # connections of sqlite3 are in a cycle


def _fewer(left: str, right: str) -> bool:
    return left.isdigit() and right.isdigit() and 0 < int(left) - int(right) <= 2


def _is_log(left: str, right: str) -> bool:
    return _is_shared(left, right) and "(['[20" in left.replace('"', "'")  # a line with the time of an import


@_of_lists
def _more_filters(left: list[Any], right: list[Any]) -> bool:
    return [one for one in right if one in left] == left and all(
        "sympy" in str(one) for one in right if one not in left
    )


@_of_lists
def _of_decimals(left: list[Any], right: list[Any]) -> bool:
    return sorted([*left, "decimal_context"]) == right


@_of_lists
def _more_libraries(left: list[Any], right: list[Any]) -> bool:
    more = set(right) - set(left)
    return set(left) <= set(right) and all("/site-packages/" in path or "/lib-dynload/" in path for path in more)


@_of_lists
def _another_order(left: list[Any], right: list[Any]) -> bool:
    ours = {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "PYTHONUNBUFFERED", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    return set(left) - ours == set(right) - ours


def _is_null(left: str, right: str) -> bool:
    return (left, right) == (MISSING, "null")


def _one_more(left: str, right: str) -> bool:
    return left.isdigit() and right.isdigit() and int(right) == int(left) + 1


def _few_more(left: str, right: str) -> bool:
    return left.isdigit() and right.isdigit() and 0 < int(right) - int(left) < 6


def _is_there(left: str, right: str) -> bool:
    return left in (MISSING, json.dumps("None NoneType"))


def _is_wrapped(left: str, right: str) -> bool:
    return right.endswith(' Wrapper"') or ".prefix.wrappers." in right


def _is_shared(left: str, right: str) -> bool:
    return left.startswith("a value of its own") and right.startswith("the value of")


TORCHRUN, WARM, VARIABLES = "docs/torchrun.md", "docs/warm_starts.md", "docs/reference/environment.md"
NAMED = (
    Named(
        "PYTHONUNBUFFERED=1 in place of -u",
        TORCHRUN,
        "`sys.orig_argv` has no `-u`",
        "orig_argv|process: cmdline",
        _without_unbuffered,
    ),
    Named(
        "set if unset",
        VARIABLES,
        "| `PYTHONUNBUFFERED`, `GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME` | set to `1`, `lo`, `lo` if unset",
        ".*: (PYTHONUNBUFFERED|GLOO_SOCKET_IFNAME|TP_SOCKET_IFNAME)",
        _added,
    ),
    Named(
        "a store of one's own",
        TORCHRUN,
        "MASTER_ADDR is `127.0.0.1` and not `localhost`",
        ".*: MASTER_ADDR",
        _is("localhost", "127.0.0.1"),
    ),
    Named(
        "a port for each generation",
        TORCHRUN,
        "Without it MASTER_PORT is a fresh port for each generation",
        ".*: MASTER_PORT",
    ),
    Named(
        "a store of one's own",
        TORCHRUN,
        "workers get `True`: flowdist serves the store of each generation",
        ".*: TORCHELASTIC_USE_AGENT_STORE",
        _is("False", "True"),
    ),
    Named("a store of one's own", TORCHRUN, "no rank hosts it", "nameless files", _without_store),
    Named("a store of one's own", TORCHRUN, "no rank hosts it", r"files: \d+", _no_null_device),
    Named("a store of one's own", TORCHRUN, "no rank hosts it", "process: threads", _fewer),
    Named(
        "of the launcher",
        TORCHRUN,
        "Workers see no TORCHELASTIC_SIGNALS_TO_HANDLE",
        ".*: TORCHELASTIC_SIGNALS_TO_HANDLE",
        _removed,
    ),
    Named("another order", TORCHRUN, "variables are in another order", "variables in order", _another_order),
    Named("logs are appended to", TORCHRUN, "its log files are opened for appending", r"files: \d+", _appended),
    Named("stdin is empty", TORCHRUN, "and its stdin is empty", "files: 0"),
    Named(
        "no orphans",
        TORCHRUN,
        "the kernel ends a worker whose parent has died (`PR_SET_PDEATHSIG`)",
        "process: dumpable, dies with parent, reaps",
        _dies_with_parent,
    ),
    Named(
        "children end with their worker",
        "docs/run.md",
        "A worker's process group is killed before the worker is reaped",
        r"files: tmp/pymp-.*",
        _added,
    ),
    Named("`ps` of a fork", WARM, "`ps` shows the command line of the prefix", "process: (cmdline|comm)"),
    Named("the room for variables", WARM, "with an entry FLOWDIST_ROOM", "/proc environment: FLOWDIST_ROOM", _is_null),
    Named("one seed of hash()", WARM, "So is the seed of `hash()`", "hash"),
    Named("one seed of hash()", WARM, "So is the seed of `hash()`", "modules", _is_shared),
    Named("one seed of hash()", WARM, "So is the seed of `hash()`", "modules", _codecs_in_another_order),
    Named("output of imports", WARM, "in the logs of each, as if each had printed it", "std(out|err)", _is_log),
    Named("one end more", WARM, "`atexit` has one more function", "atexit", _one_more),
    Named("watched functions", WARM, "of `os` (`stat`, `urandom`, `getpid`, ...)", r"functions: os\..*", _is_wrapped),
    Named(
        "watched threads",
        WARM,
        "and those of threads are wrapped",
        r"functions: (threading|time|random|numpy\.random)\..*",
        _is_wrapped,
    ),
    Named(
        "modules of the hooks",
        WARM,
        "the compiled modules of Python that the hooks use are loaded",
        "libraries",
        _of_hooks,
    ),
    Named(
        "modules of the hooks",
        WARM,
        "the compiled modules of Python that the hooks use are loaded",
        "modules",
        _without_ascii,
    ),
    Named(
        "numbers that nobody draws",
        WARM,
        "the state of a generator that nobody has seeded is the same for the ranks",
        r"random|numpy\.random|torch: (initial seed|random)",
        _is_shared,
    ),
    Named("addresses", WARM, "So is `id(x)`", "own: address", _is_shared),
    Named(
        "the clock",
        WARM,
        "**Time that is read before the split is that of the first start**",
        r"own: (by_time|by_counter|by_clock|by_date)",
        _is_shared,
    ),
    Named(
        "numbers of compiled code",
        WARM,
        "Entropy that it draws (`torch.Generator().seed()`)",
        "own: by_compiled",
        _is_shared,
    ),
    Named("a key of an import", WARM, "What a library asks or draws while it is imported", "own: key", _is_shared),
    Named("a template's pipe", WARM, "has one open pipe more, above 700", r"files: 7\d\d", _added),
    *(
        Named(
            "late imports", WARM, "are in `sys.modules` earlier, with what their import leaves behind", subjects, fits
        )
        for subjects, fits in (
            ("modules( before)?", _more_modules),
            ("warnings", _more_filters),
            ("warnings", _same_filters),
            (".*environment: TORCHINDUCTOR_CACHE_DIR", _removed),
            ("contextvars", _of_decimals),
            ("libraries", _more_libraries),
            ("atexit", _few_more),
            (r"decimal|numpy\.random|functions: numpy\.random\.default_rng", _is_there),
            ("files: tmp/torchinductor_root", _added),
        )
    ),
    Named("collected later", WARM, "What is garbage by then is collected later", r"files: \d+", _cyclic_garbage),
    Named("shared memory", WARM, "(`gc.get_freeze_count()`)", "gc frozen|own: has_frozen", _is(False, True)),
    Named(
        "shared memory", WARM, "`del model; gc.collect()` frees no cycle", "own: cycle_(gone|counts)", _is(True, False)
    ),
    Named("events of the split", WARM, "audit hook sees what flowdist does at the split", "own: seen", _has_all),
)
