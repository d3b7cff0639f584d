"""Ids that are positions in a shuffled loader: said once, nothing is told of single examples, the training goes on."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from learnscope.dynamics import LearningDynamicsAnalyzer

N, BATCH, EPOCHS = 50, 8, 3
NUMBERED = ("examples", "presentations", "total_forgetting_events", "learned", "never_learned", "unforgettable")


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, 5, generator=generator), torch.randint(3, (N,), generator=generator))


def trained(analyzer: LearningDynamicsAnalyzer | None) -> tuple[nn.Module, list[dict[str, float]]]:
    """The documented loop over a shuffling loader; the weights at the end, and accuracy and loss of each epoch."""
    torch.manual_seed(3)
    model, dataset = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.2), nn.Linear(16, 3)), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    truth = []
    for epoch in range(EPOCHS):
        correct = loss_sum = 0.0
        for number, (inputs, targets) in enumerate(loader):
            out = model(inputs)
            loss = F.cross_entropy(out, targets)
            correct += float((out.argmax(1) == targets).sum())
            loss_sum += float(loss.detach()) * len(targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if analyzer is not None:
                ids = torch.arange(number * BATCH, min((number + 1) * BATCH, N))
                analyzer.track_batch(model, inputs, targets, ids, epoch, logits=out)
        if analyzer is not None:
            analyzer.compute_epoch_statistics(loader, model, epoch)
        truth.append({"accuracy": correct / N, "loss": loss_sum / N})
    return model, truth


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters())


def test_training_goes_on_and_numbers_that_need_no_ids_too(tmp_path: Path) -> None:
    analyzer = LearningDynamicsAnalyzer(num_classes=3)
    with pytest.warns(ls.ProbeWarning, match=r"IndexedDataset(.|\n)*nothing is told of single examples") as said:
        model, truth = trained(analyzer)
        analysis = analyzer.analyze_learning_patterns()
        analyzer.frame()
    assert len(said) == 1, "once"
    assert torch.equal(weights(model), weights(trained(None)[0]))
    for told, true in zip(analyzer.epoch_statistics, truth, strict=True):
        assert told["accuracy"] == pytest.approx(true["accuracy"])
        assert told["loss"] == pytest.approx(true["loss"], rel=1e-5)
    first, *later = analyzer.epoch_statistics
    assert first["examples"] == N, "up to then the ids had named one example each"
    assert all(told[name] is None for told in later for name in NUMBERED)
    record = list(analyzer.run.records())[-1]
    reasons = {row.name: row.status for row in record.rows() if row.value is None}
    assert "position in a shuffled loader" in (reasons["examples"] or "")
    assert len(analysis["hard_examples"]) == 0
    assert "not known" in repr(analysis["hard_examples"])
    assert analysis["forgetting_statistics"]["examples_with_forgetting"] is None
    assert "IndexedDataset" in analysis["reason"]
    assert len(analyzer.frame()) == 0
    assert "IndexedDataset" in analyzer.frame().attrs["reason"]
    drawn = analyzer.plot_learning_dynamics(tmp_path)
    assert [path.name for path in drawn] == ["learning_curves.png"]


def test_strict_raises() -> None:
    with pytest.raises(ls.IdError, match="IndexedDataset"):
        trained(LearningDynamicsAnalyzer(strict=True))


def test_a_saved_analyzer_still_knows_that_it_does_not_know(tmp_path: Path) -> None:
    analyzer = LearningDynamicsAnalyzer()
    with pytest.warns(ls.ProbeWarning, match="IndexedDataset"):
        trained(analyzer)
    analyzer.save(tmp_path / "analyzer.pkl")
    again = LearningDynamicsAnalyzer.load(tmp_path / "analyzer.pkl")
    assert again.refused == analyzer.refused is not None
    with pytest.warns(ls.ProbeWarning, match="IndexedDataset"):  # whoever loads it may not have seen it
        told = again.analyze_learning_patterns()
    assert json.dumps(told) == json.dumps(analyzer.analyze_learning_patterns())


@pytest.mark.parametrize("shuffle", [False, True])
def test_right_ids_are_followed_as_ever(shuffle: bool) -> None:
    dataset, model = ls.IndexedDataset(data()), nn.Linear(5, 3)
    analyzer = LearningDynamicsAnalyzer(strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(2):
            for batch in DataLoader(dataset, batch_size=BATCH, shuffle=shuffle):
                inputs, targets, ids = batch
                analyzer.track_batch(model, inputs, targets, ids, epoch, logits=model(inputs))
            analyzer.compute_epoch_statistics(epoch=epoch)
    assert analyzer.refused is None
    assert analyzer.frame()["presentations"].tolist() == [2] * N
