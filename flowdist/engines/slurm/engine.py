"""The engine that submits each member as a Slurm job of one node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from flowdist.control.fleet.values import Launch, Seen
from flowdist.engines.interface import EngineFailed
from flowdist.engines.slurm.commands import call, drained, left_out, seen
from flowdist.engines.slurm.options import SlurmOptions
from flowdist.engines.slurm.script import directives, script

LOG = "%x-%j.out"  # in the folder of logs: name and number of the job


class Slurm:
    """Slurm as an engine; a reference is the number of a job.

    `workdir`, where commands run, and `logs`, for output, have the same paths on all hosts.
    """

    name = "slurm"

    def __init__(self, options: SlurmOptions, workdir: str, logs: str) -> None:
        self._options, self._workdir, self._logs = options, workdir, logs

    def script(self, launch: Launch) -> str:
        """Return the batch script of a member; EngineFailed if Slurm does not say which nodes `nodelist` leaves out."""
        options = self._options.of_pool(launch.pool)
        asked = directives(
            launch.title, options, folder=self._workdir, log=f"{self._logs}/{LOG}",
            cpu=launch.size.cpu, gpu=launch.size.gpu, memory=launch.size.memory,
            avoid=list(dict.fromkeys([*left_out(options.get("nodelist", "")), *launch.avoid])),
            requeue=self._options.requeue, notice_ns=self._options.notice_ns,
        )  # fmt: skip
        return script(asked, launch.command, setup=options.get("setup", ""))

    def submit(self, launch: Launch) -> str:
        """Submit the job of a member and return its number."""
        answer = call(["sbatch", "--parsable"], self.script(launch)).strip().partition(";")[0]
        if not answer.isdecimal():
            raise EngineFailed(f"sbatch has answered {answer!r}, which is no number of a job")
        return answer

    def cancel(self, reference: str) -> None:
        """Cancel a job: flowdist gets SIGTERM in it, and Slurm kills what is left after its KillWait."""
        self._order(["scancel", "--quiet", reference], reference)

    def signal(self, reference: str, signal: str) -> None:
        """Send a signal to the flowdist process of a job that runs."""
        self._order(["scancel", "--quiet", "--batch", f"--signal={signal}", reference], reference)

    def _order(self, words: list[str], reference: str) -> None:
        """Run scancel, which fails without a word if the job is over already."""
        try:
            call(words)
        except EngineFailed:
            if self.observe([reference])[reference].phase != "ended":
                raise

    def observe(self, references: Iterable[str]) -> Mapping[str, Seen]:
        """Return the jobs as squeue shows them, with what sinfo says of their nodes."""
        numbers = list(references)
        found: dict[str, Seen] = {}
        for line in _listed(numbers).splitlines():
            number, state, host, reason, *_ = [*line.split("|", 3), "", "", ""]
            found[number] = seen(state, host, reason)
        empty = drained({each.host for each in found.values() if each.phase == "running" and each.host})
        for number, each in found.items():
            if each.phase == "running" and each.host in empty:
                found[number] = msgspec.structs.replace(each, is_host_drained=True)
        return {number: found.get(number, Seen("ended")) for number in numbers}


def _listed(numbers: list[str]) -> str:
    """Return the lines of squeue for these jobs, over or not; a job that Slurm has forgotten has none."""
    if not numbers:
        return ""
    try:
        return call(["squeue", "--noheader", "--states=all", f"--jobs={','.join(numbers)}", "--format=%i|%T|%N|%r"])
    except EngineFailed as error:
        if "Invalid job id" in error.message:  # what squeue says if it knows none of them
            return ""
        raise
