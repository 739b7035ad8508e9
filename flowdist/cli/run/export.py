"""`flowdist export`: a job as files for another system, which starts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowdist.cli.shared.common import load, print_json, problems_json, show_problems, verb, write
from flowdist.cli.shared.options import TopologyOptions, repeated, topology_options
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.engines.interface import Topic
from flowdist.engines.jobset.manifests import JOBSET_VERSION, documents, manifest_text
from flowdist.engines.jobset.options import JobSetOptions, read_options
from flowdist.engines.jobset.problems import problems
from flowdist.engines.jobset.trainjob import TRAINER_VERSION, objections_of_trainer, trainjob_documents
from flowdist.engines.jobset.webhook import objections
from flowdist.errors import FlowdistError

if TYPE_CHECKING:
    from flowdist.dsl.load import Loaded

FORMATS = ("jobset", "trainjob")


@verb("export")
@topology_options
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice(FORMATS),
    help="Manifests for Kubernetes: of JobSet, or Kubeflow Trainer.",
)
@repeated("-o", "words", metavar="KEY=VALUE", help="An option of the export, such as image=...: docs/kubernetes.md.")
@click.option("--file", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE (default: stdout).")
def command(named: TopologyOptions, form: str, words: tuple[str, ...], file: str | None) -> None:
    """Write a job as manifests, which kubectl applies.

    \b
    flowdist export --to jobset -o image=registry.example/job:1 | kubectl apply --server-side -f -
    flowdist export jobs.py --to jobset -o image=job:1 -o namespace=team --file job.yaml

    What the cluster cannot honour is reported at its place in the topology, all at once; exit code 2 for an error.
    """
    loaded = load(named, by_engine=True)
    options = read_options(words, loaded.graph, needs_image=True)
    warnings = _problems(loaded, options)
    found, system = documents(loaded.graph, options), f"JobSet {JOBSET_VERSION}"
    if form == "trainjob":
        found, system = trainjob_documents(loaded.graph, options), f"Kubeflow Trainer {TRAINER_VERSION}"
        _refuse(list(objections_of_trainer(found)))
    if named.as_json:
        problems = problems_json([*loaded.warnings, *warnings])
        print_json("manifests", to=form, documents=found, problems=problems)
        return
    show_problems(warnings)
    text = manifest_text(loaded.graph, options, found, form, system)
    if file is None:
        click.echo(text, nl=False)
    else:
        write(Path(file), text.encode())


def _problems(loaded: Loaded, options: JobSetOptions) -> list[Problem]:
    """Return the warnings about a topology on JobSet.

    Raises:
        TopologyProblems: JobSet cannot honour a part of the topology.
        FlowdistError: A cluster would refuse the manifests.
    """
    topic = Topic(loaded.graph, loaded.arguments)
    has_claim = bool(options.checkpoint_claim)
    found = problems(topic, options.name, has_checkpoint_claim=has_claim)
    if any(problem.severity == "error" for problem in found):
        raise TopologyProblems(found)
    _refuse(objections(documents(loaded.graph, options)))
    return found


def _refuse(objections: Sequence[str]) -> None:
    """Raise the error for manifests that a cluster would refuse, if there are objections."""
    if objections:
        help = "choose other names, or change the pod template"
        raise FlowdistError("a cluster would refuse the manifests: " + "; ".join(objections), help=help)
