"""What the loop's loss function is given, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.model.guard import guard
from probes.reference import array, at_scope, tiny_gpt2, tokens, values

Loss = Callable[[Tensor, Tensor], Tensor]


class Table(nn.Module):
    """Gives its weights as outputs: they are known exactly, and every one has a gradient."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(outputs.clone())

    def forward(self) -> Tensor:
        return self.weight * 1.0


def watched(outputs: Tensor, targets: Tensor, loss: Loss, steps: int = 1) -> ls.Run:
    """Steps with a learning rate of 0, all on the same outputs."""
    model = Table(outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(), targets).sum().backward()
            optimizer.step()
    return w.run


def of(run: ls.Run, name: str, **labels: Any) -> float:
    found = values(run, "Objective", name, **labels)
    assert found, name
    return found[-1]


def status(run: ls.Run, name: str) -> str | None:
    return next(row.status for record in run.records() for row in record.rows() if row.name == name)


def entropy(shares: Any) -> float:
    shares = np.asarray(shares, np.float64)
    return float(-sum(p * np.log(p) for p in shares.ravel() if p > 0))


def by_rows(tensor: Tensor) -> np.ndarray[Any, Any]:
    """(N, K) of logits whose classes are the second dimension."""
    return np.moveaxis(array(tensor), 1, -1).reshape(-1, tensor.shape[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(40, 6), (5, 6, 7), (2, 6, 3, 4), (1, 6)])
def test_classes_are_counted_as_numpy_counts_them(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(shape, generator=generator).to(dtype)
    targets = torch.randint(5, (shape[0], *shape[2:]), generator=generator)
    targets.view(-1)[1:2] = -100
    run = watched(logits, targets, F.cross_entropy, steps=2)
    rows, wanted = by_rows(logits), targets.numpy().ravel()
    counted = wanted != -100
    predicted = rows.argmax(1)[counted]
    counts = np.bincount(wanted[counted], minlength=6)
    assert of(run, "objective_accuracy") == (predicted == wanted[counted]).mean()
    assert of(run, "ignored_share") == (~counted).mean()
    assert of(run, "majority_share") == counts.max() / counts.sum()
    assert of(run, "target_entropy") == pytest.approx(entropy(counts / counts.sum()), rel=1e-14)
    assert of(run, "constant_loss") == of(run, "target_entropy")
    assert of(run, "predicted_majority") == np.bincount(predicted).max() / len(predicted)
    assert (of(run, "classes"), of(run, "classes_seen")) == (6, (counts > 0).sum())
    assert list(at_scope(run, "Objective", "target_share", "class").values()) == list(counts / counts.sum())
    shares = np.bincount(predicted, minlength=6) / len(predicted)
    assert list(at_scope(run, "Objective", "predicted_share", "class").values()) == list(shares)
    losses = np.log(np.exp(rows).sum(1)) - rows[np.arange(len(rows)), np.where(counted, wanted, 0)]
    near = {"rel": 1e-12 if dtype is torch.float64 else 1e-5 if dtype is torch.float32 else 2e-2}
    assert of(run, "objective_value", function="cross_entropy", reduction="mean") == pytest.approx(
        losses[counted].mean(), **near
    )
    assert of(run, "untouched_outputs") == 0


def test_the_loss_of_each_target_whatever_the_reduction() -> None:
    logits, targets = torch.randn(9, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1, -100, 2, 2])
    weight = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    choices: list[dict[str, Any]] = [{}, {"weight": weight}]
    for options in choices:
        expected = float(F.cross_entropy(logits, targets, **options))
        for reduction in ("mean", "sum", "none"):
            run = watched(logits, targets, partial(F.cross_entropy, reduction=reduction, **options))
            assert of(run, "objective_mean", function="cross_entropy") == pytest.approx(expected, rel=1e-12)
            returned = F.cross_entropy(logits, targets, reduction=reduction, **options).mean()
            assert of(run, "objective_value", reduction=reduction) == pytest.approx(float(returned), rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"weight": torch.tensor([0.5, 1.0, 3.0])}])
def test_no_constant_has_a_lower_loss_than_the_constant_one(options: dict[str, Any]) -> None:
    """By gradient descent on one row of logits for all targets."""
    targets = torch.tensor([0, 0, 0, 1, 1, 2])
    run = watched(torch.randn(6, 3), targets, lambda x, y: F.cross_entropy(x, y, **options))
    row = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    best = torch.optim.LBFGS([row], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)
    options = {name: value.double() if isinstance(value, Tensor) else value for name, value in options.items()}

    def closure() -> Tensor:
        best.zero_grad()
        loss = F.cross_entropy(row.expand(6, 3), targets, **options)
        loss.backward()
        return loss

    best.step(closure)
    assert of(run, "constant_loss") == pytest.approx(float(closure().detach()), rel=1e-7)


def test_soft_targets_count_by_their_shares() -> None:
    logits, shares = torch.randn(8, 3, dtype=torch.float64), torch.rand(8, 3, dtype=torch.float64).softmax(1)
    run = watched(logits, shares, F.cross_entropy)
    mean = array(shares).mean(0)
    assert of(run, "majority_share") == pytest.approx(mean.max(), rel=1e-12)
    assert of(run, "target_entropy") == pytest.approx(entropy(mean), rel=1e-12)
    assert of(run, "objective_accuracy") == (array(logits).argmax(1) == array(shares).argmax(1)).mean()
    assert of(run, "targets_out_of_range") == 0
    assert of(watched(logits, shares * 2, F.cross_entropy), "targets_out_of_range") == 1
    weighted = watched(logits, shares, lambda x, y: F.cross_entropy(x, y, weight=torch.ones(3).double()))
    assert np.isnan(of(weighted, "constant_loss"))
    assert "no simple form" in str(status(weighted, "constant_loss"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_probabilities_and_their_logarithms_are_known_from_logits(dtype: torch.dtype) -> None:
    logits, targets = 3 * torch.randn(50, 12, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 12
    for given, name in ((logits.softmax(1), "probability_rows"), (logits.log_softmax(1), "logprob_rows")):
        run = watched(given.to(dtype), targets, F.cross_entropy)
        assert {of(run, "probability_rows"), of(run, "logprob_rows")} == {0, 1}
        assert of(run, name) == 1
        assert of(watched(given.to(dtype).float(), targets, F.nll_loss), name) == 1
    run = watched(logits.to(dtype), targets, F.cross_entropy)
    assert (of(run, "probability_rows"), of(run, "logprob_rows")) == (0, 0)


def test_a_class_that_is_ignored() -> None:
    targets = torch.tensor([0, 0, 1, 2, 3])
    run = watched(torch.randn(5, 4), targets, lambda x, y: F.cross_entropy(x, y, ignore_index=0))
    assert of(run, "ignored_class_share") == of(run, "ignored_share") == 0.4
    assert (of(run, "classes_seen"), of(run, "majority_share")) == (3, 1 / 3)
    assert "ignored_class_share" not in set(watched(torch.randn(5, 4), targets, F.cross_entropy).frame().name)


def test_rows_that_are_not_finite_predict_nothing() -> None:
    logits = torch.tensor([[np.nan, 1.0], [np.inf, 1.0], [-np.inf, 1.0], [-np.inf, -np.inf], [0.0, 1.0]])
    run = watched(logits, torch.tensor([0, 0, 1, 1, 0]), F.cross_entropy)
    assert of(run, "nonfinite_outputs") == 3
    assert of(run, "objective_accuracy") == 0.2
    assert of(run, "predicted_majority") == 1  # of the two that are left
    assert np.isnan(of(run, "objective_value"))
    assert status(run, "objective_value") == "nan"


def test_no_row_and_one_class_have_reasons() -> None:
    empty = watched(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), F.cross_entropy)
    assert "no target" in str(status(empty, "objective_accuracy"))
    assert "no target" in str(status(empty, "majority_share"))
    ignored = watched(torch.zeros(2, 3), torch.full((2,), -100), F.cross_entropy)
    assert of(ignored, "ignored_share") == 1
    assert "no target" in str(status(ignored, "target_entropy"))
    single = watched(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), F.cross_entropy)
    assert of(single, "objective_accuracy") == 1
    assert "single class" in str(status(single, "probability_rows"))
    alone = watched(torch.tensor([0.0, 2.0, 1.0]), torch.tensor(1), F.cross_entropy)
    assert (of(alone, "classes"), of(alone, "objective_accuracy"), of(alone, "untouched_outputs")) == (3, 1, 0)


@pytest.mark.parametrize("with_logits", [True, False])
@pytest.mark.parametrize("shape", [(30,), (30, 1), (20, 5), (4, 3, 5)])
def test_yes_and_no(shape: tuple[int, ...], *, with_logits: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    targets = (torch.rand(shape, generator=generator) < 0.3).double()
    loss, given = (
        (F.binary_cross_entropy_with_logits, logits) if with_logits else (F.binary_cross_entropy, logits.sigmoid())
    )
    run = watched(given, targets, loss)
    columns = (lambda t: array(t).reshape(-1, 1)) if len(shape) == 1 else by_rows
    wanted, yes = columns(targets) > 0.5, columns(logits) > 0
    shares = wanted.mean(0)
    assert of(run, "objective_accuracy") == (wanted == yes).mean()
    assert of(run, "majority_share") == pytest.approx(np.maximum(shares, 1 - shares).mean(), rel=1e-12)
    uncertain = np.mean([entropy([p, 1 - p]) for p in shares])
    assert of(run, "target_entropy") == of(run, "constant_loss") == pytest.approx(uncertain, rel=1e-12)
    found = list(at_scope(run, "Objective", "target_share", "class").values())
    assert found == pytest.approx([1 - shares[0], shares[0]] if len(shares) == 1 else list(shares), rel=1e-12)
    assert of(run, "classes") == max(2, len(shares))
    assert of(run, "classes_seen") == (2 if len(shares) == 1 else (wanted.sum(0) > 0).sum())
    assert of(run, "untouched_outputs") == 0
    assert ("probability_rows" in set(run.frame().name)) == with_logits


def test_probabilities_given_as_logits_and_targets_that_are_no_answers() -> None:
    logits, targets = torch.randn(200, 1), torch.full((200, 1), 2.0)
    assert of(watched(logits.sigmoid(), targets, F.binary_cross_entropy_with_logits), "probability_rows") == 1
    run = watched(logits, targets, F.binary_cross_entropy_with_logits)
    assert of(run, "probability_rows") == float(((logits >= 0) & (logits <= 1)).double().mean())
    assert of(run, "targets_out_of_range") == 1


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss])
def test_numbers_and_the_best_constant(loss: Any) -> None:
    outputs, targets = torch.randn(3, 20, 2, dtype=torch.float64), 1e6 + torch.randn(3, 20, 2, dtype=torch.float64)
    model = Table(outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        for part in range(3):
            loss(model()[part], targets[part]).backward()
            optimizer.step()
    flat = array(targets).reshape(-1, 2)
    assert of(w.run, "target_mean") == pytest.approx(flat.mean(), rel=1e-14)
    assert of(w.run, "target_std") == pytest.approx(flat.std(), rel=1e-9)
    assert of(w.run, "output_mean") == pytest.approx(array(outputs[2]).mean(), rel=1e-12)
    assert of(w.run, "output_std") == pytest.approx(array(outputs[2]).std(), rel=1e-12)
    if loss is F.mse_loss:
        assert of(w.run, "constant_loss") == pytest.approx(flat.var(0).mean(), rel=1e-9)
    elif loss is F.l1_loss:
        last = array(targets[2])
        expected = np.abs(last - np.median(last, 0)).mean()
        assert of(w.run, "constant_loss") == pytest.approx(expected, rel=1e-9)
    else:
        assert "no simple form" in str(status(w.run, "constant_loss"))


def test_numbers_that_are_not_finite_are_left_out_and_counted() -> None:
    targets = torch.tensor([1.0, 2.0, np.nan, np.inf])
    run = watched(torch.tensor([0.0, np.nan, 1.0, 2.0]), targets, F.mse_loss)
    assert (of(run, "nonfinite_outputs"), of(run, "nonfinite_targets")) == (1, 2)
    assert (of(run, "target_mean"), of(run, "target_std"), of(run, "output_mean")) == (1.5, 0.5, 1.0)


def test_outputs_and_targets_that_were_broadcast() -> None:
    with pytest.warns(UserWarning, match="broadcasting"):
        run = watched(torch.randn(6, 1), torch.randn(6), F.mse_loss)
    assert of(run, "broadcast") == 6
    assert of(watched(torch.randn(6, 1), torch.randn(6, 1), F.mse_loss), "broadcast") == 1


def test_outputs_that_no_gradient_comes_to() -> None:
    targets = torch.zeros(5, 4)
    run = watched(torch.randn(5, 4), targets, lambda x, y: F.mse_loss(x, y, reduction="none")[:, :3])
    assert of(run, "untouched_outputs") == 0.25
    run = watched(torch.randn(5, 4).log_softmax(1), torch.zeros(5, dtype=torch.int64), F.nll_loss)
    assert "one class a row" in str(status(run, "untouched_outputs"))


def test_micro_batches_count_together_and_evaluations_do_not() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x, y = torch.randn(2, 8, 3), torch.randint(3, (2, 8))
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        F.cross_entropy(model(x[0]), torch.full((8,), 3))  # an evaluation that forgot no_grad: no backward comes by
        with torch.no_grad():
            F.cross_entropy(model(x[0]), torch.full((8,), 3))
        with guard(model):
            F.cross_entropy(model(x[0]), torch.full((8,), 3)).backward()
        for part in range(2):
            F.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    assert of(w.run, "objective_calls") == 2
    counts = np.bincount(y.numpy().ravel(), minlength=4)
    assert of(w.run, "majority_share") == counts.max() / 16
    assert of(w.run, "classes_seen") == (counts > 0).sum()
    losses = [float(F.cross_entropy(model(x[part]), y[part]).detach()) for part in range(2)]
    assert of(w.run, "objective_value") == pytest.approx(np.mean(losses), rel=1e-6)


def test_several_losses_are_told_apart() -> None:
    model = nn.Linear(3, 9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        for _ in range(2):
            out = model(torch.randn(8, 3))
            loss = F.cross_entropy(out[:4, :3], torch.zeros(4, dtype=torch.int64))
            loss = (
                loss + F.cross_entropy(out[:, 3:8], torch.ones(8, dtype=torch.int64)) + F.mse_loss(out[:, 8], out[:, 0])
            )
            loss.backward()
            optimizer.step()
    assert of(w.run, "classes") == 5
    assert of(w.run, "objective_calls", function="cross_entropy") == 2
    assert of(w.run, "objective_calls", function="mse_loss") == 1
    record = list(w.run.records())[-1]
    assert record.notes["of"] == "cross_entropy of 5"
    assert record.notes["others"] == ["cross_entropy of 3", "mse_loss of 1"]


def test_a_loss_written_by_hand_is_not_seen_and_said_once() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        for _ in range(3):
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
    records = list(w.run.records())
    assert len(records) == 1
    assert "written by hand" in records[0].notes["unseen"]
    assert not list(records[0].rows())


def test_another_models_loss_is_not_this_ones() -> None:
    ours, other = nn.Linear(3, 4), nn.Linear(3, 4)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    with ls.watch(ours, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        x = torch.randn(8, 3)
        F.cross_entropy(other(x), torch.full((8,), 2)).backward()
        F.cross_entropy(other(ours(x)[:, :3]), torch.full((8,), 1)).backward()
        optimizer.step()
    assert of(w.run, "objective_calls") == 1
    assert list(at_scope(w.run, "Objective", "target_share", "class").values()) == [0, 1, 0, 0]


# ---- language models


@pytest.mark.parametrize("fault", ["none", "copy", "shifted twice", "padding"])
def test_targets_against_the_input_tokens(fault: str) -> None:
    model = tiny_gpt2(pad_token_id=7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ids = tokens(4, 12)
    ids[ids == 7] = 8
    labels = ids.clone()
    if fault == "padding":
        ids[0, 6:] = labels[0, 6:] = 7
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        optimizer.step()  # inputs are looked at from the second step on
        if fault in ("none", "padding"):
            model(input_ids=ids, labels=labels).loss.backward()
        elif fault == "copy":
            F.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten()).backward()
        else:
            model(input_ids=ids[:, :-1], labels=labels[:, 1:]).loss.backward()
        optimizer.step()
    found = {shift: of(w.run, "targets_equal_inputs", shift=shift) for shift in (-1, 0, 1, 2)}
    right = {"none": 1, "padding": 1, "copy": 0, "shifted twice": 2}[fault]
    assert found[right] == 1
    assert max(value for shift, value in found.items() if shift != right) < 0.5
    padded = of(w.run, "padding_share")
    assert padded == pytest.approx(5 / 44 if fault == "padding" else 0)


def test_targets_of_the_inputs_length_and_one_less() -> None:
    """In a loop of one's own, where targets are the inputs one place on, and where the last output is left out."""
    model = nn.Embedding(20, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    text = tokens(3, 9, 20)
    runs = []
    for whole in (True, False):
        with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
            optimizer.step()
            if whole:
                F.cross_entropy(model(text[:, :-1]).mT, text[:, 1:]).backward()
            else:
                F.cross_entropy(model(text)[:, :-1].reshape(-1, 20), text[:, 1:].reshape(-1)).backward()
            optimizer.step()
        runs.append(w.run)
    given = text.numpy()
    again = given[:, 1:-1] == given[:, 2:]  # the first run is never given the last token
    for run, twice in zip(runs, (again[:, :-1].mean(), again.mean()), strict=True):
        same = [(given[:, 1:] == given[:, :-1]).mean(), 1.0, twice]
        assert [of(run, "targets_equal_inputs", shift=shift) for shift in (0, 1, 2)] == pytest.approx(same)
        assert "padding_share" not in set(run.frame().name)


# ---- sessions


def test_shares_so_far_are_those_of_the_looked_at_steps_also_after_a_resume(tmp_path: Any) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    y = torch.randint(3, (6, 16), generator=torch.Generator().manual_seed(0))

    def train(w: ls.Watch, steps: Any) -> None:
        for step in steps:
            F.cross_entropy(model(torch.randn(16, 3)), y[step]).backward()
            optimizer.step()

    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.Objective(every=2)], strict=True) as w:
        train(w, range(4))
        w.save_state()
    with ls.watch(
        model, optimizer, run=tmp_path / "run", probes=[ls.Objective(every=2)], strict=True, resume=True, step=4
    ) as w:
        train(w, range(4, 6))
    counts = np.bincount(y[1::2].numpy().ravel(), minlength=4)
    assert of(w.run, "majority_share") == counts.max() / 48
    assert list(at_scope(w.run, "Objective", "target_share", "class").values()) == list(counts / 48)


def test_several_optimizers_and_their_losses() -> None:
    model = nn.ModuleDict({"D": nn.Linear(2, 1), "G": nn.Linear(2, 2)})
    optimizers = [torch.optim.SGD(model[name].parameters(), lr=0.1) for name in ("D", "G")]
    with ls.watch(model, optimizers, probes=[ls.Objective(every=1)], strict=True) as w:
        for _ in range(3):
            real, noise = torch.randn(8, 2), torch.randn(8, 2)
            loss = F.binary_cross_entropy_with_logits(model["D"](real), torch.ones(8, 1))
            fake = model["G"](noise)
            loss = loss + F.binary_cross_entropy_with_logits(model["D"](fake.detach()), torch.zeros(8, 1))
            loss.backward()
            optimizers[0].step()
            F.binary_cross_entropy_with_logits(model["D"](fake), torch.ones(8, 1)).backward()
            optimizers[1].step()
    assert of(w.run, "objective_calls") == 3
    assert of(w.run, "majority_share") == pytest.approx(2 / 3)
