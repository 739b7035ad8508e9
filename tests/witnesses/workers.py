"""The programs of the workers: plain Python that sleeps its steps, without torch.

Each task says what it does: its steps, saving and restoring. So nothing in the record of a run has to be guessed.

Where a plan cuts a node off or kills the controller, a child process commits: the simulator lets a world step on past a
commit that nobody answers, and `worker.commit()` would wait for the answer.
"""

from __future__ import annotations

# The ranks meet as in a collective: rank 0 waits for all, then lets all go on. A rank that dies closes its connection.
# What the others do then is what `collective=` of the workload says: they wait, fail, or hang and hear no SIGTERM.
GROUP = """
import os, signal, socket, time

class Group:
    def __init__(self, me, peers_do):
        self.do, self.told, self.others, self.is_first = peers_do, False, [], me.rank == 0
        name = f"\\0witness-{os.environ['FLOWDIST_RUN_ID']}-{me.role}-{me.generation}"
        if self.is_first and me.world_size > 1:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(name)
                server.listen(16)
                self.others = [server.accept()[0] for _ in range(me.world_size - 1)]
        elif not self.is_first:
            self.others = [socket.socket(socket.AF_UNIX)]
            while self.others[0].connect_ex(name):
                time.sleep(0.005)

    def meet(self):
        if self.do != "wait":
            signal.signal(signal.SIGTERM, self.note)
        try:
            for turn in (self.hear, self.tell) if self.is_first else (self.tell, self.hear):
                turn()
        except OSError:
            self.is_broken()
        if self.do != "wait":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.told:
            os.kill(os.getpid(), signal.SIGTERM)

    def hear(self):
        for other in self.others:
            if not other.recv(1):
                raise ConnectionError

    def tell(self):
        for other in self.others:
            other.send(b".")

    def note(self, *_):
        self.told = True

    def is_broken(self):
        if self.do == "fail":
            os._exit(1)
        while True:
            time.sleep(60)
"""
# A client of a service asks each of its replicas before each step, and waits until all have answered.
TASK = """
import json, os, signal, socket, sys, time
from flowdist import worker
from group import Group

job = json.loads(sys.argv[1])
me = worker.info()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
time.sleep(job["startup"])

def ask_all(role):
    asked = 0
    while asked < len(addresses := worker.peers(role, "rpc")):
        host, _, port = addresses[asked].rpartition(":")
        try:
            with socket.create_connection((host, int(port))) as link:
                asked += link.recv(1) == b"."
        except OSError:
            pass
        if asked < len(addresses):
            time.sleep(0.002)

def save(step):
    global saved
    saved = step
    with worker.saving():
        time.sleep(job["save"])
        if me.rank == 0:
            path = worker.checkpoint_dir() / f"{me.replica.replace('/', '-')}-{step}-{me.generation}"
            path.touch()
            if not job["apart"]:
                worker.commit(path, step=step)
            elif os.fork() == 0:
                worker.commit(path, step=step)
                os._exit(0)
        group.meet()

group = Group(me, job["peers"])
latest, done, saved = worker.latest(), 0, 0
if latest is not None:
    with worker.restoring():
        done = saved = int(latest.name.split("-")[-2])
        time.sleep(job["restore"])
group.meet()
for step in range(done + 1, job["steps"] + 1):
    if worker.should_stop(step - 1):
        save(step - 1)
        sys.exit()
    for role in job["services"]:
        ask_all(role)
    time.sleep(job["step"])
    if job["report"] == "before":
        worker.progress(step)
    group.meet()
    if job["report"] == "after":
        worker.progress(step)
    if step == saved + job["every"] and step < job["steps"]:
        save(step)
time.sleep(job["finish"])
"""
SERVICE = """
import os, socket, sys, time
time.sleep(float(sys.argv[1]))
server = socket.create_server(("127.0.0.1", int(os.environ["FLOWDIST_PORT_RPC"])))
while True:
    with server.accept()[0] as client:
        try:
            client.send(b".")
        except OSError:
            pass
"""
FILES = {"group.py": GROUP, "task.py": TASK, "service.py": SERVICE}
