"""One of two ranks that train one model with DistributedDataParallel. Rank 0 compares its run with its own account."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from clients.account import Account, check_loop


def train(account: Account, folder: Path) -> nn.Module:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(4))
    data = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    account.watch(model, optimizer, run=folder / "run")
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            account.given(optimizer)
            optimizer.step()
            account.took(loss=loss.item())
            account.log(loss=loss)
        scheduler.step()
    return model


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    if rank == 0:
        steps = len(check_loop(lambda account: train(account, folder)).steps)
    else:
        accounts = Account(watched=False), Account(watched=True)
        for account in accounts:
            torch.manual_seed(0)
            train(account, folder)
        assert accounts[0].losses == accounts[1].losses
        assert accounts[1].w is not None
        accounts[1].w.close()
        assert list(accounts[1].w.run.records()) == [], "rank 0 records"
        steps = accounts[1].w.steps
    dist.destroy_process_group()
    print(json.dumps({"rank": rank, "steps": steps}))


if __name__ == "__main__":
    main()
