"""Unexpected exceptions in an event loop: each is passed to a function that ends the process.

Else a process could go on alive and mute: it renews its lease, and reports nothing, as asyncio only logs exceptions.
Agent, controller and foreground process therefore call `watch_loop`, and start background tasks by `start_task`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Fail = Callable[[BaseException], object]


def watch_loop(fail: Fail) -> None:
    """Have the running event loop call `fail` with each exception of a callback, a reader, a timer or a signal handler.

    What asyncio itself reports besides, such as a connection that could not be accepted, is logged as usual.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, asyncio.CancelledError):  # of a task that serves a connection, when the loop ends
            return
        if error is None or "handle" not in context:
            loop.default_exception_handler(context)
        else:
            fail(error)

    asyncio.get_running_loop().set_exception_handler(handle)


def start_task(job: Coroutine[Any, Any, None], fail: Fail) -> asyncio.Task[None]:
    """Start a coroutine as a task, and call `fail` with its exception if it raises one."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            fail(error)

    task = asyncio.create_task(job)
    task.add_done_callback(ended)
    return task
