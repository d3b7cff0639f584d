"""Per-example gradients against one backward an example in float64, memory bounds, and the model left as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.model.data import DataError, joined
from learnscope.model.examples.per_example import PerExample, per_example_gradients
from learnscope.task import DictTask, HuggingFaceTask, Task, TupleTask
from learnscope.tensor.examples.products import RademacherProjection, all_products, row_products
from model.examples.one_by_one import ConvNet, Custom, Matrix, Tied, batches_of, one_by_one, state, tiny
from probes.reference import mlp


def whole(model: nn.Module, task: Task, batches: Any, **options: Any) -> tuple[Matrix, Matrix, list[str], list[int]]:
    chunks = list(per_example_gradients(model, task, batches, **options))
    assert [c.start for c in chunks] == np.cumsum([0, *(len(c.losses) for c in chunks)])[:-1].tolist()
    rows, losses = torch.cat([c.gradients for c in chunks]), torch.cat([c.losses for c in chunks])
    return rows.numpy(), losses.numpy(), [c.how for c in chunks], [len(c.losses) for c in chunks]


@pytest.mark.parametrize("kind", ["mlp", "conv", "tied", "frozen"])
def test_gradients_are_those_of_one_backward_an_example(kind: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = {"conv": ConvNet, "tied": Tied}.get(kind, lambda: mlp(6, 5, 3))().double().train()
    data = batches_of([4, 3], 1, 4, 4, classes=4) if kind == "conv" else batches_of([4, 3], 6)
    if kind == "tied":
        data = [(torch.randint(7, (5,)), torch.randint(7, (5,)))]
    if kind == "frozen":
        next(model.parameters()).requires_grad_(False)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = state(model)
    rows, losses, how, _ = whole(model, TupleTask(), data)
    assert state(model) == before
    assert set(how) == {"vmap"}
    model.eval()
    each = [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for x, y in data for i in range(len(y))]
    np.testing.assert_allclose(rows, one_by_one(model, each), atol=1e-13)
    np.testing.assert_allclose(losses, [loss.item() for loss in each], rtol=1e-12)
    assert rows.shape[1] == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert np.abs(rows).max() > 0.01


EAGER, LOOP = "vmap, eager attention", "loop"


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(
    ("family", "with_mask"), [("gpt2", EAGER), ("llama", EAGER), ("qwen2", EAGER), ("bert", LOOP)]
)  # fmt: skip
def test_hugging_face_models(family: str, with_mask: str, padded: bool) -> None:
    """The reference is a forward of each sequence alone, cut to its length: padding is nowhere in it."""
    model = tiny(family).double().train()
    torch.manual_seed(2)
    ids, lengths = torch.randint(3, 23, (4, 7)), [7, 4, 2, 6] if padded else [7] * 4
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None]).long()
    batch: dict[str, Tensor] = {"input_ids": ids, **({"attention_mask": mask} if padded else {})}
    causal = family != "bert"
    batch["labels"] = ids.masked_fill(mask == 0, -100) if causal else torch.tensor([0, 2, 1, 2])
    implementation = model.config._attn_implementation
    assert implementation == "sdpa"
    before = state(model)
    rows, losses, how, _ = whole(model, HuggingFaceTask(), [batch])
    assert state(model) == before
    assert how == [with_mask if padded else "vmap"]

    model.eval()
    each = []
    for i, n in enumerate(lengths):
        logits = model(input_ids=ids[i : i + 1, :n]).logits
        target = batch["labels"][i : i + 1]
        each.append(F.cross_entropy(logits[0, :-1], ids[i, 1:n]) if causal else F.cross_entropy(logits, target))
    np.testing.assert_allclose(losses, [loss.item() for loss in each], rtol=1e-6)
    reference = one_by_one(model, each)
    # layers that compute in float32 whatever the model's dtype (rotary angles, RMS norms, softmax) set the tolerance
    np.testing.assert_allclose(rows, reference, atol=2e-6 * np.abs(reference).max())


@pytest.mark.parametrize("sparse", [False, True])
def test_what_vmap_cannot_do_is_done_one_at_a_time(sparse: bool) -> None:
    model = Custom(sparse).double()
    ids, y = torch.randint(7, (5,)), torch.randint(3, (5,))
    calls: list[int] = []
    assert model.embed.weight.register_hook(lambda g: calls.append(1) or 100 * g)  # the user's, for training only
    rows, _, how, _ = whole(model, TupleTask(), [(ids, y)])
    assert how == ["loop"]
    assert not calls
    model.embed.weight._backward_hooks.clear()  # type: ignore[union-attr]
    expected = one_by_one(model, [F.cross_entropy(model(ids[i : i + 1]), y[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(rows, expected, atol=1e-13)
    assert not rows[:, -6:].any()  # a layer that is not used


def test_values_an_example_that_are_no_tensors_reach_the_model_one_by_one() -> None:
    class Named(DictTask):
        def logits(self, model: nn.Module, batch: Any) -> Tensor:
            scale = torch.tensor([float(len(name)) for name in batch["name"]], dtype=torch.float64)
            return super().logits(model, batch) * scale[:, None]

    model, (x, y) = mlp(4, 3).double(), batches_of([3], 4)[0]
    names = ["a", "bbb", "cc"]
    rows, _, how, _ = whole(model, Named(), [{"x": x, "y": y, "name": names}])
    losses = [F.cross_entropy(model(x[i : i + 1]) * len(names[i]), y[i : i + 1]) for i in range(3)]
    np.testing.assert_allclose(rows, one_by_one(model, losses), atol=1e-13)
    assert how == ["loop"]


def test_an_example_without_targets_that_count_is_not_a_gradient_of_zero() -> None:
    model, (x, y) = mlp(4, 3).double(), batches_of([3], 4)[0]
    y[1] = -100
    rows, losses, _, _ = whole(model, TupleTask(), [(x, y)])
    assert np.isnan(losses).tolist() == [False, True, False]
    assert np.isnan(rows[1]).all()
    assert np.isfinite(rows[[0, 2]]).all()


def test_chunks_stay_within_the_memory_bound() -> None:
    model = mlp(10, 20, 3)  # 283 parameters
    data = [(x.float(), y) for x, y in batches_of([50, 7], 10)]
    reference, _, _, sizes = whole(model, TupleTask(), data)
    assert reference.dtype == np.float32
    assert sizes == [57]  # batches of one shape are joined
    p = sum(q.numel() for q in model.parameters())
    rows, _, _, sizes = whole(model, TupleTask(), data, max_bytes=30_000)
    assert max(sizes) * 4 * 4 * p <= 30_000
    assert 5 <= max(sizes) < 30_000 / (4 * 4 * p)  # activations count too, and are small here
    assert sum(sizes) == 57
    np.testing.assert_allclose(rows, reference, atol=1e-6)
    assert set(whole(model, TupleTask(), data, max_bytes=1)[3]) == {1}


def test_activations_count_where_they_are_larger_than_gradients() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale).exp().square().reshape(len(x), 2, -1).mean(2)

    x, y = torch.randn(64, 2000), torch.zeros(64, dtype=torch.int64)
    _, _, _, sizes = whole(Wide(), TupleTask(), [(x, y)], max_bytes=10 * 2 * 2000 * 4)
    assert max(sizes) == 9  # the input and its exponential, 2000 numbers each, and a few small ones


def test_chosen_parameters_only() -> None:
    model, data = mlp(6, 5, 3).double(), batches_of([4], 6)
    names = [name for name, _ in model.named_parameters()]
    all_rows, *_ = whole(model, TupleTask(), data)
    rows, *_ = whole(model, TupleTask(), data, parameters=names[-1])
    np.testing.assert_array_equal(rows, all_rows[:, -3:])


def test_projections_keep_inner_products_and_do_not_depend_on_chunks_or_memory() -> None:
    model, data = mlp(20, 30, 3).double(), batches_of([9, 4], 20)
    exact, *_ = whole(model, TupleTask(), data)
    state_before = torch.get_rng_state()
    rows, *_ = whole(model, TupleTask(), data, project=256, seed=3)
    small, *_ = whole(model, TupleTask(), data, project=256, seed=3, max_bytes=40_000)
    assert torch.equal(torch.get_rng_state(), state_before)
    np.testing.assert_allclose(rows, small, atol=1e-12)
    # the matrix itself, read off unit vectors: independent signs over √256
    p = exact.shape[1]
    signs = RademacherProjection(p, 256, seed=3)(torch.eye(p, dtype=torch.float64)).numpy()
    assert set(np.unique(signs)) == {-1 / 16, 1 / 16}
    assert abs(signs.mean()) < 4 / 16 / np.sqrt(signs.size)
    overlap = signs @ signs.T - np.eye(p)
    assert np.abs(overlap).max() < 6 / 16
    np.testing.assert_allclose(rows, exact @ signs, atol=1e-12)
    other, *_ = whole(model, TupleTask(), data, project=256, seed=4)
    assert np.abs(other - rows).max() > 0.1 * np.abs(rows).max()
    estimates = []
    for seed in range(40):
        found, *_ = whole(model, TupleTask(), data, project=64, seed=seed)
        estimates.append(found @ found.T)
    norms = np.linalg.norm(exact, axis=1)
    error = np.abs(np.mean(estimates, 0) - exact @ exact.T) / np.outer(norms, norms)
    assert error.max() < 5 * np.sqrt(2 / 64 / 40)  # the diagonal has twice the variance


def test_products_are_summed_in_float64() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 5000) * 1e-25, torch.randn(4, 5000) * 1e-20
    wide_a, wide_b = a.double().numpy(), b.double().numpy()
    np.testing.assert_allclose(all_products(a, b).numpy(), wide_a @ wide_b.T, rtol=1e-10)
    np.testing.assert_allclose(row_products(a, a).numpy(), (wide_a**2).sum(1), rtol=1e-12)
    assert all_products(a[:0], b).shape == (0, 4)
    with pytest.raises(ValueError, match="do not pair up"):
        row_products(a, b)
    with pytest.raises(ValueError, match="no inner product"):
        all_products(a, b[:, 1:])


def test_what_cannot_be_computed_says_why_and_leaves_the_model_alone() -> None:
    model = mlp(4, 3)
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)
    before = state(model)
    with pytest.raises(ValueError, match="needs targets"):
        whole(model, TupleTask(), [(x,)])
    with pytest.raises(DataError, match="empty"):
        whole(model, TupleTask(), [(x[:0], y[:0])])
    with pytest.raises(DataError, match="empty"):
        list(per_example_gradients(model, TupleTask(), []))
    with pytest.raises(ValueError, match="found in none"):
        PerExample(model, TupleTask(), parameters="layers")
    with pytest.raises(ValueError, match="max_bytes is 0"):
        PerExample(model, TupleTask(), max_bytes=0)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        whole(model, TupleTask(), [(x[:, :2], y)])
    with pytest.raises(ValueError, match="project 15 entries to 0"):
        whole(model, TupleTask(), [(x, y)], project=0)
    assert state(model) == before
    with pytest.raises(ValueError, match="requires a gradient"):
        PerExample(model.requires_grad_(False), TupleTask())


def test_a_task_that_cuts_for_itself_is_given_batches_of_one() -> None:
    class Own(TupleTask):
        def take(self, batch: Any, n: int) -> Any:
            return batch[0][:n], batch[1][:n]

    model, (x, y) = mlp(4, 3).double(), batches_of([3], 4)[0]
    with pytest.raises(DataError, match=r"Own has its own take\(\).*batches of one example"):
        whole(model, Own(), [(x, y)])
    rows, *_ = whole(model, Own(), [(x[i : i + 1], y[i : i + 1]) for i in range(3)])
    # a batch of three runs other kernels than batches of one: float64 sums of a few products, in another order
    np.testing.assert_allclose(rows, whole(model, TupleTask(), [(x, y)])[0], rtol=1e-12, atol=1e-14)


def test_joined_batches_are_the_same_examples_in_the_same_order() -> None:
    x = torch.arange(40.0).reshape(20, 2)
    plain = [{"x": x[:3], "y": x[:3, 0]}, {"x": x[3:7], "y": x[3:7, 0]}]
    other = {"x": x[7:9].double(), "y": x[7:9, 0]}
    named = [{"x": x[9:10], "y": x[9:10, 0], "name": ["a"]}, {"x": x[10:11], "y": x[10:11, 0], "name": ["b"]}]
    shared = [{"x": x[11:14], "y": x[11:14, 0], "scale": torch.ones(2)}] * 2
    found = list(joined(DictTask(), [*plain, other, *named, *shared], 1 << 20))
    assert [DictTask().size(batch) for batch in found] == [7, 2, 1, 1, 3, 3]
    assert torch.equal(found[0]["x"], x[:7])
    assert torch.equal(found[0]["y"], x[:7, 0])
    assert plain[0]["x"].shape == (3, 2)
    singles = [(x[i : i + 1], x[i : i + 1, 0]) for i in range(20)]
    assert [len(a) for a, _ in joined(TupleTask(), singles, 5 * 12)] == [5, 5, 5, 5]  # bytes of five examples
    assert torch.equal(torch.cat([a for a, _ in joined(TupleTask(), singles, 5 * 12)]), x)
