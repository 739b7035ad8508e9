"""Values of secrets: all are checked before anything of a run starts, and masked in texts that flowdist writes.

Texts that flowdist writes to the terminal and into the journal are masked. Workers write straight into their log files,
which flowdist does not change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.runtime.worker_env.environment import SecretMissing, read_secret

HIDDEN = "***"
LINE_MIN = 4  # characters: a shorter line of a long value, such as a lone brace, would hide every brace


def check_secrets(graph: RoleGraph, base: Mapping[str, str]) -> list[str]:
    """Return the secrets' values from `base`; FlowdistError names all that are missing, with role and source."""
    found = list(read_secrets(graph, base))
    if missing := [f"role {role!r}: the secret {name} has no value: {why}" for role, name, _, why in found if why]:
        help = "set the source where flowdist runs; the value is never written to a file"
        raise FlowdistError("\n".join(missing), help=help)
    return [value for _, _, value, _ in found]


def read_secrets(graph: RoleGraph, base: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each secret of the graph its role, its name, its value, and why it has none: one of these is empty."""
    for role in graph.roles:
        for secret in role.secrets:
            try:
                yield role.name, secret.name, read_secret(secret, base), ""
            except SecretMissing as error:
                yield role.name, secret.name, "", str(error)


class Mask:
    """Function from a text to the same text with secret values replaced by `***`.

    Of a value with several lines, each line of at least LINE_MIN characters is replaced by itself too. Values and lines
    are also found in the spelling that they have in JSON.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._words: dict[str, None] = {}
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Replace these values too from now on. Values that are known already change nothing."""
        for value in values:
            lines = [line.strip() for line in value.splitlines()]
            for word in [value, *(line for line in lines if len(line) >= LINE_MIN)]:
                for spelling in (word, json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1]):
                    self._words[spelling] = None
        longest_first = sorted(self._words, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(word) for word in longest_first))

    def __call__(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._words else text

    def cut(self, text: str, at: int) -> int:
        """Return where to cut a text, at most at `at`, so that no value is cut in two that would then not be found.

        A value that begins the text and reaches beyond `at` is kept whole: the cut is at its end.
        """
        for found in self._pattern.finditer(text) if self._words else ():
            if found.start() < at < found.end():
                return found.start() or found.end()
        return at
