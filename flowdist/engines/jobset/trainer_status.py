"""Progress of a job for Kubeflow Trainer, which shows it in `status.trainerStatus` of the TrainJob.

Trainer (feature TrainJobStatus) tells the controller's pod an address, a token and a certificate. A thread posts there,
so that the run never waits. Percentages are not known before the end: nobody tells flowdist the number of steps.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from flowdist.control.job.state import JobState
from flowdist.record.journal import Record

URL, CERTIFICATE, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
EVERY_S = 10.0  # Trainer asks for 5 s or more between two posts
ANSWER_S = 5.0


class Observer(Protocol):
    """A spectator of the job, as the supervisor knows it."""

    def hear(self, record: Record) -> None:
        """Handle the next record of the journal."""

    def look(self, job: JobState, now: int) -> None:
        """Handle the present state of the job at `now`, its time in ns."""


class TrainerStatus:
    """Observer that reports a run's progress to the Kubeflow Trainer in `env`, and serves a second one, `beside`."""

    def __init__(
        self, env: Mapping[str, str], show: Callable[[Literal["warning"], str], None], beside: Observer | None
    ) -> None:
        self._env, self._show, self._beside = env, show, beside
        self._latest: dict[str, Any] = {}
        self._failure = self._shown = ""  # why the last post has failed, and what of it was shown
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, name="trainer status", daemon=True)
        self._thread.start()

    def hear(self, record: Record) -> None:
        """Hand the record on."""
        if self._beside is not None:
            self._beside.hear(record)

    def look(self, job: JobState, now: int) -> None:
        """Note the progress of the job. This never waits."""
        if self._beside is not None:
            self._beside.look(job, now)
        self._latest = progress(job)
        if self._failure and not self._shown:
            self._show("warning", f"Kubeflow Trainer takes no progress: {self._failure}")
        self._shown = self._failure

    def close(self, job: JobState) -> None:
        """Report the last progress of the job, which is over. Waits ANSWER_S at most."""
        self._latest = progress(job)
        self._over.set()
        self._thread.join(ANSWER_S)

    def _report(self) -> None:
        """Report every EVERY_S, and once more at the end."""
        is_over = False
        while not is_over:
            is_over = self._over.wait(EVERY_S)
            if self._latest:
                try:
                    post(self._env, self._latest)
                    self._failure = ""
                except (OSError, ValueError) as error:  # ValueError: the address is none
                    self._failure = str(error)


def progress(job: JobState) -> dict[str, Any]:
    """Return the status of a job for Trainer: the furthest step of each role that reports some, restarts, incidents."""
    steps = {name: max(job.worlds[world].step for world in role.worlds) for name, role in job.roles.items()}
    restarts = sum(replica.restarts for replica in job.replicas.values())
    figures = {f"{name}_step": step for name, step in steps.items() if step >= 0}
    figures |= {"restarts": restarts, "incidents": len(job.incidents)}
    status: dict[str, Any] = {"metrics": [{"name": name, "value": str(value)} for name, value in figures.items()]}
    if job.outcome == "succeeded":
        status |= {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
    return status


def post(env: Mapping[str, str], status: Mapping[str, Any]) -> None:
    """Post a status to Trainer's server; ValueError if the address is none.

    OSError if it does not answer in time or refuses it, or token or certificate cannot be read.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    headers = {"Content-Type": "application/json"}
    with contextlib.suppress(KeyError):
        headers["Authorization"] = f"Bearer {Path(env[TOKEN]).read_text().strip()}"  # it is replaced now and then
    data = json.dumps({"trainerStatus": {**status, "lastUpdatedTime": now}}).encode()
    request = urllib.request.Request(env[URL], data, headers, method="POST")
    context = ssl.create_default_context(cafile=env.get(CERTIFICATE)) if env[URL].startswith("https:") else None
    with urllib.request.urlopen(request, timeout=ANSWER_S, context=context):
        pass
