"""Translation of a command line of torchrun: a topology with one role, the output on the terminal, and notes.

Every problem is reported at once. Options without effect are accepted, and listed in one note.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.dsl.oneline import name_from, written_on_the_command_line
from flowdist.dsl.problems.places import CLI
from flowdist.dsl.problems.problem import Problems, TopologyProblems, did_you_mean
from flowdist.dsl.read.commands import INTERPRETERS
from flowdist.dsl.read.fields import NAME, RESERVED
from flowdist.dsl.topology import Topology
from flowdist.dsl.words import Node, Restart
from flowdist.errors import FlowdistError
from flowdist.torchrun.conf import DEAD_TIMERS, KNOWN, PLACES, TIMERS, as_duration, entries_of, pair_of
from flowdist.torchrun.options import BY_KEY, OPTIONS, Given
from flowdist.torchrun.output import BITS, Streams
from flowdist.torchrun.rendezvous import (
    NO,
    YES,
    Rendezvous,
    conf_of,
    host_of,
    is_this_machine,
    meets_others,
    rendezvous_of,
)
from flowdist.torchrun.variables import idle_variables

BACKENDS = ("c10d", "static")
NODES_MAX, PROCS_MAX = 1000, 10_000
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
# Options without effect on one host.
ALONE = ("rdzv_backend", "rdzv_endpoint", "master_addr", "master_port", "node_rank", "local_addr")
ONE_MACHINE = "one host is asked for"
OUTAGE = "30s"  # how long several hosts keep their workers without a controller


class Launch(NamedTuple):
    """The job that a command line of torchrun describes."""

    topology: Topology
    streams: Streams
    run_id: str  # empty: the user gave none
    log_dir: str  # empty: the user gave none
    notes: tuple[str, ...]  # for the user, about options without effect and the like
    rendezvous: Rendezvous | None = None  # None: all nodes are on this machine
    store_endpoint: str = ""  # where the stores listen, as HOST:PORT; empty: each at a port of its own


def settle(given: Given, env: Mapping[str, str], gpus: Sequence[str], cpus: int) -> Launch:
    """Translate a command line of torchrun into a topology with one role, for this machine.

    TopologyProblems has all options that cannot be read or honoured.
    """
    settler = _Settler(given, env, gpus, cpus)
    launch = settler.settle()
    if problems := settler.problems.sorted():
        raise TopologyProblems(problems, where="on the command line")
    return launch


class _Settler:
    """Translator of one command line. It adds each problem to `problems` and goes on, so that all are reported."""

    def __init__(self, given: Given, env: Mapping[str, str], gpus: Sequence[str], cpus: int) -> None:
        self._given, self._values, self._spelled, self._env = given, given.values, given.spelled, env
        self._gpus, self._cpus = gpus, cpus
        self.problems = Problems()
        self._notes: list[str] = []
        self._idle: list[str] = []  # given options without effect

    def settle(self) -> Launch:
        """Return the job that all options describe; it must not be used if `problems` has anything at the end."""
        low, high = self._nodes()
        self._meets_others = meets_others(self._given, high)
        logical = 1 if self._meets_others else high  # nodes on this machine
        procs = self._procs(logical)
        self._check_rendezvous()
        self._check_plug_ins()
        rendezvous = self._check_hosts(high)
        fields = self._command()
        variables, run_id = self._variables()
        streams = self._streams(procs)
        role_name = self._role_name()
        name = name_from(self._given.script if not self._values["module"] else self._given.script.rpartition(".")[2])
        binds = self._binds(logical, procs)
        shares = (logical > 1 or binds) and logical * procs <= len(self._gpus)
        nodes = [Node(gpu=procs if shares else 0) for _ in range(high)]
        outage = OUTAGE if rendezvous is not None else "10m"
        topology = Topology(name, nodes=nodes if high > 1 or binds else None, controller_outage=outage)
        restarts = self._whole("max_restarts", least=0, most=10**9) or 0
        topology.role(
            role_name,
            replicas=f"{low}:{high}x{procs}",
            gpu=procs if shares else None,
            apart=high > 1,
            numa="node" if shares and binds else None,
            virtual_local_rank=bool(self._values["virtual_local_rank"]),
            env=variables,
            workdir=str(Path.cwd()),
            restart=Restart("role", max_restarts=restarts, backoff="0s") if restarts else None,
            **fields,
            **self._times(),
        )
        log_dir = self._log_dir()
        self._add_notes(logical)
        notes = tuple(self._notes)
        launched = written_on_the_command_line(topology)
        return Launch(launched, streams, run_id, log_dir, notes, rendezvous, self._store_endpoint())

    def _refuse(self, key: str, why: str, help: str) -> None:
        """Add the problem that an option, which can be read, cannot be honoured."""
        words = self._spelled.get(key, BY_KEY[key].names[-1])
        self.problems.error("FD150", f"{words} cannot be honoured: {why}", help, CLI)

    def _unreadable(self, key: str, why: str, help: str) -> None:
        """Add the problem that the value of an option is invalid."""
        self.problems.error("FD151", f"{self._spelled.get(key, BY_KEY[key].names[-1])}: {why}", help, CLI)

    def _whole(self, key: str, least: int, most: int) -> int | None:
        """Return an option as a whole number; None if not given, or, with a problem, not from `least` to `most`."""
        text = self._values[key].strip()
        if not text:
            return None
        name = BY_KEY[key].names[-1]
        if not re.fullmatch(r"[+-]?\d{1,12}", text):
            self._unreadable(key, f"{text!r} is not a whole number", f"write {name} {max(least, 1)}")
        elif not least <= int(text) <= most:
            self._unreadable(key, f"it must be {least} to {most}", f"write {name} {max(least, 1)}")
        else:
            return int(text)
        return None

    def _seconds(self, key: str, text: str, what: str) -> str | None:
        """Return seconds as a duration of the DSL; None, with a problem that names `what`, if it is no number."""
        if (duration := as_duration(text)) is None:
            self._unreadable(key, f"{text!r} is not a number of seconds", f"write {what}=30, or leave it out")
        return duration

    def _nodes(self) -> tuple[int, int]:
        text = self._values["nnodes"]
        match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text.strip())
        if match is None:
            self._unreadable("nnodes", f"{text!r} is neither N nor MIN:MAX", "write --nnodes 2 or --nnodes 1:4")
            return 1, 1
        low, high = int(match[1]), int(match[2] or match[1])
        if not 1 <= low <= high <= NODES_MAX:
            help = f"write 1 <= MIN <= MAX <= {NODES_MAX}, such as --nnodes 1:4"
            self._unreadable("nnodes", f"{text!r} is not a range of nodes", help)
            return 1, 1
        return low, high

    def _procs(self, nodes: int) -> int:
        text = self._values["nproc_per_node"].strip()
        if text == "cpu" or (text == "auto" and not self._gpus):
            return self._cpus
        if text in ("gpu", "auto"):
            if len(self._gpus) < nodes:
                why = f"this machine has {len(self._gpus)} GPUs for {nodes} node{'s' * (nodes > 1)}"
                self._refuse("nproc_per_node", why, "write a number, or cpu")
            return max(1, len(self._gpus) // nodes)
        if not re.fullmatch(r"[+-]?\d+", text):
            why = f"flowdist finds CPUs and NVIDIA GPUs, no {text!r}"
            self._refuse("nproc_per_node", why, "write a number, cpu, gpu or auto")
            return 1
        return self._whole("nproc_per_node", least=1, most=PROCS_MAX) or 1

    def _check_rendezvous(self) -> None:
        if self._values["rdzv_backend"] not in BACKENDS:
            why = "flowdist needs no rendezvous service: the host of --rdzv-endpoint runs the controller"
            self._refuse("rdzv_backend", why, f"leave it out, or write one of {', '.join(BACKENDS)}")
        for entry in entries_of(self._values["rdzv_conf"]):
            self._check_conf(entry)

    def _check_conf(self, entry: str) -> None:
        """Check one NAME=VALUE of --rdzv-conf: add a problem if it is wrong, a note if it has no effect."""
        name, value = pair_of(entry)
        is_no = value.lower() in NO
        if not value:
            self._unreadable("rdzv_conf", f"{entry!r} is not a NAME=VALUE", "write --rdzv-conf join_timeout=600")
        elif name not in KNOWN:
            self._unreadable("rdzv_conf", f"{name!r} is unknown", did_you_mean(name, KNOWN))
        elif name == "is_host" and not is_no and value.lower() not in YES:
            self._unreadable("rdzv_conf", f"is_host={value} is neither yes nor no", "write is_host=1 or is_host=0")
        elif name == "is_host" and is_no and not self._meets_others:
            self._refuse("rdzv_conf", f"{ONE_MACHINE}: no other runs the controller", "leave is_host out")
        elif name in DEAD_TIMERS or (name in PLACES and not self._meets_others):
            shown = "***" if name == "token" else value
            self._idle.append(f"{name}={shown} of --rdzv-conf")

    def _check_plug_ins(self) -> None:
        if self._values["event_log_handler"] != "null":
            why = "flowdist has no event handlers of torch; its events are in journal.jsonl"
            self._refuse("event_log_handler", why, "leave it out")
        if self._values["logs_specs"]:
            why = "a LogsSpecs plugs into torch's agent, which does not run here"
            self._refuse("logs_specs", why, "use --log-dir, -r and -t")
        if self._values["start_method"] not in BY_KEY["start_method"].choices:
            choices = ", ".join(BY_KEY["start_method"].choices)
            self._unreadable("start_method", "there is no such method", f"write one of {choices}")
        self._seconds("monitor_interval", self._values["monitor_interval"], "--monitor-interval")
        for name in filter(None, map(str.strip, self._values["signals_to_handle"].split(","))):
            if name not in SIGNALS:
                why = f"flowdist ends a job by {', '.join(SIGNALS)} and forwards no {name}"
                self._refuse("signals_to_handle", why, "leave it out, and send the signal to the workers yourself")

    def _binds(self, nodes: int, procs: int) -> bool:
        """Return whether --numa-binding asks for workers bound to the NUMA node of their GPU, or has a problem."""
        how = self._values["numa_binding"]
        if not how:
            return False
        if how != "node":
            why = f"flowdist binds workers to the NUMA node of their GPU, and not by {how!r}"
            self._refuse("numa_binding", why, "write --numa-binding node, or start workers with numactl by --no-python")
        elif nodes * procs > len(self._gpus):
            workers = f"{nodes * procs} workers" if nodes * procs > 1 else "1 worker"
            self._refuse("numa_binding", f"this machine has {len(self._gpus)} GPUs for {workers}", "leave it out")
        return True

    def _check_hosts(self, hosts: int) -> Rendezvous | None:
        """Check the options about hosts, and return the rendezvous; None: this host is the only one, or a problem."""
        rank = self._whole("node_rank", least=0, most=10**9)
        self._store_port = self._whole("master_port", least=0, most=65535) or 0
        local = self._values["local_addr"].strip("[]")
        if "local_addr" in self._spelled and not is_this_machine(local):
            why = f"{local} is not an address of this machine"
            self._refuse("local_addr", why, "name the one that the others reach")
        if self._meets_others:
            if rank is not None and rank >= hosts:
                why = f"--nnodes asks for {hosts} nodes, whose ranks are 0 to {hosts - 1}"
                self._unreadable("node_rank", why, f"write --node-rank {hosts - 1}")
            try:
                return rendezvous_of(self._given, self._env, hosts)
            except FlowdistError as error:
                self._unreadable("rdzv_endpoint", error.message, error.help)
            return None
        for key in ("rdzv_endpoint", "master_addr"):
            host = host_of(self._values[key]) if key == "rdzv_endpoint" else self._values[key].strip("[]")
            if key in self._spelled and not self._values["standalone"] and not is_this_machine(host):
                help = "leave it out, or ask for several nodes, --nnodes 2, and start this command on each host"
                self._refuse(key, f"{ONE_MACHINE}, and {host} is another", help)
        if rank:
            self._refuse("node_rank", ONE_MACHINE, "ask for several nodes, --nnodes 2, or leave --node-rank out")
        return None

    @property
    def _names_store(self) -> bool:
        """Whether --master-port names the port of the stores: torchrun's store listens there in the same cases."""
        values = self._values
        is_static = values["rdzv_backend"] == "static" and not values["rdzv_endpoint"] and not values["standalone"]
        return is_static and not self._meets_others and values["master_port"].strip() not in ("", "0")

    def _store_endpoint(self) -> str:
        """Return where the stores listen, if --master-port names their port.

        At all addresses of this machine, as torchrun's store, if --master-addr is not loopback.
        """
        host = self._values["master_addr"].strip("[]")
        is_loopback = host in ("", "localhost") or host.startswith("127.")
        return f"{'127.0.0.1' if is_loopback else '0.0.0.0'}:{self._store_port}" if self._names_store else ""

    def _command(self) -> dict[str, Any]:
        script, args = self._given.script, [for_worker(word) for word in self._given.args]
        if self._values["run_path"]:
            return {"command": [sys.executable, for_worker(script), *args]}
        if self._values["no_python"]:
            if self._values["module"]:
                self._unreadable("no_python", "it does not go with --module", "keep one of the two")
            program = shutil.which(script) or script if script in INTERPRETERS else script
            return {"command": [as_it_is(program), *args]}
        return {"module" if self._values["module"] else "script": for_worker(script), "args": args}

    def _variables(self) -> tuple[dict[str, str], str]:
        """Return the variables that torchrun sets otherwise than flowdist does, and the run id; empty: none given."""
        variables: dict[str, str] = {}
        if self._values["role"] != self._role_name():
            variables["ROLE_NAME"] = as_it_is(self._values["role"])
        run_id = "" if "rdzv_id" not in self._spelled or self._values["standalone"] else self._values["rdzv_id"]
        if run_id:
            variables["TORCHELASTIC_RUN_ID"] = as_it_is(run_id)
        return variables, run_id

    def _role_name(self) -> str:
        """Return the value of --role, changed as far as it is no valid name of a role."""
        name = self._values["role"]
        if not NAME.fullmatch(name):
            name = name_from(name) if name.strip() else "default"
        return f"{name}-role" if name in RESERVED or re.fullmatch(r"node\d+", name) else name

    def _times(self) -> dict[str, Any]:
        times: dict[str, Any] = {"grace": "30s"}
        patience = self._whole("shutdown_timeout", least=0, most=10**6)
        variable = self._env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")
        if patience is None and variable.isdecimal():
            patience = int(variable)
        if patience is not None:
            times |= {"grace": f"{patience}s", "stop_grace": f"{patience}s"}
        for name, value in conf_of(self._given):
            field = TIMERS.get(name)
            if field and (duration := self._seconds("rdzv_conf", value, f"--rdzv-conf {name}")):
                times[field] = duration
        return times

    def _streams(self, procs: int) -> Streams:
        ranks: set[int] = set()
        for word in filter(None, self._values["local_ranks_filter"].split(",")):
            if not word.strip().isdecimal():
                why = f"{word!r} is not a local rank"
                self._unreadable("local_ranks_filter", why, "write --local-ranks-filter 0,1")
            else:
                ranks.add(int(word))
        tee = self._masks("tee", procs)
        for stream, bit in BITS.items():
            key = f"duplicate_{stream}_filters"
            if self._values[key] and not any(mask & bit for mask in tee.values()):
                self._notes.append(f"{self._spelled[key]} finds nothing: no {stream} is tee'd (-t)")
        template = self._values["log_line_prefix_template"]
        if template and not any(tee.values()):
            self._notes.append(f"{self._spelled['log_line_prefix_template']} changes nothing: no stream is tee'd (-t)")
        return Streams(
            redirects=self._masks("redirects", procs),
            tee=tee,
            ranks=frozenset(ranks),
            filters={stream: comma_separated(self._values[f"duplicate_{stream}_filters"]) for stream in BITS},
            role_name=self._values["role"],
            prefix=template or self._env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or "[${role_name}${local_rank}]:",
        )

    def _masks(self, key: str, procs: int) -> dict[int, int]:
        """Return the masks of -r or -t by local rank: `3` for all `procs`, `0:1,1:2` for 0 and 1; none if malformed."""
        text = self._values[key].strip()
        if re.fullmatch(r"[0-3]", text):
            return dict.fromkeys(range(procs), int(text))
        if not re.fullmatch(r"\d{1,5}:[0-3](,\d{1,5}:[0-3])*", text):
            name = BY_KEY[key].names[0]
            help = f"write {name} 3, or {name} 0:1,1:2 (0 none, 1 stdout, 2 stderr, 3 both)"
            self._unreadable(key, f"{text!r} cannot be read", help)
            return {}
        return {int(rank): int(mask) for rank, _, mask in (pair.partition(":") for pair in text.split(","))}

    def _log_dir(self) -> str:
        text = self._values["log_dir"]
        if text == "/dev/null":
            note = "the folder of the run, under runs/, keeps the logs all the same"
            self._notes.append(f"{self._spelled['log_dir']}: {note}")
            return ""
        if text and Path(text).is_file():
            self._unreadable("log_dir", "it is a file", "name a folder")
        return text

    def _add_notes(self, nodes: int) -> None:
        """Add a note that lists the given options without effect, if any; and one if this machine has several nodes."""
        idle = [self._spelled[option.key] for option in OPTIONS if self._is_idle(option.key)] + self._idle
        idle += idle_variables(self._env, "TORCHELASTIC_") + idle_variables(self._env, "TORCH_ELASTIC_")
        if idle:
            self._notes.append(f"these change nothing here: {', '.join(idle)} (docs/torchrun.md says why)")
        if nodes > 1:
            note = f"the {nodes} nodes are logical nodes of this machine: start this command once"
            self._notes.append(f"{note} (or name an --rdzv-endpoint, and start it on each host)")
        if (name := self._role_name()) != self._values["role"] and "role" in self._spelled:
            note = f"messages and folders call the role {name}: they take lower-case letters, digits, - and _"
            self._notes.append(note)

    def _is_idle(self, key: str) -> bool:
        if key not in self._spelled:
            return False
        if key == "rdzv_id":
            return bool(self._values["standalone"])
        if key in ("master_addr", "master_port") and self._names_store:
            return False
        static = self._values["rdzv_backend"] == "static"
        if self._meets_others and key in ("rdzv_backend", "rdzv_endpoint", "local_addr"):
            return False
        if self._meets_others and static and key in ("master_addr", "master_port", "node_rank"):
            return key != "node_rank" and bool(self._values["rdzv_endpoint"])
        return BY_KEY[key].stance == "no effect" or key in (*ALONE, "event_log_handler")


def comma_separated(text: str) -> tuple[str, ...]:
    """Return the texts of a filter, split at commas as torchrun does: two commas stand for a comma in a text."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.strip().replace("\0", ",") for part in parts if part.strip())


def as_it_is(word: str) -> str:
    """Return a word with every `${` escaped, so that flowdist expands no macro in it."""
    return word.replace("${", "${$}{")


def for_worker(word: str) -> str:
    """Translate torchrun's macros in an argument to flowdist's, and escape everything else that looks like a macro.

    `$local_rank` and `${local_rank}` become flowdist's macro for the worker's local rank, `$$` becomes a dollar.
    """
    marked = re.sub(r"\$(\$|local_rank(?![A-Za-z0-9_])|\{local_rank\})", lambda m: "$" if m[1] == "$" else "\0", word)
    return as_it_is(marked).replace("\0", "${local_rank}")
