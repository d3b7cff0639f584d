"""Programs that tests run in processes of their own: `python programs.py <name> <folder>`; they print JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry

PROCESSES, ROUNDS, BATCHES = 4, 5, 12


def collecting(folder: Path, **options: Any) -> TrainingTelemetry:
    return TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=folder), **options)


def steps(model: nn.Linear, telemetry: TrainingTelemetry | None, numbers: range, kept: dict[int, Any]) -> list[float]:
    """Train on, without an optimizer, as importing one takes seconds; `kept` gets the weights after every step."""
    losses = []
    for number in numbers:
        x = torch.randn(4, model.in_features, generator=torch.Generator().manual_seed(number))
        loss = model(x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(0.1 * p.grad)
        losses.append(loss.item())
        kept[number] = [p.detach().double().numpy().copy() for p in model.parameters()]
        if telemetry is not None:
            telemetry.on_batch_end(model, None, number, 0, "cpu", (x,))
    return losses


def distance(a: Any, b: Any) -> float:
    return float(sum(((x - y) ** 2).sum() for x, y in zip(a, b, strict=True)) ** 0.5)


def full_disk(folder: Path) -> dict[str, Any]:
    """No file may grow past a limit during steps 4 to 6; then there is space again."""
    torch.manual_seed(0)
    model, losses = nn.Linear(150, 150), []
    kept: dict[int, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        telemetry = collecting(folder)
        losses += steps(model, telemetry, range(1, 4), kept)
        before = telemetry.metrics_file.read_bytes()
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # a part of a line still fits
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        losses += steps(model, telemetry, range(4, 7), kept)
        during = telemetry.metrics_file.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        losses += steps(model, telemetry, range(7, 9), kept)
        telemetry.close()
    torch.manual_seed(0)
    undisturbed = steps(nn.Linear(150, 150), None, range(1, 9), {})
    return {
        "warnings": [str(warning.message) for warning in caught],
        "intact": during == before,
        "unharmed": losses == undisturbed,
        "deltas": {"7": distance(kept[7], kept[3]), "8": distance(kept[8], kept[7])},
    }


def without_permission(folder: Path) -> dict[str, Any]:
    """As a user whom permissions bind: a folder that cannot be made, and one that is taken away in mid-training."""
    folder.chmod(0o777)
    # what is imported at use is imported now: root's files may be out of reach afterwards
    with collecting(folder / "first") as telemetry:
        steps(nn.Linear(3, 3), telemetry, range(1, 3), {})
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    found: dict[str, Any] = {}
    closed, own = folder / "closed", folder / "own"
    closed.mkdir(mode=0o555)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        telemetry = collecting(closed / "t")
        found["losses"] = steps(nn.Linear(3, 3), telemetry, range(1, 4), {})
        telemetry.close()
    found["closed"] = [str(warning.message) for warning in caught]
    found["written"] = [path.name for path in closed.iterdir()]
    kept: dict[int, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        telemetry, model = collecting(own), nn.Linear(3, 3)
        steps(model, telemetry, range(1, 3), kept)
        own.chmod(0o555)
        steps(model, telemetry, range(3, 5), kept)
        own.chmod(0o755)
        steps(model, telemetry, range(5, 7), kept)
        telemetry.close()
    found["taken"] = [str(warning.message) for warning in caught]
    found["deltas"] = [distance(kept[a], kept[b]) for a, b in ((2, 1), (3, 2), (4, 2), (5, 2), (6, 5))]
    return found


def contend(folder: Path) -> dict[str, Any]:
    """Several processes ask for the same folder at the same moment, round after round."""
    children = []
    for who in range(PROCESSES):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for round_ in range(ROUNDS):
                    compete(folder, round_, who)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    return {"codes": [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]}


def compete(folder: Path, round_: int, who: int) -> None:
    barrier = folder / f"barrier-{round_}"
    barrier.mkdir(exist_ok=True)
    (barrier / str(who)).touch()
    while len(list(barrier.iterdir())) < PROCESSES:
        time.sleep(0.0005)
    model = nn.Linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the folder is taken
        telemetry = collecting(folder / f"round-{round_}", strict=True)
    telemetry.set_holdout_data([(torch.randn(50, 3), torch.zeros(50, dtype=torch.int64))])
    for number in range(1, BATCHES + 1):
        telemetry.on_batch_end(model, None, number, 0, who=who)
    telemetry.close()


def endless(folder: Path) -> dict[str, Any]:
    """Trains until it is killed; prints each step when it is done."""
    torch.manual_seed(0)
    telemetry, model = collecting(folder, strict=True), nn.Linear(100, 100)
    telemetry.set_holdout_data([(torch.randn(50, 100), torch.zeros(50, dtype=torch.int64))])
    for number in range(1, 1_000_000):
        steps(model, telemetry, range(number, number + 1), {})
        print(number, flush=True)
    return {}


def memory(folder: Path) -> dict[str, Any]:
    """Peak of a collection on 25 million parameters; beside it, that of one copy of them."""
    model = nn.Linear(5000, 5000, bias=False)
    model.weight.grad = torch.ones_like(model.weight)
    telemetry = collecting(folder, strict=True)
    for number in (1, 2):
        telemetry.on_batch_end(model, None, number, 0)
    with torch.no_grad():
        model.weight.add_(0.5)
    return {
        "collection": peak_beyond_now(lambda: telemetry.on_batch_end(model, None, 3, 0)),
        "copy": peak_beyond_now(lambda: model.weight.detach().clone()),
    }


def peak_beyond_now(action: Callable[[], object]) -> float:
    """Peak resident memory of an action beyond what the process holds before it, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the high-water mark so far
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


def status(field: str) -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    program = {
        "full disk": full_disk,
        "without permission": without_permission,
        "contend": contend,
        "endless": endless,
        "memory": memory,
    }[sys.argv[1]]
    print(json.dumps(program(Path(sys.argv[2]))))
