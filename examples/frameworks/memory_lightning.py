"""Lightning's Trainer, whose checkpoints are in the memory of nodes instead of on a disk, also within an epoch.

flowdist run examples/frameworks/memory_topology.py -p script=memory_lightning.py --fail trainer/1@step=trainer,12
"""

from __future__ import annotations

import argparse
import hashlib
import os
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flowdist import worker


class InMemory(DDPStrategy):
    """DDP that saves to the vault of the node: on every rank, where a CheckpointIO is called on rank 0 alone."""

    found: tuple[int, Any] | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], *_: Any, **__: Any) -> None:
        worker.snapshot(checkpoint["global_step"], checkpoint)

    def load_checkpoint(self, *_: Any, **__: Any) -> dict[str, Any]:
        assert self.found is not None
        state: dict[str, Any] = self.found[1]
        return state


class EachStep(Callback):
    """Sets the random numbers before each micro-batch, and has a checkpoint made after every fifth step."""

    def __init__(self, samples: worker.Samples) -> None:
        self.samples, self.rank = samples, worker.info().rank

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, number: int) -> None:
        each = self.samples.accumulation
        worker.random(trainer.global_step, self.rank * each + number % each)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, number: int
    ) -> None:
        if (number + 1) % self.samples.accumulation == 0:  # the optimizer has stepped
            if trainer.global_step % 5 == 0:
                trainer.save_checkpoint("memory", weights_only=False)
            worker.progress(trainer.global_step)


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    seed_everything(1, verbose=False)
    inputs = torch.randn(128, 16)
    strategy = InMemory(find_unused_parameters=True)  # DDP then keeps its buckets: it adds in the same order again
    strategy.found = worker.restore()
    start = strategy.found[0] if strategy.found else 0
    samples = worker.samples(len(inputs), global_batch=16, micro_batch=4, seed=1)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_sampler=samples.sampler(start))
    trainer = Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy=strategy,
        use_distributed_sampler=False,  # the sampler has this rank's share already
        accumulate_grad_batches=samples.accumulation,
        max_epochs=options.epochs,
        callbacks=[EachStep(samples)],
        logger=False,
        enable_checkpointing=False,  # no files
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    if trainer.is_global_zero:
        print(f"begins at step {start}", flush=True)
    # Lightning warns that the loader is not resumable; it need not be, because its sampler begins at the step.
    trainer.fit(model, data, ckpt_path="memory" if start else None, weights_only=False)
    if trainer.is_global_zero:
        values = [value.detach() for value in model.parameters()]
        digest = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in values)).hexdigest()
        print(f"final {sum(value.double().square().sum().item() for value in values)} {digest}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
