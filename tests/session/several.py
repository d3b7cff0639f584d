"""Networks with an optimizer each, which step in any order; the loop keeps its own account of every step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import learnscope as ls

LIMIT = 0.05
"""Of the clip; small enough to act."""
Named = dict[str, Tensor]


@dataclass
class Taken:
    """One step of one optimizer, in float64."""

    gradients: Named
    """As the optimizer was given them, unscaled."""
    norm_before_clip: float
    before: Named
    after: Named
    state: dict[str, dict[str, Tensor]]
    rate: float
    loss: float

    @property
    def layers(self) -> dict[str, list[str]]:
        """The names of the parameters of every layer."""
        layers: dict[str, list[str]] = {}
        for name in self.before:
            layers.setdefault(name.split(".")[0], []).append(name)
        return layers


@dataclass
class Options:
    clock: str | None = None
    clip: bool = False
    closure: bool = False
    accumulate: int = 1
    scaler: bool = False
    fused: bool = False
    listed: str = "DGE"
    """The order in which the optimizers are passed."""
    log: str | None = None
    """Where each network's loss is logged: `before` its step or `after` it."""


class Game:
    """D judges what G makes, so that G's backward adds to D's gradients; E has nothing to do with either."""

    def __init__(self, names: str, options: Options) -> None:
        torch.manual_seed(0)
        nets = {
            "D": nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)),
            "G": nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)),
            "E": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)),
        }
        self.nets = nn.ModuleDict({name: nets[name] for name in "DGE" if name in names})
        self.options = options
        kinds: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
            "D": lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.5, 0.9), fused=options.fused or None),
            "G": lambda p: torch.optim.AdamW(p, lr=0.01, fused=options.fused or None),
            "E": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        }
        self.optimizers = {name: kinds[name](net.parameters()) for name, net in self.nets.items()}
        decays = {"D": 0.7, "G": 0.9, "E": 0.8}
        self.schedulers = {
            name: torch.optim.lr_scheduler.ExponentialLR(optimizer, decays[name])
            for name, optimizer in self.optimizers.items()
        }
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=options.scaler)
        self.account: dict[str, list[Taken]] = {name: [] for name in self.nets}
        self.losses: dict[str, list[float]] = {name: [] for name in self.nets}
        """Of every turn, also of one whose step was skipped."""
        self.w: ls.Watch | None = None

    def watch(self, probes: list[ls.Probe], **more: Any) -> ls.Watch:
        listed = [self.optimizers[name] for name in self.options.listed if name in self.optimizers]
        clock = None if self.options.clock is None else self.optimizers[self.options.clock]
        self.w = ls.watch(self.nets, listed, clock=clock, probes=probes, strict=True, **more)
        return self.w

    def play(self, events: Iterable[str]) -> None:
        """A network's name is its turn; in lower case, its loss overflows and the scaler skips its step."""
        for event in events:
            self._turn(event.upper(), skipped=event.islower())
            if self.options.scaler and event.upper() == "G":
                self.scaler.update()

    def _loss(self, name: str) -> Tensor:
        if name == "E":
            x = torch.randn(6, 3)
            return (self.nets["E"](x) - x.sum(1, keepdim=True)).square().mean()
        made = self.nets["G"](torch.randn(6, 2))
        if name == "G":
            return -self.nets["D"](made).mean()
        return self.nets["D"](made.detach()).mean() - self.nets["D"](torch.randn(6, 3)).mean()

    def _turn(self, name: str, *, skipped: bool) -> None:
        optimizer, net, options = self.optimizers[name], self.nets[name], self.options
        losses: list[float] = []

        def backward() -> Tensor:
            optimizer.zero_grad()
            for _ in range(options.accumulate):
                loss = self._loss(name) / options.accumulate
                losses.append(float(loss.detach()))
                self.scaler.scale(loss * (torch.inf if skipped else 1.0)).backward()
            return loss

        before_clip = self._prepare(name, backward) if not options.closure else None
        if skipped and not options.scaler:
            return
        self._log("before", name, losses)
        unscaled = self.scaler.get_scale() if options.fused and options.scaler else 1.0
        kept: dict[str, Any] = {}

        def keep() -> None:
            kept["gradients"] = {n: p.grad.double() / unscaled for n, p in net.named_parameters() if p.grad is not None}
            kept["before"] = doubled(net.named_parameters())

        if options.closure:
            norms: list[float] = []

            def closure() -> Tensor:
                result = backward()
                norms.append(self._clip(name))
                keep()
                return result

            optimizer.step(closure)  # type: ignore[arg-type]
            before_clip = norms[-1]
        else:
            keep()
            self.scaler.step(optimizer)
        self.losses[name].append(sum(losses) / len(losses))
        self._log("after", name, losses)
        if not skipped:
            assert before_clip is not None
            rate = float(optimizer.param_groups[0]["lr"])
            state = {n: dict(optimizer.state[p]) for n, p in net.named_parameters()}
            state = {n: {k: v.double().clone() for k, v in s.items() if v is not None} for n, s in state.items()}
            after = doubled(net.named_parameters())
            self.account[name].append(
                Taken(kept["gradients"], before_clip, kept["before"], after, state, rate, sum(losses) / len(losses))
            )
            self.schedulers[name].step()

    def _prepare(self, name: str, backward: Callable[[], Tensor]) -> float:
        backward()
        if self.options.scaler and not self.options.fused:
            self.scaler.unscale_(self.optimizers[name])
        return self._clip(name)

    def _clip(self, name: str) -> float:
        unscaled = self.scaler.get_scale() if self.options.fused and self.options.scaler else 1.0
        norm = size(p.grad for p in self.nets[name].parameters() if p.grad is not None) / unscaled
        if self.options.clip:
            torch.nn.utils.clip_grad_norm_(self.nets[name].parameters(), LIMIT)
        return norm

    def _log(self, place: str, name: str, losses: list[float]) -> None:
        if self.w is not None and self.options.log == place:
            self.w.log(**{name: sum(losses) / len(losses)})


def doubled(named: Iterable[tuple[str, Tensor]]) -> Named:
    return {name: tensor.detach().double().clone() for name, tensor in named}


def size(tensors: Iterable[Tensor]) -> float:
    return float(sum(tensor.detach().double().square().sum() for tensor in tensors)) ** 0.5


class Recorded:
    """All rows of a run, by what they are of."""

    def __init__(self, run: ls.Run) -> None:
        self.rows: dict[tuple[Any, ...], list[ls.Row]] = defaultdict(list)
        for record in run.records():
            assert record.error is None
            for row in record.rows():
                self.rows[record.probe, row.name, row.kind, row.scope, record.step].append(row)

    def all(self, probe: str, name: str, kind: str, scope: str, step: int, **labels: Any) -> list[ls.Row]:
        rows = self.rows[probe, name, kind, scope, step]
        return [row for row in rows if all(row.labels.get(key) == value for key, value in labels.items())]

    def one(self, probe: str, name: str, kind: str, scope: str, step: int, **labels: Any) -> float:
        rows = self.all(probe, name, kind, scope, step, **labels)
        assert len(rows) == 1, (probe, name, kind, scope, step, labels, rows)
        return math.nan if rows[0].value is None else float(rows[0].value)

    def statuses(self, probe: str, name: str, kind: str, scope: str, step: int) -> list[str | None]:
        rows = self.all(probe, name, kind, scope, step)
        assert all(row.value is None for row in rows)
        return [row.status for row in rows]
