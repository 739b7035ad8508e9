"""Entries of a saved file, so that the first entry that differs between two files can be named.

Nothing of a file is executed or imported, torch least of all. A pickle becomes a tree of plain values and of `Stub`s,
which keep what a name of the file was called with. Each leaf of the tree has a name as a user would write it, such as
`['optimizer']['state'][0]['exp_avg']`, and a digest of its value. The digest covers the kinds of what the leaf is in.
"""

from __future__ import annotations

import json
import pickle
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from filecmp import cmp
from hashlib import blake2b
from io import BytesIO
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, Self
from zipfile import ZIP_STORED, ZipFile, ZipInfo

CONTENT = "its content"
WHOLE = "its value"  # the name of a leaf that is in nothing
CHUNK = 1 << 20
SETS = ("builtins.set", "builtins.frozenset")
TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
OF_SUBCLASS = "torch._tensor._rebuild_from_type_v2"  # also of a tensor that has attributes


def first_difference(one: Path, other: Path, homes: tuple[str, str] = ("", "")) -> str:
    """Return the name of the first entry that differs or is missing in one of two files; empty if there is none.

    Of files of no known kind that differ it is `CONTENT`.

    Args:
        one: A file.
        other: The other file.
        homes: The folders in which they were written: paths that begin with these count as alike.
    """
    if cmp(one, other, shallow=False):
        return ""
    entries_of_one, entries_of_other = (entries(*each) for each in zip((one, other), homes, strict=True))
    if entries_of_one is None or entries_of_other is None:
        return CONTENT
    names = {**entries_of_one, **entries_of_other}
    return next((name for name in names if entries_of_one.get(name) != entries_of_other.get(name)), "")


def entries(path: Path, home: str = "") -> dict[str, str] | None:
    """Return a digest of each leaf of a saved file, by its name; None if the file is of no known kind, or damaged.

    The path `home` is left out of texts.
    """
    try:
        with path.open("rb") as file:
            return _entries(file, home)
    except Exception:  # a damaged file, or a hostile one, makes parsers raise anything
        return None


def _entries(file: BinaryIO, home: str) -> dict[str, str]:
    start = file.read(9)
    size = file.seek(0, 2)
    if start.startswith(b"PK\x03\x04"):
        return _zip_entries(file, size, home)
    if start.startswith(b"\x93NUMPY"):
        return {WHOLE: _digest_of(_ranges(file, 0, size))}
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size - 8:  # before pickles: its length may be 0x280
        return _safetensors_entries(file, size, home)
    file.seek(0)
    if re.match(rb"\x80[\x02-\x05]", start):
        return _Walk(file, size, home).leaves(_Unpickler(file.read(), {}).value())
    if re.match(rb"\s*[{\[]", start):
        return _Walk(file, size, home).leaves(json.loads(file.read()))
    raise ValueError("a file of no known kind")


def _safetensors_entries(file: BinaryIO, size: int, home: str) -> dict[str, str]:
    file.seek(0)
    data = 8 + int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(data - 8))
    metadata = {name: header.pop(name) for name in ["__metadata__"] if name in header}
    found = _Walk(file, size, home).leaves(metadata) if metadata else {}
    if max((tensor["data_offsets"][1] for tensor in header.values()), default=0) != size - data:
        raise ValueError("bytes are missing, or more than the header says")
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        of = json.dumps([tensor["dtype"], tensor["shape"]]).encode()
        found[f"[{name!r}]"] = _digest_of([of, *_ranges(file, data + begin, end - begin)])
    return found


def _zip_entries(file: BinaryIO, size: int, home: str) -> dict[str, str]:
    file.seek(-22, 2)
    at_end = file.read(4) == b"PK\x05\x06"
    archive = ZipFile(file)
    records = {record.filename: record for record in archive.infolist()}
    if not at_end or min(record.header_offset for record in records.values()):
        raise ValueError("something is before or behind the zip file, as in .distcp")
    if all(name.endswith(".npy") for name in records):
        return {f"[{name[:-4]!r}]": _digest_of(_unzipped(archive, record)) for name, record in records.items()}
    [folder] = [name.removesuffix("data.pkl") for name in records if re.fullmatch(r"[^/]+/data\.pkl", name)]
    if f"{folder}constants.pkl" in records:
        raise ValueError("TorchScript, whose code is not read")
    places = {name.removeprefix(folder): _place(file, record) for name, record in records.items()}
    data = b"".join(_ranges(file, *places["data.pkl"]))
    return _Walk(file, size, home).leaves(_Unpickler(data, places).value())


def _unzipped(archive: ZipFile, record: ZipInfo) -> Iterable[bytes]:
    with archive.open(record) as unzipped:
        while chunk := unzipped.read(CHUNK):
            yield chunk


def _place(file: BinaryIO, record: ZipInfo) -> tuple[int, int]:
    """Return start and size of a record's bytes in the file; torch may write records whose checksum is no checksum."""
    file.seek(record.header_offset)
    signature, name_size, extra_size = struct.unpack("<4s22xHH", file.read(30))
    if signature != b"PK\x03\x04" or record.compress_type != ZIP_STORED:
        raise ValueError("a record that torch has not written")
    return record.header_offset + 30 + name_size + extra_size, record.file_size


def _ranges(file: BinaryIO, start: int, size: int) -> Iterable[bytes]:
    """Yield the bytes of a range of the file, piece by piece; ValueError if it has fewer."""
    if size < 0:
        raise ValueError("a range that ends before it starts")
    for offset in range(0, size, CHUNK):
        file.seek(start + offset)  # the file may have been read elsewhere since the last piece
        piece = file.read(min(CHUNK, size - offset))
        if len(piece) < min(CHUNK, size - offset):
            raise ValueError("a range that ends after the file")
        yield piece


def _digest_of(pieces: Iterable[bytes]) -> str:
    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class Storage(NamedTuple):
    """Bytes of one or more tensors: the name of their type, how many elements, and where they are in the file."""

    kind: str
    numel: int
    start: int
    size: int


class Stub:
    """Stand-in for an object of a class, or for a function's result: what a pickle calls and fills it with."""

    origin: ClassVar[str] = "a call"
    args: tuple[Any, ...]
    state: Any
    pairs: list[tuple[Any, Any]]  # and no dict, as nothing of a file is hashed: a deep tuple would crash Python

    def __new__(cls, *args: Any) -> Self:
        stub = super().__new__(cls)
        stub.args, stub.state, stub.pairs = args, None, []
        return stub

    def __call__(self, *args: Any) -> Stub:
        return Stub(self, *args)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs.append((key, value))

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, value: Any) -> None:
        """Take what a pickle appends to a list, or adds to a set."""
        self.pairs.append((len(self.pairs), value))

    add = append


class Dict(Stub):
    """A dict in a pickle."""

    origin = "builtins.dict"


class Set(Stub):
    """A set in a pickle of protocol 4 or later."""

    origin = "builtins.set"


class _Unpickler(pickle._Unpickler):
    """Reads a pickle as a tree. The one in Python, as that in C takes gigabytes for a damaged number of a memo."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, data: bytes, places: dict[str, tuple[int, int]]) -> None:
        self.file, self.places, self.classes = BytesIO(data), places, dict[tuple[str, str], type[Stub]]()
        super().__init__(self.file)

    def value(self) -> Any:
        """Return what the pickle says; ValueError if something follows it, such as another pickle."""
        value = self.load()
        if self.file.read(1):
            raise ValueError("more than one pickle")
        return value

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("__builtin__", "builtins").replace("numpy._core", "numpy.core")
        origin = f"{module}.{name}"
        if not origin.isprintable():
            raise ValueError("a name of nothing")
        if origin == "_codecs.encode":
            return _encoded
        return self.classes.setdefault((module, name), type("Stub", (Stub,), {"origin": origin}))

    def get_extension(self, code: int) -> None:
        raise ValueError("a name that this process may have registered")

    def persistent_load(self, pid: Any) -> Storage:
        what, kind, key, _, numel = pid
        if what != "storage" or not isinstance(key, str) or type(numel) is not int:
            raise ValueError("not of torch")
        return Storage(kind.origin, numel, *self.places[f"data/{key}"])


def _encoded(text: str, encoding: str) -> bytes:
    """Return bytes that protocol 2 has written as text; any other encoding would be imported by its name."""
    if encoding != "latin1":
        raise ValueError("not of a pickle")
    return text.encode(encoding)


def _load_dict(unpickler: Any) -> None:
    items = unpickler.pop_mark()
    made = Dict()
    made.pairs.extend(zip(items[::2], items[1::2], strict=True))
    unpickler.append(made)


def _load_frozenset(unpickler: Any) -> None:
    members = unpickler.pop_mark()
    unpickler.append(unpickler.find_class("builtins", "frozenset")(members))


def _load_bytearray(unpickler: Any) -> None:
    size = int.from_bytes(unpickler.read(8), "little")
    data = unpickler.read(size)  # before there is an array of a size that a damaged file says
    if len(data) < size:
        raise ValueError("fewer bytes than an array has")
    unpickler.append(bytearray(data))


def _load_newobj_ex(unpickler: Any) -> None:
    words = unpickler.stack.pop()
    args = unpickler.stack.pop()
    unpickler.stack[-1] = unpickler.stack[-1](*args, words)


_Unpickler.dispatch |= {
    pickle.EMPTY_DICT[0]: lambda unpickler: unpickler.append(Dict()),
    pickle.EMPTY_SET[0]: lambda unpickler: unpickler.append(Set()),
    pickle.DICT[0]: _load_dict,
    pickle.FROZENSET[0]: _load_frozenset,
    pickle.BYTEARRAY8[0]: _load_bytearray,
    pickle.NEWOBJ_EX[0]: _load_newobj_ex,
}


class _Walk:
    """A walk over a tree. A part of a tree may be in it often: one that is much larger than its file is refused."""

    def __init__(self, file: BinaryIO, size: int, home: str) -> None:
        self.file, self.left, self.home = file, (1 << 26) + 100 * size, home
        self.above: dict[int, int] = {}  # how deep the values are that the present one is in

    def leaves(self, value: Any) -> dict[str, str]:
        """Return the digest of each leaf of the value, by its name."""
        found: dict[str, str] = {}
        self._visit(found, "", "", value)
        return found

    def _visit(self, found: dict[str, str], name: str, inside: str, value: Any) -> None:
        self._pay(64 + len(name))
        value = self._homeless(value)
        if (plain := _plain(value)) is not None:
            _add(found, name, inside, [plain])
        elif id(value) in self.above:
            _add(found, name, inside, [b"what is %d above" % (len(self.above) - self.above[id(value)])])
        else:
            self.above[id(value)] = len(self.above)
            children = self._children(value)
            if not children:
                _add(found, name, inside, self._leaf(value))
            inside = f"{inside}{self._kind(value)}/" if children else inside
            for end, child in children:
                self._visit(found, name + end, inside, child)
            del self.above[id(value)]

    def _homeless(self, value: Any) -> Any:
        return value.replace(self.home, "") if self.home and isinstance(value, str) else value

    def _pay(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise ValueError("a tree that is much larger than its file")

    def _children(self, value: Any) -> list[tuple[str, Any]]:
        """Return what is in a value, each part with the end of its name; nothing for a leaf."""
        if isinstance(value, dict):  # of JSON
            return [(f"[{self._homeless(key)!r}]", child) for key, child in value.items()]
        if type(value) in (list, tuple):
            return [(f"[{index}]", child) for index, child in enumerate(value)]
        if not isinstance(value, Stub) or value.origin in (*SETS, *TENSORS, OF_SUBCLASS):
            return []
        items = [(f"[{self._key(key)}]", child) for key, child in value.pairs]
        attributes = _attributes(value.state)
        if attributes is None:  # as of numpy's arrays, which are leaves
            return [*items, (".__getstate__()", value.state)] if items else []
        return items + [(_dotted(key) or f".__dict__[{self._key(key)}]", child) for key, child in attributes]

    def _kind(self, value: Any) -> str:
        if not isinstance(value, Stub):
            return type(value).__name__
        return value.origin + (self._digest(value.args) if value.args else "")

    def _key(self, key: Any) -> str:
        if _is_plain(key):
            return repr(self._homeless(key))
        if isinstance(key, type):
            return str(key.origin)  # type: ignore[attr-defined]
        if isinstance(key, Stub) and key.state is None and not key.pairs and _is_plain(key.args):
            return f"{key.origin}({', '.join(map(repr, key.args))})"
        return f"<{self._digest(key)[:8]}>"

    def _digest(self, value: Any) -> str:
        """Return the digest of a whole value, in whatever order its dicts were filled."""
        return _digest_of(f"{name} {digest}\n".encode() for name, digest in sorted(self.leaves(value).items()))

    def _leaf(self, value: Any) -> Iterator[bytes]:
        """Yield what the digest of a leaf covers."""
        if isinstance(value, Storage):
            yield f"{value.kind} {value.numel}\n".encode()
            yield from self._bytes(value, 0, value.size)
        elif isinstance(value, type):
            yield str(value.origin).encode()  # type: ignore[attr-defined]
        elif not isinstance(value, Stub):
            yield f"empty {type(value).__name__}".encode()
        elif value.origin in SETS:
            members = value.args[0] if value.args else [member for _, member in value.pairs]
            yield "\n".join([value.origin, *sorted(map(self._digest, members))]).encode()
        elif value.origin in TENSORS:
            yield from self._tensor(value.origin, *value.args)
        elif value.origin == OF_SUBCLASS:
            make, kind, args, *state = value.args
            yield self._digest([kind, make(*args), state]).encode()
        else:
            yield f"{value.origin} {self._digest([value.args, value.state])}".encode()

    def _tensor(
        self, origin: str, storage: Storage, offset: int, size: Any, stride: Any, grad: Any, _: Any, *more: Any
    ) -> Iterator[bytes]:
        """Yield of a tensor what is compared: its storage's number and device are not."""
        dtype = storage.kind
        item = storage.size // max(storage.numel, 1)
        if origin == TENSORS[1]:
            dtype, more = more[0].origin, more[1:]
            item = max(int((re.search(r"\d+", dtype) or ["8"])[0]) // 8, 1)
        if not all(type(number) is int and number >= 0 for number in (offset, *size, *stride)):
            raise ValueError("a tensor of no size")
        yield f"{dtype} {offset} {[*size]} {[*stride]} {grad is True} {self._digest(more)}\n".encode()
        if 0 not in size:
            yield from self._elements(storage, offset * item, _steps(item, size, stride))

    def _elements(self, storage: Storage, start: int, steps: list[tuple[int, int]]) -> Iterator[bytes]:
        span = 1 + sum((count - 1) * step for count, step in steps)
        pieces = self._bytes(storage, start, span)
        if len(steps) == 1 or prod(count for count, _ in steps) > span:  # contiguous, or elements overlap
            yield from pieces
            return
        data = b"".join(pieces)
        *others, (count, step) = sorted(steps)
        for first in map(sum, product(*(range(0, count * step, step) for count, step in others))):
            yield data[first : first + (count - 1) * step + 1 : step]

    def _bytes(self, storage: Storage, start: int, size: int) -> Iterable[bytes]:
        if start + size > storage.size:
            raise ValueError("a tensor that is larger than its storage")
        self._pay(size)
        return _ranges(self.file, storage.start + start, size)


def _steps(item: int, size: Iterable[int], stride: Iterable[int]) -> list[tuple[int, int]]:
    """Return the dimensions of a tensor as count and step in bytes, in the order of memory, joined where they touch."""
    steps = [(item, 1)]
    for step, count in sorted((by * item, count) for count, by in zip(size, stride, strict=True) if count > 1 and by):
        inner, by = steps[-1]
        if step == inner * by:
            steps[-1] = (inner * count, by)
        else:
            steps.append((count, step))
    return steps


def _add(found: dict[str, str], name: str, inside: str, pieces: Iterable[bytes]) -> None:
    name = name or WHOLE
    before = found.get(name, "")  # keys of a dict may look the same
    found[name] = _digest_of(chain([f"{before}{inside}\n".encode()], pieces))


def _attributes(state: Any) -> list[tuple[Any, Any]] | None:
    """Return the attributes of an object by its state, in a dict or in slots; None if the state is the class' own."""
    parts = state if type(state) is tuple and len(state) == 2 else (state,)
    if not all(part is None or isinstance(part, Dict) for part in parts):
        return None
    return [pair for part in parts if part is not None for pair in part.pairs]


def _dotted(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else ""


def _is_plain(value: Any) -> bool:
    return all(_plain(part) is not None for part in (value if type(value) is tuple else (value,)))


def _plain(value: Any) -> bytes | None:
    """Return what the digest of a plain value covers; None for any other value."""
    match value:
        case None | bool() | float():
            return repr(value).encode()
        case int():
            return b"%x" % value  # in time that is not quadratic
        case str():
            return b"'" + value.encode("utf-8", "surrogatepass")
        case bytes() | bytearray():
            return type(value).__name__.encode() + b" " + value
        case _:
            return None
