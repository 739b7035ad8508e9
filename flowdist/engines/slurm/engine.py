"""The engine that submits each member as a Slurm job of one node."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from flowdist.control.fleet.values import Launch, Pool, Seen
from flowdist.dsl.problems.problem import Problem
from flowdist.engines.interface import Engine, EngineFailed, Topic
from flowdist.engines.pools import pools_of
from flowdist.engines.slurm import limits
from flowdist.engines.slurm.commands import call, drained, left_out, seen
from flowdist.engines.slurm.options import SlurmOptions, read_options
from flowdist.engines.slurm.script import controller_script, directives, job_name, script
from flowdist.graph import RoleGraph

LOG = "%x-%j.out"  # in the folder of logs: name and number of the job


class Slurm(Engine):
    """Slurm as an engine; a reference is the number of a job.

    `workdir`, where commands run, and the folders for output have the same paths on all hosts.
    """

    name = "slurm"

    def __init__(self, options: SlurmOptions, workdir: str) -> None:
        self._options, self._workdir, self.notice_ns = options, workdir, options.notice_ns

    @classmethod
    def find_problems(cls, topic: Topic, words: Sequence[str]) -> list[Problem]:
        """Return what Slurm, with these options, cannot honour of a topology."""
        return limits.find_problems(topic, read_options(words, [role.name for role in topic.graph.roles]))

    @classmethod
    def employ(cls, words: Sequence[str], roles: Sequence[str], folder: str) -> Engine:
        """Return Slurm with these options."""
        return cls(read_options(words, roles), folder)

    def pools(self, graph: RoleGraph) -> list[Pool]:
        """Return the pools of members: one for each role with options of its own, and one for all others."""
        return pools_of(graph, self._options.of_roles, self._options.shared)

    def script(self, launch: Launch) -> str:
        """Return the batch script of a member; EngineFailed if Slurm does not say which nodes `nodelist` leaves out."""
        options = self._options.of_pool(launch.pool)
        asked = directives(
            job_name(launch.title), options, folder=self._workdir, log=f"{launch.logs}/{LOG}",
            cpu=launch.size.cpu, gpu=launch.size.gpu, memory=launch.size.memory,
            avoid=list(dict.fromkeys([*left_out(options.get("nodelist", "")), *launch.avoid])),
            requeue=self._options.requeue, notice_ns=self.notice_ns,
        )  # fmt: skip
        return script(asked, launch.command, setup=options.get("setup", ""))

    def controller_script(self, title: str, command: Sequence[str], logs: str) -> str:
        """Return the script of a job that runs the controller, which submits the members, if `-o controller=job`."""
        if self._options.controller != "job":
            return ""
        own = self._options.of_controller()
        asked = directives(
            job_name(title), own, folder=str(Path.cwd()), log=f"{logs}/{LOG}", cpu=1, gpu=0, memory=0,
            avoid=left_out(own.get("nodelist", "")), requeue=True, notice_ns=self.notice_ns,
        )  # fmt: skip
        return controller_script(asked, command, setup=own.get("setup", ""))

    def start_controller(self, script: str) -> str:
        """Submit the job of a controller, and return its number."""
        answer = call(["sbatch", "--parsable"], script).strip().partition(";")[0]
        if not answer.isdecimal():
            raise EngineFailed(f"sbatch has answered {answer!r}, which is no number of a job")
        return answer

    def own_job(self) -> str:
        """Return the number of the job in which this process runs."""
        return os.environ.get("SLURM_JOB_ID", "0")

    def submit(self, launch: Launch) -> str:
        """Submit the job of a member and return its number."""
        return self.start_controller(self.script(launch))

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
