"""A watched training to which something happens, named by the first argument. Prints what the test compares."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import torch

import learnscope as ls

CASE, FOLDER = (sys.argv[1], Path(sys.argv[2])) if __name__ == "__main__" else ("", Path())


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, w: ls.Watch) -> None:
    optimizer.zero_grad()
    loss = model(torch.ones(4, 6)).square().mean()
    loss.backward()
    optimizer.step()
    w.log(loss=loss)


def watched(**options: object) -> tuple[torch.nn.Module, torch.optim.Optimizer, ls.Watch]:
    model, optimizer = make()
    probes = [ls.LearningRate(every=1), ls.Loss()]
    return model, optimizer, ls.watch(model, optimizer, run=FOLDER, probes=probes, **options)  # type: ignore[arg-type]


def disk_full() -> None:
    """No file may grow beyond 8 kB from the third step on."""
    model, optimizer, w = watched()
    with w:
        for number in range(60):
            if number == 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            step(model, optimizer, w)
    print(w.steps)


def no_room_for_weights() -> None:
    """The previous weights are to be kept on a disk that is too small for them."""
    from faults.private import mount_small_disk

    disk = FOLDER.with_name("disk")
    disk.mkdir()
    try:
        mount_small_disk(disk, 2**16)
    except OSError as error:
        print(f"no disk of its own: {error}")
        return
    tempfile.tempdir = str(disk)
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        ls.watch(model, optimizer, run=FOLDER, probes=[ls.ParameterChange(snapshot_device="disk")])
    except OSError as error:
        print(error)
    print(sorted(path.name for path in disk.rglob("*")))


def truncated() -> None:
    model, optimizer, w = watched(write_every=1)
    with w:
        for number in range(20):
            if number == 10:
                os.truncate(FOLDER / "records.jsonl", 1000)
            step(model, optimizer, w)
    print(w.steps)


def removed() -> None:
    model, optimizer, w = watched()
    with w:
        for number in range(10):
            if number == 5:
                shutil.rmtree(FOLDER)
            step(model, optimizer, w)
    print(w.steps, FOLDER.exists())


def raises() -> None:
    model, optimizer, w = watched()
    for _ in range(5):
        step(model, optimizer, w)
    raise ValueError(f"the loop broke after {w.steps} steps")


def without_close() -> None:
    model, optimizer, w = watched()
    for _ in range(5):
        step(model, optimizer, w)


def waits() -> None:
    """For a signal."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # whoever started us may ignore them, as nohup does
        signal.signal(number, signal.SIG_DFL)
    model, optimizer, w = watched()
    print("ready", flush=True)
    while True:
        step(model, optimizer, w)


def own_handler() -> None:
    """A program that handles SIGTERM itself, before and after a session."""
    handled = []
    signal.signal(signal.SIGTERM, lambda *_: handled.append("own"))
    model, optimizer, w = watched()
    with w:
        step(model, optimizer, w)
        os.kill(os.getpid(), signal.SIGTERM)
        step(model, optimizer, w)
    print(handled)


def restores() -> None:
    """The default handlers are back after close, also with two sessions."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    _, _, w = watched()
    model, optimizer = make()
    second = ls.watch(model, optimizer, run=FOLDER.with_name("second"))
    during = signal.getsignal(signal.SIGTERM) is not before[0]
    w.close()
    still = signal.getsignal(signal.SIGTERM) is not before[0]
    second.close()
    print(during, still, (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == before)


def forks() -> None:
    """A child that steps, logs, closes and exits as a program does; the parent goes on."""
    torch.set_num_threads(1)  # torch hangs in a child whose parent has worked with several
    model, optimizer, w = watched(holdout=[(torch.ones(4, 6), torch.zeros(4).long())])
    step(model, optimizer, w)
    before = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.is_file()}
    child = os.fork()
    if child == 0:
        for _ in range(3):
            step(model, optimizer, w)
        w.save_state()
        w.end_epoch()
        w.close() if FOLDER.name == "closes" else None
        sys.exit(0)
    os.waitpid(child, 0)
    print(before == {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.is_file()})
    step(model, optimizer, w)
    w.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    warnings.simplefilter("always")
    globals()[CASE]()
