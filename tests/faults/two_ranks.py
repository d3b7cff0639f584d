"""One rank of two that train together on the CPU. Prints a line of JSON for each scene, with what went on in it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import learnscope as ls
from contract.probes import build, packaged
from faults.shards import plain, refusal, sharded
from learnscope.analysis import AnalysisConfig, ModelAnalysisManager
from learnscope.dynamics import GradientFlowAnalyzer
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry

STEPS = 6
PATIENCE = timedelta(seconds=40)
"""After this time a rank that waits for the other fails."""


class Net(nn.Module):
    """Dropout and batch norm: every training forward of DDP waits for the buffers of rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.relu = nn.Linear(10, 12), nn.BatchNorm1d(12), nn.ReLU()
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.relu(self.norm(self.first(x)))))


class Data(torch.utils.data.Dataset[Any]):
    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(48, 10, generator=generator)
        self.y = (self.x[:, 0] > 0).long() + 2 * (self.x[:, 1] > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int, Tensor]:
        return self.x[i], self.y[i], i, self.y[i]


def train(
    rank: int, watch: Callable[..., Any] | None = None, *, accumulate: bool = False, compiled: bool = False
) -> tuple[list[Tensor], Any]:
    """Train a replica on this rank's own data; returns the losses and final state, and the closed watch."""
    torch.manual_seed(1)
    model: Any = DistributedDataParallel(Net())
    model = torch.compile(model, backend="eager") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Data(10 + rank)
    w = None if watch is None else watch(model, optimizer)
    outcome: list[Tensor] = []
    for step in range(STEPS):
        torch.manual_seed(100 * rank + step)
        for last in (False, True) if accumulate else (True,):
            take = torch.randperm(48)[:16]
            with nullcontext() if last else model.no_sync():
                logits = model(data.x[take])
                loss = cross_entropy(logits, data.y[take])
                if w is not None:  # between forward and backward, where DDP expects the backward to come
                    w.batch((data.x[take], data.y[take]))
                    w.examples(take, logits, data.y[take], inputs=data.x[take])
                loss.backward()
            outcome.append(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad()
        if w is not None:
            w.log(loss=loss, rank=float(rank))
            w.micro_batch(16)
            if step % 3 == 2:
                w.end_epoch()
                w.save_state()
    outcome += [value.detach().clone() for value in model.state_dict().values()] + [torch.get_rng_state()]
    if w is not None:
        w.close()
    return outcome, w


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def alone(rank: int) -> dict[str, Any]:
    """Rank 0 alone watches, in memory, with every probe but two that take seconds."""
    names = [name for name in packaged(adapters=False) if name not in ("MemoryUse", "ExportedSpeed")]
    given = {"holdout": Data(1), "train": Data(2), "test": Data(3), "strict": True}
    shown: dict[str, Any] = {"probes": names}
    for way in ({}, {"accumulate": True}, {"compiled": True}):
        # several optimizer steps; what evaluates the model is asked in the middle of them
        probes = [build(name) for name in (names if not way else ["Holdout", "GradientFlow", "LossLandscape"])]
        plain, _ = train(rank, **way)
        watch = partial(ls.watch, probes=probes, **given) if rank == 0 else None
        watched, w = train(rank, watch, **way)
        key = next(iter(way), "plain")
        shown[key] = {"same": same(plain, watched)}
        if rank == 0:
            shown[key]["recorded"] = sorted({record.probe for record in w.run.records()})
            shown[key]["errors"] = [record.error for record in w.run.records() if record.error]
    return shown


def together(rank: int) -> dict[str, Any]:
    """Every rank watches, with one folder; then goes on with it."""
    plain, _ = train(rank)
    shown: dict[str, Any] = {"same": [], "steps": [], "run": [], "path": [], "states": []}
    for again in ({}, {"resume": True}, {"resume": True, "step": 3}):
        options = {"run": "runs/a", "holdout": Data(1), "strict": True, "sinks": [Noting(shown)], **again}

        def watch(model: nn.Module, optimizer: Any, options: Any = options) -> ls.Watch:
            w = ls.watch(model, optimizer, probes=[ls.Holdout(every=2), ls.GradientFlow(every=1)], **options)
            shown["steps"].append(w.steps)
            shown["states"].append(w.save_state() is None)
            return w

        watched, w = train(rank, watch)
        shown["same"].append(same(plain, watched))
        shown["steps"].append(w.steps)
        shown["run"].append(len(list(w.run.records())))
        shown["path"].append(str(w.run.path))
        shown["silent"] = w.run.manifest.get("silent")
        shown["findings"] = len(w.run.findings()) if rank else None
        dist.barrier()
    manual = ls.watch(Net(), run="runs/manual", probes=[ls.LearningRate(every=1)] if rank else [ls.ParameterChange()])
    manual.step()
    with manual:
        manual.step()
    shown["manual"] = manual.steps
    shown["folders"] = sorted(path.name for path in Path("runs").iterdir())
    return shown


class Noting:
    """Counts what it is given."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self.shown = shown

    def write(self, record: Any) -> None:
        self.shown["sunk"] = self.shown.get("sunk", 0) + 1

    def close(self) -> None:
        pass


def in_memory(rank: int) -> dict[str, Any]:
    """Without a folder every rank records for itself."""
    _, w = train(rank, lambda m, o: ls.watch(m, o, probes=[ls.GradientFlow(every=1), ls.Loss(every=1)], strict=True))
    frame = w.run.frame()
    norms = frame[(frame.name == "norm") & (frame.kind == "model")].value.tolist()
    return {
        "norms": norms,
        "losses": frame[frame.name == "loss"].value.tolist(),
        "rank": frame[frame.name == "rank"].value.tolist(),
    }


def noise(rank: int) -> dict[str, Any]:
    """The noise scale of two micro-batches, and its reference from the gradients that leaf hooks see."""
    shown: dict[str, Any] = {}
    for synchronised in (False, True):
        torch.manual_seed(3)
        model = DistributedDataParallel(plain(), gradient_as_bucket_view=synchronised)
        optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01), Data(10 + rank)
        w = ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, smoothing=0.0)], strict=True)
        reference: list[float] = []
        for step in range(4):
            seen: dict[Tensor, list[Tensor]] = {p: [] for p in model.parameters()}
            handles = [p.register_hook(gradients.append) for p, gradients in seen.items()]
            for half in (0, 1):
                with model.no_sync() if not (half or synchronised) else nullcontext():
                    take = slice(12 * (half + 2 * (step % 2)), 12 * (half + 2 * (step % 2)) + 12)
                    cross_entropy(model(data.x[take]), data.y[take]).backward()
            optimizer.step()
            optimizer.zero_grad()
            for handle in handles:
                handle.remove()
            first, second = (torch.cat([pair[i].flatten() for pair in seen.values()]).double() for i in (0, 1))
            small, large = (
                float(first.dot(first) + second.dot(second)) / 2,
                float(((first + second) / 2).square().sum()),
            )
            reference.append((small - large) / 0.5 / (2 * large - small))  # S over |G|², arXiv 1812.06162, A.1
        w.close()
        frame = w.run.frame()
        names = [name for name in ("noise_scale", "noise", "signal") if (frame.name == name).any()]
        values = frame[frame.name == "noise_scale"].value.tolist()
        shown[f"synchronised {synchronised}"] = {"names": names, "values": values, "reference": reference[1:]}
    return shown


def doors(rank: int) -> dict[str, Any]:
    """The other ways in, on every rank with one folder each."""
    model, data = Net(), [(Data(1).x, Data(1).y)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    audit = ls.audit(model, data, run="doors/audit", probes=[ls.Holdout()], strict=True)
    replay = ls.replay([model, Net()], run="doors/replay", probes=[ls.ParameterChange()], strict=True)
    manager = ModelAnalysisManager.create(AnalysisConfig(interval=1), run="doors/analysis", strict=True)
    flow = GradientFlowAnalyzer(model, run="doors/flow")
    telemetry = TrainingTelemetry(TelemetryConfig(output_dir="doors/telemetry", collect_every_n=1), strict=True)
    for step in range(3):
        optimizer.zero_grad()
        cross_entropy(model(data[0][0]), data[0][1]).backward()
        flow.track_batch_gradients(None, 0, step)
        optimizer.step()
        manager.on_optimizer_step(model, data[0], optimizer)
        telemetry.on_batch_end(model, optimizer, step, 0)
    manager.close()
    telemetry.close()
    dist.barrier()
    written = {path.name: len(list(ls.open_run(path).records())) for path in sorted(Path("doors").iterdir())}
    return {"written": written, "audit": len(list(audit.records())), "replay": len(list(replay.records()))}


def launched() -> dict[str, Any]:
    """There is no process group yet: the launcher's variables count."""
    with ls.watch(Net(), run="launched", probes=[ls.ParameterChange(every=1)], strict=True) as w:
        w.step()
    return {"path": str(w.run.path), "records": len(list(w.run.records()))}


def single(rank: int, folder: Path) -> dict[str, Any]:
    """Two trainings of one process each, which have nothing to do with each other."""
    os.environ.update(RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", f"file://{folder}/meet-{rank}", rank=0, world_size=1, timeout=PATIENCE)
    x, data = Data(1).x, [(Data(1).x, Data(1).y)]
    wraps: dict[str, Callable[[nn.Module], nn.Module]] = {
        "plain": lambda model: model,
        "DDP": DistributedDataParallel,
        "FSDP1": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True),
    }
    values: dict[str, Any] = {}
    for kind, wrap in wraps.items():
        model = wrap(plain())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        probes = [ls.GradientFlow(every=1), ls.ParameterChange(every=1), ls.Holdout(every=1)]
        with ls.watch(model, optimizer, run=f"single-{rank}/{kind}", probes=probes, holdout=data, strict=True) as w:
            for _ in range(2):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        values[kind] = w.run.frame().value.fillna(-1.0).tolist()
    whole = fully_shard(plain(), mesh=init_device_mesh("cpu", (1,)))
    dtensor = refusal(lambda: ls.watch(whole, run=f"single-{rank}/dtensor"))
    equal = {kind: numbers == values["plain"] for kind, numbers in values.items()}
    return {
        "equal": equal,
        "numbers": len(values["plain"]),
        "dtensor": dtensor,
        "folders": sorted(os.listdir(f"single-{rank}")),
    }


SCENES = {scene.__name__: scene for scene in (alone, together, in_memory, noise, doors, sharded)}


def main(rank: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    print(json.dumps({"scene": "launched", **launched()}), flush=True)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2, timeout=PATIENCE)
    for name, scene in SCENES.items():
        try:
            print(json.dumps({"scene": name, **scene(rank)}), flush=True)
        except Exception:  # noqa: BLE001  (printed, and an exit code)
            traceback.print_exc()
            os._exit(1)  # the other rank waits for nobody
    dist.destroy_process_group()
    print(json.dumps({"scene": "single", **single(rank, folder)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
