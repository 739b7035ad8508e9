"""Options of the engine, `-o image=... -o namespace=...`: their names, defaults and forms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from flowdist.errors import FlowdistError, did_you_mean
from flowdist.graph import RoleGraph

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, as Kubernetes wants it for names of Services
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i?|k)?")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_MAX = 63
SUBDOMAIN_MAX = 253
RESTARTS_MAX = 1_000_000

Restarts = Literal["RestartJob", "Pod"]


class JobSetOptions(NamedTuple):
    """Options of one export; `name` is that of the JobSet and begins all other names; other empty texts stand for none.

    An empty `namespace` is that of the kubectl context, an empty `storage_class` the cluster's default. Key `token` of
    `token_secret` has the job's token; keys of `secret` are variables of `secrets=`. All members mount
    `checkpoint_claim`. `restart` is JobSet's RestartJob, with `member_restarts` for all members together, or Pod, with
    as many for each. `controller_restarts` count failures of the controller's pod.
    """

    image: str
    name: str
    namespace: str = ""
    workdir: str = "/workspace"
    token_secret: str = ""
    secret: str = ""
    journal_size: str = "1Gi"
    storage_class: str = ""
    checkpoint_claim: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    queue: str = ""
    image_pull_secret: str = ""
    restart: Restarts = "RestartJob"
    member_restarts: int = 100
    controller_restarts: int = 6
    pod_template: str = ""


def read_options(words: Sequence[str], graph: RoleGraph) -> JobSetOptions:
    """Return the options of an export to JobSet from `KEY=VALUE` texts after -o; the last one of a key counts.

    The graph's name is the default of `name`. FlowdistError, with all of them, if options are unknown, missing or
    malformed.
    """
    given = {key: (equals, value) for key, equals, value in (word.partition("=") for word in words)}
    wrong = [f"-o {key}{''.join(given[key])}: {why}" for key in given if (why := _why_wrong(key, *given[key]))]
    values = {key: value for key, (_, value) in given.items()}
    if not values.get("image"):
        wrong.append("-o image=IMAGE is missing: a container image with flowdist and the files of the topology")
    if wrong:
        raise FlowdistError("; ".join(wrong), help="docs/kubernetes.md describes all options of --to jobset")
    name = values.get("name", graph.name.replace("_", "-"))
    texts: dict[str, str] = {"token_secret": f"{name}-token", "secret": f"{name}-secrets", **values}
    numbers = {key: int(texts.pop(key)) for key in _NUMBERS if key in texts}
    return JobSetOptions(**{**texts, "name": name}, **numbers)  # type: ignore[arg-type]


_NUMBERS = ("member_restarts", "controller_restarts")
_NAMES = ("token_secret", "secret", "storage_class", "checkpoint_claim", "image_pull_secret", "queue")


def _why_wrong(name: str, equals: str, value: str) -> str:
    """Return what is wrong with an option and its value; empty if nothing is."""
    if name not in JobSetOptions._fields:
        return f"there is no such option, {did_you_mean(name, JobSetOptions._fields)}"
    if not equals:
        return "it has no value"
    if name in _NUMBERS:
        is_number = value.isdecimal() and len(value) < 8 and int(value) <= RESTARTS_MAX
        return "" if is_number else f"not a number from 0 to {RESTARTS_MAX:,}"
    if name in ("name", "namespace"):
        is_label = DNS_LABEL.fullmatch(value) and len(value) <= LABEL_MAX
        return "" if is_label else "not a name of lower case letters, digits and hyphens that begins with a letter"
    if name in _NAMES:
        is_name = SUBDOMAIN.fullmatch(value) and len(value) <= SUBDOMAIN_MAX
        return "" if is_name else "not the name of an object of Kubernetes (lower case letters, digits, `-` and `.`)"
    return _why_wrong_text(name, value)


def _why_wrong_text(name: str, value: str) -> str:
    """Return what is wrong with the value of an option that is neither a number nor a name."""
    if name == "restart":
        return "" if value in get_args(Restarts) else f"neither {' nor '.join(get_args(Restarts))}"
    if name == "workdir":
        is_folder = value.startswith("/") and not re.search(r"[\s:]|/\.\.?(/|$)", value)
        return "" if is_folder else "not an absolute path without spaces, `:` and `..`"
    if name == "journal_size":
        return "" if QUANTITY.fullmatch(value) else "not a size such as 1Gi"
    if name == "gpu_resource":
        return why_no_label_key(value)
    return "" if value and not re.search(r"\s", value) else "empty, or with a space"


def why_no_label_key(key: str) -> str:
    """Return why a text cannot be the key of a label, or the name of a resource, of Kubernetes; empty if it can."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (SUBDOMAIN.fullmatch(prefix) and len(prefix) <= SUBDOMAIN_MAX):
        return f"{prefix!r} before the / is no DNS name"
    return "" if LABEL_NAME.fullmatch(name) else f"{name!r} is not 1 to 63 letters, digits, `-`, `_` and `.`"


def why_no_label_value(value: str) -> str:
    """Return why a text cannot be the value of a label of Kubernetes; empty if it can."""
    return "" if not value or LABEL_NAME.fullmatch(value) else "not at most 63 letters, digits, `-`, `_` and `.`"
