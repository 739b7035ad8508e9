"""One rank of a world that saves FSDP2's state by memory_writer(), or loads it by memory_reader(): `save` or `load`."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from flowdist import worker


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.Linear(17, 5))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    if sys.argv[1] == "save":
        for _ in range(3):
            model(torch.ones(2, 33)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        dcp.save(state_of(model, optimizer, 7), storage_writer=worker.memory_writer(7))
    else:
        reader = worker.memory_reader()
        assert reader is not None
        state = state_of(model, optimizer, 0)
        dcp.load(state, storage_reader=reader)
        assert state["step"] == reader.step == 7
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    tensors = [*model.parameters(), *(each["exp_avg"] for each in optimizer.state.values())]
    print(json.dumps([tensor.full_tensor().flatten().tolist() for tensor in tensors]))
    dist.destroy_process_group()


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, object]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": step}


if __name__ == "__main__":
    main()
