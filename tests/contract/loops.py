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
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(24, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # state that only a buffer guard puts back
        return self.last(self.drop(self.relu(self.norm(self.first(x)))))


@dataclass
class Outcome:
    """All that must not depend on being watched."""

    losses: list[Tensor]
    state: dict[str, Tensor]
    random: Tensor
    modes: list[bool]
    calls: int
    run: ls.Run | None = None
    """What was recorded; not part of the comparison."""

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
    """Inputs, classes, ids, and an attribute that goes with the class for most."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(48, 10, generator=generator)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    attribute = torch.where(torch.rand(48, generator=generator) < 0.8, y, (y + 1) % 4)
    return TensorDataset(x, y, torch.arange(48), attribute)


def outcome(model: nn.Module, losses: list[Tensor], w: ls.Watch | None) -> Outcome:
    inner = getattr(model, "_orig_mod", model)
    return Outcome(
        losses,
        {name: value.clone() for name, value in inner.state_dict().items()},
        torch.get_rng_state(),
        [module.training for module in inner.modules()],
        int(inner.calls),
        w.run if w is not None else None,
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
    change: Callable[[nn.Module], nn.Module] = lambda model: model,
    nan_at: int | None = None,
    sizes: bool = False,
) -> Outcome:
    """One loop over a shuffling loader with its own generator; watched if `probes` is not None.

    `change` makes the model another, with adapters or of half precision; the loss of step `nan_at` is NaN; with `sizes`
    the loop says how large its micro-batches are.
    """
    torch.manual_seed(1)
    model: nn.Module = Net()
    model.norm.requires_grad_(True)
    model.drop.train()
    model = change(model)
    if compiler and not compile_late:
        model = torch.compile(model, backend=compiler)  # type: ignore[assignment]
    opt = optimizer(model.parameters())
    data = dataset()
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) if half else None
    w = None
    if probes is not None:
        # the probe reads the very data set that the loader shuffles
        data_given = {"holdout": loader, "train": loader, "test": loader}
        w = ls.watch(model, opt, probes=probes, groups={"ends": ["*first*", "*last*"]}, strict=True, **data_given)
    if compiler and compile_late:  # after the watch was opened on the module itself
        model = torch.compile(model, backend=compiler)  # type: ignore[assignment]
    losses: list[Tensor] = []
    steps = micro = 0
    while steps < STEPS:
        for batch in loader:
            x, y, ids, attribute = batch
            if w is not None and sizes:
                w.micro_batch(len(x))
            with torch.autocast("cpu", torch.bfloat16, enabled=half or inside_autocast):
                logits = model(x).float()
                loss = F.cross_entropy(logits, y) / accumulate
                if steps + 1 == nan_at:
                    loss = loss * torch.nan
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
                w.log(loss=loss, accuracy=(logits.argmax(1) == y).float().mean(), other=1.0)
                w.log(other=2.0)
                w.batch(batch)
                w.examples(ids, logits, y, inputs=x, groups=attribute)
            if steps == STEPS:
                break
        if w is not None:
            w.end_epoch()
    if w is not None:
        w.close()
    return outcome(model, losses, w)


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
        x, y, ids, attribute = batch = tuple(t[step * 6 : step * 6 + 6] for t in data.tensors)
        pending = F.cross_entropy(other(x), y % 2)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        first.step()
        if w is not None:
            w.log(loss=loss)
            w.batch(batch)
            w.examples(ids, logits, y, inputs=x, groups=attribute)
        pending.backward()
        second.step()
        first.zero_grad()
        second.zero_grad()
        losses += [loss.detach(), pending.detach()]
        if w is not None:
            w.end_epoch()
    if w is not None:
        w.close()
    result = outcome(model, losses, w)
    result.state |= {f"other.{name}": value.clone() for name, value in other.state_dict().items()}
    return result


def half_precision(model: nn.Module) -> nn.Module:
    """The model in bfloat16, which takes the same inputs as before."""
    model.register_forward_pre_hook(lambda inner, inputs: (inputs[0].to(next(inner.parameters()).dtype),))
    return model.to(torch.bfloat16)


def with_adapters(config: Any) -> Callable[[nn.Module], nn.Module]:
    """What gives the model adapters of PEFT, in both linear layers."""

    def change(model: nn.Module) -> nn.Module:
        from peft import get_peft_model

        return get_peft_model(model, config)  # type: ignore[arg-type]

    return change


def lora(**options: Any) -> Callable[[nn.Module], nn.Module]:
    from peft import LoraConfig

    return with_adapters(LoraConfig(r=2, lora_dropout=0.1, target_modules=["first", "last"], **options))


class _NetOnly(ls.TupleTask):
    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return model["net"](batch[0])  # type: ignore[index]
