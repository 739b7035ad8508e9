"""Which run owns a folder of checkpoints or the id of a job: decided by hand."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.control.ownership import LEASE_NS, Claim, Decision, decide, objection_to_commit, why_lost
from flowdist.graph import SECOND

THEIRS = Claim("a-1", 3, "host0", "2026-11-23 10:00:00 +0000", "kernel0", 77, 1000, "token0")
MINE = Claim("b-2", 1, "host1", "2026-11-23 11:00:00 +0000", "kernel1", 88, 2000, "token1")


def decided(
    found: Claim | None, mine: Claim = MINE, *, has_changed: bool = False, unchanged_ns: int = 0, is_dead: bool = False
) -> Decision:
    return decide(mine, found, has_changed=has_changed, unchanged_ns=unchanged_ns, is_dead=is_dead)


def test_what_no_run_owns_is_taken_without_a_word():
    assert decided(None) == Decision("take")
    assert decided(None, has_changed=True) == Decision("take")  # its owner has given it back meanwhile


def test_a_run_that_renews_its_claim_keeps_it_and_the_second_is_refused_with_both_names():
    assert decided(THEIRS).act == "wait"
    act, why = decided(THEIRS, has_changed=True, is_dead=True, unchanged_ns=2 * LEASE_NS)
    assert act == "refuse"
    assert why == "belongs to run a-1 on host0, since 2026-11-23 10:00:00 +0000; this would be run b-2 on host1"
    assert decided(THEIRS, msgspec.structs.replace(MINE, run=""), has_changed=True).because.endswith(
        "a new run on host1"
    )


def test_a_claim_that_stays_the_same_for_the_whole_lease_is_taken_over_with_a_line():
    assert decided(THEIRS, unchanged_ns=LEASE_NS - 1).act == "wait"
    act, why = decided(THEIRS, unchanged_ns=LEASE_NS)
    assert act == "take" and why.startswith(
        "was owned by run a-1 on host0, since 2026-11-23 10:00:00 +0000, which has not"
    )


def test_the_claim_of_a_process_of_this_host_that_is_gone_is_taken_over_at_once():
    act, why = decided(THEIRS, is_dead=True)
    assert act == "take" and "whose process is gone" in why


@pytest.mark.parametrize(("epoch", "act"), [(4, "take"), (3, "wait"), (2, "wait")])
def test_a_run_takes_its_own_claim_over_only_in_a_higher_epoch(epoch: int, act: str):
    again = msgspec.structs.replace(THEIRS, epoch=epoch, host="host1", place="kernel1", token="token1")
    assert decided(THEIRS, again).act == act


def test_a_claim_is_lost_to_another_owner_but_not_with_its_file():
    renewed = msgspec.structs.replace(MINE, beat=7)
    assert why_lost(renewed, None) == why_lost(renewed, MINE) == ""
    assert why_lost(MINE, THEIRS).startswith(
        "was taken over by run a-1 on host0, since 2026-11-23 10:00:00 +0000, while"
    )
    resumed = msgspec.structs.replace(MINE, epoch=2, token="token2")
    assert why_lost(MINE, resumed), "another start of the same run"


def test_a_checkpoint_is_published_in_ones_own_folder_and_in_one_without_an_owner():
    assert objection_to_commit("a-1", 3, None) == objection_to_commit("a-1", 3, THEIRS) == ""
    assert objection_to_commit("a-1", 9, THEIRS) == "", "controllers of this start of the run have died since"


def test_a_checkpoint_is_not_published_in_the_folder_of_another_run_or_of_a_later_start_of_this_run():
    why = "the folder belongs to run a-1 on host0, since 2026-11-23 10:00:00 +0000; this is run b-2"
    assert objection_to_commit("b-2", 9, THEIRS) == why
    assert objection_to_commit("a-1", 2, THEIRS) == "run a-1 was started again on host0, as epoch 3; this is epoch 2"


def test_the_lease_is_longer_than_a_file_server_hangs_now_and_then():
    assert LEASE_NS == 10 * SECOND
