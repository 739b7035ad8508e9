"""All cases, and the page of the evidence that has them."""

from __future__ import annotations

from collections import Counter

from tests.peers import agent, errors, launcher, processes, torchx
from tests.peers.case import Case

CASES: list[Case] = [*launcher.CASES, *agent.CASES, *processes.CASES, *errors.CASES, *torchx.CASES]
HERE = {"passes": "passes", "refused": "refused by design", "differs": "differs"}

PAGE = """# The tests of PyTorch and TorchX

This page shows what PyTorch's own tests of torchrun, and TorchX's own tests of its components, say about flowdist. Each
row is one of their tests, told again with the same inputs and assertions. Read it if you move a job to flowdist and
rely on a detail of torchrun.

`python -m tests.peers` plays all cases, `python -m tests.peers --quick` those that start no process, and
`--case NAME` one of them. `make test` plays the quick ones, `make test-all` all.

* *passes*: what their test asserts holds here.
* *refused by design*: flowdist ends with an error that gives the reason, and starts nothing.
* *differs*: flowdist does something else, which the row says.

{counts}

Left out are tests of classes inside torch and TorchX that flowdist does not have: mocks of the agent, the state of the
c10d rendezvous, the client of etcd, the timer server, the metrics, and schedulers.
"""


def markdown() -> str:
    """Return the page."""
    lines = [PAGE.format(counts=_counts())]
    for peer in dict.fromkeys(case.peer for case in CASES):
        lines += [f"## {peer}", "", "| their test | what it asserts | here |", "|---|---|---|"]
        lines += [f"| {case.test} | {_cell(case.what)} | {_here(case)} |" for case in CASES if case.peer == peer]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _counts() -> str:
    found = Counter(case.stance for case in CASES)
    passes, refused, differs = (found[stance] for stance in HERE)
    return f"Of {len(CASES)} cases, {passes} pass, {refused} are refused by design, and {differs} differ."


def _here(case: Case) -> str:
    if not case.line:
        return HERE[case.stance]
    page, words = page_and_words(case)
    return f"{HERE[case.stance]}: [{page}](../{page}): “{_cell(words)}”"


def page_and_words(case: Case) -> tuple[str, str]:
    """Return the path of the page of a case, and the words on it that say what happens."""
    page, _, words = case.line.partition(": ")
    return page, words


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
