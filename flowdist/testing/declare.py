"""Functions that declare properties of a job, in a test or in a file of their own beside the topology.

The file for `x.py` is `x_properties.py`, in the same folder.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import overload

from flowdist.errors import FlowdistError
from flowdist.graph import duration_help, parse_duration
from flowdist.sim.checks.points import POINTS
from flowdist.sim.checks.properties import Always, Check, Eventually, Properties, Sometimes, name_of

SUFFIX = "_properties.py"


def always(check: Check) -> Always:
    """Declare a property that holds after every event. It can be used as a decorator.

    Args:
        check: Function that is called with the state of the job (`flowdist.control.job.state.JobState`), and must not
            change it. The property is broken if it returns False or raises an AssertionError.

    Returns:
        The property, named after the function, for `always=` of `simulate` or in a file of properties.
    """
    return Always(name_of(check), check)


@overload
def eventually(check: Check, *, within: str) -> Eventually: ...


@overload
def eventually(check: None = None, *, within: str) -> Callable[[Check], Eventually]: ...


def eventually(check: Check | None = None, *, within: str) -> Eventually | Callable[[Check], Eventually]:
    """Declare a property that may be false for some time only, and is true at the end. It can be used as a decorator.

    Args:
        check: Function that is called with the state of the job, and must not change it; it returns true while the
            property holds. None: a decorator is returned.
        within: Longest virtual time for which the property may be false, such as `"2m"`. The time before it is true
            first, from the start of the job on, counts too.

    Returns:
        The property, named after the function, for `eventually=` of `simulate` or in a file of properties; or a
        decorator that makes one.

    Raises:
        FlowdistError: `within` is not a duration.
    """
    within_ns = read_duration("within", within)

    def made(check: Check) -> Eventually:
        return Eventually(name_of(check), check, within_ns)

    return made if check is None else made(check)


def read_duration(argument: str, text: str) -> int:
    """Return the ns of a duration that is given as the argument of that name; raise FlowdistError if it is none."""
    try:
        return parse_duration(text)
    except ValueError:
        raise FlowdistError(f"{argument} {text!r}: no duration", help=duration_help(text)) from None


@overload
def sometimes(name: Check, check: None = None) -> Sometimes: ...


@overload
def sometimes(name: str, check: Check) -> Sometimes: ...


@overload
def sometimes(name: str, check: None = None) -> Callable[[Check], Sometimes]: ...


def sometimes(name: str | Check, check: Check | None = None) -> Sometimes | Callable[[Check], Sometimes]:
    """Declare a point: a situation that at least one run of a campaign has to reach. It can be used as a decorator.

    A campaign in which no run reaches the point has not tested it, and fails.

    Args:
        name: Name of the point in reports; or the check itself, after which the point is named.
        check: Function that is called with the state of the job, and must not change it; it returns true when the point
            is reached. None: if `name` is a text, a decorator is returned.

    Returns:
        The point, for `sometimes=` of `simulate` or in a file of properties; or a decorator that makes one.
    """
    if not isinstance(name, str):
        return Sometimes(name_of(name), name)
    return Sometimes(name, check) if check is not None else lambda check: Sometimes(name, check)


def side_file(topology: str | Path) -> Path | None:
    """Return the path of `job_properties.py` beside the topology file `job.py`; None if there is no such file."""
    path = Path(str(topology).partition(":")[0])
    side = path.with_name(path.stem + SUFFIX) if path.name else path
    return side if side.is_file() else None


def load_properties(path: Path) -> Properties:
    """Import a file of properties; FlowdistError, with the line, if it fails, has none, or two of one name."""
    if not path.is_file():
        raise FlowdistError(f"no file of properties {str(path)!r}", help="name a Python file: --properties props.py")
    found = [value for value in vars(_imported(path)).values() if isinstance(value, Always | Eventually | Sometimes)]
    found = list(dict.fromkeys(found))
    if not found:
        help = "decorate functions with flowdist.testing.always, eventually(within=) or sometimes"
        raise FlowdistError(f"{path} declares no property", help=help)
    properties = Properties(
        tuple(value for value in found if isinstance(value, Always)),
        tuple(value for value in found if isinstance(value, Eventually)),
        tuple(value for value in found if isinstance(value, Sometimes)),
    )
    refuse_doubles(properties, f"{path}: ")
    return properties


def refuse_doubles(properties: Properties, where: str = "") -> None:
    """Raise FlowdistError, after `where`, for two properties of one name, or a point of a built-in's name."""
    names = Counter(rule.name for rules in properties for rule in rules)
    for name, count in names.items():
        if count > 1:
            raise FlowdistError(f"{where}two properties are called {name!r}", help="give one of them another name")
    for point in properties.sometimes:
        if point.name in POINTS:
            raise FlowdistError(f"{where}{point.name!r} is built in", help="give yours another name")


def _imported(path: Path) -> ModuleType:
    """Import a file as a module of its own, with its folder first in sys.path; raise FlowdistError for any error."""
    path = path.resolve()
    name = f"flowdist_properties_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FlowdistError(f"{path} is no Python file", help="name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except FlowdistError as error:
        raise FlowdistError(f"{path}:{_line_in(error, path)}: {error.message}", help=error.help) from None
    except SyntaxError as error:
        raise FlowdistError(f"{path}:{error.lineno}: {error.msg}") from None
    except Exception as error:
        raise FlowdistError(f"{path}:{_line_in(error, path)}: {type(error).__name__}: {error}") from error
    finally:
        if str(path.parent) in sys.path:
            sys.path.remove(str(path.parent))
    return module


def _line_in(error: BaseException, path: Path) -> int:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return frames[-1].lineno or 0 if frames else 0
