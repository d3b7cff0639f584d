"""A training run that is killed from outside while it records. Prints each step when it is done."""

import sys

import torch

import learnscope as ls


def main(folder: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = [(torch.randn(16, 6), torch.randint(3, (16,)))]
    probes = [ls.GradientFlow(every=1), ls.ParameterChange(every=1), ls.LearningRate(every=1), ls.Holdout(every=3)]
    w = ls.watch(model, optimizer, run=folder, probes=probes, holdout=data, strict=True)
    print("ready", flush=True)
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        sys.stdout.write(f"{w.steps}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
