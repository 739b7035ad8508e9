"""The simulated disks that user code saves to, on which a worker that dies in a write leaves a torn file.

While user code saves, its operations are recorded one by one, and carried out afterwards in virtual time. So a worker
can die in the middle of any of them. A write destroys the old content when it begins; a rename is atomic.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from flowdist.control.protocol.ids import ReplicaId
from flowdist.worker.model import check_data, check_name

Damage = Literal["torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint"]


class Operation(NamedTuple):
    """One operation of user code on its store, or a commit."""

    kind: Literal["write", "rename", "remove", "commit"]
    name: str  # of the file
    step: int  # of the checkpoint that it belongs to; -1 outside of one
    data: bytes = b""  # the content, for a write
    to: str = ""  # the new name, for a rename


@dataclass(slots=True)
class File:
    """The content of a file, with the replica that wrote it and the step of its checkpoint."""

    data: bytes
    writer: ReplicaId
    step: int


class Disk:
    """The files of each role, which its replicas share. `View.write` refuses writes of roles that are in `full`."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, File]] = {}
        self.full: dict[str, None] = {}

    def of(self, role: str) -> dict[str, File]:
        """Return the files of a role, by name, in a dict that the caller may change."""
        return self._files.setdefault(role, {})

    def begin(self, writer: ReplicaId, operation: Operation) -> None:
        """Begin an operation of a replica: a write empties its file at once; the other kinds change nothing yet."""
        if operation.kind == "write":
            self.of(writer.role)[operation.name] = File(b"", writer, operation.step)

    def cut_short(self, writer: ReplicaId, operation: Operation, done: float) -> None:
        """Leave an operation unfinished: a write keeps a part `done` (0 to 1) of its data, but never all of it."""
        if operation.kind == "write":
            size = min(int(len(operation.data) * done), len(operation.data) - 1)
            self.of(writer.role)[operation.name] = File(operation.data[: max(size, 0)], writer, operation.step)

    def finish(self, writer: ReplicaId, operation: Operation) -> None:
        """Complete an operation of a replica. A commit, and a rename or remove of a missing file, change nothing."""
        files = self.of(writer.role)
        match operation.kind:
            case "write":
                files[operation.name] = File(operation.data, writer, operation.step)
            case "rename" if operation.name in files:
                files[operation.to] = files.pop(operation.name)
            case "remove":
                files.pop(operation.name, None)

    def newest(self, role: str, writer: ReplicaId | None, step: int | None) -> list[str]:
        """Return the names, sorted, of files (of a writer) of the checkpoint at a step, or else of the last file."""
        files = {name: file for name, file in self.of(role).items() if writer in (None, file.writer)}
        found = sorted(name for name, file in files.items() if file.step == step)
        return found or list(files)[-1:]

    def damage(self, role: str, name: str, how: Damage) -> None:
        """Delete a file, halve it, or flip one bit of it, as `how` says. Its writer does not learn of it."""
        file = self.of(role)[name]
        match how:
            case "lost-checkpoint":
                del self.of(role)[name]
            case "torn-checkpoint":
                file.data = file.data[: len(file.data) // 2]
            case "corrupt-checkpoint":
                data = bytearray(file.data)
                if data:
                    data[len(data) // 2] ^= 1
                file.data = bytes(data)


@dataclass(slots=True)
class View:
    """The store (`ctx.store`) of a simulated worker: see `flowdist.worker.model.Store`.

    While it records, between `begin_record` and `end_record`, its operations are only written down, and visible to this
    worker alone. At other times each operation is carried out at once.
    """

    disk: Disk
    writer: ReplicaId
    step: int = -1  # of the checkpoint that was recorded last; -1: none
    records: list[Operation] | None = None  # None: it does not record
    is_refused: bool = False  # a write failed since recording began, because the disk is full
    _own: dict[str, bytes | None] = field(default_factory=dict)  # recorded content of files; None: removed or renamed

    def begin_record(self, step: int) -> None:
        """Begin to record the operations of the checkpoint at `step`, instead of carrying them out."""
        self.step, self.records, self.is_refused = step, [], False
        self._own.clear()

    def end_record(self) -> list[Operation]:
        """Stop recording, and return the operations in order, none of which has been carried out."""
        records, self.records = self.records or [], None
        self._own.clear()
        return records

    def write(self, name: str, data: bytes) -> None:
        """Write a file: OSError if the disk is full, ValueError for a bad name, TypeError if the data are no bytes."""
        check_name(name)
        check_data(name, data)
        if self.writer.role in self.disk.full:
            self.is_refused = True
            raise OSError(errno.ENOSPC, "No space left on device", name)
        self._do(Operation("write", name, self.step, bytes(data)), {name: bytes(data)})

    def read(self, name: str) -> bytes:
        """Return the content of a file, with this worker's recorded writes; FileNotFoundError if there is none."""
        check_name(name)
        file = self.disk.of(self.writer.role).get(name)
        found = self._own.get(name, file.data if file is not None else None)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return found

    def rename(self, name: str, to: str) -> None:
        """Rename a file, and replace `to` if it exists; FileNotFoundError if there is no file `name`."""
        check_name(to)
        data = self.read(name)
        self._do(Operation("rename", name, self.step, to=to), {name: None, to: data})

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if there is none."""
        check_name(name)
        self._do(Operation("remove", name, self.step), {name: None})

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of the role's files that begin with the prefix, sorted, with this worker's recorded ones."""
        known = {**dict.fromkeys(self.disk.of(self.writer.role), b""), **self._own}
        return sorted(name for name, data in known.items() if data is not None and name.startswith(prefix))

    def _do(self, operation: Operation, seen: dict[str, bytes | None]) -> None:
        if self.records is None:
            self.disk.finish(self.writer, operation)
        else:
            self.records.append(operation)
            self._own |= seen
