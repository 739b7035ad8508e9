"""torchdata's StatefulDataLoader, with a worker, shuffled by a seed, its state taken and given back."""

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import probe


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index


if __name__ == "__main__":
    probe.note("imported")
    torch.manual_seed(2)
    loader = StatefulDataLoader(Data(), batch_size=2, shuffle=True, num_workers=1)
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        if len(seen) == 2:
            state = loader.state_dict()
            probe.first_step(seen=list(seen))
    again = StatefulDataLoader(Data(), batch_size=2, shuffle=True, num_workers=1)
    again.load_state_dict(state)
    probe.done(seen=seen, rest=[batch.tolist() for batch in again])
