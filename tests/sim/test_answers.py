"""Return values of user code: wrong ones are exceptions of that code, right ones are compared as a whole."""

from __future__ import annotations

import inspect
import re
from array import array

import pytest

from flowdist import Restart, Topology, Workload
from flowdist.sim.simulation import Simulation
from flowdist.sim.user_code.answers import rounding, rounding_text
from flowdist.sim.user_code.played import Played
from flowdist.testing import assert_same_result, check_determinism, graph_of
from tests.sim import user_models as models
from tests.sim.test_models import job, run


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (
            models.RestoringNothing,
            "TypeError: restore() has to return how many steps are done; it returned None beside the checkpoint",
        ),
        (
            models.RestoringText,
            "TypeError: restore() has to return how many steps are done; it returned '10' beside the checkpoint",
        ),
        (models.RestoringTooMany, "ValueError: restore() returned 1010, but all of it is 40 steps"),
        (
            models.RestoringNegative,
            "ValueError: restore() has to return how many steps are done; it returned -11",
        ),
        (
            models.ConsumingLists,
            "TypeError: consume() takes samples that can be told apart, such as their numbers; not a list",
        ),
        (
            models.SendingFunctions,
            "TypeError: what step() returns is sent to the other ranks, but it cannot be pickled: ",
        ),
        (models.WritingText, "TypeError: write('name', ...) takes bytes, not str; encode it: text.encode()"),
        (models.WritingNumber, "TypeError: write('name', ...) takes bytes, not int"),
        (
            models.EndingWithList,
            "TypeError: state() has to return a dict of what has to be the same at the end, not [12720]",
        ),
    ],
)
def test_a_wrong_answer_of_user_code_is_an_exception_of_user_code(model: type[models.Counting], text: str) -> None:
    result = run(job(model), "trainer/1@step=trainer,15")
    assert result.job.outcome == "failed"
    error = result.played.errors[0]
    assert error.line.startswith(text)
    assert error.place.startswith("user_models.py:")  # never a place in flowdist, and never none
    assert result.job.incidents[-1].reason.endswith(result.played.errors[-1].place)
    assert result.played.errors[-1].place in result.job.ending_reason


def test_a_wrong_answer_is_placed_at_the_method_that_gave_it() -> None:
    error = run(job(models.RestoringNothing), "trainer/1@step=trainer,15").played.errors[0]
    line = inspect.getsourcelines(models.RestoringWrongly.restore)[1]
    assert error.place == f"user_models.py:{line} in restore()"


def test_a_wrong_state_of_a_service_is_placed_at_its_method() -> None:
    line = inspect.getsourcelines(models.WrongStateOfServer.state)[1]
    t = Topology("x", nodes=1)
    t.role("ps", "true", kind="service", replicas=1, simulate=models.WrongStateOfServer)
    t.role("trainer", "true", replicas=1, simulate=models.Counting, workload=Workload(steps=3))
    [clash] = Simulation(graph_of(t)).run().played.clashes
    assert clash.endswith(f", at user_models.py:{line} in state()")


def test_where_user_code_raised_is_told_without_our_own_frames() -> None:
    [error] = run(job(models.Raising)).played.errors
    assert error.place.startswith("user_models.py:") and error.place.endswith(" in step()")
    assert "model_worker.py" not in error.text and "answers.py" not in error.text


def test_arrays_and_losses_that_are_no_number_are_compared_as_whole_values() -> None:
    graph = job(models.WithArrays)
    assert_same_result(graph, "trainer/1@step=trainer,15")
    check_determinism(graph, "trainer/1@step=trainer,15")


def test_arrays_that_are_not_the_same_are_found_to_differ() -> None:
    with pytest.raises(AssertionError, match="same result: trainer: in step 10 of generation 2 total is"):
        assert_same_result(job(models.WithArraysNotRestored), "trainer/1@step=trainer,15")


def test_values_whose_equality_raises_are_compared_by_their_pickles() -> None:
    assert_same_result(job(models.WithVersions), "trainer/1@step=trainer,15")


def test_where_values_differ_the_message_says_that_their_equality_raised() -> None:
    with pytest.raises(AssertionError, match=r"version is .*, without faults .*raised AttributeError: .*nummer"):
        assert_same_result(job(models.WithVersionsNotRestored), "trainer/1@step=trainer,15")
    ends = Played()
    ends.ended("trainer", [{"version": models.Version(1)}, {"version": models.Version(2)}])
    assert "raised AttributeError" in ends.clashes[0]
    ends = Played()
    ends.ended("trainer", [{"sums": models.Array(1, 2)}, {"sums": models.Array(1, 3)}])
    assert ends.clashes[0].endswith(">")  # an array has no single answer to ==, and that is no mistake


def test_a_state_of_a_service_that_is_none_is_no_state_that_is_the_same() -> None:
    t = Topology("served", nodes=2)
    t.role("ps", "true", kind="service", simulate=models.WrongStateOfServer)
    t.role(
        "trainer",
        "true",
        restart=Restart("role", max_restarts=3),
        simulate=models.Counting,
        workload=Workload(steps=10),
    )
    with pytest.raises(AssertionError, match=r"state\(\) of ps/0 failed: TypeError: state\(\) has to return a dict"):
        assert_same_result(t, "trainer@12s")


@pytest.mark.parametrize(
    ("one", "other", "is_small"),
    [
        (0.0034441377853822964, 0.003444137785382296, True),
        ([1, {"a": (0.1 + 0.2, "text")}], [1, {"a": (0.3, "text")}], True),
        (complex(1, 0.3), complex(1, 0.1 + 0.2), True),
        ([float("nan"), 0.3], [float("nan"), 0.1 + 0.2], True),
        (array("f", [0.1, 3.0]), array("f", [0.10000001, 3.0]), True),  # neighbours among single floats
        (0.1, 0.10000001, False),  # and far apart for doubles
        (1e300, 1.0000000000000002e300, True),
        (1.0, 1.00001, False),
        (1.0, float("nan"), False),
        (1.0, float("inf"), False),
        (1.0, "1.0", False),
        (100000000000, 100000000001, False),  # whole numbers are not rounded
        ([0.3, "a"], [0.1 + 0.2, "b"], False),
        ([0.3], [0.1 + 0.2, 1.0], False),
        ({"a": 0.3}, {"b": 0.1 + 0.2}, False),
        (models.Version(0.3), models.Version(0.1 + 0.2), False),  # its == raises
        ([1.0], (1.0,), False),
        (object(), object(), False),
    ],
)
def test_a_difference_that_may_be_rounding_is_told_from_others(one: object, other: object, is_small: bool) -> None:
    assert bool(rounding(one, other)) == bool(rounding(other, one)) == is_small
    assert bool(rounding_text([(one, other)])) == is_small
    assert bool(rounding_text([(0.3, 0.1 + 0.2), (one, other)])) == is_small


def test_a_sum_over_fewer_ranks_is_another_result_and_the_message_says_that_it_may_be_rounding() -> None:
    with pytest.raises(AssertionError, match=r"at the end total is .*, without faults ") as failed:
        assert_same_result(job(models.Summing), "node1@20s:leave")
    text = str(failed.value)
    assert re.search(r"nested is .* \(they differ by \d\.\de-16 of their size, as sums of the same numbers", text)
    assert "sum in the order of the samples, or round what is logged and what state() returns); resumed: " in text
    with pytest.raises(AssertionError) as failed:
        assert_same_result(job(models.WithArraysNotRestored), "trainer/1@step=trainer,15")
    assert "of their size" not in str(failed.value)


def test_values_that_ranks_round_otherwise_are_not_the_same_and_the_message_says_so() -> None:
    ends = Played()
    ends.ended("trainer", [{"loss": 0.3}, {"loss": 0.1 + 0.2}])
    assert "rank 1 has 0.30000000000000004 (they differ by 1.9e-16 of their size" in ends.clashes[0]
