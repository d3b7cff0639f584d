"""Training loops of every kind, each run once watched and once not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls

STEPS = 7  # an epoch of six, and into the next


class Net(nn.Module):
    """Dropout and batch norm: what a careless look disturbs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 24)
        self.norm = nn.BatchNorm1d(24)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(24, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # state that only a buffer guard puts back
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


@dataclass
class Outcome:
    """All that must not depend on being watched."""

    losses: list[Tensor]
    state: dict[str, Tensor]
    random: Tensor
    modes: list[bool]
    calls: int

    def differences(self, other: Outcome) -> list[str]:
        found = [
            f"loss {i}" for i, (a, b) in enumerate(zip(self.losses, other.losses, strict=True)) if not torch.equal(a, b)
        ]
        found += [name for name, value in self.state.items() if not torch.equal(value, other.state[name])]
        found += [] if torch.equal(self.random, other.random) else ["random state"]
        found += [] if self.modes == other.modes else ["train/eval flags"]
        found += [] if self.calls == other.calls else ["buffers"]
        return found


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(96, 10, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


def outcome(model: nn.Module, losses: list[Tensor]) -> Outcome:
    inner = getattr(model, "_orig_mod", model)
    return Outcome(
        losses,
        {name: value.clone() for name, value in inner.state_dict().items()},
        torch.get_rng_state(),
        [module.training for module in inner.modules()],
        int(inner.calls),
    )


Probes = Sequence[ls.Probe] | None


def run_loop(
    probes: Probes,
    *,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=1e-2),
    accumulate: int = 1,
    clip: float | None = None,
    half: bool = False,
    fused_scaler: bool = False,
    compiler: str | None = None,
    compile_late: bool = False,
    inside_autocast: bool = False,
) -> Outcome:
    """One loop over a shuffling loader with its own generator; watched if `probes` is not None."""
    torch.manual_seed(1)
    model: nn.Module = Net()
    model.norm.requires_grad_(True)
    model.drop.train()
    if compiler and not compile_late:
        model = torch.compile(model, backend=compiler)  # type: ignore[assignment]
    opt = optimizer(model.parameters())
    data = dataset()
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) if half else None
    w = None
    if probes is not None:
        # the probe reads the very data set that the loader shuffles
        w = ls.watch(model, opt, probes=probes, holdout=loader, train=loader, test=loader, strict=True)
    if compiler and compile_late:  # after the watch was opened on the module itself
        model = torch.compile(model, backend=compiler)  # type: ignore[assignment]
    losses: list[Tensor] = []
    steps = micro = 0
    while steps < STEPS:
        for x, y in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=half or inside_autocast):
                loss = F.cross_entropy(model(x).float(), y) / accumulate
                if inside_autocast:  # some loops never leave the context
                    loss.backward()
            if not inside_autocast:
                (scaler.scale(loss) if scaler else loss).backward()
            losses.append(loss.detach().clone())
            micro += 1
            if micro % accumulate:
                continue
            if scaler and not fused_scaler:
                scaler.unscale_(opt)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            if scaler:
                scaler.step(opt)
                scaler.update()
            elif inside_autocast:
                with torch.autocast("cpu", torch.bfloat16):
                    opt.step()
            else:
                opt.step()
            opt.zero_grad()
            steps += 1
            if w is not None:
                w.log(loss=loss)
                w.batch((x, y))
                w.examples(torch.arange(len(x)), torch.zeros(len(x), 4), y)
            if steps == STEPS:
                break
        if w is not None:
            w.end_epoch()
    if w is not None:
        w.close()
    return outcome(model, losses)


def run_pending(probes: Probes) -> Outcome:
    """Two heads, two optimizers; the second head's backward is still pending when the first one steps."""
    torch.manual_seed(2)
    model = Net()
    # in eval mode batch norm saves its running statistics for backward: restoring them must not look like a change
    other = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6).eval(), nn.Linear(6, 2))
    both = nn.ModuleDict({"net": model, "other": other})
    first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.Adam(other.parameters(), lr=1e-2)
    data = dataset()
    w = None
    if probes is not None:
        task = _NetOnly()
        w = ls.watch(both, first, probes=probes, holdout=data, train=data, test=data, task=task, strict=True)
    losses = []
    for step in range(STEPS):
        x, y = (t[step * 8 : step * 8 + 8] for t in data.tensors)
        pending = F.cross_entropy(other(x), y % 2)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        first.step()
        if w is not None:
            w.log(loss=loss)
            w.batch((x, y))
            w.examples(torch.arange(8), torch.zeros(8, 4), y)
        pending.backward()
        second.step()
        first.zero_grad()
        second.zero_grad()
        losses += [loss.detach(), pending.detach()]
        if w is not None:
            w.end_epoch()
    if w is not None:
        w.close()
    result = outcome(model, losses)
    result.state |= {f"other.{name}": value.clone() for name, value in other.state_dict().items()}
    return result


class _NetOnly(ls.TupleTask):
    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return model["net"](batch[0])  # type: ignore[index]
