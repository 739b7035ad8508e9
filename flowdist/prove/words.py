"""A proof in words, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from flowdist.prove.compare import ROUNDING, Finding
from flowdist.prove.proving import Proof


def opening(proof: Proof) -> str:
    """Return the line that says what the script does."""
    saves = len(proof.watched.saves)
    calls = len(proof.watched.saves[0].places) if proof.watched.saves else 0
    steps = proof.watched.steps
    parts = [f"{proof.workers} worker{'s' * (proof.workers != 1)}"]
    parts.append(f"{steps} steps" if steps else "no step of an optimizer was seen")
    none = "no save is seen" if proof.coarse else "no file is written that a restart reads"
    parts.append(f"{saves} saves of {calls} file calls" if saves else none)
    return f"{proof.script}: {', '.join(parts)}: {len(proof.points)} points"


def notes(proof: Proof) -> Iterator[str]:
    """Yield what a user has to know before the points are tried."""
    if proof.coarse:
        yield (
            f"points are coarser here: {proof.coarse}; workers are killed at steps, commits and reads, and never "
            "inside a save, so that no torn save is found"
        )
    for name in proof.left_alone:
        yield f"{name} of your folder is left alone: each run begins without it"
    if proof.uneven:
        yield (
            f"two runs without a fault are not equal: {proof.uneven}; values are not compared, "
            "only samples and how the job ends (seed every generator for more)"
        )
    if not proof.watched.saved:
        yield "a restart reads nothing of what the script has written"
    steps = [step for attempts in proof.watched.clean.attempts.values() for step in attempts[0].steps]
    if any(step.gradients for step in steps) and not any(step.samples for step in steps):
        yield "no DataLoader of torch is used: which samples a step uses is not seen, only what comes of them"


def of_finding(finding: Finding, again: str) -> list[str]:
    """Return the lines of a finding; `again` is the command that shows it again."""
    place = f" ({finding.place})" if finding.place else ""
    return [
        f"FOUND  {finding.kind}: {finding.text}{place}",
        f"       help: {finding.help}",
        f"       again: {again}",
    ]


def unsteady(proof: Proof) -> Iterator[str]:
    """Yield what was found once, and not when the same point was played again."""
    for point, finding in proof.unsteady:
        yield f"seen once, and not again at {point.name}: {finding.kind}: {finding.text}"


def verdict(proof: Proof) -> str:
    """Return the last line: how many points were tried and what came of them."""
    count = len(proof.tried)
    s = "s" * (count != 1)
    missed = sum(not tried.came for tried in proof.tried)
    bad = sum(bool(tried.findings) for tried in proof.tried)
    text = f"{count} point{s} tried in {proof.seconds:.0f} s: "
    text += f"{len(proof.found)} found, at {bad} point{'s' * (bad != 1)}" if bad else "nothing found"
    if missed:
        text += f"; {missed} not reached, because the run went another way"
    if proof.skipped:
        text += f"; {proof.skipped} left out"
        text += f" (seed {proof.seed}; another --seed takes others of them)" if proof.seed is not None else ""
    return text


def fine(proof: Proof) -> str:
    """Return which sorts of points have shown nothing, with how many there were."""
    tried = Counter(each.point.about for each in proof.tried)
    bad = {each.point.about for each in proof.tried if each.findings}
    good = [f"{about} ({count})" for about, count in tried.items() if about not in bad]
    return f"ok     {', '.join(good)}" if good else ""


def rounding(proof: Proof) -> str:
    """Return what was not compared to the bit, because it cannot be the same."""
    if not proof.rounds:
        return ""
    return (
        "three or more ranks sum up gradients in another order after a restart: losses were compared to "
        f"{ROUNDING:g} of their value, gradients and saved files not (--tolerance sets this)"
    )


def as_dict(proof: Proof, again: Callable[[str], str]) -> dict[str, Any]:
    """Return a proof for --json. `again` makes the command that plays a point again, from its name."""
    return {
        "script": proof.script,
        "workers": proof.workers,
        "steps": proof.watched.steps,
        "saves": [{"step": save.step, "calls": len(save.places)} for save in proof.watched.saves],
        "saved": sorted(proof.watched.saved),
        "uneven": proof.uneven,
        "coarse": proof.coarse,
        "rounds": proof.rounds,
        "left_alone": list(proof.left_alone),
        "points": [point.name for point in proof.points],
        "seed": proof.seed,
        "skipped": proof.skipped,
        "unsteady": [{**finding._asdict(), "point": point.name} for point, finding in proof.unsteady],
        "seconds": round(proof.seconds, 3),
        "found": [
            {**finding._asdict(), "help": finding.help, "point": tried.point.name, "again": again(tried.point.name)}
            for tried, finding in proof.found
        ],
        "tried": [
            {
                "point": tried.point.name,
                "came": tried.came,
                "seconds": round(tried.seconds, 3),
                "found": [finding.kind for finding in tried.findings],
            }
            for tried in proof.tried
        ],
    }
