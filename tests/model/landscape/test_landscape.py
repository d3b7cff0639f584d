"""Loss, gradient and Hessian-vector products against dense float64 Hessians, and the model left as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from learnscope.model.guard import guard
from learnscope.model.landscape.double_backward import twice_differentiable
from learnscope.model.landscape.loss import Landscape, trainable
from learnscope.task import Task, TupleTask
from probes.reference import ConvNet, mlp

Matrix = np.ndarray[Any, Any]


class Transformer(nn.Module):
    """One block with torch's fused attention, tied embeddings, dropout; token 0 is padding."""

    def __init__(self, vocabulary: int = 7, width: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.qkv, self.out, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.5)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)))
        return self.head(x)


class Padded(TupleTask):
    """Targets of 0 are padding; the default tasks mark it by IGNORE."""

    def targets(self, batch: Any) -> Tensor:
        return torch.where(batch[1] == 0, -100, batch[1])


def classes(sizes: Sequence[int], *shape: int, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(n, *shape, dtype=dtype), torch.randint(0, 3, (n,))) for n in sizes]


def cross_entropy(run: Callable[[Tensor], Tensor], batches: Sequence[Any], ignore: int = -100) -> Tensor:
    """Mean over all positions that count, written down once more."""
    logits = torch.cat([run(x).reshape(-1, run(x).shape[-1]) for x, _ in batches])
    return F.cross_entropy(logits, torch.cat([y.reshape(-1) for _, y in batches]), ignore_index=ignore)


def dense(
    model: nn.Module, batches: Sequence[Any], names: Sequence[str], ignore: int = -100
) -> tuple[float, Matrix, Matrix]:
    """Loss, gradient and Hessian over the named parameters, in eval mode, by torch's own dense Hessian."""
    model = copy.deepcopy(model).double().eval()
    own = dict(model.named_parameters())
    sizes = [own[name].numel() for name in names]

    def loss(flat: Tensor) -> Tensor:
        parts = {n: part.view_as(own[n]) for n, part in zip(names, flat.split(sizes), strict=True)}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return cross_entropy(lambda x: functional_call(model, parts, x), batches, ignore)

    flat = torch.cat([own[name].detach().reshape(-1) for name in names]).requires_grad_()
    value = loss(flat)
    [gradient] = torch.autograd.grad(value, flat)
    return value.item(), gradient.numpy(), hessian(loss, flat.detach()).numpy()


def matrix_of(landscape: Landscape) -> Matrix:
    return np.stack([landscape.product(row) for row in np.eye(landscape.n)])


def tokens(sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    batches = []
    for n in sizes:
        ids = torch.randint(1, 7, (n, 5))
        targets = torch.randint(1, 7, (n, 5))
        targets[:, n:] = 0  # the fewer sequences, the more padding
        batches.append((ids, targets))
    return batches


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Any]], Task, int]] = {
    "mlp": (lambda: mlp(4, 5, 3), lambda: classes([7, 3], 4), TupleTask(), -100),
    "conv": (ConvNet, lambda: classes([4, 2], 1, 5, 5), TupleTask(), -100),
    "transformer": (Transformer, lambda: tokens([3, 2]), Padded(), 0),
}


@pytest.mark.parametrize("kept", [True, False], ids=["graph kept", "graph rebuilt"])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_dense_hessian(case: str, kept: bool) -> None:
    make, data, task, ignore = CASES[case]
    model, batches = make().double(), data()
    names = trainable(model)
    loss, gradient, matrix = dense(model, batches, names, ignore)
    model.train()
    with torch.no_grad(), twice_differentiable(model, widen=True):
        landscape = Landscape(model, task, batches, names)
        assert landscape.keep_graphs(1 << 30 if kept else 10) is kept
        found = matrix_of(landscape)
    assert landscape.names == names
    assert landscape.loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(landscape.gradient, gradient, atol=1e-12)
    np.testing.assert_allclose(found, matrix, atol=1e-11)
    assert np.abs(matrix).max() > 0.01
    assert model.training


def test_some_parameters_only_are_a_block_of_the_hessian() -> None:
    model, batches = mlp(4, 5, 3).double(), classes([6], 4)
    model[0].bias.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    model.register_parameter("count", nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False))
    names = trainable(model, "weight$|unused")
    assert names == ["unused", "0.weight", "2.weight"]
    with twice_differentiable(model, widen=True):
        landscape = Landscape(model, TupleTask(), batches, names)
        found = matrix_of(landscape)
    assert landscape.names == ["0.weight", "2.weight"]
    del model.unused, model.count
    _, _, matrix = dense(model, batches, landscape.names)
    np.testing.assert_allclose(found, matrix, atol=1e-11)


def test_the_same_inside_autocast_and_without_gradients() -> None:
    model, batches = mlp(4, 5, 3), classes([6], 4, dtype=torch.float32)
    _, _, matrix = dense(model, [(x.double(), y) for x, y in batches], trainable(model))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), twice_differentiable(model, widen=True):
        found = matrix_of(Landscape(model, TupleTask(), batches, trainable(model)))
    np.testing.assert_allclose(found, matrix, atol=1e-6)  # bfloat16 would be off by 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    model, batches = ConvNet().to(dtype), classes([4], 1, 5, 5, dtype=dtype)
    bn_buffer = model.bn.running_mean
    wide = [(x.double(), y) for x, y in batches]
    _, _, matrix = dense(model, wide, trainable(model))
    originals = list(model.parameters())
    with twice_differentiable(model, widen=True):
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        landscape = Landscape(model, TupleTask(), batches, trainable(model))
        found = matrix_of(landscape)
        assert landscape.dtype == "float32"
    np.testing.assert_allclose(found, matrix, atol=2e-6)
    assert all(a is b for a, b in zip(model.parameters(), originals, strict=True))
    assert model.bn.running_mean is bn_buffer
    with twice_differentiable(model, widen=False):
        own = Landscape(model, TupleTask(), batches, trainable(model))
        # a few of its rows: convolutions in half precision take long
        rough = np.stack([own.product(row) for row in np.eye(own.n)[:: max(1, own.n // 8)]])
    assert str(dtype).endswith(own.dtype)
    assert 1e-6 < np.abs(rough - matrix[:: max(1, own.n // 8)]).max() < 0.05


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.RNNBase]) -> None:
    """They keep a second list of their weights, which must be the stand-ins and then the weights again."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = kind(2, 2, batch_first=True), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    model, batches = Net().double(), classes([4], 3, 2)
    _, _, matrix = dense(model, batches, trainable(model))
    with twice_differentiable(model, widen=True):
        landscape = Landscape(model, TupleTask(), batches, trainable(model))
        found = matrix_of(landscape)
    assert landscape.names == trainable(model)
    np.testing.assert_allclose(found, matrix, atol=1e-11)
    own = [getattr(model.rnn, name) for name in model.rnn._flat_weights_names]
    assert all(a is b for a, b in zip(model.rnn._flat_weights, own, strict=True))


def test_hooks_on_parameters_neither_run_nor_bend_the_products() -> None:
    model, batches = mlp(4, 5, 3).double(), classes([6], 4)
    _, _, matrix = dense(model, batches, trainable(model))
    fired = []
    for p in model.parameters():
        p.grad = torch.ones_like(p)
        p.register_hook(lambda g: fired.append(1) or g * 0)
    with guard(model), twice_differentiable(model, widen=True):
        found = matrix_of(Landscape(model, TupleTask(), batches, trainable(model)))
    np.testing.assert_allclose(found, matrix, atol=1e-11)
    assert fired == []
    assert all(bool((p.grad == 1).all()) for p in model.parameters())


def test_tied_weights_stay_tied_and_everything_is_put_back_after_an_error() -> None:
    model = Transformer()
    originals = list(model.named_parameters(remove_duplicate=False))
    with pytest.raises(KeyError), twice_differentiable(model, widen=True):
        assert model.head.weight is model.embed.weight
        assert model.head.weight is not originals[0][1]
        assert model.head.weight.data_ptr() == originals[0][1].data_ptr()
        raise KeyError
    after = list(model.named_parameters(remove_duplicate=False))
    assert all(a[0] == b[0] and a[1] is b[1] for a, b in zip(after, originals, strict=True))


def test_loss_along_a_direction_equals_that_of_a_moved_copy() -> None:
    model, batches = Transformer().double().eval(), tokens([3, 2])
    names = trainable(model)
    direction = np.random.default_rng(0).standard_normal(sum(p.numel() for p in model.parameters()))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    versions = [p._version for p in model.parameters()]
    with twice_differentiable(model, widen=True):
        landscape = Landscape(model, Padded(), batches, names)
        found = {at: landscape.loss_at(direction, at) for at in (-0.3, 0.0, 0.7)}
    assert found[0.0] == landscape.loss
    for at, value in found.items():
        moved = copy.deepcopy(model)
        torch.nn.utils.vector_to_parameters(
            torch.nn.utils.parameters_to_vector(model.parameters()).detach() + at * torch.from_numpy(direction),
            moved.parameters(),
        )
        assert value == pytest.approx(cross_entropy(moved, batches, ignore=0).item(), rel=1e-12)
    assert len(set(found.values())) == 3
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert [p._version for p in model.parameters()] == versions


class FailsAt(TupleTask):
    def __init__(self, call: int) -> None:
        self.left = call

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise OSError("the disk is gone")
        return super().logits(model, batch)


@pytest.mark.parametrize("call", range(1, 9))
def test_weights_are_bit_identical_after_an_error_at_any_forward(call: int) -> None:
    """Two batches: the first look is calls 1 and 2, each of three points two more."""
    model, batches = mlp(4, 5, 3), classes([3, 3], 4, dtype=torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    originals = list(model.parameters())
    with pytest.raises(OSError, match="disk"), twice_differentiable(model, widen=True):
        landscape = Landscape(model, FailsAt(call), batches, trainable(model))
        for at in (-1.0, 0.5, 1.0):
            landscape.loss_at(np.ones(landscape.n), at)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert all(a is b for a, b in zip(model.parameters(), originals, strict=True))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class Opaque(Once):
    """As a kernel of one's own does it: nothing says that it is constant to autograd."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        with torch.no_grad():
            return 2 * ctx.saved_tensors[0] * g


class Twice(Once):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class Single(nn.Module):
    """An embedding and a head, with a square between them."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which
        self.embed = nn.Embedding(7, 3, sparse=which == "sparse")
        self.head = nn.Linear(3, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.which == "reentrant":
            return checkpoint(self.head, x, use_reentrant=True)
        square = {"once": Once.apply, "opaque": Opaque.apply, "twice": Twice.apply}.get(self.which, torch.square)
        return self.head(square(x))


@pytest.mark.parametrize("which", ["twice", "sparse"])
def test_custom_functions_and_sparse_gradients_that_can_be_differentiated(which: str) -> None:
    model = Single(which).double()
    batches = [(torch.randint(0, 7, (5,)), torch.randint(0, 3, (5,)))]
    plain = Single("plain").double()
    plain.load_state_dict(model.state_dict())
    _, gradient, matrix = dense(plain, batches, trainable(model))
    with twice_differentiable(model, widen=True):
        landscape = Landscape(model, TupleTask(), batches, trainable(model))
        found = matrix_of(landscape)
    np.testing.assert_allclose(landscape.gradient, gradient, atol=1e-12)
    np.testing.assert_allclose(found, matrix, atol=1e-11)
    assert np.abs(matrix).max() > 0.01


@pytest.mark.parametrize("chosen", [None, "embed"])
@pytest.mark.parametrize("which", ["once", "opaque", "reentrant"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_loss_without_double_backward_is_refused_by_name(which: str, kept: bool, chosen: str | None) -> None:
    """Also where the whole Hessian would come out as zero, which no comparison of its halves would show."""
    model = Single(which)
    batches = [(torch.randint(0, 7, (5,)), torch.randint(0, 3, (5,)))]
    with pytest.raises(RuntimeError, match="Single cannot be differentiated") as caught:
        with twice_differentiable(model, widen=True):
            landscape = Landscape(model, TupleTask(), batches, trainable(model, chosen))
            if kept:
                landscape.keep_graphs(1 << 30)
            landscape.product(np.ones(landscape.n))
    assert "leave this probe out" in str(caught.value)


def test_a_loss_without_curvature_has_products_of_zero() -> None:
    class Linear(TupleTask):
        def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
            return logits[:, 0]

    model = nn.Linear(4, 3).double()
    with twice_differentiable(model, widen=True):
        landscape = Landscape(model, Linear(), classes([5], 4), trainable(model))
        assert not landscape.product(np.ones(landscape.n)).any()


def test_what_cannot_be_measured_says_why() -> None:
    model = nn.Linear(4, 3)
    x = torch.randn(5, 4)
    with twice_differentiable(model, widen=True):
        with pytest.raises(ValueError, match=r"needs targets.*give holdout data with targets"):
            Landscape(model, TupleTask(), [(x,)], trainable(model))
        with pytest.raises(ValueError, match="no position"):
            Landscape(model, Padded(), [(x, torch.zeros(5, dtype=torch.int64))], trainable(model))
    with pytest.raises(ValueError, match=r"found in none of the 2 trainable.*weight, bias"):
        trainable(model, "layers")
    other = nn.ModuleDict({"used": model, "idle": nn.Linear(2, 2)})

    class Part(TupleTask):
        def logits(self, model: Any, batch: Any) -> Tensor:
            return super().logits(model["used"], batch)

    with twice_differentiable(other, widen=True), pytest.raises(ValueError, match="depends on none"):
        Landscape(other, Part(), [(x, torch.zeros(5, dtype=torch.int64))], trainable(other, "idle"))
    with pytest.raises(ValueError, match="requires a gradient"):
        trainable(model.requires_grad_(False))


def test_a_loss_that_is_not_finite_is_given_back_as_it_is() -> None:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight[0, 0] = math.nan
    with twice_differentiable(model, widen=True):
        landscape = Landscape(model, TupleTask(), classes([5], 4, dtype=torch.float32), trainable(model))
    assert math.isnan(landscape.loss)


def test_a_data_parallel_model_trains_on_as_if_nothing_had_been(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp(4, 5, 3))
        armed: list[bool] = []  # whether a forward prepared the reducer for a backward to come
        model.module.register_forward_hook(lambda *_: armed.append(model.require_backward_grad_sync))
        batches = classes([6], 4, dtype=torch.float32)
        for _ in range(2):
            F.cross_entropy(model(batches[0][0]), batches[0][1]).backward()
            with twice_differentiable(model, widen=True):
                landscape = Landscape(model, TupleTask(), batches, trainable(model))
                assert landscape.product(np.ones(landscape.n)).any()
        assert armed == [True, False, False] * 2
    finally:
        torch.distributed.destroy_process_group()
