"""Transition scores, TracIn and TRAK against explicit float64 gradients, one backward an example."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.model.examples.attribution import tracin, transition_scores
from learnscope.model.examples.per_example import PerExample
from learnscope.model.examples.trak import influence, trak
from learnscope.task import HuggingFaceTask, TupleTask
from model.examples.one_by_one import ConvNet, Custom, Tied, batches_of, one_by_one, state, tiny
from probes.reference import mlp

Matrix = np.ndarray[Any, Any]


class Inplace(nn.Module):
    """Linear layers whose outputs are overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(inplace=True), nn.Linear(5, 3, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Centred(nn.Module):
    """Examples of a batch see each other, but for an example alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x).tanh()
        return self.two(h - 0.5 * h.mean(0, keepdim=True))


class Reused(Centred):
    """A weight is used once more outside its layer."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x).tanh()
        return self.two(h) + F.linear(h.square(), self.two.weight)


class Twice(nn.Module):
    """A layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(self.one(x).tanh()).tanh())


def losses_of(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    model.eval()
    return [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for x, y in data for i in range(len(y))]


def rows_of(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> Matrix:
    return one_by_one(model, losses_of(model, data))


def moved(model: nn.Module, by: float = 0.3) -> nn.Module:
    torch.manual_seed(5)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p += by * torch.randn_like(p)
    return other


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mlp": (lambda: mlp(6, 5, 3), "factored"),
    "in place": (Inplace, "factored"),
    "one layer": (lambda: nn.Linear(6, 3), "factored"),
    "examples see each other": (Centred, "vmap"),
    "a weight used twice": (Reused, "vmap"),
    "a layer called twice": (Twice, "vmap"),
    "conv": (ConvNet, "vmap"),
    "tied": (Tied, "vmap"),
    "custom": (Custom, "loop"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_transition_score_is_the_cosine_times_the_loss_lost(kind: str) -> None:
    make, how = MODELS[kind]
    torch.manual_seed(0)
    before = make().double()
    after = moved(before).train()
    data = batches_of([1, 6, 4], 1, 4, 4, classes=4) if kind == "conv" else batches_of([1, 6, 4], 6)
    if kind in ("tied", "custom"):
        data = [(torch.randint(7, (n,)), torch.randint(3, (n,))) for n in (1, 6, 4)]
    states = state(before), state(after)
    seen: list[tuple[int, int]] = []
    found = transition_scores(before, after, None, data, progress=lambda done, total: seen.append((done, total)))
    assert (state(before), state(after)) == states
    assert how in found.how.split("; ")
    assert seen[-1] == (11, 11)

    one, two = rows_of(before, data), rows_of(after, data)
    cosine = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    lost = np.array([(a - b).item() for a, b in zip(losses_of(before, data), losses_of(after, data), strict=True)])
    np.testing.assert_allclose(found.cosine.numpy(), cosine, atol=1e-10)
    np.testing.assert_allclose(found.score.numpy(), cosine * lost, atol=1e-10)
    np.testing.assert_allclose((found.loss_before - found.loss_after).numpy(), lost, atol=1e-12)
    assert not found.reasons
    assert lost.min() < 0 < lost.max()


def test_frozen_and_chosen_parameters_do_not_count_in_factors_either() -> None:
    torch.manual_seed(0)
    before = mlp(6, 5, 3).double()
    next(before.parameters()).requires_grad_(False)
    after, data = moved(before), batches_of([7], 6)
    one, two = rows_of(before, data), rows_of(after, data)
    last = [name for name, _ in before.named_parameters()][-1]
    for pattern, columns in ((None, slice(None)), (last, slice(-3, None))):
        a, b = one[:, columns], two[:, columns]
        found = transition_scores(before, after, None, data, parameters=pattern)
        assert found.how == "factored"
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        np.testing.assert_allclose(found.cosine.numpy(), cosine, atol=1e-12)


def test_what_cannot_be_compared_is_refused() -> None:
    model = mlp(6, 5, 3).double()
    after, data = moved(model), batches_of([5], 6)
    with pytest.raises(ValueError, match="same object"):
        transition_scores(model, model, None, data)
    with pytest.raises(ValueError, match="two architectures"):
        transition_scores(model, mlp(6, 4, 3).double(), None, data)
    with pytest.raises(ValueError, match="needs targets"):
        transition_scores(model, after, None, [(data[0][0],)])


@pytest.mark.parametrize("factored", [True, False])
def test_what_has_no_cosine_is_not_zero(factored: bool) -> None:
    """Zero gradients, ignored targets, infinite losses: NaN, with the reason, and the others are right."""
    torch.manual_seed(0)
    before = nn.Linear(4, 3, bias=False).double() if factored else nn.Conv1d(4, 3, 1, bias=False).double()
    after, (x, y) = moved(before), batches_of([6], 4)[0]
    x[2], y[3], x[4] = 0.0, -100, torch.inf
    x = x if factored else x[..., None]
    y = y if factored else y[..., None]
    found = transition_scores(before, after, None, [(x, y)])
    assert (found.how == "factored") is factored
    assert found.score.isnan().tolist() == [False, False, True, True, True, False]
    assert found.reasons[2] == "its gradient after is zero"
    assert "no target that counts" in found.reasons[3]
    assert "not finite" in found.reasons[4]
    assert sorted(found.reasons) == [2, 3, 4]
    others = [(x[[0, 1, 5]].reshape(3, 4, *[1] * (not factored)), y[[0, 1, 5]])]
    one, two = rows_of(before, others), rows_of(after, others)
    cosine = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    np.testing.assert_allclose(found.cosine[[0, 1, 5]].numpy(), cosine, atol=1e-12)


def test_transitions_of_a_language_model_with_padding() -> None:
    before = tiny("llama").double()
    after = moved(before, 0.05)
    ids = torch.randint(3, 23, (4, 6))
    mask = (torch.arange(6) < torch.tensor([6, 3, 4, 6])[:, None]).long()
    batch = {"input_ids": ids, "attention_mask": mask}
    small = 5 * sum(p.numel() for p in before.parameters()) * 8 * 2  # two examples of each side at a time
    found = transition_scores(before, after, None, [batch], max_bytes=small)
    assert found.how == "vmap, eager attention"
    rows = []
    for model in (before.eval(), after.eval()):
        each = [
            F.cross_entropy(model(input_ids=ids[i : i + 1, :n]).logits[0, :-1], ids[i, 1:n])
            for i, n in enumerate([6, 3, 4, 6])
        ]
        rows.append(one_by_one(model, each))
    cosine = (rows[0] * rows[1]).sum(1) / np.linalg.norm(rows[0], axis=1) / np.linalg.norm(rows[1], axis=1)
    np.testing.assert_allclose(found.cosine.numpy(), cosine, atol=1e-5)


def test_tracin_is_the_sum_over_checkpoints_of_rate_times_products() -> None:
    torch.manual_seed(0)
    model = mlp(6, 5, 3)
    steps = [(model, 0.1), (moved(model, 0.1), 0.05), (moved(model, 0.7), 0.2)]
    wide = [(copy.deepcopy(m).double(), rate) for m, rate in steps]
    train, test = batches_of([8, 3], 6), [batches_of([9], 6)[0]]
    test = [(x[4:], y[4:]) for x, y in test]
    expected = sum(rate * rows_of(m, train) @ rows_of(m, test).T for m, rate in wide)
    narrow = [[(x.float(), y) for x, y in data] for data in (train, test)]
    tolerance: dict[str, float] = {"rtol": 1e-5, "atol": 1e-5 * float(np.abs(expected).max())}
    for column, (x, y) in enumerate(zip(*narrow[1][0], strict=True)):  # the mean over one test example is its own
        found = tracin(steps, None, narrow[0], [(x[None], y[None])])
        np.testing.assert_allclose(found.scores[:, 0].numpy(), expected[:, column], **tolerance)
        assert found.how == "vmap"
    seen: list[tuple[int, int]] = []
    p = sum(q.numel() for q in model.parameters())
    several = tracin(steps, None, *narrow, max_bytes=6 * 4 * p, progress=lambda *now: seen.append(now))
    np.testing.assert_allclose(several.scores.numpy(), np.mean(expected, axis=1, keepdims=True), **tolerance)
    assert seen[-1] == (3 * 11, 3 * 11)
    assert len(seen) > 3  # in several chunks each
    mean = tracin(wide, None, train, test).scores.numpy()
    np.testing.assert_allclose(mean, np.mean(expected, axis=1, keepdims=True), rtol=1e-10)


def test_tracin_refuses_what_would_be_silent() -> None:
    model, (x, y) = mlp(6, 5, 3).double(), batches_of([4], 6)[0]
    with pytest.raises(ValueError, match="no checkpoint"):
        tracin([], None, (x, y), (x, y))
    ignored = y.clone()
    ignored[2] = -100
    with pytest.raises(ValueError, match="test example 2 has a loss of NaN"):
        tracin([(model, 0.1)], None, (x, y), (x, ignored))
    scores = tracin([(model, 0.1)], None, (x, ignored), (x, y)).scores
    assert scores[:, 0].isnan().tolist() == [False, False, True, False]


def sigmoid(z: Matrix) -> Matrix:
    return 1 / (1 + np.exp(-z))


def logistic_trak(weights: list[tuple[Matrix, float]], x: Matrix, y: Matrix, test: tuple[Matrix, Matrix]) -> Matrix:
    """By hand: f = (2y − 1)(w·x + b), so its gradient is (2y − 1)(x, 1), whatever the weights."""
    phi = (2 * y - 1)[:, None] * np.hstack([x, np.ones((len(x), 1))])
    at = (2 * test[1] - 1)[:, None] * np.hstack([test[0], np.ones((len(test[0]), 1))])
    right = [sigmoid((2 * y - 1) * (x @ w + b)) for w, b in weights]
    scores: Matrix = (1 - np.mean(right, 0))[:, None] * (phi @ np.linalg.inv(phi.T @ phi) @ at.T)
    return scores


def test_trak_of_a_logistic_model_is_exact_without_projection() -> None:
    torch.manual_seed(0)
    models = [nn.Linear(4, 1).double() for _ in range(3)]
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.randint(2, (30,))
    tx, ty = torch.randn(5, 4, dtype=torch.float64), torch.randint(2, (5,))
    weights = [(m.weight[0].detach().numpy(), m.bias.item()) for m in models]
    expected = logistic_trak(weights, x.numpy(), y.numpy(), (tx.numpy(), ty.numpy()))
    seen: list[tuple[int, int]] = []
    found = trak(models, None, (x, y), (tx, ty), dims=None, progress=lambda *now: seen.append(now))
    np.testing.assert_allclose(found.scores.numpy(), expected, rtol=1e-9)
    assert seen[-1] == (105, 105)


def test_trak_of_several_classes_and_projections() -> None:
    """The margin's gradient by autograd of log(p/(1 − p)), and the projection read off the class itself."""
    from learnscope.tensor.examples.products import RademacherProjection

    torch.manual_seed(0)
    models = [mlp(6, 5, 3).double(), mlp(6, 5, 3).double()]
    train, test = batches_of([25, 15], 6), batches_of([4], 6)
    influences, wrong = [], []
    for index, model in enumerate(models):
        rows = []
        for data in (train, test):
            p = [F.softmax(model(x), 1)[torch.arange(len(y)), y] for x, y in data]
            rows.append(one_by_one(model, list(torch.cat([(q / (1 - q)).log() for q in p]))))
            if data is train:
                wrong.append(1 - torch.cat(p).detach().numpy())
        size = rows[0].shape[1]
        signs = RademacherProjection(size, 8, seed=7 + index)(torch.eye(size, dtype=torch.float64)).numpy()
        phi, at = rows[0] @ signs, rows[1] @ signs
        influences.append(phi @ np.linalg.solve(phi.T @ phi + 0.1 * np.eye(8), at.T))
    expected = np.mean(wrong, 0)[:, None] * np.mean(influences, 0)
    found = trak(models, None, train, test, dims=8, seed=7, ridge=0.1)
    np.testing.assert_allclose(found.scores.numpy(), expected, rtol=1e-8, atol=1e-12)


def test_trak_foretells_what_leaving_examples_out_does() -> None:
    """Linear datamodelling score: sums of scores over random halves against models trained on them."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 5))
    y = (x[:, 0] + 0.8 * generator.normal(size=60) > 0).astype(np.int64)
    tx = generator.normal(size=(8, 5))
    ty = (tx[:, 0] > 0).astype(np.int64)

    def trained(subset: Matrix) -> tuple[Matrix, float]:
        inputs, w = np.hstack([x[subset], np.ones((len(subset), 1))]), np.zeros(6)
        for _ in range(25):  # Newton's method, with a little weight decay
            p = sigmoid(inputs @ w)
            hessian = inputs.T @ (inputs * (p * (1 - p))[:, None]) + 0.1 * np.eye(6)
            w -= np.linalg.solve(hessian, inputs.T @ (p - y[subset]) + 0.1 * w)
        return w[:5], float(w[5])

    model = nn.Linear(5, 1).double()
    w, b = trained(np.arange(60))
    with torch.no_grad():
        model.weight[0], model.bias[0] = torch.from_numpy(w), b
    data = [(torch.from_numpy(a), torch.from_numpy(c)) for a, c in ((x, y), (tx, ty))]
    scores = trak([model], None, data[0], data[1], dims=None).scores.numpy()
    halves = [generator.permutation(60)[:30] for _ in range(60)]
    foretold = np.array([scores[half].sum(0) for half in halves])
    actual = np.array([(2 * ty - 1) * (tx @ w + b) for w, b in map(trained, halves)])
    correlations = [spearmanr(foretold[:, j], actual[:, j]).statistic for j in range(8)]
    assert np.mean(correlations) > 0.5


def test_trak_refuses_what_has_no_answer() -> None:
    model, (x, y) = mlp(6, 5, 3).double(), batches_of([10], 6)[0]
    with pytest.raises(ValueError, match=r"10 training gradients span \d+ of 64 dimensions.*lower dims"):
        trak([model], None, (x, y), (x, y), dims=64)
    with pytest.raises(TypeError, match="float targets"):
        trak([model], None, (x, torch.randn(10, 3)), (x, y), dims=4)
    with pytest.raises(ValueError, match="no checkpoint"):
        trak([], None, (x, y), (x, y))
    with pytest.raises(ValueError, match=r"ridge is -1\.0: a number from 0"):
        trak([model], None, (x, y), (x, y), ridge=-1.0)
    ignored = y.clone()
    ignored[3] = -100
    with pytest.raises(ValueError, match="training example 3 is not finite"):
        trak([model], None, (x, ignored), (x, y), dims=4)
    ids = torch.randint(3, 23, (2, 5))
    with pytest.raises(ValueError, match="5 answers"):
        trak([tiny("gpt2")], HuggingFaceTask(), {"input_ids": ids}, {"input_ids": ids}, dims=1)


def test_influence_is_the_hat_matrix_on_its_own_rows() -> None:
    rows = torch.randn(12, 4, dtype=torch.float64)
    hat = influence(rows, rows).numpy()
    np.testing.assert_allclose(hat @ hat, hat, atol=1e-12)
    assert np.trace(hat) == pytest.approx(4)


def test_margins_of_the_largest_logits_stay_finite() -> None:
    """p rounds to 1, and log(p/(1 − p)) written as it stands would be infinite."""
    from learnscope.model.examples.trak import margin

    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[300.0], [-300.0]]))
    differ = PerExample(model, TupleTask(), function=lambda m, batch: margin(TupleTask(), m, batch))
    rows, values = differ((torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)))
    assert values.tolist() == [600.0]
    assert rows.tolist() == [[1.0, -1.0]]
