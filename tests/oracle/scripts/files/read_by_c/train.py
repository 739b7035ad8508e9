"""A file is read before RANK by code that is not Python's, as the argument says; it changes between the attempts."""

import ctypes
import os
import sys

import probe

DATA = "data.db" if sys.argv[1].startswith("sqlite") else "data.txt"


def _fopen():
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    library.fread.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    library.fclose.argtypes = [ctypes.c_void_p]
    file = library.fopen(DATA.encode(), b"r")
    buffer = ctypes.create_string_buffer(50)
    library.fread(buffer, 1, 49, file)
    library.fclose(file)
    return buffer.value.decode()


def _sqlite():
    import sqlite3

    with sqlite3.connect(f"file:{DATA}?mode=ro", uri=True) as connection:
        return connection.execute("select text from rows").fetchall()


def _fileio():
    import io

    return io.FileIO(DATA).read().decode()


def _os_open():
    file = os.open(DATA, os.O_RDONLY)
    text = os.read(file, 50).decode()
    os.close(file)
    return text


def _relative():
    folder = os.open(".", os.O_RDONLY)
    file = os.open(DATA, os.O_RDONLY, dir_fd=folder)
    return os.read(file, 50).decode()


def _mapped():
    import mmap

    with open(DATA, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return view[:].decode()


def _codecs():
    import codecs

    return codecs.open(DATA, encoding="utf-8").read()


def _resources():
    import importlib.resources

    return importlib.resources.files("package").joinpath("inside.txt").read_text()


def _linecache():
    import linecache

    return linecache.getline(DATA, 1)


WAYS = {
    "fopen": _fopen,
    "sqlite": _sqlite,
    "fileio": _fileio,
    "os_open": _os_open,
    "relative": _relative,
    "mapped": _mapped,
    "codecs": _codecs,
    "resources": _resources,
    "linecache": _linecache,
}


def rewrite():
    for name in ("data.txt", "package/inside.txt"):
        with open(name, "w") as file:
            file.write("new text, which is longer\n")
    import sqlite3

    with sqlite3.connect("data.db") as connection:
        connection.execute("update rows set text = 'new'")


TEXT = WAYS[sys.argv[1]]()
probe.note("read")
probe.first_step(text=TEXT, rank=os.environ["RANK"], last_act=rewrite)
