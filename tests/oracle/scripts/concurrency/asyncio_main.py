"""The whole script runs inside of asyncio.run: the rank is read in a coroutine."""

import asyncio
import os

import probe


async def step(queue):
    await queue.put(os.environ["RANK"])
    probe.first_step(rank=await queue.get(), tasks=len(asyncio.all_tasks()))
    process = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def main():
    probe.note("in the loop")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(step(asyncio.Queue()))
    probe.done(said=task.result(), thread=await asyncio.to_thread(os.getenv, "RANK"))


asyncio.run(main())
