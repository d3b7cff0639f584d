"""Runs that other tools recorded, judged afterwards: a loop that knows nothing of learnscope writes to TensorBoard and
to wandb (offline, nothing leaves this machine); both are imported, and the findings say what went wrong."""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import learnscope as ls

os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
import wandb


def train(folder: Path, steps: int) -> None:
    """Forty examples, a third of them with a wrong label: what is learned after a while is the wrong labels."""
    torch.manual_seed(0)
    x, held_x = torch.randn(40, 12), torch.randn(400, 12)
    y, held_y = (x[:, 0] > 0).long(), (held_x[:, 0] > 0).long()
    y[:13] = 1 - y[:13]
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    board = SummaryWriter(str(folder / "board"))
    run = wandb.init(dir=folder, project="examples", config={"lr": 3e-3, "width": 64})
    for step in range(1, steps + 1):
        rows = torch.randint(40, (16,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged = {"train/loss": loss.item()}
        if step % 10 == 0:
            with torch.no_grad():
                logged["val/loss"] = nn.functional.cross_entropy(model(held_x), held_y).item()
        run.log(logged, step=step)
        for name, value in logged.items():
            board.add_scalar(name, value, step)
    board.close()
    run.finish()
    wandb.teardown()  # `finish` returns before the file is complete


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    folder = Path("logs")
    folder.mkdir(exist_ok=True)
    train(folder, parser.parse_args().steps)
    for run in ls.import_runs(folder, "runs/imported"):  # as `learnscope import logs --out runs/imported`
        print(f"\n{run.path}")
        for entry in run.manifest["imported"]["names"]:
            print(f"  {entry['name']}: {entry['became']}, {entry['values']} values")
        for finding in run.findings():
            print(f"  {finding.severity}: {finding.title}")
        print(f"  {run.page()}")


if __name__ == "__main__":
    main()
