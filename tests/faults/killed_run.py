"""A program that is killed from outside while it writes a run folder. Prints each number when it is safe on disk.

python killed_run.py WORK FOLDER [WRITE_EVERY]     what it does in the folder, until it is killed: one of the functions
                                                   below; records are written every so many steps, by default all
"""

import sys
from pathlib import Path

import torch

import learnscope as ls

WORK, FOLDER = (sys.argv[1], Path(sys.argv[2])) if __name__ == "__main__" else ("", Path())
WRITE_EVERY = int(sys.argv[3]) if WORK and len(sys.argv) > 3 else 1


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def train() -> None:
    model, optimizer = make()
    data = [(torch.randn(16, 6), torch.randint(3, (16,)))]
    probes = [ls.GradientFlow(every=1), ls.ParameterChange(every=1), ls.LearningRate(every=1), ls.Holdout(every=3)]
    options = {"probes": probes, "holdout": data, "strict": True, "write_every": WRITE_EVERY, "write_seconds": 60.0}
    w = ls.watch(model, optimizer, run=FOLDER, **options)
    say("ready")
    while True:
        step(model, optimizer)
        say(w.steps)


def state() -> None:
    """Every step a checkpoint with its state."""
    model, optimizer = make()
    w = ls.watch(model, optimizer, run=FOLDER, probes=[ls.ParameterChange(every=1)], strict=True)
    say("ready")
    while True:
        step(model, optimizer)
        w.save_checkpoint(FOLDER.with_name("checkpoint.pt"), {"model": model.state_dict(), "step": w.steps})
        say(w.steps)


def ledger() -> None:
    """Every epoch the whole ledger of examples."""
    model, optimizer = make()
    probes = [ls.ExampleLedger(keep_every=1)]
    w = ls.watch(model, optimizer, run=FOLDER, probes=probes, write_seconds=0.0, strict=True)
    say("ready")
    epoch = 0
    while True:
        step(model, optimizer)
        w.examples(range(2000), torch.randn(2000, 3), torch.zeros(2000, dtype=torch.long))
        w.end_epoch()
        epoch += 1
        say(epoch)


def compact() -> None:
    """Go on with the run and compact it, again and again."""
    import pyarrow.parquet  # noqa: F401  (takes longer than all that follows)

    model, optimizer = make()
    last = 0
    say("ready")
    while True:
        with ls.watch(model, optimizer, run=FOLDER, probes=[ls.LearningRate(every=1)], resume=True, strict=True) as w:
            for _ in range(40):
                step(model, optimizer)
            last = w.steps
        say(last)
        ls.open_run(FOLDER).compact()


def report() -> None:
    """Write the report again and again."""
    import matplotlib.pyplot  # noqa: F401  (as above)

    model, optimizer = make()
    with ls.watch(model, optimizer, run=FOLDER, probes=[ls.GradientFlow(every=1)], strict=True):
        for _ in range(10):
            step(model, optimizer)
    say("ready")
    number = 0
    while True:
        ls.open_run(FOLDER).report()
        number += 1
        say(number)


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[WORK]()
