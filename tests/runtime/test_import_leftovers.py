"""What an import may leave behind, as the fork server sees it."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from flowdist.runtime.import_leftovers import Generators, has_position, is_traced, shared_memory

READ_ONLY = "7f04-7f05 r--s 00000000 fe:00 338846      /usr/lib/gconv/gconv-modules.cache\n"
PRIVATE = "7f06-7f07 rw-p 00000000 00:00 0 \n7f08-7f09 rw-p 00000000 fe:00 12   /usr/lib/a b.so\n"


def test_memory_counts_as_shared_if_a_process_can_write_it_and_its_forks_see_that(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(f"{READ_ONLY}{PRIVATE}")
    assert shared_memory(maps) == ""
    maps.write_text(f"{READ_ONLY}7f10-7f11 rw-s 00000000 00:01 5   /dev/shm/sem.a b (deleted)\n{PRIVATE}")
    assert shared_memory(maps) == "/dev/shm/sem.a b (deleted)"
    maps.write_text("7f10-7f11 rw-s 00000000 00:00 0 \n")
    assert shared_memory(maps) == "anonymous"


def test_a_generator_counts_as_seeded_if_its_numbers_were_chosen_and_not_if_some_were_drawn() -> None:
    before = random.getstate()
    try:
        generators = Generators()
        for _ in range(100):
            random.random()
        assert generators.seeded() != "random"  # another test may have seeded that of numpy
        random.seed(1)
        assert generators.seeded() == "random"
    finally:
        random.setstate(before)


def test_files_and_pipes_have_a_position_or_bytes_to_share_and_devices_have_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (tmp_path / "file").open() as file, open(os.devnull) as device:  # noqa: PTH123
        assert has_position(file.fileno()) and not has_position(device.fileno())
    read, write = os.pipe()
    assert has_position(read)
    os.close(read)
    os.close(write)


def test_a_profiler_is_noticed() -> None:
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        assert is_traced()
    finally:
        sys.setprofile(before)
