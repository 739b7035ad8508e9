"""worker.backend(): NCCL if no two ranks share a GPU, else gloo."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def torch() -> Any:
    """Import torch, which takes seconds, not before a test needs it."""
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("devices", "env", "backend"),
    [
        (0, {}, "gloo"),
        (1, {}, "nccl"),
        (1, {"LOCAL_WORLD_SIZE": "2"}, "gloo"),
        (2, {"LOCAL_WORLD_SIZE": "2"}, "nccl"),
        (1, {"FLOWDIST_GPU_FRACTION": "0.5"}, "gloo"),
        (1, {"LOCAL_WORLD_SIZE": "2", "FLOWDIST_VISIBLE_DEVICES": "0,1"}, "nccl"),
        (1, {"LOCAL_WORLD_SIZE": "2", "FLOWDIST_VISIBLE_DEVICES": "0"}, "gloo"),
    ],
)
def test_nccl_is_for_workers_with_a_gpu_of_their_own(
    torch: Any, monkeypatch: pytest.MonkeyPatch, devices: int, env: dict[str, str], backend: str
) -> None:
    from flowdist import worker

    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for name in ("LOCAL_WORLD_SIZE", "FLOWDIST_GPU_FRACTION", "FLOWDIST_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert worker.backend() == backend


def test_a_torch_without_nccl_has_gloo(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flowdist import worker

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert worker.backend() == "gloo"


@pytest.mark.gpu
def test_on_a_real_gpu_it_is_nccl(torch: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU, or a torch without CUDA")
    from flowdist import worker

    assert worker.backend() == "nccl"
