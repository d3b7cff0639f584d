"""How each project watches a case of the zoo, and what its rules say in the words of tests/zoo.

Each watcher takes what `learnscope.watch` takes and ignores what its project has no use for. When it is left, `alarms`
holds what it said: rules of style and of hardware are left out, since they say nothing about the training.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Rules = Mapping[str, tuple[str, bool]]
TORCH_AUDIT: Rules = {
    "TA100": ("nonfinite", False), "TA102": ("exploding", False), "TA103": ("dead_units", True),
    "TA104": ("frozen", True), "TA105": ("dead_units", True), "TA301": ("unscaled_inputs", True),
    "TA302": ("labels_unrelated", True), "TA303": ("input_layout", True), "TA304": ("tiny_batch", True),
    "TA305": ("nonfinite", False), "TA405": ("dead_units", True), "TA500": ("frozen", True),
    "TA501": ("stateful_reuse", True),
}  # fmt: skip
"""A rule, the kind of finding that says the same, and whether it claims a cause and not only what is seen (which counts
as right where it is said first and is what was wrong). Left out: TA2xx (hardware) and TA400 to TA404 (style: redundant
biases, AdamW instead of Adam, weight decay on norms, even kernels)."""
TRAINPROOF: Rules = {
    "TP-NAN": ("nonfinite", False), "TP-NAN-GRAD": ("nonfinite", False), "TP-ZERO-LOSS": ("zero_loss", False),
    "TP-ZERO-LOSS-ONSET": ("zero_loss", False), "TP-FLAT": ("not_learning", False),
    "TP-DEAD-RUN": ("not_learning", False), "TP-DIVERGE": ("diverging", False),
    "TP-ZERO-GRAD": ("zero_gradients", False),
    "TP-GRAD-SPIKE": ("gradient_spike", False), "TP-ZERO-LR": ("learning_rate_zero", True),
    "TP-ZERO-LR-PARTIAL": ("learning_rate_zero", True), "TP-OVERFIT": ("overfitting", True),
}  # fmt: skip
"""Left out: throughput, loader, GPU."""
TRAINSCOPE: Rules = {
    "grad_norm": ("exploding", False), "loss": ("loss_spike", False), "kurtosis": ("kurtosis", False),
    "concentration": ("concentration", False), "explosion": ("diverging", False),
}  # fmt: skip


class Handle:
    """What a script calls on its watcher."""

    def __init__(self, model: nn.Module, optimizer: Any, holdout: Any, loss: Any) -> None:
        self.model, self.holdout, self.loss = model, holdout, loss
        self.optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        self.steps = 0

    def log(self, **values: Any) -> None:
        pass

    def examples(self, *args: Any, **options: Any) -> None:
        pass

    def end_epoch(self) -> None:
        pass

    def save_state(self) -> None:
        pass


class Watcher:
    """Called with the arguments of `learnscope.watch`; then holds what its project said, each rule once."""

    rules: Rules

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.alarms: list[Any] = []

    def say(self, rule: str, step: int | None = None, title: str = "") -> None:
        title = f"{rule}: {title}"
        if rule in self.rules and not any(one.title.startswith(f"{rule}:") for one in self.alarms):
            kind, cause = self.rules[rule]
            said = {"kind": kind, "cause": cause, "severity": "warning", "since": step, "title": title}
            self.alarms.append(SimpleNamespace(**said, scopes=()))


class TorchAudit(Watcher):
    """All its checks at every step."""

    rules = TORCH_AUDIT

    @contextlib.contextmanager
    def __call__(
        self, model: nn.Module, optimizer: Any, *, holdout: Any = None, loss: Any = None, resume: bool = False, **_: Any  # noqa: ARG002
    ) -> Iterator[Handle]:  # fmt: skip
        from torch_audit import autopatch

        handle = Handle(model, optimizer, holdout, loss)
        auditor: Any = autopatch(
            model, optimizer=handle.optimizers[0], every_n_steps=1, reporters=[], fail_level="FATAL"
        )
        yield handle
        found = auditor.finish(report=False).findings
        auditor.unpatch()
        for one in found:
            if one.severity.value in ("WARN", "ERROR", "FATAL"):
                self.say(one.rule_id, one.step, one.message)


class TrainProof(Watcher):
    """A record every ten steps, as a trainer's log has them: mean loss, rate, gradient norm and held-out loss."""

    rules = TRAINPROOF

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.records: list[dict[str, float]] = []

    @contextlib.contextmanager
    def __call__(
        self, model: nn.Module, optimizer: Any, *, holdout: Any = None, loss: Any = None, resume: bool = False, **_: Any
    ) -> Iterator[Handle]:  # fmt: skip
        from trainproof.epoch import check_records

        records, now = self.records, {"grad_norm": 0.0}
        recent: list[float] = []
        if not resume:
            records.clear()

        class Logs(Handle):
            def log(self, **values: Any) -> None:
                recent.append(float(next(iter(values.values()))))
                if len(recent) < 10:
                    return
                rate = self.optimizers[0].param_groups[0]["lr"]
                mean = sum(recent) / len(recent)
                recent.clear()
                records.append({"step": 10 * len(records) + 10, "loss": mean, "lr": rate, **now})
                if (held := held_out_loss(self)) is not None:
                    records[-1]["eval_loss"] = held

        def norm(*_: Any) -> None:
            now["grad_norm"] = math.sqrt(
                sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
            )

        handle = Logs(model, optimizer, holdout, loss)
        hook = handle.optimizers[0].register_step_pre_hook(norm)
        yield handle
        hook.remove()
        self.alarms = []
        for one in check_records(records)["findings"]:
            if one["level"] in ("WARN", "FAIL"):
                self.say(one["id"], None, one["message"])


class TrainScope(Watcher):
    """Its defaults, and the signals of its report."""

    rules = TRAINSCOPE

    @contextlib.contextmanager
    def __call__(
        self, model: nn.Module, optimizer: Any, *, holdout: Any = None, loss: Any = None, resume: bool = False, **_: Any  # noqa: ARG002
    ) -> Iterator[Handle]:  # fmt: skip
        from trainscope import TrainScope as Peer
        from trainscope.analysis import run_signal_signature
        from trainscope.core.config import TrainScopeConfig

        first = optimizer[0] if isinstance(optimizer, list) else optimizer
        scope = Peer(model, first, config=TrainScopeConfig(run_dir=str(self.folder), run_name="run")).attach()

        class Steps(Handle):
            def log(self, **values: Any) -> None:
                scope.step(float(next(iter(values.values()))))

        yield Steps(model, optimizer, holdout, loss)
        scope.detach()
        signs = asyncio.run(run_signal_signature(self.folder / "run"))
        for name in signs["fired"]:
            self.say(name, signs["first_steps"][name])
        if signs["explosion_step"] is not None:
            self.say("explosion", signs["explosion_step"])


@torch.no_grad()
def held_out_loss(handle: Handle) -> float | None:
    """Mean over the held-out examples in eval mode; None without any, or where the batch is of an unusual form."""
    batch = first_batch(handle.holdout)
    if batch is None:
        return None
    model, training = handle.model, handle.model.training
    model.eval()
    try:
        if isinstance(batch, dict):
            return float(model(**batch).loss)
        outputs = model(batch[0])
        outputs = getattr(outputs, "logits", outputs)
        if handle.loss is not None:
            return float(handle.loss(outputs, batch[1]))
        return float(F.cross_entropy(outputs.flatten(0, -2), batch[1].flatten()))
    finally:
        model.train(training)


def first_batch(holdout: Any) -> Any:
    if holdout is None:
        return None
    return holdout[0] if isinstance(holdout, list) else holdout.tensors


WATCHERS: dict[str, type[Watcher]] = {
    "torch_audit": TorchAudit, "trainproof": TrainProof, "trainscope": TrainScope,
}  # fmt: skip
