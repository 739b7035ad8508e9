"""The program kubectl, which carries out the orders of the engine with the rights of the user who calls it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from flowdist.engines.interface import EngineFailed

PATIENCE_S = 30.0  # for one call; the API server may be busy
SECRETS = ("FLOWDIST_TOKEN", "FLOWDIST_HOST_SECRET")  # which plugins of kubectl need not see


def kubectl(words: Sequence[str], text: str = "") -> str:
    """Run kubectl and return its output.

    Args:
        words: Its arguments.
        text: Its standard input.

    Raises:
        EngineFailed: kubectl is missing, does not end in time, or ends with another code than 0.
    """
    env = {name: value for name, value in os.environ.items() if name not in SECRETS}
    command = ["kubectl", *words]
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            env=env,
            check=False,
        )
    except FileNotFoundError:
        raise EngineFailed("kubectl is not on the path", help="install it, and log in to the cluster") from None
    except subprocess.TimeoutExpired:
        raise EngineFailed(f"kubectl {words[0]} has not answered for {PATIENCE_S:.0f} s") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise EngineFailed(f"kubectl {words[0]} ended with exit code {done.returncode}: {said}")
    return done.stdout


def kubectl_items(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects that `kubectl get ... --output=json` lists.

    Raises:
        EngineFailed: kubectl fails, or answers something else.
    """
    text = kubectl([*words, "--output=json"])
    try:
        items = json.loads(text)["items"]
        if not all(isinstance(item["metadata"]["name"], str) for item in items):
            raise TypeError("an object without a name")
    except (ValueError, TypeError, KeyError, LookupError) as error:
        raise EngineFailed(f"kubectl {words[0]} has not answered with a list of objects: {error!r}") from None
    return list(items)
