"""The file prediction.json in the folder of a run: expectations before the run, and of each incident as it opened.

The file is checked as a whole when it is read. It is small: one entry for each incident.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowdist import __version__
from flowdist.errors import FlowdistError
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.run_folder.folder import PREDICTION
from flowdist.runtime.saved_files import DAMAGED
from flowdist.sim.forecast import ExpectedIncident, ExpectedJob

FORMAT = 1
HELP = "flowdist report RUN --workload workload.toml predicts the run afterwards"


class Predictions(msgspec.Struct, frozen=True):
    """Expectations of the simulator for one run.

    `times` says in words where the times of the workers come from. `problem` says why the whole job was not predicted;
    empty: it was, or is not yet (`job` is None). `more` are incidents, in words, that the simulation alone has; they
    are known only of a prediction that was made afterwards.
    """

    times: str
    flowdist: str = __version__
    format: int = FORMAT
    job: ExpectedJob | None = None
    problem: str = ""
    incidents: tuple[ExpectedIncident, ...] = ()
    more: tuple[str, ...] = ()
    is_afterwards: bool = False

    def __post_init__(self) -> None:
        """Check that each incident is predicted once.

        Raises:
            ValueError: An incident has two entries.
        """
        numbers = [each.number for each in self.incidents]
        if len(set(numbers)) < len(numbers):
            raise ValueError("an incident is predicted twice")

    def incident(self, number: int) -> ExpectedIncident | None:
        """Return what was expected of an incident of the run; None if nothing was."""
        return next((each for each in self.incidents if each.number == number), None)

    def with_incident(self, expected: ExpectedIncident) -> Predictions:
        """Return these predictions with one more, which replaces an earlier one of the same incident."""
        others = [each for each in self.incidents if each.number != expected.number]
        found = tuple(sorted([*others, expected], key=lambda each: each.number))
        return msgspec.structs.replace(self, incidents=found)


class _Head(msgspec.Struct):
    """Part of the file that any version of flowdist writes alike."""

    format: int
    flowdist: str


def read_predictions(run_dir: Path) -> Predictions | None:
    """Return the predictions in the folder of a run; None if it has none.

    Raises:
        FlowdistError: The file is damaged, or another version of flowdist wrote it in another format.
    """
    path = run_dir / PREDICTION
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            text = f"{path} is of flowdist {head.flowdist}, in format {head.format}; this version reads format {FORMAT}"
            raise FlowdistError(text, help=HELP)
        return msgspec.json.decode(data, type=Predictions)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FlowdistError(f"{path} cannot be read: {error.strerror}", help=HELP) from None
    except DAMAGED as error:
        raise FlowdistError(f"{path} is damaged: {error}", help=HELP) from None


def write_predictions(run_dir: Path, predictions: Predictions) -> None:
    """Write the predictions into the folder of a run, in place of earlier ones.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(run_dir / PREDICTION, msgspec.json.format(msgspec.json.encode(predictions), indent=2) + b"\n")
