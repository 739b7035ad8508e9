"""A DataLoader with two workers, whose seeds come from the rank's own: seeded, so that all is alike."""

import torch

import probe

torch.manual_seed(8)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.utils.data.get_worker_info().seed % 1000, index, torch.rand(1).item()


if __name__ == "__main__":
    probe.note("seeded")
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, shuffle=True, num_workers=2)
    rows = [[column.tolist() for column in batch] for batch in loader]
    probe.first_step(rows=rows)
    probe.done(draw=torch.rand(1).item())
