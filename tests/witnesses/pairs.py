"""Random pairs of a topology and a plan of faults, drawn from a seed and a number.

A topology has a gang of trainers, and perhaps services that they ask at each step, an evaluator and tasks beside them.
Most faults come after a checkpoint, so that they hit the same moment of the job however fast the machine is.

A random plan seldom shows a back-off, clients that wait for their service, or a world that grows again: each of these
takes two things that fit together, and lasts no longer than the noise. So every third pair is *pointed*: a job and a
plan in which one of them takes a second or more.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.witnesses.workers import FILES

START_MS, SAVE_MS = 400, 100  # about: until the trainers step, and for one save
BESIDE = ("evaluator", "solo")  # roles whose checkpoints are not those of the trainers
FENCE_MS = 1800  # from the cut of a link until the workers behind it are killed, with these options
TAKE_OVER_MS = 800  # from the death of a controller until the next one has read the journal
EXIT_FATAL = 77  # the exit code for which some policies have a rule
OPTIONS = 'heartbeat="100ms", lease="2500ms", cause_window="500ms", min_uptime="1s", controller_outage="10s"'
TIMES = 'grace="2s", stop_grace="400ms", drain="3s", cooldown="1s", join_window="2s", ready_timeout="20s"'
Fault = str


class Pair(NamedTuple):
    """A topology as a file, and the faults of a plan. `rehearsal` are the faults, and `sets` the options, of the run
    that calibrates: each role fails once and restarts, whatever its policy says.
    """

    seed: int
    number: int
    topology: str
    faults: tuple[Fault, ...]
    rehearsal: tuple[Fault, ...]
    sets: tuple[str, ...]

    @property
    def again(self) -> str:
        """Return the command that plays the pair again."""
        return f"python -m tests.witnesses --only {self.number} --seed {self.seed}"

    def write(self, folder: Path) -> None:
        """Write the topology and the programs of its workers into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in {**FILES, "topology.py": self.topology}.items():
            (folder / name).write_text(text)


class Service(NamedTuple):
    """A service that the trainers ask: whether it has a readiness check, and its state only in memory.

    `startup_s` is how long it takes until it serves; None: that is drawn.
    """

    name: str
    is_checked: bool
    has_memory: bool
    startup_s: float | None = None


class Shape(NamedTuple):
    """What plans have to know of a topology. There are `checkpoints` checkpoints, one each `every` steps; the steps
    between two of them take `interval_ms`.
    """

    nodes: int
    trainers: int
    least: int
    services: tuple[Service, ...]
    beside: tuple[str, ...]
    hangs_are_seen: bool
    every: int
    interval_ms: int
    checkpoints: int


def draw(seed: int, number: int) -> Pair:
    """Return the pair of this number."""
    dice = random.Random(f"{seed}/{number}")
    if number % 3 == 1:
        topology, shape, faults = POINTED[number // 3 % len(POINTED)](dice)
    else:
        topology, shape = _topology(dice)
        faults = tuple(_faults(dice, shape))
    if shape.services and 'collective="fail"' in topology:
        # a fence kills server and trainer at once: their peers wait for the one or fail with the other
        faults = tuple(fault.replace(":lost", "") for fault in faults)
    is_apart = any(":lost" in fault or fault.startswith("controller") for fault in faults)
    topology = topology.replace("IS_APART", "yes" if is_apart else "")
    roles = ("trainer", *(service.name for service in shape.services), *shape.beside)
    # between the two moments, and behind them, nothing is disturbed
    rehearsal = tuple(f"{role}/0@checkpoint=trainer,{3 if n else 1}+100ms:exit=5" for n, role in enumerate(roles))
    sets = tuple(f"{role}.restart.max_restarts=9" for role in roles)
    return Pair(seed, number, topology, faults, rehearsal, sets)


# The topology.


def _topology(dice: random.Random) -> tuple[str, Shape]:
    nodes, most = dice.choice((1, 2, 2, 3, 3)), dice.choice((1, 2, 2, 3, 4))
    least = dice.randint(max(1, most - 2), most - 1) if most > 1 and dice.random() < 0.6 else most
    names = dice.choice(((), ("ps",), ("ps",), ("ps", "reader")))
    services = tuple(Service(name, dice.random() < 0.7, dice.random() < 0.3) for name in names)
    beside = dice.choice(((), BESIDE[:1], BESIDE[:1], BESIDE[1:], BESIDE))
    hangs_are_seen = dice.random() < 0.5
    step_ms, every = dice.choice((40, 50, 60)), dice.choice((8, 10, 12))
    shape = Shape(nodes, most, least, services, beside, hangs_are_seen, every, step_ms * every, dice.choice((5, 6)))
    cpu = dice.choice((most + 3, most + 3, -(-(most + 3) // nodes) + 1))  # one node has room for all, or just enough
    lines = [*_head(nodes, cpu, dice.choice(("5s", "12s")))]
    lines += [line for service in services for line in _service(dice, service)]
    lines += _trainer(dice, shape, step_ms, every)
    lines += [line for name in beside for line in _beside(dice, name, step_ms)]
    if services and dice.random() < 0.2:
        lines.append(f't.restart_together("pool", {services[0].name}, trainer)')
    return "\n".join(lines) + "\n", shape


def _head(nodes: int, cpu: int, pending: str) -> Iterator[str]:
    yield "from flowdist import Node, On, Restart, Topology, Workload"
    yield ""
    yield f't = Topology("pair", nodes={nodes} * [Node(cpu={cpu})], {OPTIONS}, {TIMES},'
    yield f'             pending_timeout="{pending}")'


def _service(dice: random.Random, service: Service, policy: str = "") -> Iterator[str]:
    """Yield a service. Its policy is drawn if it is not given."""
    ready = ', ready_when="tcp:rpc"' if service.is_checked else ""
    state = ', state="memory"' if service.has_memory else ""
    name, startup, replicas = service.name, dice.choice((0, 0.2)), dice.choice((1, 1, 2))
    startup = startup if service.startup_s is None else service.startup_s
    yield f'{name} = t.role("{name}", ["python", "service.py", "{startup}"], kind="service", replicas={replicas},'
    yield f'    cpu=0.5, ports=["rpc"]{ready}{state}, restart={policy or _policy(dice, "replica")})'


def _trainer(
    dice: random.Random, shape: Shape, step_ms: int, every: int, *, policy: str = "", gate: str = ""
) -> Iterator[str]:
    """Yield the trainers. Policy and gates on services are drawn if they are not given, and if peers of one that fails
    wait or fail; with a policy they wait, since which of them is heard first is a matter of chance.
    """
    peers = dice.choice(("wait", "wait", "fail")) if shape.trainers > 1 and not policy else "wait"
    job = {
        "apart": "IS_APART",
        "peers": peers,
        "startup": dice.choice((0.0, 0.2)),
        "restore": dice.choice((0.0, 0.1)),
        "step": step_ms / 1000,
        "steps": every * shape.checkpoints,
        "every": every,
        "save": dice.choice((0.05, 0.1)),
        "services": [service.name for service in shape.services],
        "report": dice.choice(("before", "before", "after")),
        "finish": dice.choice((0.0, 0.2)),
    }
    gates = [gate or _gate(dice, service) for service in shape.services]
    hang = ', hang_after="1200ms"' if shape.hangs_are_seen else ""
    count = f"{shape.least}:{shape.trainers}" if shape.least < shape.trainers else str(shape.trainers)
    collective = "" if peers == "wait" else f', collective="{peers}"'
    yield f'trainer = t.role("trainer", ["python", "task.py", {json.dumps(json.dumps(job))}], replicas="{count}",'
    policy = policy or _policy(dice, dice.choice(("role", "role", "job")))
    yield f"    cpu=1{hang}, depends_on=[{', '.join(gates)}], restart={policy},"
    yield f"    workload={_workload(every * shape.checkpoints, step_ms, every, collective)})"


def _beside(dice: random.Random, name: str, step_ms: int) -> Iterator[str]:
    """Yield an evaluator, which goes on until the trainers are done, or two workers that work alone."""
    is_evaluator = name == "evaluator"
    steps, every = 100_000 if is_evaluator else dice.choice((30, 60)), dice.choice((5, 10))
    job = {
        "apart": "IS_APART",
        "peers": "wait",
        "startup": 0.0,
        "restore": 0.0,
        "step": step_ms / 1000,
        "steps": steps,
        "every": every,
    }
    job |= {"save": 0.02, "services": [], "report": "before", "finish": 0.0}
    gates = "trainer.started()" if is_evaluator or dice.random() < 0.5 else ""
    replicas = 1 if is_evaluator else 2
    primary = not is_evaluator and dice.random() < 0.5
    yield f'{name} = t.role("{name}", ["python", "task.py", {json.dumps(json.dumps(job))}], replicas={replicas},'
    yield f"    gang=False, cpu=0.25, primary={primary}, depends_on=[{gates}], restart={_policy(dice, 'replica')},"
    yield f"    workload={_workload(steps, step_ms, every)})"


def _workload(steps: int, step_ms: int, every: int, more: str = "") -> str:
    """Return what the topology says about times; the simulator gets those that were measured."""
    times = f'step_time="{step_ms}ms", checkpoint_every="{step_ms * every}ms", checkpoint_time="100ms", startup="300ms"'
    return f"Workload(steps={steps}, {times}{more})"


def _gate(dice: random.Random, service: Service) -> str:
    """Return a gate on a service. Who depends on a state that is only in memory has to restart with it."""
    condition = dice.choice(("started", "ready")) if service.is_checked else "started"
    edge = "restart" if service.has_memory else dice.choice(("reconnect", "reconnect", "restart"))
    return f'{service.name}.{condition}(on_restart="{edge}")'


def _policy(dice: random.Random, scope: str) -> str:
    if dice.random() < 0.12:
        return "None"
    words = [f'"{scope}"', f"max_restarts={dice.choice((0, 1, 3, 3))}", f'backoff="{dice.choice(("0s", "400ms"))}"']
    if dice.random() < 0.25 and scope != "job":
        words.append('then=Restart("job", max_restarts=1)')
    rules = [f"On(exit={EXIT_FATAL}, do='fail')"] * (dice.random() < 0.5)
    rules += ["On('oom', count=False)"] * (dice.random() < 0.3)
    words += [f"rules=[{', '.join(rules)}]"] * bool(rules)
    return f"Restart({', '.join(words)})"


# The plan.


def _faults(dice: random.Random, shape: Shape) -> Iterator[Fault]:
    """Yield one to three faults, at checkpoints that come one after the other.

    None comes after the checkpoint that a drain makes: whether the worker has started again by then, to be hit, is a
    matter of milliseconds.
    """
    count = dice.choice((1, 2, 2, 3))
    checkpoints = sorted(dice.sample(range(1, shape.checkpoints), min(count, shape.checkpoints - 1)))
    quiet_until = 0
    for number in checkpoints:
        offset = dice.randrange(30, shape.interval_ms - 30, 10)
        left_ms = (shape.checkpoints - number) * shape.interval_ms - offset
        is_last = number == checkpoints[-1]
        fault = _fault(dice, shape, _when(dice, shape, number, offset), left_ms, is_last=is_last)
        if number > quiet_until:
            yield fault
        if ":drain" in fault or ":preempt" in fault:
            quiet_until = number + 1


def _when(dice: random.Random, shape: Shape, number: int, offset_ms: int) -> str:
    """Return a moment so many ms after a checkpoint: mostly as that, else as a step, or as a time."""
    step = number * shape.every + offset_ms * shape.every // shape.interval_ms
    time_ms = START_MS + number * (shape.interval_ms + SAVE_MS) + offset_ms
    exact = f"checkpoint=trainer,{number}+{offset_ms}ms"
    return dice.choice((exact,) * 8 + (f"step=trainer,{step}", f"start=trainer,1+{time_ms}ms"))


def _fault(dice: random.Random, shape: Shape, when: str, left_ms: int, *, is_last: bool) -> Fault:
    """Return a fault, after which the trainers have so much work left.

    Workers of a node that is cut off may not be done before they are fenced. The controller dies after all other
    faults, and not just before the end: until the next one has taken over, no fault comes that waits for an event.
    """
    node, worker = f"node{dice.randrange(shape.nodes)}", _worker(dice, shape)
    exits = (
        f"{worker}@{when}",
        f"{worker}@{when}:exit=3",
        f"{worker}@{when}:exit={EXIT_FATAL}",
        f"{worker}@{when}:oom",
    )
    away = dice.choice(("/1s", "/1s", ""))
    nodes = [f"{node}@{when}{away}", f"{node}@{when}:leave{away}"]
    nodes += [f"{node}@{when}:lost/{dice.choice(('5s', '6s'))}"] * (left_ms > FENCE_MS)
    orders = [f"{node}@{when}:preempt=2500ms/4s", f"{node}@{when}:drain"]
    orders += [f"controller@{when}"] * (is_last and left_ms > TAKE_OVER_MS)
    if shape.least < shape.trainers:
        orders += [f"trainer@{when}:scale={dice.randint(shape.least, shape.trainers)}"] * 2
    if shape.hangs_are_seen:
        orders += [f"trainer/{dice.randrange(shape.trainers)}@{when}:hang"] * 2
    return dice.choice(dice.choice((list(exits), list(exits), nodes, orders)))


def _worker(dice: random.Random, shape: Shape) -> str:
    """Return the name of a replica, most often of a trainer."""
    others: Sequence[str] = (*(service.name for service in shape.services), *shape.beside)
    role = dice.choice(("trainer", "trainer", *others))
    return f"{role}/{dice.randrange(shape.trainers)}" if role == "trainer" else f"{role}/0"


# Pointed pairs.

Drawn = tuple[str, Shape, tuple[Fault, ...]]
REPLACED = 'Restart("replica", max_restarts=3)'


def _pointed(dice: random.Random, shape: Shape, cpu: int, *, policy: str, gate: str = "") -> str:
    """Return the topology of a pointed pair: the services, and the trainers with this policy and gate."""
    lines = [*_head(shape.nodes, cpu, "12s")]
    lines += [line for service in shape.services for line in _service(dice, service, REPLACED)]
    lines += _trainer(dice, shape, shape.interval_ms // shape.every, shape.every, policy=policy, gate=gate)
    return "\n".join(lines) + "\n"


def _fails_again(dice: random.Random) -> Drawn:
    """A trainer fails twice: the second restart waits for the back-off."""
    trainers, nodes = dice.choice((1, 2, 3)), dice.choice((1, 2))
    shape = Shape(nodes, trainers, trainers, (), (), False, 8, 320, 6)
    topology = _pointed(dice, shape, trainers, policy='Restart("role", max_restarts=3, backoff="1500ms")')
    worker, first = f"trainer/{dice.randrange(trainers)}", dice.choice((1, 2))
    ends = [dice.choice(("", ":exit=3", ":oom")) for _ in range(2)]
    return (
        topology,
        shape,
        tuple(f"{worker}@checkpoint=trainer,{first + 2 * n}+100ms{end}" for n, end in enumerate(ends)),
    )


def _waits_for_its_service(dice: random.Random) -> Drawn:
    """A service is away for more than a second. Its clients reconnect, and stand still meanwhile."""
    service = Service("ps", is_checked=True, has_memory=False, startup_s=1.2)
    shape = Shape(dice.choice((1, 3)), dice.choice((1, 2)), 1, (service,), (), False, 8, 320, 5)
    topology = _pointed(
        dice,
        shape,
        shape.trainers + 1,
        policy='Restart("role", max_restarts=1)',
        gate='ps.ready(on_restart="reconnect")',
    )
    return (
        topology,
        shape,
        (f"ps/0@checkpoint=trainer,2+{dice.choice((60, 100, 140))}ms{dice.choice(('', ':exit=3'))}",),
    )


def _grows_again(dice: random.Random) -> Drawn:
    """A node dies, and the world goes on without it. It is back soon, and the world grows after its cool-down.

    The work that is left is long enough for a node that takes some seconds to start.
    """
    shape = Shape(2, 2, 1, (), (), False, 8, 320, 20)
    topology = _pointed(dice, shape, 1, policy='Restart("role", max_restarts=1)')
    return topology, shape, (f"node{dice.choice((0, 1))}@checkpoint=trainer,{dice.choice((1, 2))}+100ms/1s",)


POINTED = (_fails_again, _waits_for_its_service, _grows_again)
