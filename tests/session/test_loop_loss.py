"""The holdout's loss is the loop's own where that can be known; where not, the record says which loss it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import learnscope as ls

X = torch.rand(32, 12, generator=torch.Generator().manual_seed(3)).round()
LossOf = Callable[[Tensor, Tensor], Tensor]


def autoencoder(*, probabilities: bool = False, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    last: list[nn.Module] = [nn.Sigmoid()] if probabilities else []
    return nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 12), *last)


def trained(
    model: nn.Module, loss_of: LossOf, hand_over: Callable[[ls.Watch, Tensor, Tensor], object], *, steps: int = 6,
    x: Tensor = X, y: Tensor = X, before: Callable[[ls.Watch], object] = lambda w: None, **options: Any,
) -> ls.Run:  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    probes = [ls.Holdout(every=2), ls.Loss()]
    with ls.watch(model, optimizer, probes=probes, holdout=[(x, y)], strict=True, **options) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            before(w)
            out = model(x)
            loss = loss_of(out, y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hand_over(w, out, loss)
    return w.run


def nothing(w: ls.Watch, _out: Tensor, loss: Tensor) -> None:
    w.log(loss=loss.item())


def tensor(w: ls.Watch, _out: Tensor, loss: Tensor) -> None:
    w.log(loss=loss)


def outputs(w: ls.Watch, out: Tensor, loss: Tensor) -> None:
    w.examples(torch.arange(len(out)), out, X)
    w.log(loss=loss.item())


def outputs_after(w: ls.Watch, out: Tensor, loss: Tensor) -> None:
    w.log(loss=loss.item())
    w.examples(torch.arange(len(out)), out, X)


def labels(frame: pd.DataFrame) -> list[str | None]:
    """The label of each measurement, None where there is none."""
    column = frame["loss"] if "loss" in frame else [None] * len(frame)
    return [label if isinstance(label, str) else None for label in column]


def binary(out: Tensor) -> float:
    """In float64, by its formula."""
    z, y = out.detach().double().numpy(), X.double().numpy()
    return float(np.mean(np.logaddexp(0, z) - z * y))


@pytest.mark.parametrize("hand_over", [tensor, outputs, outputs_after])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_an_autoencoder_s_binary_cross_entropy_is_the_holdout_s_too(hand_over: Any, dropout: float) -> None:
    model = autoencoder(dropout=dropout)
    run = trained(model, F.binary_cross_entropy_with_logits, hand_over)
    frame = run.frame(name="holdout_loss")
    assert labels(frame) == [None, None, None]
    assert frame.value.iloc[-1] == pytest.approx(binary(model.eval()(X)), rel=1e-6)
    if not dropout:
        assert frame.value.tolist()[:2] == pytest.approx(run.frame(name="loss").value.tolist()[2:5:2], rel=1e-5)


LOSSES: dict[str, tuple[bool, LossOf]] = {
    "squared error": (False, F.mse_loss),
    "squared error of probabilities": (True, F.mse_loss),
    "binary cross entropy of probabilities": (True, F.binary_cross_entropy),
    "absolute error": (False, lambda out, y: (out - y).abs().mean()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_which_of_the_losses_that_come_into_question_is_found_by_its_value(name: str) -> None:
    probabilities, loss_of = LOSSES[name]
    model = autoencoder(probabilities=probabilities)
    run = trained(model, loss_of, outputs)
    frame = run.frame(name="holdout_loss")
    assert labels(frame) == [None, None, None]
    assert frame.value.iloc[-1] == pytest.approx(loss_of(model(X), X).item(), rel=1e-5)
    note = list(run.records("Holdout"))[-1].notes["loss"]
    assert note.startswith(name.removesuffix(" of probabilities") if "squared" in name else name)
    assert "the loop's own" in note


def test_a_batch_that_is_handed_over_before_the_step_confirms_the_loss() -> None:
    model = autoencoder()
    run = trained(model, F.mse_loss, nothing, before=lambda w: w.batch((X, X)))
    frame = run.frame(name="holdout_loss")
    assert labels(frame) == [None, None, None]
    assert frame.value.iloc[-1] == pytest.approx(F.mse_loss(model(X), X).item(), rel=1e-5)


def test_without_any_sign_the_record_says_which_loss_it_is() -> None:
    model = autoencoder()
    run = trained(model, F.mse_loss, nothing)
    frame = run.frame(name="holdout_loss")
    assert labels(frame) == ["binary cross entropy"] * 3
    assert frame.value.iloc[-1] == pytest.approx(binary(model(X)), rel=1e-6)
    assert "pass loss=" in list(run.records("Holdout"))[-1].notes["loss"]


def test_where_no_known_loss_agrees_the_record_says_so() -> None:
    run = trained(autoencoder(), lambda out, y: F.mse_loss(out, y) + 0.3, outputs, steps=8)
    frame = run.frame(name="holdout_loss")
    assert labels(frame) == ["binary cross entropy"] * 4
    note = list(run.records("Holdout"))[-1].notes["loss"]
    assert note.startswith("no known loss agrees with the loop's")
    assert "squared error" in note


def test_a_loss_that_is_given_is_used_from_the_first_measurement() -> None:
    model = autoencoder()
    run = trained(model, F.mse_loss, nothing, loss=nn.MSELoss())
    frame = run.frame(name="holdout_loss")
    assert labels(frame) == [None, None, None]
    assert frame.value.iloc[-1] == pytest.approx(F.mse_loss(model(X), X).item(), rel=1e-6)


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(12, 3)


CLASSES = torch.arange(32) % 3


@pytest.mark.parametrize(
    ("loss_of", "label"),
    [
        (F.cross_entropy, None),
        (lambda out, y: F.cross_entropy(out, y, label_smoothing=0.2), "cross entropy"),
        (lambda out, y: F.mse_loss(out, F.one_hot(y, 3).float()), "cross entropy"),
        (lambda out, y: F.cross_entropy(out, y) / 4, "cross entropy"),
    ],
)
def test_classes_have_cross_entropy_unless_the_loop_s_number_says_otherwise(loss_of: LossOf, label: str | None) -> None:
    def hand_over(w: ls.Watch, out: Tensor, loss: Tensor) -> None:
        w.examples(torch.arange(len(out)), out, CLASSES)
        w.log(loss=loss.item())

    run = trained(classifier(), loss_of, hand_over, y=CLASSES, steps=8)
    assert labels(run.frame(name="holdout_loss"))[-1] == label


@pytest.mark.parametrize(
    ("loss_of", "label"),
    [
        (F.cross_entropy, None),
        (lambda out, y: F.mse_loss(out, F.one_hot(y, 3).float()), "cross entropy"),
        (lambda out, y: F.cross_entropy(out, y) / 4, "cross entropy"),
    ],
)
def test_the_same_read_from_the_graph(loss_of: LossOf, label: str | None) -> None:
    run = trained(classifier(), loss_of, tensor, y=CLASSES)
    assert labels(run.frame(name="holdout_loss"))[-1] == label


def test_without_any_sign_classes_have_cross_entropy_and_no_label() -> None:
    run = trained(classifier(), F.cross_entropy, nothing, y=CLASSES)
    assert labels(run.frame(name="holdout_loss")) == [None, None, None]
    assert list(run.records("Holdout"))[-1].notes["loss"] == "cross entropy, the usual loss for classes"
