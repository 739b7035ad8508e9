"""A fake kubectl for tests, with a cluster of one JobSet controller behind it: a real program on the path.

    kubectl.py install FOLDER        makes the program in FOLDER; it keeps its state in FOLDER/jobsets

The pod of a JobSet starts at once: it is a real process with the command of its manifest, in a session of its own. The
fake knows JobSets of one pod, which is all that the engine makes. A file `FOLDER/away` makes it fail as if the API
server were down.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

KIND = "jobset.jobset.x-k8s.io"
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"


def install(folder: Path) -> None:
    """Make the program in the folder."""
    (folder / "jobsets").mkdir(parents=True)
    program = folder / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-S", __file__, str(folder)])} "$@"\n')
    program.chmod(0o755)


class Cluster:
    """The state of the fake, in files: for each JobSet its document, the process id of its pod, and its exit code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "jobsets"

    def create(self, document: dict[str, Any]) -> str:
        metadata = document["metadata"]
        name = f"{metadata['generateName']}{len(list(self.folder.glob('*.json'))) + 1:05}"
        metadata["name"] = name
        stem = self.folder / name
        stem.with_suffix(".json").write_text(json.dumps(document))
        (job,) = document["spec"]["replicatedJobs"]
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        pod = f"{shlex.join(container['command'])} & echo $! > {stem}.pid; wait $!; echo $? > {stem}.code"
        with stem.with_suffix(".log").open("ab") as log:
            subprocess.Popen(
                ["sh", "-c", pod], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        while not (pid := stem.with_suffix(".pid")).exists() or not pid.read_text().strip():
            pass
        return name

    def code(self, name: str) -> int | None:
        file = self.folder / f"{name}.code"
        return int(file.read_text()) if file.exists() and file.read_text().strip() else None

    def kill(self, name: str, number: int) -> None:
        if self.code(name) is None:
            os.kill(int((self.folder / f"{name}.pid").read_text()), number)

    def jobsets(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.folder.glob("*.json")):
            document = json.loads(path.read_text())
            code = self.code(path.stem)
            if path.with_suffix(".deleted").exists():
                if code is not None:
                    continue  # its pod is gone, and it with that
                document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            elif code is not None:
                state = "Failed" if code else "Completed"
                document["status"] = {
                    "terminalState": state,
                    "conditions": [{"type": state, "message": f"code {code}"}],
                }
            found.append(document)
        return found

    def pods(self, selector: str) -> list[dict[str, Any]]:
        _, _, wanted = selector.partition("=")
        names = [each["metadata"]["name"] for each in self.jobsets()]
        return [
            {
                "metadata": {"name": f"{name}-member-0-0-abcde", "labels": {NAME_LABEL: name}},
                "spec": {"nodeName": "machine1"},
                "status": {"phase": "Running" if self.code(name) is None else "Succeeded"},
            }
            for name in names
            if wanted in ("", name)
        ]


def main(cluster: Cluster, words: list[str]) -> int:
    selector = next((word.partition("=")[2] for word in words if word.startswith("--selector=")), "")
    match words[0], words[1]:
        case "create", _:
            print(f"{KIND}/{cluster.create(json.loads(sys.stdin.read()))}")
        case "get", "pods":
            print(json.dumps({"items": cluster.pods(selector)}))
        case "get", kind if kind == KIND:
            print(json.dumps({"items": cluster.jobsets()}))
        case "delete", kind if kind == KIND:
            if words[2] in [each["metadata"]["name"] for each in cluster.jobsets()]:
                (cluster.folder / f"{words[2]}.deleted").touch()
                cluster.kill(words[2], signal.SIGTERM)
        case "exec", pod:
            number = signal.Signals[f"SIG{words[-1].split()[1].lstrip('-')}"]
            cluster.kill(pod.removesuffix("-member-0-0-abcde"), number)
        case _:
            print(f"error: unknown command {words}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    where = Path(sys.argv[1])
    if (where / "away").exists():
        print("The connection to the server was refused", file=sys.stderr)
        sys.exit(1)
    sys.exit(main(Cluster(where), sys.argv[2:]))
