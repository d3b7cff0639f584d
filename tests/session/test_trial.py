"""The task is tried when a session opens: nothing is disturbed, and what cannot be read is refused before it begins."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import learnscope as ls

X = torch.arange(80.0).reshape(8, 10).sin()
CLASSES = torch.tensor([2, 0, 1, 2, 1, 0, 0, 1])


class Delicate(nn.Module):
    """Dropout, batch norm, a buffer that counts, a frozen layer, and one in eval mode on purpose."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Dropout(0.5)
        self.fixed, self.last = nn.BatchNorm1d(12).eval(), nn.Linear(12, 3)
        self.first.weight.requires_grad_(False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        torch.rand(1)
        out: Tensor = self.last(self.fixed(self.drop(self.norm(self.first(x)))))
        return out


def state(model: nn.Module) -> list[Any]:
    """All that a trial must leave as it is."""
    tensors = [*model.parameters(), *model.buffers()]
    return [
        [t.detach().clone() for t in tensors],
        [id(t) for t in tensors],
        [t._version for t in model.parameters()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [p.requires_grad for p in model.parameters()],
        [module.training for module in model.modules()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()],  # type: ignore[index, union-attr]
        [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
    ]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize(
    "loss", [None, nn.CrossEntropyLoss(weight=torch.ones(3)), lambda out, y: F.cross_entropy(out, y)]
)
def test_a_trial_leaves_everything_as_it_was_with_a_backward_pending(loss: Any) -> None:
    model = Delicate()
    optimizer = torch.optim.SGD(model.last.parameters(), lr=0.1)
    F.cross_entropy(model(X), CLASSES).backward()
    pending = F.cross_entropy(model(X), CLASSES)
    before = state(model)
    w = ls.watch(model, optimizer, holdout=[(X, CLASSES)], loss=loss, probes=[])
    after = state(model)
    w.close()
    assert [same(a, b) for a, b in zip(before, after, strict=True)] == [True] * len(before)
    pending.backward()  # type: ignore[no-untyped-call]


def test_a_refused_trial_leaves_everything_as_it_was_too(tmp_path: Path) -> None:
    model = Delicate()
    optimizer = torch.optim.SGD(model.last.parameters(), lr=0.1)
    before = state(model)
    with pytest.raises(TypeError, match=r"task=MyTask\(\)"):
        ls.watch(model, optimizer, run=tmp_path / "run", holdout=[(X, X[:, :2])], probes=[ls.Holdout(every=1)])
    assert same(before, state(model))
    assert not (tmp_path / "run").exists()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def trained(*, watched: bool) -> list[Tensor]:
    model = Delicate()
    optimizer = torch.optim.SGD(model.last.parameters(), lr=0.1)
    probes = [ls.Holdout(every=1)]
    w = ls.watch(model, optimizer, holdout=[(X, CLASSES)], probes=probes, strict=True) if watched else None
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), CLASSES)
        if w is not None:
            w.batch((X, CLASSES))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
        if w is not None:
            w.log(loss=loss.item())
    if w is not None:
        w.close()
    return [*losses, *(value.clone() for value in model.state_dict().values()), torch.get_rng_state()]


def test_a_watched_run_is_bit_identical() -> None:
    assert same(trained(watched=True), trained(watched=False))


class Compare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Linear(10, 3)

    def forward(self, img1: Tensor, img2: Tensor) -> Tensor:
        out: Tensor = self.map(img1 - img2)
        return out


class Language(nn.Module):
    """As nanoGPT: `logits, loss = model(idx, targets)`, and without targets the last position alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, 7)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        hidden = self.embed(idx).cumsum(1)
        if targets is None:
            return self.head(hidden[:, [-1]]), None
        logits = self.head(hidden)
        return logits, F.cross_entropy(logits.view(-1, 7), targets.view(-1), ignore_index=-1)


IDS = torch.arange(48).reshape(8, 6) % 7
FORMS: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[nn.Module], Tensor]]] = {
    "siamese": (Compare, (X, X.flip(0), CLASSES), lambda model: F.cross_entropy(model(X, X.flip(0)), CLASSES)),
    "own loss": (Language, (IDS[:, :-1], IDS[:, 1:].contiguous()),
                 lambda model: model(IDS[:, :-1], IDS[:, 1:].contiguous())[1]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_holdout_of_a_live_session_has_the_loop_s_loss(form: str) -> None:
    make, batch, loss_of = FORMS[form]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, holdout=[batch], probes=[ls.Holdout(every=1), ls.Loss()], strict=True) as w:
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            w.log(loss=loss)
    held_out, logged = w.run.frame(name="holdout_loss"), w.run.frame(name="loss")
    assert held_out["loss"].isna().all()  # no label: it is the loop's own
    # measured after a step, it is the loss of the next one
    assert held_out.value.tolist()[:2] == pytest.approx(logged.value.tolist()[1:], rel=1e-6)
    assert held_out.value.iloc[2] == pytest.approx(loss_of(model).item(), rel=1e-6)


def test_replay_and_audit_take_a_loss_too() -> None:
    model, targets = nn.Linear(10, 3), (X[:, :3] > 0).float()
    own = F.binary_cross_entropy_with_logits(model(X), targets).item()
    runs = [
        ls.audit(model, [(X, targets)], probes=[ls.Holdout()], loss=nn.BCEWithLogitsLoss()),
        ls.replay([model], holdout=[(X, targets)], probes=[ls.Holdout()], loss=nn.BCEWithLogitsLoss()),
    ]
    for run in runs:
        frame = run.frame(name="holdout_loss")
        assert frame.value.tolist() == pytest.approx([own], rel=1e-6)
        assert frame["loss"].isna().all()


def test_a_loss_without_data_is_refused() -> None:
    model = nn.Linear(10, 3)
    with pytest.raises(ValueError, match="pass holdout=, train= or test= too"):
        ls.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.MSELoss())


def test_a_warning_against_broadcasting() -> None:
    model = nn.Linear(10, 1)
    with pytest.warns(UserWarning, match=r"outputs have shape \[8, 1\] and the targets \[8\].*outputs.squeeze\(-1\)"):
        ls.audit(model, [(X, X[:, 0])], probes=[ls.Holdout()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ls.audit(model, [(X, X[:, :1])], probes=[ls.Holdout()])


class WeightedTask(ls.TupleTask):
    """Changes the usual losses."""

    def losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 3 * super().losses(logits, targets)


def test_a_task_may_change_the_usual_losses() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"holdout": [(x, y)], "task": WeightedTask(), "probes": [ls.Holdout(every=1)], "strict": True}
    with ls.watch(model, optimizer, **options) as w:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    expected = 3 * torch.nn.functional.cross_entropy(model(x).double(), y)
    assert w.run.frame("Holdout", "holdout_loss").value.iloc[-1] == pytest.approx(float(expected), rel=1e-6)
