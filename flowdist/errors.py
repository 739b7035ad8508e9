"""What can go wrong by a user's hand, as exceptions that the command line prints without a traceback."""

from __future__ import annotations


class FlowdistError(Exception):
    """Something that the user can put right. `exit_code` is what the command line returns for it."""

    exit_code = 2

    def __init__(self, message: str, *, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class JobFailed(FlowdistError):
    """The job ended, but not well."""

    exit_code = 1
