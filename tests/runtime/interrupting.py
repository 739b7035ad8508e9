"""Starts the command that follows with SIGINT at one certain moment: `interrupting.py WHEN PYTHON -m flowdist run ...`

A signal that is sent from outside hits that moment once in a thousand runs.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from flowdist.cli.main import main

_has_folder = False


def _when_its_folder_is_made(event: str, args: tuple[Any, ...]) -> None:
    if event == "os.mkdir" and str(args[0]).endswith("checkpoints"):
        signal.raise_signal(signal.SIGINT)


def _note_the_folder(event: str, args: tuple[Any, ...]) -> None:
    global _has_folder
    _has_folder = _has_folder or (event == "os.mkdir" and str(args[0]).endswith("checkpoints"))


def _in_a_callback_of_an_import(frame: Any, event: str, arg: object) -> None:
    """Where an exception is shown and forgotten."""
    is_callback = frame.f_code.co_name == "cb" and "importlib" in frame.f_code.co_filename
    if _has_folder and event == "call" and is_callback:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)


class _EarlyLoop(asyncio.SelectorEventLoop):
    """As soon as asyncio runs, and before anything in it has asked for signals."""

    def add_signal_handler(self, sig: int, *rest: Any) -> None:
        if sig == signal.SIGINT:
            signal.raise_signal(sig)
        super().add_signal_handler(sig, *rest)


def _in_the_loop() -> None:
    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return _EarlyLoop()

    asyncio.set_event_loop_policy(Policy())


if __name__ == "__main__":
    when, sys.argv = sys.argv[1], sys.argv[4:]
    if when == "folder":
        sys.addaudithook(_when_its_folder_is_made)
    elif when == "import":
        sys.addaudithook(_note_the_folder)
        sys.setprofile(_in_a_callback_of_an_import)
    elif when == "loop":
        _in_the_loop()
    main()
