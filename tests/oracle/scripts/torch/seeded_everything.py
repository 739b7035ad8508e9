"""random, numpy and torch are seeded before a model is made; a loader shuffles; AdamW takes steps."""

import random

import numpy
import torch

import probe

random.seed(1)
numpy.random.seed(2)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
probe.note("made")
losses = []
for inputs, targets in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if len(losses) == 1:
        probe.first_step(loss=losses[0])
probe.done(losses=losses, rest=[random.random(), float(numpy.random.rand()), float(torch.rand(()))])
