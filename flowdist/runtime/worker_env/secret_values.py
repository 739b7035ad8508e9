"""Secrets at run time: whether all of them are there before anything starts, and that what flowdist shows hides them.

Workers write straight into their log files, so those are theirs to keep clean; what goes through flowdist, to the
terminal and into the journal, is masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.runtime.worker_env.environment import SecretMissing, read_secret

HIDDEN = "***"
LINE_MIN = 4  # characters of a line of a longer value: a lone brace would hide every brace


def check_secrets(graph: RoleGraph, base: Mapping[str, str]) -> list[str]:
    """The values of all secrets.

    Args:
        base: The environment that workers inherit.

    Raises:
        FlowdistError: when one is missing; it names each with its role, variable and source.
    """
    values, missing = [], []
    for role in graph.roles:
        for secret in role.secrets:
            try:
                values.append(read_secret(secret, base))
            except SecretMissing as error:
                missing.append(f"role {role.name!r}: the secret {secret.name} has no value: {error}")
    if missing:
        raise FlowdistError("\n".join(missing), help="provide it where flowdist runs; the value is never written down")
    return values


class Mask:
    """Hides values in text, also as JSON writes them; of a value with several lines, each line too."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._words: dict[str, None] = {}
        self.learn(values)

    def learn(self, values: Iterable[str]) -> None:
        """These are to be hidden from now on."""
        for value in values:
            lines = [line.strip() for line in value.splitlines()]
            for word in [value, *(line for line in lines if len(line) >= LINE_MIN)]:
                for spelling in (word, json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1]):
                    self._words[spelling] = None
        longest_first = sorted(self._words, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(word) for word in longest_first))

    def __call__(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._words else text
