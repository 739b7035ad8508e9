"""A parameter server: some of the tensors, and SGD with momentum, a falling rate and a moving average.

In each round it hears every trainer, acts once, and answers them. Who begins says which folder to go on from: a server
that has outlived its trainers goes back with them.
"""

import json
import os
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np
from ps_model import first_weights, names_of, write

from flowdist import worker


class Shard:
    def __init__(self, index, servers):
        self.index, self.step, self.rate = index, 0, 0.05
        first = first_weights()
        self.weights = {name: first[name] for name in names_of(index, servers)}
        self.momentum = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self.average = {name: value.copy() for name, value in self.weights.items()}
        self.noise = np.random.default_rng([2, index])

    def apply(self, gradients):
        """The gradients of all trainers, in the order of their ranks."""
        for name, weight in self.weights.items():
            total = np.zeros_like(weight)
            for gradient in gradients:
                total += gradient[name]
            total = total / len(gradients) + self.noise.normal(0, 0.01, weight.shape).astype(np.float32)
            self.momentum[name] = 0.8 * self.momentum[name] + total
            weight -= self.rate * self.momentum[name]
            self.average[name] += 0.1 * (weight - self.average[name])
        self.step += 1
        if self.step % 5 == 0:
            self.rate *= 0.8

    def save(self, folder):
        arrays = {f"weights_{name}": value for name, value in self.weights.items()}
        arrays |= {f"momentum_{name}": value for name, value in self.momentum.items()}
        arrays |= {f"average_{name}": value for name, value in self.average.items()}
        rest = json.dumps({"step": self.step, "rate": self.rate, "noise": self.noise.bit_generator.state})
        write(folder / f"ps{self.index}.npz", lambda f: np.savez(f, rest=np.array(rest), **arrays))

    def load(self, folder):
        with np.load(folder / f"ps{self.index}.npz") as f:
            self.weights = {name: f[f"weights_{name}"] for name in self.weights}
            self.momentum = {name: f[f"momentum_{name}"] for name in self.weights}
            self.average = {name: f[f"average_{name}"] for name in self.weights}
            rest = json.loads(str(f["rest"]))
        self.step = rest["step"]
        self.rate = rest["rate"]
        self.noise.bit_generator.state = rest["noise"]


def gather(listener):
    """The links to all trainers of one generation, in the order of their ranks, and the folder that they go on from."""
    links, newest = {}, 0
    while True:
        link = listener.accept()
        try:
            if not link.poll(5):
                raise EOFError
            rank, world, generation, folder = link.recv()
        except (EOFError, OSError):  # the check of readiness, or a trainer that was killed
            link.close()
            continue
        if generation > newest:
            links, newest = {}, generation
        links[rank] = link
        if len(links) == world:
            return [links[r] for r in range(world)], folder


def serve(shard, links):
    """Rounds, until a trainer goes away."""
    while True:
        asked = [link.recv() for link in links]
        op = asked[0][0]
        answer = None
        if op == "push":
            shard.apply([gradients for _, gradients, _ in asked])
            answer = sum(loss for _, _, loss in asked) / len(asked)
        elif op == "pull":
            answer = shard.weights
        elif op == "save":
            shard.save(Path(asked[0][1]))
        for link in links:
            link.send(answer)


def main():
    index, servers = worker.info().replica_index, int(os.environ["SERVERS"])
    listener = Listener(("127.0.0.1", worker.port("rpc")), backlog=16)
    while True:
        links, folder = gather(listener)
        shard = Shard(index, servers)
        if folder is not None:
            with worker.restoring():
                shard.load(Path(folder))
        print("serving from step", shard.step, flush=True)
        try:
            for link in links:
                link.send(shard.step)
            serve(shard, links)
        except (EOFError, OSError):
            print("the trainers are gone after step", shard.step, flush=True)
        for link in links:
            link.close()


if __name__ == "__main__":
    main()
