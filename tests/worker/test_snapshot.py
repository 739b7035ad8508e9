"""snapshot() and restore(): what a worker hands to the vault of its node comes back as it was."""

from __future__ import annotations

import collections
import json
import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowdist import worker
from flowdist.runtime.vault.messages import Broken, Held
from tests.runtime.vault.vaults import MIB, VaultProcess, as_worker

torch = pytest.importorskip("torch")


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[VaultProcess]:
    with VaultProcess(tmp_path, "a") as vault, as_worker(vault, rank=0, world_size=1):
        yield vault


def goes_on_from(step: int, monkeypatch: pytest.MonkeyPatch, world_size: int = 1, **holders: list[list[str]]) -> None:
    named = {"generation": 1, "step": step, "world_size": world_size, "holders": holders}
    file = Path(os.environ["FLOWDIST_VAULT"]).with_name("snapshot.json")
    file.write_text(json.dumps(named))
    monkeypatch.setenv("FLOWDIST_SNAPSHOT", str(file))


def hold(vault: VaultProcess, state: Any) -> None:
    """Take a snapshot of step 3, and wait until it is held."""
    assert worker.snapshot(3, state)
    held = vault.hear()
    assert isinstance(held, Held)
    assert held.step == 3


def again(vault: VaultProcess, state: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Return a state after it was in the memory of the vault."""
    hold(vault, state)
    goes_on_from(3, monkeypatch)
    found = worker.restore(**options)
    assert found is not None
    assert found[0] == 3
    return found[1]


@pytest.mark.real
def test_tensors_of_each_kind_and_other_values_come_back(vault: VaultProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {
        "float": torch.randn(100, 1000),
        "half": [torch.randn(7).bfloat16(), torch.randn(3).half(), torch.arange(5, dtype=torch.uint8)],
        "bool": (torch.tensor([True, False]), torch.tensor(3.5)),
        "complex": torch.randn(4, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 5, dtype=torch.int64),
        "columns": torch.randn(30, 40).t()[3:7],
        "parameter": torch.nn.Parameter(torch.randn(9)),
        "sparse": torch.eye(3).to_sparse(),
        "text": {"lr": 0.1, None: [1, {2}, b"x"], "path": Path("x")},
    }
    found = again(vault, state, monkeypatch)
    for (place, was), (same, now) in zip(_leaves(state), _leaves(found), strict=True):
        assert place == same
        if isinstance(was, torch.Tensor):
            assert (now.dtype, now.shape, now.requires_grad) == (was.dtype, was.shape, False), place
            assert torch.equal(now.to_dense(), was.detach().to_dense()), place
        else:
            assert now == was


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list | tuple):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, f"{place}.{name}")
    else:
        yield place, value


@pytest.mark.real
def test_a_model_and_its_optimizer_go_on_as_if_nothing_had_been(
    vault: VaultProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model: Any, optimizer: Any) -> list[float]:
        losses = []
        for _ in range(3):
            loss = model(torch.arange(32.0).reshape(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model, optimizer = made(1)
    train(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    hold(vault, state)
    expected = train(model, optimizer), torch.rand(1)
    other, its_optimizer = made(2)
    goes_on_from(3, monkeypatch)
    found = worker.restore()
    assert found is not None
    assert isinstance(found[1]["model"], collections.OrderedDict)
    assert hasattr(found[1]["model"], "_metadata")
    other.load_state_dict(found[1]["model"])
    its_optimizer.load_state_dict(found[1]["optimizer"])
    torch.set_rng_state(found[1]["random"])
    assert (train(other, its_optimizer), torch.rand(1)) == expected


@pytest.mark.real
def test_the_state_is_as_it_was_when_it_was_handed_over(vault: VaultProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"w": torch.ones(1000)}
    hold(vault, state)
    state["w"].zero_()
    goes_on_from(3, monkeypatch)
    first, second = worker.restore(), worker.restore()
    assert first is not None and second is not None
    assert first[1]["w"].sum() == 1000
    first[1]["w"].zero_()  # what was restored is a copy, too
    assert second[1]["w"].sum() == 1000


@pytest.mark.real
def test_snapshots_of_a_state_that_grows_a_little_use_the_same_memory(vault: VaultProcess) -> None:
    for step in range(1, 4):
        assert worker.snapshot(step, {"w": torch.ones(MIB), "losses": ["x" * step * 1000]})
    sizes = {vault.hear().bytes for _ in range(3)}
    assert len(sizes) == 1


@pytest.mark.real
def test_without_room_training_goes_on_and_stderr_says_why_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowdist.worker.snapshots.snapshot._teller._has_said", False)
    with VaultProcess(tmp_path, "a", limit=MIB, wait_s=0.0) as vault, as_worker(vault):
        assert [worker.snapshot(step, {"w": torch.ones(MIB)}) for step in (7, 8)] == [False, False]
        assert worker.snapshot(9, {"w": torch.ones(1)})
    said = capsys.readouterr().err
    assert said == (
        "flowdist: the snapshot of step 7 was not taken: it has 4.1 MiB, and the vault may hold 1.0 MiB; "
        "training goes on, and later ones that are not taken are not named\n"
    )


def test_a_vault_that_is_gone_takes_no_snapshot_and_cannot_restore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowdist.worker.snapshots.snapshot._teller._has_said", False)
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(tmp_path / "a.sock"))
    monkeypatch.setenv("FLOWDIST_VAULT", str(tmp_path / "a.sock"))
    assert not worker.snapshot(1, {})
    assert "the snapshot of step 1 was not taken: [Errno 111] Connection refused;" in capsys.readouterr().err
    goes_on_from(1, monkeypatch)
    with pytest.raises(ConnectionRefusedError):
        worker.restore()


def test_without_flowdist_nothing_is_taken_and_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not worker.snapshot(1, {"w": torch.ones(1)})
    assert worker.restore() is None
    monkeypatch.setenv("FLOWDIST_SNAPSHOT", "snapshot.json")
    assert worker.restore() is None
    assert worker.memory_reader() is None


@pytest.mark.real
def test_a_generation_that_goes_on_from_a_checkpoint_restores_none(vault: VaultProcess) -> None:
    assert worker.snapshot(1, {})
    assert worker.restore() is None


@pytest.mark.real
def test_what_nobody_has_is_an_error_with_the_holders_that_were_asked(
    vault: VaultProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on_from(5, monkeypatch, **{"0": [["a", vault.address], ["z", "127.0.0.1:1"]]})
    with pytest.raises(
        RuntimeError, match=r"nobody has a good copy of trainer step 5 .*, rank 0 of 1 \(a: it has no such copy; z: "
    ):
        worker.restore()
    assert vault.hear() == Broken("trainer", 1, 5, 0, 1, "it has no such copy")


@pytest.mark.real
def test_in_a_world_of_another_size_a_rank_has_to_be_named(
    vault: VaultProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(vault, {"w": 1})
    goes_on_from(3, monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="the snapshot is of a world of 1, and this one has 2"):
        worker.restore()
    assert worker.restore(rank=0) == (3, {"w": 1})


@pytest.mark.real
def test_a_value_that_cannot_be_pickled_is_an_error_and_nothing_is_held(
    vault: VaultProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        worker.snapshot(3, {"w": torch.ones(1), "f": lambda: None})
    vault.attach()
    vault.put(b"x", step=4)  # the first one that the agent learns of


@pytest.mark.real
def test_an_error_while_the_state_is_copied_leaves_nothing(
    vault: VaultProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotImplementedError):
        worker.snapshot(3, {"w": torch.ones(1000), "meta": torch.empty(5, device="meta")})
    vault.put(b"x", step=4)


@pytest.mark.real
def test_a_process_that_is_forked_after_a_snapshot_can_take_one_too(vault: VaultProcess) -> None:
    assert worker.snapshot(1, {"w": 1})
    pid = os.fork()
    if pid == 0:
        os._exit(0 if worker.snapshot(2, {"w": 2}) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert {vault.hear().step, vault.hear().step} == {1, 2}


@pytest.fixture
def group() -> Iterator[None]:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.real
def test_dtensors_come_back_as_their_local_part_or_on_a_mesh_that_fits(
    vault: VaultProcess, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    whole = torch.randn(10, 6)
    state = {
        "both": distribute_tensor(whole, mesh, [Shard(0), Replicate()]),
        "one": distribute_tensor(whole, mesh["dp"]),
    }
    found = again(vault, state, monkeypatch)
    part = found["both"]
    assert isinstance(part, worker.LocalPart)
    assert (part.places, part.shape, part.mesh_shape, part.mesh_names) == (
        (Shard(0), Replicate()), (10, 6), (1, 1), ("dp", "tp"),
    )  # fmt: skip
    assert torch.equal(part.tensors[0], whole)
    restored = worker.restore(mesh=mesh)
    assert restored is not None
    _, found = restored
    for name, was in state.items():
        now = found[name]
        assert isinstance(now, DTensor)
        assert (now.device_mesh, now.placements, now.shape) == (was.device_mesh, was.placements, was.shape)
        assert torch.equal(now.full_tensor(), whole)
    with pytest.raises(ValueError, match=r"was cut for a mesh of shape \(1, 1\), and this mesh has \(1,\)"):
        part.mesh_names = None
        part.on(init_device_mesh("cpu", (1,)))


@pytest.mark.real
def test_the_tensors_of_dcp_come_back_where_the_world_has_one_rank(
    vault: VaultProcess, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed.checkpoint as dcp

    state = {"a": {"w": torch.randn(10, 4)}, "step": 7, "list": [torch.ones(3), "x"]}
    dcp.save(state, storage_writer=worker.memory_writer(7))
    vault.hear()  # it is held
    goes_on_from(7, monkeypatch)
    reader = worker.memory_reader()
    assert reader is not None and reader.step == 7
    found = {"a": {"w": torch.zeros(10, 4)}, "step": 0, "list": [torch.zeros(3), ""]}
    dcp.load(found, storage_reader=reader)
    assert torch.equal(found["a"]["w"], state["a"]["w"])
    assert (found["step"], found["list"][1], found["list"][0].sum()) == (7, "x", 3)
    with pytest.raises(dcp.CheckpointException, match=r"the plans of the whole world|needs the plans"):
        monkeypatch.setenv("WORLD_SIZE", "2")
        dcp.save(state, storage_writer=worker.memory_writer(8))
