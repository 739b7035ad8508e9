"""The program kubectl, which carries out the orders of the engine with the rights of the user who calls it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from flowdist.engines.interface import EngineFailed
from flowdist.engines.programs import output_of


def kubectl(words: Sequence[str], text: str = "") -> str:
    """Run kubectl and return its output.

    Args:
        words: Its arguments.
        text: Its standard input.

    Raises:
        EngineFailed: kubectl is missing, does not end in time, or ends with another code than 0.
    """
    help = "install it, and log in to the cluster"
    return output_of(["kubectl", *words], f"kubectl {words[0]}", os.environ, text, help=help)


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
