"""The endless loop of all_reduces that the recovery benchmark breaks, for workers that stay in place.

Each worker writes down what it has come to, in a file of its own: the word, the time on the clock that the journal
counts by, rank and world size. Environment: BENCH_STAMPS, the folder of these files; BENCH_PID, whoever wants them.
"""

import os
import time

STAMPS = os.open(f"{os.environ['BENCH_STAMPS']}/{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def stamp(word: str) -> None:
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(STAMPS, f"{word} {now_ns} {os.environ['RANK']} {os.environ['WORLD_SIZE']}\n".encode())


stamp("user")
import torch  # noqa: E402  # when it was there is written down
import torch.distributed as dist  # noqa: E402

from flowdist import worker  # noqa: E402

stamp("imported")


def train(state: worker.ElasticState) -> None:
    stamp("group")
    while os.path.exists(f"/proc/{os.environ['BENCH_PID']}"):  # noqa: PTH110  # whoever measures was not killed
        dist.all_reduce(state.ones)
        stamp("step")
        state.ones.fill_(1)
        state.step += 1
        state.commit()
        time.sleep(0.05)


worker.elastic(train, worker.ElasticState(ones=torch.ones(4), step=0), backend="gloo")
