"""The real packages: a watched run gives the same weights bit for bit, and the right gradient norms."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import learnscope as ls
from compiler import needs_compiler
from learnscope.reading.lost import lost_steps

PROBE = "GradientFlow"
X = torch.randn(48, 5, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(5, 12), nn.Dropout(0.2), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.first(x))))


def probes() -> list[ls.Probe]:
    gradients = [ls.GradientFlow(every=1), ls.ParameterChange(every=1), ls.LearningRate(every=1)]
    return [*gradients, ls.Holdout(every=2), ls.LoopCalls(every=1), ls.LostSteps()]


def norms(model: nn.Module) -> float:
    return float(np.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None)))


def stage(run: ls.Run, name: str) -> list[float]:
    frame = run.frame(PROBE, "norm", "model")
    return list(frame[frame.stage == name].value)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def assert_no_failures(run: ls.Run) -> None:
    assert [record.error for record in run.records() if record.error] == []
    assert lost_steps(run) == []
    calls = run.frame("LoopCalls").groupby("name")["value"].sum()  # what is not known is null
    assert calls["steps"] > 0
    assert calls.drop(["steps", "backwards", "scheduler_steps", "rate_changes"]).to_dict() == dict.fromkeys(
        calls.index.drop(["steps", "backwards", "scheduler_steps", "rate_changes"]), 0
    )


# ---- Accelerate


def with_accelerate(watched: bool) -> tuple[dict[str, Tensor], ls.Run | None, dict[str, list[float]]]:
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    w = None
    if watched:
        w = ls.watch(model, optimizer, probes=probes(), holdout=loader, strict=True)
    seen: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    seen["before"].append(norms(model))
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                    seen["after"].append(norms(model))
                optimizer.step()
                optimizer.zero_grad()
    if w is not None:
        w.close()
    return state(model), w.run if w is not None else None, seen


def test_accelerate_with_accumulation() -> None:
    plain, _, _ = with_accelerate(False)
    weights, run, seen = with_accelerate(True)
    assert_same(plain, weights)
    assert run is not None
    assert_no_failures(run)
    assert len(seen["before"]) == 8
    assert stage(run, "before_clip") == pytest.approx(seen["before"], rel=1e-5)
    assert stage(run, "stepped") == pytest.approx(seen["after"], rel=1e-5)
    assert len(run.frame(PROBE, "noise", "model")) == 7, "micro-batches are seen from the second step on"


# ---- transformers


class Words(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.randint(1, 40, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def with_trainer(watched: bool, folder: Path) -> tuple[dict[str, Tensor], ls.Run | None, list[dict[str, Any]]]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=40, n_positions=8, bos_token_id=0, eos_token_id=0)
    )
    opened: list[ls.Watch] = []

    class Watching(TrainerCallback):
        def on_train_begin(self, args: Any, trainer_state: Any, control: Any, **kwargs: Any) -> None:
            w = ls.watch(kwargs["model"], kwargs["optimizer"], probes=probes(), holdout=Words(), strict=True)
            opened.append(w)

        def on_train_end(self, args: Any, trainer_state: Any, control: Any, **kwargs: Any) -> None:
            opened[0].close()

    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=5,
        learning_rate=0.05, max_grad_norm=1.0, logging_steps=1, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, lr_scheduler_type="linear", seed=3, logging_nan_inf_filter=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=[Watching()] if watched else [])
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return state(model), opened[0].run if opened else None, logs


def test_the_hugging_face_trainer(tmp_path: Path) -> None:
    """It clips at 1.0 before the optimizer steps: what it logs as grad_norm is the norm before the clip."""
    plain, _, _ = with_trainer(False, tmp_path / "a")
    weights, run, logs = with_trainer(True, tmp_path / "b")
    assert_same(plain, weights)
    assert run is not None
    assert_no_failures(run)
    logged = [float(entry["grad_norm"]) for entry in logs]
    assert len(logged) == 5
    assert stage(run, "before_clip") == pytest.approx(logged, rel=1e-4)
    assert max(logged) > 1.0, "the test itself: something is clipped"
    assert stage(run, "stepped") == pytest.approx([min(norm, 1.0) for norm in logged], rel=1e-4)
    rates = list(run.frame("LearningRate", "learning_rate").groupby("step").value.first())
    assert rates == pytest.approx([0.05 * (1 - k / 5) for k in range(5)], rel=1e-6), "those of the step, not the next"
    assert len(run.frame("Holdout", "holdout_loss")) == 2


# ---- Lightning


def with_lightning(watched: bool, folder: Path) -> tuple[dict[str, Tensor], ls.Run | None, list[float]]:
    import lightning

    seen: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, _index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            seen.append(norms(self))

    class Watching(lightning.Callback):
        w: ls.Watch | None = None

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.w = ls.watch(module.net, trainer.optimizers, probes=probes(), holdout=TensorDataset(X, Y), strict=True)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            assert self.w is not None
            self.w.close()

    lightning.seed_everything(0, verbose=False)
    module, callback = Module(), Watching()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, gradient_clip_val=0.1, accumulate_grad_batches=2, default_root_dir=folder,
            callbacks=[callback] if watched else [],
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True))
    return state(module), callback.w.run if callback.w is not None else None, seen


def test_lightning_with_its_closure(tmp_path: Path) -> None:
    """Forward, backward and clipping all happen inside optimizer.step(closure)."""
    plain, _, _ = with_lightning(False, tmp_path)
    weights, run, seen = with_lightning(True, tmp_path)
    assert_same(plain, weights)
    assert run is not None
    assert_no_failures(run)
    assert len(seen) == 6
    assert stage(run, "before_clip") == pytest.approx(seen, rel=1e-5)
    assert stage(run, "stepped") == pytest.approx([min(norm, 0.1) for norm in seen], rel=1e-4)
    assert len(run.frame("ParameterChange", "l2", "model")) == 6


# ---- torch.compile


def with_compiled_step(backend: str | None, watched: bool) -> tuple[dict[str, Tensor], ls.Run | None, list[float]]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    w = ls.watch(model, optimizer, probes=probes(), holdout=[(X, Y)], strict=True) if watched else None
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    seen = []
    for number in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(X[number * 8 :][:8]), Y[number * 8 :][:8]).backward()
        seen.append(norms(model))
        step()
    if w is not None:
        w.close()
    return state(model), w.run if w is not None else None, seen


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.soak), "aot_eager"])
def test_a_compiled_optimizer_step(backend: str) -> None:
    plain, _, _ = with_compiled_step(backend, False)
    weights, run, seen = with_compiled_step(backend, True)
    assert_same(plain, weights)
    assert run is not None
    assert_no_failures(run)
    assert stage(run, "stepped") == pytest.approx(seen, rel=1e-5)
    moved = list(run.frame("ParameterChange", "l2", "model").value)
    assert len(moved) == 4
    assert min(moved) > 0


@pytest.mark.soak
def test_an_optimizer_step_compiled_by_inductor() -> None:
    needs_compiler()
    plain, _, _ = with_compiled_step("inductor", False)
    weights, run, seen = with_compiled_step("inductor", True)
    assert_same(plain, weights)
    assert run is not None
    assert stage(run, "stepped") == pytest.approx(seen, rel=1e-5)
