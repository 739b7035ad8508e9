"""Times of recorded runs for the simulations of a test: measure them, and give them to a topology."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flowdist.dsl import Topology
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.record.journal import Header, Line
from flowdist.record.reader import JOURNAL, read_whole_lines
from flowdist.sim.calibration import calibration as measuring
from flowdist.sim.calibration.calibration import Calibration
from flowdist.sim.calibration.file import read_calibration
from flowdist.sim.calibration.observe import observe
from flowdist.testing.kit import graph_of


def calibrate(*runs: str | Path) -> Calibration:
    """Measure the times of the workers in the records of runs.

    Args:
        runs: Folders of runs, journals, or traces; at least one.

    Returns:
        The times of each role: `roles["trainer"].fields` has those of its workload, in ns, `measured` the
        distributions behind them, and `unknown` what the runs do not show.

    Raises:
        FlowdistError: No run is named, a file cannot be read, or a line of it cannot be used.
    """
    if not runs:
        raise FlowdistError("calibrate() has no run", help='name one: calibrate("runs/latest")')
    return measuring.calibrate([observe(*_read(Path(run))) for run in runs])


def _read(path: Path) -> tuple[Header, list[Line]]:
    file = path / JOURNAL if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise FlowdistError(f"{file} cannot be read: {error.strerror}", help="name the folder of a run") from None
    lines = read_whole_lines(data, str(file))[0]
    if not lines or not isinstance(lines[0], Header):
        raise FlowdistError(f"{file} has no header", help="name the folder of a run")
    return lines[0], lines[1:]


def calibrated(
    topology: str | Path | Topology | RoleGraph,
    times: str | Path | Calibration,
    params: Mapping[str, object] | None = None,
) -> RoleGraph:
    """Compile a topology for simulation, with measured times in the workloads of its roles.

    Args:
        topology: As for `simulate`.
        times: What `calibrate` returned, or the path of a workload.toml that `flowdist calibrate` has written.
        params: Arguments for the function `topology` of the file.

    Raises:
        FlowdistError: The file cannot be read or has problems, or a role of it is not in the topology.
        TopologyProblems: The topology has errors.
    """
    graph = graph_of(topology, params)
    found = times if isinstance(times, Calibration) else read_calibration(Path(times))
    unknown = [name for name in found.roles if name not in [role.name for role in graph.roles]]
    if unknown:
        help = "name the topology of the runs"
        raise FlowdistError(f"the topology has no role {', '.join(map(repr, unknown))}, which was measured", help=help)
    return measuring.calibrated(graph, found)
