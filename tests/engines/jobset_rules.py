"""Rules of JobSet's admission webhook and of Kubernetes that no user of an export can break."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from flowdist.engines.jobset.yaml_text import Document

RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
RULE_NAME_MAX = 128
REASONS = ("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy")
ONE_JOB = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
REPLICAS_MAX = 1024  # with an action that restarts one Job
INT32_MAX = (1 << 31) - 1
EXITS_MAX = 255  # values of one rule for exit codes
POD_RULES_MAX = 20


def own_mistakes(spec: Document) -> Iterator[str]:
    """Yield what is wrong with the spec of a JobSet, whatever the user has named or added."""
    jobs = spec["replicatedJobs"]
    names = [job["name"] for job in jobs]
    if len(set(names)) < len(names):
        yield "spec.replicatedJobs: two of them have one name"
    for job in jobs:
        where, inner = f"spec.replicatedJobs[{job['name']}]", job["template"]["spec"]
        if job["replicas"] * inner["parallelism"] > INT32_MAX:
            yield f"{where}: more than {INT32_MAX:,} pods"
        yield from _of_job(inner, where)
    yield from _targets(spec["successPolicy"], names, "spec.successPolicy")
    yield from _of_failure_policy(spec["failurePolicy"], names, jobs)


def _of_job(spec: Document, where: str) -> Iterator[str]:
    """Yield what is wrong with the policy of a Job for failed pods."""
    pod, rules = spec["template"]["spec"], spec["podFailurePolicy"]["rules"]
    if pod["restartPolicy"] not in ("Never", "OnFailure"):
        yield f"{where}: pods of a Job have the restart policy Never or OnFailure"
    if pod["restartPolicy"] != "Never":
        yield f"{where}: a policy for failed pods needs the restart policy Never"
    if spec["podReplacementPolicy"] != "Failed":
        yield f"{where}: a policy for failed pods needs the replacement policy Failed"
    yield from _pod_rules(rules, {each["name"] for each in pod["containers"]}, where)


def _pod_rules(rules: list[Document], containers: set[str], where: str) -> Iterator[str]:
    if len(rules) > POD_RULES_MAX:
        yield f"{where}: {len(rules)} rules for failed pods, at most {POD_RULES_MAX}"
    for i, rule in enumerate(rules):
        place = f"{where}: podFailurePolicy.rules[{i}]"
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield f"{place}: it needs one of onExitCodes and onPodConditions"
        exits = rule.get("onExitCodes", {})
        if exits and exits.get("containerName", "") not in (*containers, ""):
            yield f"{place}: there is no container {exits['containerName']!r}"
        values = exits.get("values", [1])
        if not 0 < len(values) <= EXITS_MAX or values != sorted(set(values)):
            yield f"{place}: exit codes stand once each, in order, and are 1 to {EXITS_MAX} in number"
        if exits.get("operator") == "In" and 0 in values:
            yield f"{place}: exit code 0 is no failure"


def _of_failure_policy(policy: Document, names: list[str], jobs: list[Document]) -> Iterator[str]:
    rules: list[Document] = policy.get("rules", [])
    seen: set[str] = set()
    for i, rule in enumerate(rules):
        place, name = f"spec.failurePolicy.rules[{i}]", rule["name"]
        if not RULE_NAME.fullmatch(name) or len(name) > RULE_NAME_MAX:
            yield f"{place}: {name!r} cannot name a rule"
        if name in seen:
            yield f"{place}: there are two rules {name!r}"
        seen.add(name)
        yield from _targets(rule, names, place)
        for reason in rule.get("onJobFailureReasons", ()):
            if reason not in REASONS:
                yield f"{place}: a Job never fails because of {reason!r}"
    if any(rule["action"] in ONE_JOB for rule in rules):
        for job in jobs:
            if job.get("replicas", 1) > REPLICAS_MAX:
                yield f"spec.replicatedJobs[{job['name']}]: restarts of one Job allow {REPLICAS_MAX:,} replicas at most"


def _targets(holder: dict[str, Any], names: list[str], place: str) -> Iterator[str]:
    for target in holder.get("targetReplicatedJobs", ()):
        if target not in names:
            yield f"{place}: there is no replicated Job {target!r}"
