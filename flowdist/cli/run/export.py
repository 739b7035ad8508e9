"""`flowdist export`: a job as files for another system, which starts it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowdist.cli.shared.common import load, print_json, problems_json, show_problems, verb, write
from flowdist.cli.shared.options import TopologyOptions, repeated, topology_options

if TYPE_CHECKING:
    from flowdist.dsl.load import Loaded
    from flowdist.dsl.problems.problem import Problem
    from flowdist.engines.jobset.options import JobSetOptions

FORMATS = ("jobset",)


@verb("export")
@topology_options
@click.option("--to", "form", required=True, type=click.Choice(FORMATS), help="jobset: manifests for Kubernetes.")
@repeated("-o", "words", metavar="KEY=VALUE", help="An option of the export, such as image=...: docs/kubernetes.md.")
@click.option("--file", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE (default: stdout).")
def command(named: TopologyOptions, form: str, words: tuple[str, ...], file: str | None) -> None:
    """Write a job as manifests, which kubectl applies.

    \b
    flowdist export --to jobset -o image=registry.example/job:1 | kubectl apply --server-side -f -
    flowdist export jobs.py --to jobset -o image=job:1 -o namespace=team --file job.yaml

    What JobSet cannot honour is reported at its place in the topology, all at once; exit code 2 if there is an error.
    """
    from flowdist.engines.jobset.manifests import documents, manifest_text  # msgspec and the DSL: not needed by --help
    from flowdist.engines.jobset.options import read_options

    loaded = load(named)
    options = read_options(words, loaded.graph, needs_image=True)
    warnings = _problems(loaded, options)
    if named.as_json:
        problems = problems_json([*loaded.warnings, *warnings])
        print_json("manifests", to=form, documents=documents(loaded.graph, options), problems=problems)
        return
    show_problems(warnings)
    text = manifest_text(loaded.graph, options)
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
    from flowdist.dsl.problems.problem import TopologyProblems  # as above
    from flowdist.engines.interface import Topic
    from flowdist.engines.jobset.manifests import documents
    from flowdist.engines.jobset.problems import problems
    from flowdist.engines.jobset.webhook import objections
    from flowdist.errors import FlowdistError

    topic = Topic(loaded.graph, loaded.arguments)
    has_claim = bool(options.checkpoint_claim)
    found = problems(topic, options.name, has_checkpoint_claim=has_claim)
    if any(problem.severity == "error" for problem in found):
        raise TopologyProblems(found)
    if wrong := objections(documents(loaded.graph, options)):
        raise FlowdistError("a cluster would refuse the manifests: " + "; ".join(wrong), help="choose other names")
    return found
