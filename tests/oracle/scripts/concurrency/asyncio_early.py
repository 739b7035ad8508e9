"""A loop is made and run before RANK is read, a task of it half done, and gone on with."""

import asyncio
import os

import probe

LOOP = asyncio.new_event_loop()
asyncio.set_event_loop(LOOP)
RANK: asyncio.Future = LOOP.create_future()


async def work():
    return "rank " + await RANK


TASK = LOOP.create_task(work())
LOOP.run_until_complete(asyncio.sleep(0))
first = asyncio.run(asyncio.sleep(0, "ran"))
asyncio.set_event_loop(LOOP)
probe.note("half done")
RANK.set_result(os.environ["RANK"])
probe.first_step(result=LOOP.run_until_complete(TASK), first=first, done=TASK.done())
LOOP.close()
