"""Holdout against direct computation in eval mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import learnscope as ls
from probes.reference import array, rows, tiny_gpt2, tokens, values

PROBE = "Holdout"


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(5, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def watched(model: nn.Module, holdout: Any, steps: int = 2, **options: Any) -> ls.Run:
    """Train on noise in train mode, so that a look in the wrong mode would show."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ls.watch(model, optimizer, probes=[ls.Holdout(every=1, **options)], holdout=holdout, strict=True) as w:
        model.train()
        for _ in range(steps):
            optimizer.zero_grad()
            if isinstance(model, Classifier):
                F.cross_entropy(model(torch.randn(16, 5)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
    return w.run


def test_a_classifier_with_dropout_and_batch_norm() -> None:
    model = Classifier()
    x, y = torch.randn(70, 5), torch.randint(0, 3, (70,))
    run = watched(model, DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
    assert model.training
    assert model.norm.training
    with torch.no_grad():
        logits = array(model.eval()(x))
    kept = run.arrays(PROBE)
    np.testing.assert_allclose(kept["logits"], logits, rtol=1e-5, atol=1e-6)
    assert kept["labels"].tolist() == y.tolist(), "in the data set's order, whatever the loader does"
    assert kept["predictions"].tolist() == logits.argmax(1).tolist()
    assert kept["example"].tolist() == list(range(70))
    losses = -np.log(softmax(logits)[np.arange(70), y.numpy()])
    np.testing.assert_allclose(kept["losses"], losses, rtol=1e-4, atol=1e-6)
    assert values(run, PROBE, "holdout_loss")[-1] == pytest.approx(losses.mean(), rel=1e-5)
    assert values(run, PROBE, "holdout_accuracy")[-1] == pytest.approx(
        (logits.argmax(1) == y.numpy()).mean(), abs=1e-12
    )
    assert values(run, PROBE, "holdout_examples") == [70, 70]
    assert values(run, PROBE, "holdout_positions") == [70, 70]


def test_a_language_model_with_padding() -> None:
    """Causal: the logits at t predict token t + 1; neither padding nor −100 counts."""
    model = tiny_gpt2()
    ids, mask = tokens(3, 8), torch.ones(3, 8, dtype=torch.int64)
    mask[0, 5:] = 0
    mask[2, 3:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[1, 4] = -100
    run = watched(model, [{"input_ids": ids, "attention_mask": mask, "labels": labels}])
    with torch.no_grad():
        logits = array(model.eval()(input_ids=ids, attention_mask=mask).logits)
    losses, right, example, kept_logits = [], [], [], []
    for i in range(3):
        for t in range(7):
            target = int(labels[i, t + 1])
            if target == -100 or not mask[i, t]:
                continue
            losses.append(-np.log(softmax(logits[i, t])[target]))
            right.append(logits[i, t].argmax() == target)
            example.append(i)
            kept_logits.append(logits[i, t])
    arrays = run.arrays(PROBE)
    assert arrays["example"].tolist() == example
    np.testing.assert_allclose(arrays["logits"], np.stack(kept_logits), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(arrays["losses"], losses, rtol=1e-4)
    assert values(run, PROBE, "holdout_loss")[-1] == pytest.approx(np.mean(losses), rel=1e-5)
    assert values(run, PROBE, "holdout_accuracy")[-1] == pytest.approx(np.mean(right), abs=1e-12)
    assert values(run, PROBE, "holdout_positions")[-1] == len(losses)
    own = float(model(input_ids=ids, attention_mask=mask, labels=labels).loss)
    assert np.mean(losses) == pytest.approx(own, rel=1e-5), "transformers' own loss agrees"


def test_regression() -> None:
    model = nn.Sequential(nn.Linear(4, 1))
    x, y = torch.randn(20, 4), torch.randn(20)
    run = watched(model, (x, y))
    out = array(model(x))[:, 0]
    assert values(run, PROBE, "holdout_loss")[-1] == pytest.approx(np.mean((out - array(y)) ** 2), rel=1e-5)
    assert values(run, PROBE, "holdout_accuracy") == []
    assert "predictions" not in run.arrays(PROBE)


def test_data_without_targets() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    run = watched(model, [torch.randn(6, 4)])
    assert set(run.arrays(PROBE)) == {"logits", "example", "predictions"}
    assert values(run, PROBE, "holdout_loss") == []


def test_a_bf16_model() -> None:
    model = nn.Sequential(nn.Linear(4, 3)).to(torch.bfloat16)
    x, y = torch.randn(10, 4, dtype=torch.bfloat16), torch.randint(0, 3, (10,))
    run = watched(model, (x, y))
    logits = array(model(x))
    losses = -np.log(softmax(logits)[np.arange(10), y.numpy()])
    assert values(run, PROBE, "holdout_loss")[-1] == pytest.approx(losses.mean(), rel=1e-5), "in float32 or better"


class Augmented(Dataset[tuple[Tensor, int]]):
    """Every reading of an example is different."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((5,), float(index)) + torch.randn(5), index % 3


@pytest.mark.parametrize("as_loader", [True, False])
def test_augmented_data_are_fixed(as_loader: bool) -> None:
    data = Augmented()
    model = Classifier()
    given = DataLoader(data, batch_size=8, shuffle=True) if as_loader else data
    run = watched(model, given, steps=3)
    labels = [run.arrays(PROBE, step)["labels"].tolist() for step in (1, 2, 3)]
    assert labels == [[i % 3 for i in range(40)]] * 3

    still = Classifier()
    optimizer = torch.optim.SGD(still.parameters(), lr=0.0)
    with ls.watch(still, optimizer, probes=[ls.Holdout(every=1)], holdout=given, strict=True) as w:
        for _ in range(2):
            optimizer.step()
    first, second = (w.run.arrays(PROBE, step)["logits"] for step in (1, 2))
    assert np.array_equal(first, second), "the same inputs at every look"


def test_only_the_first_examples_of_a_large_data_set_and_all_of_a_list() -> None:
    model = nn.Sequential(nn.Linear(5, 3))
    x, y = torch.randn(1500, 5), torch.randint(0, 3, (1500,))
    run = watched(model, DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True), steps=1)
    assert run.arrays(PROBE)["labels"].tolist() == y[:1024].tolist()
    listed = watched(model, [(x[:700], y[:700]), (x[700:], y[700:])], steps=1)
    assert values(listed, PROBE, "holdout_examples") == [1500]


def test_an_iterable_data_set_is_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("it was read")

    model = nn.Sequential(nn.Linear(5, 3))
    for given in (Stream(), DataLoader(Stream())):
        with pytest.raises(TypeError, match=r"IterableDataset cannot be read.*list of batches"):
            ls.watch(model, probes=[ls.Holdout()], holdout=given)


def test_more_logits_than_wanted_are_left_out_with_a_note() -> None:
    model = nn.Sequential(nn.Linear(5, 3))
    batch = (torch.randn(10, 5), torch.randint(0, 3, (10,)))
    run = watched(model, batch, steps=1, max_logits=29)
    assert "logits" not in run.arrays(PROBE)
    assert "predictions" in run.arrays(PROBE)
    assert next(iter(run.records(PROBE))).notes["logits"] == "left out: 30 are more than max_logits=29"
    exactly = watched(model, batch, steps=1, max_logits=30)
    assert exactly.arrays(PROBE)["logits"].shape == (10, 3)
    none = watched(model, batch, steps=1, keep_arrays=False)
    assert none.array_steps(PROBE) == []
    assert len(rows(none, PROBE, "holdout_loss")) == 1


@pytest.mark.parametrize(("value", "mean"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_loss_that_is_not_finite_says_whose(value: float, mean: str) -> None:
    """Targets of regression: the loss of one example is NaN or infinite; the finding is as for any NaN."""
    x, y = torch.randn(20, 5), torch.randn(20, 1)
    y[13] = value
    run = watched(nn.Linear(5, 1), [(x, y)])
    frame = rows(run, PROBE, "holdout_loss")
    assert frame.value.isna().all()
    assert set(frame.status) == {f"{mean}: the loss of 1 of 20 positions is not finite, first that of example 13"}
    assert "nonfinite" in {finding.kind for finding in run.findings()}
