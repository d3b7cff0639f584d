"""Scores of single examples against float64 NumPy, and gradient norms against autograd."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from learnscope.model.example_scores import example_scores
from learnscope.model.gradient_norms import head_gradient_norms, linear_gradient_norms
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


def test_flat_positions_with_their_examples_give_the_same() -> None:
    logits, targets = sequences()
    keep = targets != IGNORE
    example = torch.arange(5).unsqueeze(1).expand(5, 6)[keep]
    flat = example_scores(logits[keep], targets[keep], example=example, examples=5)
    whole = example_scores(logits, targets)
    for name in ("p_gold", "margin", "loss", "el2n", "correct", "positions", "target"):
        np.testing.assert_allclose(getattr(flat, name), getattr(whole, name), rtol=1e-12, err_msg=name)
    # as many positions as examples, but not one each
    uneven = example_scores(torch.eye(3), torch.tensor([0, 1, 2]), example=torch.tensor([0, 0, 2]))
    assert uneven.positions.tolist() == [2, 0, 1]


def test_targets_of_sequences_are_told_apart_whatever_the_padding() -> None:
    targets = torch.randint(9, (50, 8))
    logits = torch.zeros(50, 8, 9)
    first = example_scores(logits, targets).target
    assert len(set(first.tolist())) == 50
    padded = torch.cat([torch.full((50, 2), IGNORE), targets, torch.full((50, 3), IGNORE)], 1)
    assert (example_scores(torch.zeros(50, 13, 9), padded).target == first).all()


def test_own_losses_are_taken_as_they_are() -> None:
    losses = torch.tensor([3.0, 5.0])
    assert example_scores(torch.eye(2), torch.tensor([0, 1]), losses).loss.tolist() == [3.0, 5.0]
    with pytest.raises(ValueError, match="one a position"):
        example_scores(torch.eye(2), torch.tensor([0, 1]), torch.ones(3))


def test_a_large_vocabulary_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = torch.randn(4, 7, 50), torch.randint(50, (4, 7))
    whole = example_scores(logits, targets)
    monkeypatch.setattr("learnscope.model.example_scores.CHUNK", 150)
    monkeypatch.setattr("learnscope.model.example_scores.WIDE", 0)
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


@pytest.mark.parametrize("bias", [True, False])
def test_gradient_norms_of_the_last_layer(bias: bool) -> None:
    body, head = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 4, bias=bias)
    model = nn.Sequential(body, head)
    x, y = torch.randn(12, 6), torch.randint(4, (12,))
    found = head_gradient_norms(model(x), y, body(x), bias=bias)
    assert found.tolist() == pytest.approx(each_gradient(model, list(head.parameters()), x, y), rel=1e-5)


def test_gradient_norms_of_all_linear_layers() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 4))
    x, y = torch.randn(12, 6), torch.randint(4, (12,))
    linear = [p for m in model if isinstance(m, nn.Linear) for p in m.parameters()]
    model[0].weight.grad = torch.ones(8, 6)
    found = linear_gradient_norms(model, lambda: cross_entropy(model(x), y, reduction="none"))
    assert found.tolist() == pytest.approx(each_gradient(model, linear, x, y), rel=1e-5)
    assert torch.equal(model[0].weight.grad, torch.ones(8, 6))
    assert model[2].weight.grad is None
    assert not any(m._forward_hooks for m in model.modules())


def test_gradient_norms_refuse_what_is_no_single_product() -> None:
    x, y = torch.randn(4, 6), torch.randint(3, (4,))
    mixed = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="mixes examples"):
        linear_gradient_norms(mixed, lambda: cross_entropy(mixed(x), y, reduction="none"))
    square = nn.Linear(6, 6)
    twice = nn.Sequential(square, square)
    with pytest.raises(ValueError, match="runs twice"):
        linear_gradient_norms(twice, lambda: cross_entropy(twice(x), y, reduction="none"))
    with pytest.raises(ValueError, match="3 dimensions"):
        linear_gradient_norms(square, lambda: square(x.unsqueeze(1)).sum((1, 2)))
    with pytest.raises(ValueError, match=r"no trainable nn\.Linear"):
        linear_gradient_norms(nn.LayerNorm(3), lambda: x.sum(1))
    with pytest.raises(ValueError, match="two dimensions"):
        head_gradient_norms(torch.randn(4, 3), y, torch.randn(5, 2))
