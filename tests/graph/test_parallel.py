"""Sizes of a world that form a mesh."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist.graph.sizes import mesh_of, replica_step, spelled

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def test_the_elastic_dimension_takes_what_the_others_leave() -> None:
    parallel = (("pp", 2), ("dp", 0), ("tp", 2))
    assert mesh_of(parallel, 12) == (("pp", 2), ("dp", 3), ("tp", 2))
    assert spelled(parallel) == "pp=2 x dp=elastic x tp=2"


@pytest.mark.parametrize(("parallel", "size"), [((("dp", 0), ("tp", 4)), 6), ((("tp", 4),), 8), ((("tp", 4),), 2)])
def test_a_size_that_forms_no_mesh_is_refused(parallel: tuple[tuple[str, int], ...], size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} ranks form no mesh of"):
        mesh_of(parallel, size)


@given(SIZES, st.integers(1, 12), st.integers(1, 40))
def test_exactly_the_multiples_of_the_step_form_a_mesh(sizes: list[int], procs: int, replicas: int) -> None:
    parallel = (("dp", 0), *((f"d{i}", size) for i, size in enumerate(sizes)))
    fits = replicas % replica_step(parallel, procs) == 0
    try:
        product = 1
        for _, size in mesh_of(parallel, replicas * procs):
            product *= size
        assert fits and product == replicas * procs
    except ValueError:
        assert not fits
