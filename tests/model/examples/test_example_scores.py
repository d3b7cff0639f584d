"""Scores of single examples against float64 NumPy, and gradient norms against autograd."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import learnscope as ls
from learnscope.model.examples.factored import example_gradient_norms
from learnscope.model.examples.scores import example_scores
from learnscope.task import IGNORE


def by_hand(logits: np.ndarray, target: int) -> dict[str, float]:
    """One position, written out in extended precision."""
    z = logits.astype(np.longdouble)
    p = np.exp(z - z.max())
    p /= p.sum()
    one_hot = np.eye(len(z), dtype=np.longdouble)[target]
    others = np.delete(z, target)
    gap = np.log(np.exp(z - z.max()).sum()) + z.max() - z[target]
    return {
        "p_gold": float(p[target]),
        "margin": float(z[target] - others.max()),
        "loss": float(gap),
        "el2n": float(np.sqrt(((p - one_hot) ** 2).sum())),
        "correct": float(np.argmax(z) == target),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 12.0])
def test_classifiers(dtype: torch.dtype, scale: float) -> None:
    logits = (scale * torch.randn(40, 7)).to(dtype).requires_grad_()
    targets = torch.randint(7, (40,))
    found = example_scores(logits, targets)
    for i in range(40):
        for name, value in by_hand(logits.detach()[i].double().numpy(), int(targets[i])).items():
            assert getattr(found, name)[i] == pytest.approx(value, rel=1e-9, abs=1e-14), name
    assert (found.positions == 1).all()
    assert (found.target == targets.numpy()).all()


def test_sure_answers_keep_their_small_errors() -> None:
    found = example_scores(torch.tensor([[40.0, 0.0, 0.0]]), torch.tensor([0]))
    assert found.el2n[0] == pytest.approx(np.sqrt(6) * np.exp(-40.0), rel=1e-9)
    assert found.loss[0] == pytest.approx(2 * np.exp(-40.0), rel=1e-9)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_a_single_logit_is_a_class_of_two(shape: tuple[int, ...]) -> None:
    logits, targets = 3 * torch.randn(shape), torch.tensor([0, 1, 1, 0, 1, 0])
    found = example_scores(logits, targets)
    for i, z in enumerate(logits.double().reshape(-1)):
        p = float(torch.sigmoid(z))
        gold = p if targets[i] else 1 - p
        assert found.p_gold[i] == pytest.approx(gold)
        assert found.el2n[i] == pytest.approx(np.sqrt(2) * (1 - gold))
        assert found.margin[i] == pytest.approx(float(z) * (1 if targets[i] else -1))
        assert found.loss[i] == pytest.approx(-np.log(gold))
        assert found.correct[i] == (gold > 0.5)


def sequences() -> tuple[Tensor, Tensor]:
    logits, targets = 2 * torch.randn(5, 6, 9), torch.randint(9, (5, 6))
    targets[0, 3:] = IGNORE
    targets[1, :5] = IGNORE
    targets[3] = IGNORE
    logits[0, 4] = torch.nan  # where nothing counts
    targets[4] = logits[4].argmax(-1)
    targets[4, :3] = (targets[4, :3] + 1) % 9  # exactly half right
    return logits, targets


def test_positions_of_a_sequence_are_averaged_without_those_that_are_ignored() -> None:
    logits, targets = sequences()
    found = example_scores(logits, targets)
    for i in range(5):
        rows = [by_hand(logits[i, t].double().numpy(), int(y)) for t, y in enumerate(targets[i]) if y != IGNORE]
        assert found.positions[i] == len(rows)
        if not rows:
            assert np.isnan([found.p_gold[i], found.margin[i], found.loss[i], found.el2n[i]]).all()
            assert not found.correct[i]
            continue
        for name in ("p_gold", "margin", "loss", "el2n"):
            assert getattr(found, name)[i] == pytest.approx(np.mean([row[name] for row in rows])), name
        assert found.correct[i] == (np.mean([row["correct"] for row in rows]) > 0.5)
    assert not found.correct[4]


def test_targets_of_sequences_are_told_apart_whatever_the_padding() -> None:
    targets = torch.randint(9, (50, 8))
    logits = torch.zeros(50, 8, 9)
    first = example_scores(logits, targets).target
    assert len(set(first.tolist())) == 50
    padded = torch.cat([torch.full((50, 2), IGNORE), targets, torch.full((50, 3), IGNORE)], 1)
    assert (example_scores(torch.zeros(50, 13, 9), padded).target == first).all()


def test_a_large_vocabulary_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = torch.randn(4, 7, 50), torch.randint(50, (4, 7))
    whole = example_scores(logits, targets)
    monkeypatch.setattr("learnscope.model.examples.scores.CHUNK", 150)
    monkeypatch.setattr("learnscope.model.examples.scores.WIDE", 0)
    pieces = example_scores(logits, targets)
    for name in ("p_gold", "margin", "loss", "el2n"):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), rtol=2e-6, err_msg=name)


def test_what_cannot_be_scored() -> None:
    with pytest.raises(TypeError, match="regression"):
        example_scores(torch.randn(3, 2), torch.randn(3))
    with pytest.raises(ValueError, match="none of the logits' classes"):
        example_scores(torch.randn(3, 2), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="none of the logits' classes"):
        example_scores(torch.randn(3), torch.tensor([0, 1, -1]))
    found = example_scores(torch.tensor([[0.0, torch.nan], [1.0, 0.0]]), torch.tensor([0, 0]))
    assert np.isnan(found.p_gold).tolist() == [True, False]
    assert found.correct.tolist() == [False, True]
    assert len(example_scores(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).p_gold) == 0


def each_gradient(model: nn.Module, parameters: Sequence[Tensor], x: Tensor, y: Tensor) -> list[float]:
    norms = []
    for i in range(len(x)):
        loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        found = torch.autograd.grad(loss, parameters)
        norms.append(float(sum(g.double().square().sum() for g in found)) ** 0.5)
    return norms


@pytest.mark.parametrize("kind", ["linear", "no bias", "norm between", "tied", "convolution", "part frozen"])
def test_gradient_norms_equal_those_of_gradients_one_by_one(kind: str) -> None:
    torch.manual_seed(5)
    square = nn.Linear(6, 6)
    models = {
        "linear": [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)],
        "no bias": [nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False)],
        "norm between": [nn.Linear(6, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)],
        "tied": [square, nn.ReLU(), square, nn.Linear(6, 4)],
        "convolution": [nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(15, 4)],
        "part frozen": [nn.Linear(6, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 4)],
    }
    model = nn.Sequential(*models[kind]).double()
    model[0].requires_grad_(kind != "part frozen")
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.randint(4, (12,))
    trained = [p for p in model.parameters() if p.requires_grad]
    model.eval()
    wanted = each_gradient(model, trained, x, y)
    model.train()
    trained[0].grad = torch.ones_like(trained[0])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = example_gradient_norms(model, ls.TupleTask(), [(x[:5], y[:5]), (x[5:], y[5:])], max_bytes=20_000)
    assert found.tolist() == pytest.approx(wanted, rel=1e-10)
    assert torch.equal(trained[0].grad, torch.ones_like(trained[0]))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(m._forward_hooks for m in model.modules())


def test_the_gradient_norm_of_an_example_without_targets_is_not_zero() -> None:
    model = nn.Sequential(nn.Linear(6, 4))
    y = torch.tensor([1, -100, 2])
    found = example_gradient_norms(model, ls.TupleTask(), [(torch.randn(3, 6), y)])
    assert found.isnan().tolist() == [False, True, False]
