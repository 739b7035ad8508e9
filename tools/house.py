"""Check what the house promises: small folders and functions, no import cycle, docstrings that name their subject.

    python tools/house.py [--measure]

Each finding is one line with its place; the exit code is 1 if there is any. `--measure` prints figures instead. The
limits are constants below. `EXCEPTIONS` lists the functions that may be larger, each with the reason. An import inside
a function says in a comment why it is not above. The words in tools/retired_words.md may not be identifiers of
`flowdist` any more.

Needs the standard library alone.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

MODULES_MAX = 14  # a folder; the root has ROOT_MODULES_MAX
ROOT_MODULES_MAX = 4
LINES_MAX = 60  # a function, its signature and docstring included
PARAMETERS_MAX = 12
COMPLEXITY_MAX = 20  # a function, as radon counts it

# Functions that may be larger than the limits, by `module:function`, each with its reason.
EXCEPTIONS = {
    "flowdist.dsl.topology:__init__": "users write Topology(...): each option of a job is a keyword",
    "flowdist.dsl.words:__init__": "users write Workload(...): each property of a worker is a keyword",
    "flowdist.components.builtins:ddp": "the signature is that of TorchX's dist.ddp",
    "flowdist.testing.kit:simulate": "users write simulate(...): the keywords are the options of `flowdist simulate`",
    "flowdist.testing.kit:explore": "users write explore(...): the keywords are the options of `simulate --explore`",
}

WEAK_START = re.compile(r"^(It|Its|They|Their|Those|Who|Whoever|Whose|What|Whatever|Of|That|As|So|Nobody|Somebody)\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)


class Module(NamedTuple):
    """One source file of the package, parsed."""

    name: str  # flowdist.control.controller
    path: Path
    source: str
    tree: ast.Module


def modules_of(package: Path) -> list[Module]:
    """Parse every file of the package, in the order of their paths."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        source = path.read_text(encoding="utf-8")
        found.append(Module(name, path, source, ast.parse(source)))
    return found


def large_folders(modules: Iterable[Module], package: Path) -> Iterator[str]:
    """Name the folders with more modules than a reader takes in at a glance, and those without a docstring."""
    folders: dict[Path, int] = {}
    for module in modules:
        folders[module.path.parent] = folders.get(module.path.parent, 0) + 1
        if module.path.name == "__init__.py" and ast.get_docstring(module.tree) is None:
            yield f"{module.path}: the folder does not say what it is for"
    for folder, count in folders.items():
        limit = ROOT_MODULES_MAX if folder == package else MODULES_MAX
        if count > limit:
            yield f"{folder}: {count} modules, at most {limit}"


def imports_of(module: Module, names: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, wherever in the file the import stands."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.update({full if full in names else node.module} & names)
        elif isinstance(node, ast.Import):
            found.update({alias.name for alias in node.names} & names)
    return found - {module.name}


def import_cycles(modules: Iterable[Module]) -> Iterator[str]:
    """Name each group of modules that import each other, imports for type checkers and inside functions included."""
    modules = list(modules)
    names = {module.name for module in modules}
    graph = {module.name: sorted(imports_of(module, names)) for module in modules}
    for group in _strong_components(graph):
        if len(group) > 1:
            yield f"import cycle: {', '.join(sorted(group))}"


def _strong_components(graph: dict[str, list[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components (Kosaraju: an order of finishing, then the reversed graph)."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _finish(graph, start, seen, order)
    reverse: dict[str, list[str]] = {name: [] for name in graph}
    for name, targets in graph.items():
        for target in targets:
            reverse[target].append(name)
    seen.clear()
    for start in reversed(order):
        component: list[str] = []
        _finish(reverse, start, seen, component)
        if component:
            yield component


def _finish(graph: dict[str, list[str]], start: str, seen: set[str], order: list[str]) -> None:
    """Append the nodes that are reached from `start` and not yet seen, each after all that it reaches."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(graph[start]))]
    while stack:
        name, targets = stack[-1]
        target = next((each for each in targets if each not in seen), None)
        if target is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(target)
            stack.append((target, iter(graph[target])))


def complexity_of(function: Function) -> int:
    """Return the cyclomatic complexity as radon counts it: one, and one for each branch and boolean operand."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1
        if isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.Try) and node.orelse:
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        elif isinstance(node, ast.Lambda):
            count += 1
    return count


def large_functions(module: Module) -> Iterator[str]:
    """Name the functions that are too long, take too many arguments or branch too often, but for the exceptions."""
    for node in ast.walk(module.tree):
        if not isinstance(node, Function):
            continue
        if f"{module.name}:{node.name}" in EXCEPTIONS:
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        arguments = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
        measures = (
            (lines, LINES_MAX, "lines"),
            (arguments, PARAMETERS_MAX, "parameters"),
            (complexity_of(node), COMPLEXITY_MAX, "is its complexity"),
        )
        for value, limit, what in measures:
            if value > limit:
                yield f"{module.path}:{node.lineno}: {node.name}: {value} {what}, at most {limit}"


def weak_docstrings(module: Module) -> Iterator[str]:
    """Name the docstrings that begin with a pronoun or a relative word: nobody can read them without the body."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            text = ast.get_docstring(node)
            if text and WEAK_START.match(text):
                place = f"{module.path}:{getattr(node, 'lineno', 1)}"
                yield f"{place}: the docstring does not name its subject: {text.splitlines()[0][:60]!r}"


def retired_words(page: Path) -> set[str]:
    """Return the retired words of a page with a table of them: each row begins with one or more `words`."""
    rows = [line.split("|")[1] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`(\w+)`", row)}


def uses_of(module: Module, retired: set[str]) -> Iterator[str]:
    """Name the places where a retired word is an identifier."""
    if not any(word in module.source for word in retired):
        return  # reading its tokens takes ten times as long
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.NAME and token.string in retired:
            yield f"{module.path}:{token.start[0]}: {token.string!r} is a retired word, see tools/retired_words.md"


def late_imports(module: Module) -> Iterator[list[ast.stmt]]:
    """Yield the imports inside functions: those that follow each other directly are one group."""
    inside = {id(each) for node in ast.walk(module.tree) if isinstance(node, Function) for each in ast.walk(node)}
    for node in ast.walk(module.tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            for are_imports, group in groupby(statements if isinstance(statements, list) else [], _is_import):
                found = list(group)
                if are_imports and id(found[0]) in inside:
                    yield found


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def unexplained_imports(module: Module) -> Iterator[str]:
    """Name the groups of imports inside functions that have no comment, on one of their lines or on the line above."""
    groups = list(late_imports(module))
    if not groups:
        return  # reading its tokens takes ten times as long
    tokens = tokenize.generate_tokens(io.StringIO(module.source).readline)
    commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    for group in groups:
        first, last = group[0].lineno, group[-1].end_lineno or group[-1].lineno
        if commented.isdisjoint(range(first - 1, last + 1)):
            yield f"{module.path}:{first}: the import in a function does not say why it is not above"


def lines_of_code(module: Module) -> int:
    """Count the lines that hold code: no blank line, comment or docstring."""
    documentation: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
            documentation.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def findings(package: Path, retired_page: Path) -> list[str]:
    """Return every finding about the package, one line each."""
    modules = modules_of(package)
    found = [*large_folders(modules, package), *import_cycles(modules)]
    retired = retired_words(retired_page)
    for module in modules:
        found += [*large_functions(module), *weak_docstrings(module), *unexplained_imports(module)]
        found += uses_of(module, retired)
    known = {
        f"{module.name}:{node.name}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    }
    return found + [f"EXCEPTIONS: there is no {name}" for name in EXCEPTIONS if name not in known]


def measures(package: Path) -> dict[str, int]:
    """Return the figures by which two versions of the package are compared; lines are all lines of its Python files."""
    modules = modules_of(package)
    rooms, folders = Counter[str](), Counter[Path]()
    for module in modules:
        room = module.path.relative_to(package).parts[0]
        rooms[room if not room.endswith(".py") else "(root)"] += module.source.count("\n")
        folders[module.path.parent] += 1
    macro = [each.source.count("\n") for each in modules if (package / "sim/macro") in each.path.parents]
    functions = [node for module in modules for node in ast.walk(module.tree) if isinstance(node, Function)]
    return {
        "lines of the product": sum(rooms.values()),
        **{f"lines of {room}": rooms[room] for room in sorted(rooms)},
        "lines of sim/macro": sum(macro),
        "modules": len(modules),
        "modules of the largest folder": max(folders.values()),
        "imports in functions": sum(len(group) for module in modules for group in late_imports(module)),
        "functions": len(functions),
        "lines of code": sum(map(lines_of_code, modules)),
        "functions over complexity 15": sum(complexity_of(function) > 15 for function in functions),
        f"functions over complexity {COMPLEXITY_MAX}": sum(complexity_of(each) > COMPLEXITY_MAX for each in functions),
        "parameters of the widest function": max(
            len(each.args.posonlyargs) + len(each.args.args) + len(each.args.kwonlyargs) for each in functions
        ),
        "import cycles": sum(1 for _ in import_cycles(modules)),
    }


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    if "--measure" in sys.argv[1:]:
        for name, value in measures(root / "flowdist").items():
            print(f"{name}: {value:,}")
        return 0
    found = findings(root / "flowdist", root / "tools/retired_words.md")
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(found)} findings" if found else "the house is in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
