"""R25: the samples of a step count with the commit that contains it, and the ledger shows that each was used once."""

from __future__ import annotations

from flowdist.control.membership.samples import why_not_once
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.graph import SnapshotSpec
from flowdist.report.record.samples import ledgers_of, ledgers_text
from tests.control.agent_harness import T, start
from tests.control.agent_harness import Talk as AgentTalk
from tests.control.harness import Talk, joined, restart, role

RULE = ev.Sampling(dataset_size=100, global_batch=8, micro_batch=2, seed=7)


def started(replicas: int = 2) -> Talk:
    return joined(role("trainer", min_replicas=1, max_replicas=replicas, restart=restart()), nodes=replicas)


def sample(talk: Talk, begin: int, rule: ev.Sampling = RULE, ranks: tuple[int, ...] = (0, 1)) -> None:
    """Have these ranks report that they take the samples of the steps from `begin` on."""
    for rank in ranks:
        replica = talk.replica(f"trainer/{rank}")
        talk.tell(ev.ReplicaSampling(replica.id, replica.attempt, 0, begin, rank, 2, rule))


def commit(talk: Talk, step: int, generation: int | None = None) -> None:
    replica, world = talk.replica("trainer/0"), talk.job.worlds["trainer"]
    of = world.generation if generation is None else generation
    talk.tell(ev.CheckpointOffered(replica.id, replica.attempt, of, f"/ckpt/{step}-{of}", step))


def again(talk: Talk) -> None:
    """Have a worker fail, and all of them start in the next generation."""
    replica = talk.replica("trainer/1")
    talk.fail("trainer/1", attempt=replica.attempt)
    talk.wait(60)


def counted(talk: Talk) -> list[tuple[int, int, int]]:
    return [(each.generation, each.begin, each.end) for each in talk.job.worlds["trainer"].ledger]


def why(talk: Talk) -> list[str]:
    return why_not_once(talk.job.worlds["trainer"].ledger)


def test_r25_a_step_counts_once_a_checkpoint_that_contains_it_is_committed() -> None:
    talk = started()
    sample(talk, 0)
    assert counted(talk) == []
    commit(talk, 10)
    commit(talk, 20)
    assert counted(talk) == [(1, 0, 20)] and why(talk) == []
    again(talk)
    sample(talk, 20)
    commit(talk, 30)
    assert counted(talk) == [(1, 0, 20), (2, 20, 30)] and why(talk) == []


def test_r25_steps_that_are_done_again_from_an_older_checkpoint_count_once() -> None:
    talk = started()
    sample(talk, 0)
    commit(talk, 10)
    commit(talk, 20)
    again(talk)
    sample(talk, 10)
    assert counted(talk) == [(1, 0, 20)]
    commit(talk, 15)
    assert counted(talk) == [(1, 0, 10), (2, 10, 15)] and why(talk) == []
    again(talk)
    sample(talk, 0)
    commit(talk, 40)
    assert counted(talk) == [(3, 0, 40)] and why(talk) == []


def test_r25_a_commit_of_a_generation_that_is_over_counts_for_nothing() -> None:
    talk = started()
    sample(talk, 0)
    commit(talk, 10)
    again(talk)
    sample(talk, 10)
    commit(talk, 50, generation=1)
    assert counted(talk) == [(1, 0, 10)]


def test_r25_a_generation_that_leaves_out_steps_is_told_so_once_and_the_ledger_is_not_sure() -> None:
    talk = started()
    sample(talk, 0)
    commit(talk, 10)
    again(talk)
    sample(talk, 15)
    said = [text for text in talk.texts() if "in no committed checkpoint" in text]
    assert said == [
        "trainer takes samples from step 15 on, and the last committed checkpoint has step 10: the steps between them "
        "are in no committed checkpoint"
    ]
    commit(talk, 20)
    assert why(talk) == ["no committed checkpoint contains the steps from 10 to 15"]


def test_r25_ranks_that_begin_at_different_steps_or_by_another_rule_are_told_apart() -> None:
    talk = started()
    sample(talk, 0, ranks=(0,))
    sample(talk, 5, ranks=(1,))
    (said,) = [text for text in talk.texts() if "do not take the same samples" in text]
    assert said == (
        "the ranks of trainer do not take the same samples: trainer/1 takes 8 of 100 a step, 2 at once, with seed 7, "
        "from step 5 on as one of 2 ranks, and trainer/0 8 of 100 a step, 2 at once, with seed 7, from step 0 on as "
        "one of 2 ranks"
    )
    commit(talk, 10)
    assert why(talk) == ["the ranks of generation 1 did not take the same samples"]


def test_r25_a_rank_that_says_nothing_and_another_seed_make_the_ledger_unsure() -> None:
    talk = started()
    sample(talk, 0, ranks=(0,))
    commit(talk, 10)
    assert why(talk) == ["1 of the 2 ranks of generation 1 have reported which samples they took"]
    again(talk)
    sample(talk, 10, ev.Sampling(100, 8, 2, seed=8))
    commit(talk, 20)
    assert why(talk)[1:] == ["generation 2 took other samples than generation 1"]
    again(talk)
    sample(talk, 20, ev.Sampling(100, 8, 4, seed=8))  # other micro-batches, of the same samples
    commit(talk, 30)
    assert len(why(talk)) == 2


def test_r25_the_report_shows_the_ledger() -> None:
    talk = started()
    assert ledgers_text(ledgers_of(talk.job)).startswith("no worker has called worker.samples()")
    sample(talk, 0)
    assert ledgers_text(ledgers_of(talk.job)).endswith("no checkpoint is committed, so that no step counts yet\n")
    commit(talk, 10)
    again(talk)
    sample(talk, 10)
    commit(talk, 25)
    assert ledgers_text(ledgers_of(talk.job)) == (
        "trainer: 8 of 100 samples in each step, seed 7\n"
        "  generation  steps     samples  ranks\n"
        "  1           0 to 10   80       2\n"
        "  2           10 to 25  120      2\n"
        "  2.00 epochs are in the last checkpoint; in each of them, each sample was used once\n"
    )


def test_an_agent_reports_at_once_from_where_a_worker_takes_samples_and_again_after_a_reconnect() -> None:
    talk = AgentTalk()
    talk.order(start())
    talk.tell(io.WorkersSpawned(T, 1))
    told = ev.ReplicaSampling(T, 1, 1, 4, 1, 2, RULE)
    assert talk.tell(io.WorkerSampling(T, 1, 1, 4, 1, 2, RULE)) == [told]
    assert talk.tell(io.WorkerSampling(T, 1, 1, 4, 1, 2, RULE)) == []
    assert talk.tell(io.WorkerSampling(T, 1, 2, 4, 1, 2, RULE)) == []  # there is no such worker
    talk.tell(io.Disconnected())
    assert told in talk.tell(io.Connected())


def test_r25_steps_in_a_snapshot_count_once_a_generation_goes_on_from_it() -> None:
    kept = SnapshotSpec(copies=1)
    talk = joined(role("trainer", min_replicas=2, max_replicas=2, restart=restart(), snapshots=kept), nodes=2)
    for node in ("node0", "node1"):
        talk.tell(ev.VaultOpened(node, 7000))
    sample(talk, 0)
    commit(talk, 10)
    for rank, node in enumerate(("node0", "node1")):
        talk.tell(ev.CopyHeld("trainer", 1, 15, rank, node, 2, 100, "ab"))
    again(talk)
    assert counted(talk) == [(1, 0, 15)]
    sample(talk, 15)
    commit(talk, 20)
    assert counted(talk) == [(1, 0, 15), (2, 15, 20)] and why(talk) == []
    assert not any("no committed checkpoint" in text for text in talk.texts())


def test_r25_steps_that_workers_have_in_memory_count_when_they_stay_in_place() -> None:
    talk = started()
    talk.elastic("trainer/0", "trainer/1")
    sample(talk, 0)
    commit(talk, 10)
    talk.fail("trainer/1")
    talk.answer()
    sample(talk, 17)
    commit(talk, 20)
    assert counted(talk) == [(1, 0, 17), (2, 17, 20)] and why(talk) == []
    assert not any("no committed checkpoint" in text for text in talk.texts())


def test_r25_a_generation_that_begins_before_the_state_that_it_read_repeats_samples() -> None:
    talk = started()
    sample(talk, 0)
    commit(talk, 10)
    again(talk)
    sample(talk, 9)
    (said,) = [text for text in talk.texts() if "of which no state was committed" in text]
    assert said.startswith(
        "trainer takes samples from step 9 on, of which no state was committed: what it goes on from"
    )
    commit(talk, 20)
    assert why(talk) == ["generation 2 began at step 9, of which no state was committed: it has repeated samples"]


def test_r25_a_commit_without_its_step_counts_for_nothing() -> None:
    talk = started()
    sample(talk, 0)
    commit(talk, 10)
    again(talk)
    sample(talk, 10)
    commit(talk, 0)
    assert counted(talk) == [(1, 0, 10)]
