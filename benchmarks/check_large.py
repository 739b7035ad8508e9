"""CPU time of `flowdist check` of a large topology, as a whole process: 200 roles, 10,000 replicas, 500 nodes.

    python benchmarks/check_large.py [--runs 5] [--keep FILE]

The file is written out, call by call, as a generator of topologies would write it: gates in three layers, a domain for
every ten roles, ports, addresses, policies with rules. It has no problem, so that every check runs to its end.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROLES, REPLICAS, NODES = 200, 10_000, 500
LAYERS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", metavar="FILE", help="write the topology here and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(options.keep or Path(folder, "topology.py")).resolve()
        file.write_text(topology())
        command = [sys.executable, "-m", "flowdist", "check", str(file)]
        seconds = []
        for _ in range(options.runs):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(done.stdout, end="")
    print(
        f"whole process: median {statistics.median(seconds):.3f} s of CPU (max {max(seconds):.3f}, {len(seconds)} runs)"
    )


def topology() -> str:
    """The text of the file."""
    lines = ["from flowdist import Node, On, Restart, Topology", "", "nodes = ["]
    lines += [
        f'    Node("host{i}", cpu=64, gpu=8, memory="512GiB", labels={{"rack": "{i // 20}"}}),' for i in range(NODES)
    ]
    lines += ["]", 't = Topology("large", nodes=nodes)']
    for i in range(ROLES):
        lines += role(i)
    for first in range(0, ROLES, 10):
        members = ", ".join(f"r{i}" for i in range(first, first + 10))
        lines.append(f't.restart_together("domain{first // 10}", {members})')
    return "\n".join(lines) + "\n"


def role(i: int) -> list[str]:
    """The statement of one role: the first layer serves, the others wait for several roles of the layer before."""
    layer = i * LAYERS // ROLES
    above = [j for j in range(i - 60, i - 60 + 6) if j >= 0 and j * LAYERS // ROLES == layer - 1]
    gates = ", ".join(f'r{j}.{"ready" if layer == 1 else "started"}(on_restart="restart")' for j in above)
    addresses = "".join(f', r{j}.addresses("rpc")' for j in above)
    kind = 'kind="service", state="checkpoint", ready_when="tcp:rpc"' if layer == 0 else 'kind="task"'
    return [
        f"r{i} = t.role(",
        f'    "role{i}", ["true", "--port", "${{self.port:rpc}}"{addresses}],',
        f'    {kind}, replicas="{REPLICAS // ROLES}", cpu=2, memory="4GiB", gpu=0, ports=["rpc", "metrics"],',
        f'    depends_on=[{gates}], env={{"LAYER": "{layer}", "OUT": "${{checkpoint_dir}}"}},',
        '    restart=Restart("domain", max_restarts=5, within="1h", rules=[',
        '        On("oom", do="fail"), On(exit=2, do="fail"), On("node_lost", count=False),',
        "    ]),",
        ")",
    ]


if __name__ == "__main__":
    main()
