"""How each project watches a loop, every step of it, as its own documentation says.

Each imports its own: a peer's environment has no learnscope, and this one no peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tools.loops import Loop, Watcher
from torch import Tensor


class Calls:
    """Nothing at any place; each watcher says what it does at one."""

    def before_step(self, loss: Tensor) -> None:
        pass

    def after_step(self, loss: Tensor) -> None:
        pass


@contextmanager
def learnscope(loop: Loop, folder: Path) -> Iterator[Watcher]:
    """The claim of bench/watch.py: gradients and learning rates at every step, parameters at every tenth."""
    import learnscope as ls

    probes = [ls.GradientFlow(every=1), ls.Loss(), ls.LearningRate(every=1), ls.ParameterChange(every=10)]
    with ls.watch(loop.model, loop.optimizer, run=folder, probes=probes, strict=True) as w:

        class Logs(Calls):
            def after_step(self, loss: Tensor) -> None:
                w.log(loss=loss)

        yield Logs()


@contextmanager
def learnscope_adapters(loop: Loop, folder: Path) -> Iterator[Watcher]:
    """Spectra and gradients of all adapters."""
    import learnscope as ls

    probes = [ls.AdapterSpectrum(every=loop.every), ls.AdapterGradients(every=loop.every)]
    with ls.watch(loop.model, loop.optimizer, run=folder, probes=probes, strict=True):
        yield Calls()


@contextmanager
def wandb(loop: Loop, folder: Path) -> Iterator[Watcher]:
    """Histograms of all gradients at every step (the kind that `watch` takes by itself), offline."""
    import wandb as peer

    settings = peer.Settings(console="off", silent=True, x_disable_stats=True)
    folder.mkdir(parents=True, exist_ok=True)
    with peer.init(project="peers", mode="offline", dir=folder, settings=settings) as run:
        run.watch(loop.model, log="gradients", log_freq=1)

        class Logs(Calls):
            def after_step(self, loss: Tensor) -> None:
                run.log({"loss": loss})

        yield Logs()
        assert any(key.startswith("gradients/") for key in dict(run.summary)), "nothing was watched"
        run.unwatch(loop.model)


@contextmanager
def tensorboard(loop: Loop, folder: Path) -> Iterator[Watcher]:
    """The usual loop: a histogram of every gradient at every step."""
    from torch.utils.tensorboard import SummaryWriter

    class Writes(Calls):
        number = 0

        def before_step(self, loss: Tensor) -> None:
            for name, parameter in loop.model.named_parameters():
                if parameter.grad is not None:
                    writer.add_histogram(f"gradients/{name}", parameter.grad, self.number)
            writer.add_scalar("loss", loss.item(), self.number)
            self.number += 1

    with SummaryWriter(str(folder)) as writer:
        yield Writes()


@contextmanager
def trainscope(loop: Loop, folder: Path) -> Iterator[Watcher]:
    """Its defaults: gradients and weights of every layer at every step, activations at every fifth."""
    from trainscope import TrainScope
    from trainscope.core.config import TrainScopeConfig

    scope = TrainScope(loop.model, loop.optimizer, config=TrainScopeConfig(run_dir=str(folder))).attach()

    class Steps(Calls):
        def before_step(self, loss: Tensor) -> None:
            scope.step(loss.item())

    yield Steps()
    scope.detach()
    assert any(folder.rglob("layers/*.arrow")), "nothing was recorded"


@contextmanager
def torch_audit(loop: Loop, folder: Path) -> Iterator[Watcher]:  # noqa: ARG001  (it writes nothing)
    """All its checks at every step, nothing printed, and no finding that would end the loop."""
    from torch_audit import autopatch

    auditor: Any = autopatch(loop.model, optimizer=loop.optimizer, every_n_steps=1, reporters=[], fail_level="FATAL")
    yield Calls()
    assert auditor.step > 0, "no step was audited"
    auditor.finish(report=False)
    auditor.unpatch()


@contextmanager
def plain_adapters(loop: Loop, folder: Path) -> Iterator[Watcher]:  # noqa: ARG001  (it writes nothing)
    """Plain code for the numbers that the description of adapter tracking lists: B·A decomposed, module by module."""
    modules = [module for module in loop.model.modules() if hasattr(module, "lora_A")]
    history: list[list[dict[str, float]]] = []

    class Measures(Calls):
        number = 0

        def before_step(self, loss: Tensor) -> None:  # noqa: ARG002
            self.number += 1
            if self.number % loop.every:
                return
            norms = {n: p.grad.norm().item() for n, p in loop.model.named_parameters() if p.grad is not None}
            history.append([norms])

        def after_step(self, loss: Tensor) -> None:  # noqa: ARG002
            if self.number % loop.every == 0:
                history[-1] += [spectrum(module) for module in modules]

    yield Measures()
    assert history, "nothing was measured"


@torch.no_grad()
def spectrum(module: Any) -> dict[str, float]:
    a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
    values = torch.linalg.svdvals(module.scaling["default"] * (b @ a))
    shares = values / values.sum().clamp_min(1e-12)
    energy = values.square().sum().clamp_min(1e-12)
    numbers = {
        "spectral_gap": values[0] - values[-1],
        "condition_number": values[0] / values[-1].clamp_min(1e-12),
        "effective_rank": (-(shares * shares.clamp_min(1e-12).log()).sum()).exp(),
        "nuclear_norm": values.sum(),
        "frobenius_norm": energy.sqrt(),
        **{f"top{k}_sv_ratio": values[:k].square().sum() / energy for k in (1, 5, 10)},
    }
    return {name: value.item() for name, value in numbers.items()}


WATCHERS = {
    "learnscope": (learnscope, ["learnscope.session.watch", "learnscope.probes.updates.parameter_change"]),
    "learnscope_adapters": (learnscope_adapters, ["learnscope.session.watch"]),
    "wandb": (wandb, ["wandb"]),
    "tensorboard": (tensorboard, ["torch.utils.tensorboard"]),
    "trainscope": (trainscope, ["trainscope"]),
    "torch_audit": (torch_audit, ["torch_audit"]),
    "plain_adapters": (plain_adapters, []),
}
"""Each with what it imports, which is done once for all runs."""
