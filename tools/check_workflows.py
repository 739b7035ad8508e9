"""Check workflow files for GitHub Actions: those of this repository, and those that `flowdist new` writes.

    python tools/check_workflows.py [FILE...]

Each finding is one line with its place; the exit code is 1 if there is any. A file is compared with the documented
syntax of workflows, level by level: an unknown key, a missing one, a wrong kind of value, a job or a step that is named
and not there, an expression that does not close, a shell script that bash cannot parse, a target that the Makefile does
not have. Files that run on nobody's machine before they are pushed have no other test.

Needs PyYAML, which flowdist has.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "flowdist/projects/templates"
SCALAR, NUMBER, FLAG, ANY = "text", "number", "true or false", "any"


class Words(NamedTuple):
    """A scalar that is one of these words."""

    words: tuple[str, ...]


class Items(NamedTuple):
    """A list of values of one kind."""

    of: Spec


class Keys(NamedTuple):
    """A mapping with these keys, of which some are required; `others` is the kind of values below other names."""

    known: Mapping[str, Spec]
    required: tuple[str, ...] = ()
    others: Spec | None = None


class Either(NamedTuple):
    """A value of the first kind that fits its form: scalar, list or mapping."""

    specs: tuple[Spec, ...]


Spec = str | Words | Items | Keys | Either


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


EVENTS = _words("""
    branch_protection_rule check_run check_suite create delete deployment deployment_status discussion
    discussion_comment fork gollum issue_comment issues label merge_group milestone page_build public pull_request
    pull_request_review pull_request_review_comment pull_request_target push registry_package release
    repository_dispatch schedule status watch workflow_call workflow_dispatch workflow_run
""")
SCOPES = _words("""
    actions attestations checks contents deployments discussions id-token issues models packages pages pull-requests
    security-events statuses
""")
CONTEXTS = _words("github env vars job jobs steps runner secrets strategy matrix needs inputs true false null")
FUNCTIONS = _words("""
    contains startsWith endsWith format join toJSON fromJSON hashFiles success always cancelled failure
""")

NAMES = Keys({}, others=SCALAR)
TEXTS = Either((SCALAR, Items(SCALAR)))
SHELL = Keys({"run": Keys({"shell": SCALAR, "working-directory": SCALAR})})
CONCURRENCY = Either((SCALAR, Keys({"group": SCALAR, "cancel-in-progress": FLAG}, ("group",))))
PERMISSIONS = Either(
    (Words(("read-all", "write-all")), Keys({scope: Words(("read", "write", "none")) for scope in SCOPES}))
)
FILTERS: Mapping[str, Spec] = dict.fromkeys(
    _words("branches branches-ignore tags tags-ignore paths paths-ignore types"), TEXTS
)
EVENT: Mapping[str, Spec] = {
    "schedule": Items(Keys({"cron": SCALAR, "timezone": SCALAR}, ("cron",))),
    "workflow_dispatch": Keys({"inputs": ANY}),
    "workflow_call": Keys({"inputs": ANY, "outputs": ANY, "secrets": ANY}),
    "workflow_run": Keys({**FILTERS, "workflows": TEXTS}, ("workflows",)),
}
CONTAINER = Keys(
    {
        "image": SCALAR,
        "credentials": Keys({"username": SCALAR, "password": SCALAR}),
        "env": NAMES,
        "ports": Items(SCALAR),
        "volumes": Items(SCALAR),
        "options": SCALAR,
    },
    ("image",),
)
STEP = Keys(
    {
        "id": SCALAR,
        "if": SCALAR,
        "name": SCALAR,
        "uses": SCALAR,
        "run": SCALAR,
        "working-directory": SCALAR,
        "shell": SCALAR,
        "with": NAMES,
        "env": NAMES,
        "continue-on-error": FLAG,
        "timeout-minutes": NUMBER,
    }
)
JOB = Keys(
    {
        "name": SCALAR,
        "permissions": PERMISSIONS,
        "needs": TEXTS,
        "if": SCALAR,
        "runs-on": Either((SCALAR, Items(SCALAR), Keys({"group": SCALAR, "labels": TEXTS}))),
        "environment": Either((SCALAR, Keys({"name": SCALAR, "url": SCALAR}, ("name",)))),
        "concurrency": CONCURRENCY,
        "outputs": NAMES,
        "env": NAMES,
        "defaults": SHELL,
        "steps": Items(STEP),
        "timeout-minutes": NUMBER,
        "strategy": Keys({"matrix": ANY, "fail-fast": FLAG, "max-parallel": NUMBER}, ("matrix",)),
        "continue-on-error": FLAG,
        "container": Either((SCALAR, CONTAINER)),
        "services": Keys({}, others=CONTAINER),
    },
    ("runs-on", "steps"),
)
WORKFLOW = Keys(
    {
        "name": SCALAR,
        "run-name": SCALAR,
        "on": Either(
            (
                Words(EVENTS),
                Items(Words(EVENTS)),
                Keys({event: EVENT.get(event, Keys(FILTERS)) for event in EVENTS}),
            )
        ),
        "permissions": PERMISSIONS,
        "env": NAMES,
        "defaults": SHELL,
        "concurrency": CONCURRENCY,
        "jobs": Keys({}, others=JOB),
    },
    ("on", "jobs", "permissions"),  # without `permissions` a workflow may have the right to write
)


def findings(path: Path, targets: Iterable[str] = ()) -> list[str]:
    """Return what is wrong with a workflow file, each with file and line.

    Args:
        path: The file.
        targets: The targets that `make` has where the workflow runs; none: a call of make is not checked.
    """
    text = path.read_text(encoding="utf-8")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        return [f"{path}: {' '.join(str(error).split())}"]
    if not isinstance(root, yaml.MappingNode):
        return [f"{path}: a workflow is a mapping"]
    found = [*_compared(root, WORKFLOW, "the workflow")]
    found = found or [
        *_jobs(root, set(targets))
    ]  # what refers to other parts can be read if all parts are as they should
    found += _expressions(root)
    return [f"{path}:{line}: {what}" for line, what in sorted(set(found))]


Finding = tuple[int, str]


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _compared(node: yaml.Node, spec: Spec, name: str) -> Iterator[Finding]:
    """Yield what differs between a value and its documented kind."""
    if spec == ANY:
        return
    if isinstance(spec, Either):
        spec = next((each for each in spec.specs if _has_form(node, each)), spec.specs[0])
    if not _has_form(node, spec):
        yield _line(node), f"{name} is a {_form(node)}, and has to be {_wanted(spec)}"
    elif isinstance(spec, Items):
        for item in node.value:
            yield from _compared(item, spec.of, f"an item of {name}")
    elif isinstance(spec, Keys):
        yield from _keys(node, spec, name)
    else:
        yield from _scalar(node, spec, name)


def _keys(node: yaml.Node, spec: Keys, name: str) -> Iterator[Finding]:
    seen = set[str]()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        word = str(key.value)
        if word in seen:
            yield _line(key), f"{name} has {word!r} twice"
        seen.add(word)
        kind = spec.known.get(word, spec.others)
        if kind is None:
            yield _line(key), f"{name} has no key {word!r}; it may have {', '.join(spec.known)}"
        elif not (_is_empty(value) and isinstance(kind, Keys) and not kind.required):  # `pull_request:` alone
            yield from _compared(value, kind, f"{word!r} of {name}" if word in spec.known else f"{word!r}")
    for word in spec.required:
        if word not in seen:
            yield _line(node), f"{name} has no {word!r}"


def _scalar(node: yaml.Node, spec: str | Words, name: str) -> Iterator[Finding]:
    text = str(node.value)
    if "${{" in text:
        return
    if isinstance(spec, Words):
        if text not in spec.words:
            yield _line(node), f"{name} is {text!r}, and has to be one of {', '.join(spec.words)}"
    elif spec == NUMBER and not re.fullmatch(r"[1-9]\d*", text):
        yield _line(node), f"{name} is {text!r}, and has to be a number"
    elif spec == FLAG and text not in ("true", "false"):
        yield _line(node), f"{name} is {text!r}, and has to be true or false"
    elif node.tag.endswith(":float"):  # 3.10 would be 3.1
        yield _line(node), f"{name} is the number {text}: write it in quotation marks"
    elif not text.strip():
        yield _line(node), f"{name} is empty"


def _has_form(node: yaml.Node, spec: Spec) -> bool:
    if isinstance(spec, Either):
        return any(_has_form(node, each) for each in spec.specs)
    if isinstance(spec, Items):
        return isinstance(node, yaml.SequenceNode)
    return isinstance(node, yaml.MappingNode if isinstance(spec, Keys) else yaml.ScalarNode)


def _form(node: yaml.Node) -> str:
    return {yaml.MappingNode: "mapping", yaml.SequenceNode: "list"}.get(type(node), "single value")


def _wanted(spec: Spec) -> str:
    if isinstance(spec, Items):
        return "a list"
    return "a mapping" if isinstance(spec, Keys) else "a single value"


def _is_empty(node: yaml.Node) -> bool:
    return bool(node.tag.endswith(":null"))


def _below(node: yaml.Node, *path: str) -> yaml.Node | None:
    """Return the value below these keys; None if there is none."""
    for word in path:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        found = next((value for key, value in pairs if key.value == word), None)
        if found is None:
            return None
        node = found
    return node


def _jobs(root: yaml.Node, targets: set[str]) -> Iterator[Finding]:
    """Yield what the jobs refer to and is not there, and steps that cannot run."""
    jobs = _below(root, "jobs")
    assert jobs is not None
    names = {key.value for key, _ in jobs.value}
    for key, job in jobs.value:
        needs = _below(job, "needs")
        for need in [] if needs is None else [needs] if isinstance(needs, yaml.ScalarNode) else needs.value:
            if need.value not in names - {key.value}:
                yield _line(need), f"{key.value!r} needs {need.value!r}, which is no other job"
        if _below(job, "timeout-minutes") is None:
            yield _line(key), f"{key.value!r} has no 'timeout-minutes': a job that hangs would run for six hours"
        steps, matrix = _below(job, "steps"), _matrix(job)
        for step in steps.value if steps is not None else ():
            yield from _step(step, matrix, targets)


def _matrix(job: yaml.Node) -> dict[str, str]:
    """Return the values of each name of a job's matrix, with spaces between them."""
    matrix = _below(job, "strategy", "matrix")
    pairs = matrix.value if isinstance(matrix, yaml.MappingNode) else ()
    lists = {key.value: value.value for key, value in pairs if isinstance(value, yaml.SequenceNode)}
    return {name: " ".join(str(item.value) for item in items) for name, items in lists.items()}


def _step(step: yaml.Node, matrix: Mapping[str, str], targets: set[str]) -> Iterator[Finding]:
    uses, run = _below(step, "uses"), _below(step, "run")
    if (uses is None) == (run is None):
        yield _line(step), "a step has either 'uses' or 'run'"
    if uses is not None and not re.fullmatch(r"(\./\S+|[\w.-]+(/[\w.-]+)+@[\w./-]+|docker://\S+)", uses.value):
        yield _line(uses), f"'uses' is {uses.value!r}, and has to be OWNER/NAME@VERSION, ./FOLDER or docker://IMAGE"
    if uses is None and _below(step, "with") is not None:
        yield _line(step), "'with' goes with 'uses'"
    if run is not None:
        script = re.sub(r"\$\{\{\s*matrix\.([\w-]+)\s*\}\}", lambda found: matrix.get(found[1], "unknown"), run.value)
        script = re.sub(r"\$\{\{.*?\}\}", "expression", script)
        for what in _script(script, targets):
            yield _line(run), what


def _script(script: str, targets: set[str]) -> Iterator[str]:
    parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    if parsed.returncode:
        yield f"bash cannot parse {script!r}: {parsed.stderr.strip()}"
    for words in re.findall(r"(?:^|&&|;)\s*make ([^\n;&|]*)", script, re.M):
        for word in words.split():
            if targets and re.fullmatch(r"\w[\w.-]*", word) and word not in targets:
                yield f"the Makefile has no target {word!r}"


def _expressions(node: yaml.Node) -> Iterator[Finding]:
    """Yield expressions that do not close, or speak of an unknown context or function."""
    if not isinstance(node, yaml.ScalarNode):
        for part in node.value:
            for each in part if isinstance(part, tuple) else (part,):
                yield from _expressions(each)
        return
    text = node.value
    whole = re.findall(r"\$\{\{(.*?)\}\}", text, re.DOTALL)
    if text.count("${{") != len(whole):
        yield _line(node), f"an expression of {text!r} does not close"
    for expression in whole:
        plain = re.sub(r"'[^']*'", "''", expression)
        for name, called in re.findall(r"(?<![\w.'-])([A-Za-z_][\w-]*)\s*(\()?", plain):
            if name not in (FUNCTIONS if called else CONTEXTS):
                yield _line(node), f"{name!r} in {expression.strip()!r} is no {'function' if called else 'context'}"


def targets_of(makefile: Path) -> set[str]:
    """Return the targets of a Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):", makefile.read_text(encoding="utf-8"), re.M))


def main(words: list[str]) -> int:
    """Print the findings about the named files, by default all workflows of the repository and of its templates."""
    found = []
    for path in [Path(word) for word in words] or [*sorted((ROOT / ".github/workflows").glob("*.y*ml")), *templates()]:
        own = path.is_relative_to(ROOT / ".github") if path.is_absolute() else not words
        found += findings(path, targets_of(ROOT / "Makefile") if own else ())
    for line in found:
        print(line)
    if not found:
        print("the workflow files are in order")
    return 1 if found else 0


def templates() -> list[Path]:
    """Return the workflow files that `flowdist new` writes."""
    return sorted(TEMPLATES.rglob("github/workflows/*"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
