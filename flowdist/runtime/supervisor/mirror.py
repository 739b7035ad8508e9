"""The supervisor's mirror of the controller, which gets every line of the journal.

The text on the terminal, the times of faults and the summary follow from the mirror, never from decisions of the
process that has it. Joined hosts have none: they get news of their own node (`joined_host`).
"""

from __future__ import annotations

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import FinishJob
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.record.replay import Replay
from flowdist.record.timesheet import Timesheet
from flowdist.runtime.supervisor.event_printer import EventPrinter, Show


class Mirror:
    """The state of the job, as of the last line of the journal that `apply` was given.

    Args:
        header: The first line of the journal.
        source: The file of the journal, for messages.
        printer: Prints the records.
        show: Prints a line on the terminal.
    """

    def __init__(self, header: Header, source: str, printer: EventPrinter, show: Show) -> None:
        self._replay, self._show = Replay(header, source=source), show
        self.printer = printer
        self.fault_lines: list[Line] = []

    @property
    def job(self) -> JobState:
        """The state of the job."""
        return self._replay.job

    @property
    def sheet(self) -> Timesheet:
        """How the time of the job was spent."""
        return self._replay.sheet

    def apply(self, line: Line) -> Record | None:
        """Take the next line of the journal. Return the line if it is a record, else None.

        If the mirror decides otherwise than the record says, an error is shown.

        Raises:
            BadLine: The line cannot be replayed.
        """
        if (difference := self._replay.hear(line)) is not None:
            self._show("error", f"{difference.text}: please report this as a bug")
        if isinstance(line, FaultLine):
            self.fault_lines.append(line)
        return line if isinstance(line, Record) else None

    def print(self, record: Record) -> FinishJob | None:
        """Print a record on the terminal. Return the end of the job if the record has it."""
        self.printer.print(record)
        ends = [effect for effect in record.effects if isinstance(effect, FinishJob)]
        return ends[-1] if ends else None
