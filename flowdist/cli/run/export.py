"""`flowdist export`: a job as files for another system, which starts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from flowdist.cli.shared.common import load, print_json, problems_json, show_problems, verb, write
from flowdist.cli.shared.options import TopologyOptions, repeated, topology_options
from flowdist.dsl.problems.problem import TopologyProblems
from flowdist.engines.interface import Topic
from flowdist.engines.jobset.manifests import JOBSET_VERSION, documents, manifest_text
from flowdist.engines.jobset.options import read_options
from flowdist.engines.jobset.problems import objections, problems
from flowdist.engines.jobset.trainjob import TRAINER_VERSION, objections_of_trainer, trainjob_documents
from flowdist.errors import FlowdistError

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
    options = read_options(words, loaded.graph)
    topic, has_claim = Topic(loaded.graph, loaded.arguments), bool(options.checkpoint_claim)
    warnings = problems(topic, options.name, has_checkpoint_claim=has_claim)
    if any(problem.severity == "error" for problem in warnings):
        raise TopologyProblems(warnings)
    found, system = documents(loaded.graph, options), f"JobSet {JOBSET_VERSION}"
    _refuse(objections(found))
    if form == "trainjob":
        found, system = trainjob_documents(loaded.graph, options), f"Kubeflow Trainer {TRAINER_VERSION}"
        _refuse(list(objections_of_trainer(found)))
    if named.as_json:
        every = problems_json([*loaded.warnings, *warnings])
        print_json("manifests", to=form, documents=found, problems=every)
        return
    show_problems(warnings)
    text = manifest_text(loaded.graph, options, found, form, system)
    if file is None:
        click.echo(text, nl=False)
    else:
        write(Path(file), text.encode())


def _refuse(found: Sequence[str]) -> None:
    """Raise the error for manifests that a cluster would refuse, if there are objections."""
    if found:
        help = "choose other names, or change the pod template"
        raise FlowdistError("a cluster would refuse the manifests: " + "; ".join(found), help=help)
