"""LossLandscape against dense float64 Hessians, hand-made quadratics and optimizers that really diverge."""

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

import learnscope as ls
from learnscope.probes.landscape.stability import adam_threshold, descent_threshold, momentum_threshold
from probes.reference import at_scope, failures, layer_of, mlp, rows, tiny_gpt2, tokens, values

PROBE = "LossLandscape"
Matrix = np.ndarray[Any, Any]


class Quadratic(nn.Module):
    """½ wᵀAw, whatever the input; A is its Hessian."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.from_numpy(matrix))
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, len(matrix), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w @ self.matrix @ self.w / 2).expand(len(x), 1)


class Itself(ls.TupleTask):
    """The model's output is the loss."""

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits[:, 0]


ANY = [(torch.zeros(4, 1, dtype=torch.float64), torch.zeros(4, 1, dtype=torch.float64))]


def symmetric(n: int, top: Sequence[float] = (9.0, 6.0, -4.0)) -> Matrix:
    random = np.random.default_rng(0)
    basis, _ = np.linalg.qr(random.standard_normal((n, n)))
    spectrum = random.uniform(-0.5, 0.5, n)
    spectrum[: len(top)] = top
    return basis @ np.diag(spectrum) @ basis.T


def stepped(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, holdout: Any, steps: int = 1,
    loss: Callable[[], Tensor] | None = None, task: ls.Task | None = None, strict: bool = True, **options: Any,
) -> ls.Run:  # fmt: skip
    """A few watched steps with the probe at each."""
    probe = ls.LossLandscape(**{"every": 1, **options})
    with ls.watch(model, optimizer, probes=[probe], holdout=holdout, task=task, strict=strict) as w:
        for _ in range(steps):
            assert optimizer is not None
            optimizer.zero_grad()
            (loss() if loss else model(ANY[0][0]).mean()).backward()
            optimizer.step()
    return w.run


def one(run: ls.Run, name: str, **labels: Any) -> float:
    return values(run, PROBE, name, **labels)[-1]


def why(run: ls.Run, name: str) -> str:
    return rows(run, PROBE, name).status.tolist()[-1]


def notes(run: ls.Run) -> dict[str, Any]:
    return list(run.records(PROBE))[-1].notes


def dense(model: nn.Module, loss: Callable[[Callable[..., Any]], Tensor], names: Sequence[str]) -> Matrix:
    """The Hessian over the named parameters in float64, in eval mode."""
    model = copy.deepcopy(model).double().eval()
    own = dict(model.named_parameters())
    sizes = [own[name].numel() for name in names]

    def flat_loss(flat: Tensor) -> Tensor:
        parts = {n: part.view_as(own[n]) for n, part in zip(names, flat.split(sizes), strict=True)}
        return loss(lambda *a, **k: functional_call(model, parts, a, k))

    return hessian(flat_loss, torch.cat([own[name].detach().reshape(-1) for name in names])).numpy()


def test_a_quadratic_has_the_curvature_it_was_made_with() -> None:
    matrix = symmetric(40)
    model = Quadratic(matrix)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = stepped(model, optimizer, ANY, task=Itself(), eigenvalues=3, smallest=True, tolerance=1e-8, restarts=50)
    w = model.w.detach().numpy()
    dense_values = np.linalg.eigvalsh(matrix)[::-1]
    assert [one(run, "eigenvalue", rank=rank) for rank in (1, 2, 3)] == pytest.approx(dense_values[:3], rel=1e-9)
    assert one(run, "sharpness") == one(run, "eigenvalue", rank=1)
    assert one(run, "smallest_eigenvalue") == pytest.approx(-4.0, rel=1e-9)
    assert one(run, "sharpness_threshold") == pytest.approx(40.0)
    assert one(run, "sharpness_ratio") == pytest.approx(9.0 * 0.05 / 2)
    plain = rows(run, PROBE, "loss")
    assert plain[plain["at"].isna()].value.item() == pytest.approx(w @ matrix @ w / 2)
    assert one(run, "gradient_norm") == pytest.approx(np.linalg.norm(matrix @ w))
    assert abs(one(run, "trace") - np.trace(matrix)) < 4 * one(run, "trace_error")
    assert not run.frame(PROBE, "momentum_ratio").size
    assert "SGD is not known" in why(run, "preconditioned_sharpness")
    assert one(run, "products") >= 40
    assert notes(run) == {
        "graph": "kept", "basis": "float64", "parameters": 40, "tensors": 1, "positions": 4, "dtype": "float64",
    }  # fmt: skip


def test_the_loss_along_the_gradient_is_the_parabola() -> None:
    matrix = symmetric(30)
    model = Quadratic(matrix)
    points = (-2.0, -1.0, 0.0, 0.25, 3.0)
    run = stepped(model, torch.optim.SGD(model.parameters(), lr=0.01), ANY, task=Itself(), points=points, radius=0.1)
    w = model.w.detach().numpy()
    g = matrix @ w
    d = -g / np.linalg.norm(g) * 0.1 * np.linalg.norm(w)
    for at in points:
        moved = w + at * d
        assert one(run, "loss", direction="gradient", at=at) == pytest.approx(moved @ matrix @ moved / 2, rel=1e-10)
    plain = rows(run, PROBE, "loss")
    assert one(run, "loss", at=0.0) == plain[plain["at"].isna()].value.item()


def test_the_loss_along_the_top_eigenvector_falls_first() -> None:
    matrix = symmetric(30)
    model = Quadratic(matrix)
    run = stepped(
        model, torch.optim.SGD(model.parameters(), lr=0.01), ANY, task=Itself(), direction="eigenvector",
        tolerance=1e-10, restarts=50, radius=1e-3,
    )  # fmt: skip
    w = model.w.detach().numpy()
    v = np.linalg.eigh(matrix)[1][:, -1]
    v *= -np.sign(v @ matrix @ w) * 1e-3 * np.linalg.norm(w)
    for at in (-1.0, -0.5, 0.5, 1.0):
        moved = w + at * v
        found = one(run, "loss", direction="eigenvector", at=at)
        assert found == pytest.approx(moved @ matrix @ moved / 2, rel=1e-9)
    assert one(run, "loss", at=0.5) < one(run, "loss", at=0.0) < one(run, "loss", at=-0.5)


def test_the_loss_along_the_update_passes_through_the_previous_weights() -> None:
    model = Quadratic(symmetric(30))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = stepped(model, optimizer, ANY, steps=3, task=Itself(), direction="update", points=(-1, 0, 1))
    back, here = (values(run, PROBE, "loss", at=at) for at in (-1.0, 0.0))
    assert back[1:] == pytest.approx(here[:-1], rel=1e-12)
    assert notes(run)["span"] == [2, 3]
    assert run.manifest["probes"]["LossLandscape"]["needs"] == ["holdout", "previous"]
    assert ls.LossLandscape().needs == {"holdout"}


@pytest.mark.parametrize("top", [(-1.0, -2.0), (5.0, -50.0)])
def test_where_the_loss_curves_down(top: tuple[float, ...]) -> None:
    matrix = symmetric(25, top)
    if top[0] < 0:
        matrix -= np.eye(25)
    model = Quadratic(matrix)
    run = stepped(model, torch.optim.SGD(model.parameters(), lr=0.01), ANY, task=Itself(), smallest=True)
    dense_values = np.linalg.eigvalsh(matrix)
    assert one(run, "sharpness") == pytest.approx(dense_values[-1], rel=2e-3)
    assert one(run, "smallest_eigenvalue") == pytest.approx(dense_values[0], rel=2e-3)


def classifier_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(24, 5, generator=generator).double(), torch.randint(0, 3, (24,), generator=generator)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adams_preconditioned_sharpness_equals_the_dense_one(amsgrad: bool) -> None:
    model = mlp(5, 6, 3).double()
    x, y = classifier_data()
    sizes = iter([10.0, 1.0, 0.1])  # so that v falls below its maximum
    optimizer = torch.optim.Adam(
        [
            {"params": model[0].parameters(), "lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-3},
            {"params": model[2].parameters(), "lr": 4e-3, "betas": (0.9, 0.9), "eps": 1e-8},
        ],
        amsgrad=amsgrad,
    )
    run = stepped(
        model,
        optimizer,
        [(x, y)],
        steps=3,
        loss=lambda: next(sizes) * F.cross_entropy(model(x), y),
        tolerance=1e-8,
        restarts=50,
    )
    matrix = dense(model, lambda call: F.cross_entropy(call(x), y), [n for n, _ in model.named_parameters()])
    diagonal = []
    for (_, p), beta, eps in zip(
        model.named_parameters(), (0.99, 0.99, 0.9, 0.9), (1e-3, 1e-3, 1e-8, 1e-8), strict=True
    ):
        state = optimizer.state[p]
        v = state["max_exp_avg_sq" if amsgrad else "exp_avg_sq"].numpy().ravel() / (1 - beta**3)
        diagonal.append(np.sqrt(v) + eps)
    p = np.concatenate(diagonal)
    wanted = np.linalg.eigvals(matrix / p[:, None]).real.max()  # P⁻¹H has the same eigenvalues
    assert one(run, "preconditioned_sharpness") == pytest.approx(wanted, rel=1e-8)
    assert one(run, "preconditioned_threshold") == pytest.approx(38 / 4e-3)
    assert one(run, "preconditioned_ratio") == pytest.approx(wanted * 4e-3 / 38, rel=1e-8)
    assert one(run, "sharpness") == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-8)
    assert one(run, "sharpness_ratio") == pytest.approx(np.linalg.eigvalsh(matrix)[-1] * 4e-3 / 2, rel=1e-8)
    assert notes(run)["learning_rates"] == [4e-3, 1e-3]


def test_layers_have_the_traces_of_their_blocks() -> None:
    model = mlp(3, 4, 3).double()
    generator = torch.Generator().manual_seed(1)
    x, y = 4 * torch.randn(9, 3, generator=generator).double(), torch.randint(0, 3, (9,), generator=generator)
    names = [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = stepped(
        model, optimizer, [(x, y)], loss=lambda: F.cross_entropy(model(x), y), trace_samples=600, direction=None
    )
    diagonal = np.diag(dense(model, lambda call: F.cross_entropy(call(x), y), names))
    of = np.repeat([layer_of(name) for name in names], [p.numel() for p in model.parameters()])
    found, error = (at_scope(run, PROBE, name, "layer") for name in ("trace", "trace_error"))
    blocks = {layer: diagonal[of == layer].sum() for layer in ("0", "2")}
    assert found.keys() == blocks.keys()
    assert abs(blocks["0"] - blocks["2"]) > 10 * max(error.values())  # they could not be taken for each other
    for layer, value in found.items():
        assert abs(value - blocks[layer]) < 4 * error[layer]
        assert error[layer] < 0.2 * abs(diagonal.sum())
    assert sum(found.values()) == pytest.approx(one(run, "trace"), rel=1e-12)
    assert abs(one(run, "trace") - diagonal.sum()) < 4 * one(run, "trace_error")
    # a rate of 0 bears any curvature
    assert why(run, "sharpness_threshold") == "the learning rate is 0"
    assert one(run, "sharpness_ratio") == 0
    assert len(rows(run, PROBE, "loss")) == 1  # no direction, no further losses


@pytest.mark.parametrize(
    ("options", "threshold"),
    [
        ({}, descent_threshold),
        ({"momentum": 0.0}, momentum_threshold),
        ({"momentum": 0.9}, momentum_threshold),
        ({"momentum": 0.5, "dampening": 0.3}, momentum_threshold),
        ({"momentum": 0.9, "nesterov": True}, momentum_threshold),
        # Adam with its preconditioner at rest is momentum with the gradients damped by 1 − β₁
        ({"momentum": 0.9, "dampening": 0.9}, lambda group: adam_threshold({"lr": group["lr"], "betas": (0.9, 0.99)})),
    ],
)
def test_optimizers_really_diverge_beyond_their_threshold(options: dict[str, Any], threshold: Any) -> None:
    for factor, diverges in ((0.98, False), (1.02, True)):
        w = nn.Parameter(torch.ones((), dtype=torch.float64))
        optimizer = torch.optim.SGD([w], lr=0.3, **options)
        curvature = factor * threshold(optimizer.param_groups[0])
        for _ in range(3000):
            optimizer.zero_grad()
            (curvature * w.square() / 2).backward()
            optimizer.step()
            if abs(w.item()) > 1e12:
                break
        assert (abs(w.item()) > 1e3) is diverges
        assert diverges or abs(w.item()) < 1e-3


def test_momentum_has_a_threshold_of_its_own() -> None:
    matrix = symmetric(25)
    model = Quadratic(matrix)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = stepped(model, optimizer, ANY, task=Itself(), tolerance=1e-8)
    assert one(run, "momentum_threshold") == pytest.approx(38.0)
    assert one(run, "momentum_ratio") == pytest.approx(9 / 38)
    assert one(run, "sharpness_ratio") == pytest.approx(9 * 0.1 / 2)


def test_a_language_model_with_padding() -> None:
    """Tied embeddings, fused attention, padding on both sides of two batches: against eager attention in float64."""
    model = tiny_gpt2(n_layer=1, n_embd=4, vocab_size=9, n_positions=6)
    for name, p in model.named_parameters():
        p.requires_grad_("wpe" not in name and "mlp" not in name)
    ids = tokens(5, 6, vocabulary=9)
    mask = torch.ones_like(ids)
    mask[0, 4:] = mask[3, :2] = 0
    parts = [(ids[:3], mask[:3]), (ids[3:], mask[3:])]
    batches = [{"input_ids": i, "attention_mask": m, "labels": i} for i, m in parts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()  # dropout of 0.1 must not be felt
    run = stepped(
        model, optimizer, batches, loss=lambda: model(**batches[0]).loss, tolerance=1e-5, restarts=50, examples=99
    )
    assert model.training
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    reference = tiny_gpt2(n_layer=1, n_embd=4, vocab_size=9, n_positions=6, attn_implementation="eager")
    reference.load_state_dict(model.state_dict())

    def loss(call: Callable[..., Any]) -> Tensor:
        logits, targets = [], []
        for i, m in parts:
            both = (m[:, 1:] * m[:, :-1]).bool()
            logits.append(call(input_ids=i, attention_mask=m, use_cache=False).logits[:, :-1][both])
            targets.append(i[:, 1:][both])
        return F.cross_entropy(torch.cat(logits), torch.cat(targets))

    matrix = dense(reference, loss, names)
    assert one(run, "sharpness") == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-4)
    assert abs(one(run, "trace") - np.trace(matrix)) < 5 * one(run, "trace_error")
    assert notes(run)["positions"] == 25 - 2 - 2
    assert notes(run)["parameters"] == len(matrix)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_the_numbers_of_the_same_weights_in_float32(dtype: torch.dtype) -> None:
    x, y = classifier_data()
    half = mlp(5, 6, 3, dtype=dtype)
    x = x.to(dtype)
    optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
    run = stepped(half, optimizer, [(x, y)], loss=lambda: F.cross_entropy(half(x), y))
    wide = copy.deepcopy(half).float()
    at_rest = torch.optim.SGD(wide.parameters(), lr=0.0)
    same = stepped(wide, at_rest, [(x.float(), y)], loss=lambda: F.cross_entropy(wide(x.float()), y))
    for name in ("sharpness", "trace", "gradient_norm"):
        assert one(run, name) == one(same, name)
    for at in (-1.0, 0.5):
        assert one(run, "loss", at=at) == one(same, "loss", at=at)
    assert notes(run)["dtype"] == "float32 copies of half-precision weights"
    rough = stepped(half, optimizer, [(x, y)], loss=lambda: F.cross_entropy(half(x), y), widen=False)
    assert notes(rough)["dtype"] == str(dtype).removeprefix("torch.")


def test_a_model_that_insists_on_its_dtype_is_told_the_way_out() -> None:
    class Stubborn(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(torch.bfloat16))

    model = Stubborn(5, 3, dtype=torch.bfloat16)
    x, y = classifier_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="widen=False"):
        stepped(model, optimizer, [(x, y)], loss=lambda: F.cross_entropy(model(x), y))
    run = stepped(model, optimizer, [(x, y)], loss=lambda: F.cross_entropy(model(x), y), widen=False)
    assert one(run, "sharpness") > 0


def test_inside_autocast_the_loss_is_that_of_the_weights() -> None:
    model = mlp(5, 6, 3)
    x, y = classifier_data()
    x = x.float()
    with torch.autocast("cpu", torch.bfloat16):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = stepped(model, optimizer, [(x, y)], loss=lambda: F.cross_entropy(model(x), y), examples=10)
    plain = rows(run, PROBE, "loss")
    assert plain[plain["at"].isna()].value.item() == pytest.approx(
        F.cross_entropy(model(x[:10]), y[:10]).item(), rel=1e-6
    )
    assert notes(run)["autocast"] == "on in the loop, off for this measurement"


@pytest.mark.parametrize("what", ["weights", "gradient", "second derivative"])
def test_what_is_not_finite_is_null_with_its_reason(what: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.linspace(0, 1, 30, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            # at w₀ = 0: √ has no gradient, w^1.5 has one and no second derivative
            total = self.w[0].abs().sqrt() if what == "gradient" else self.w[0].abs() ** 1.5
            total = total + self.w.square().sum()
            return (total * math.nan if what == "weights" else total).expand(len(x), 1)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = stepped(model, optimizer, ANY, loss=lambda: model.w.sum(), task=Itself())
    reason = {
        "weights": "the loss is not finite",
        "gradient": "the gradient is not finite",
        "second derivative": "a product with the Hessian is not finite",
    }[what]
    for name in ("sharpness", "sharpness_ratio", "eigenvalue", "trace", "trace_error"):
        assert math.isnan(one(run, name))
        assert why(run, name) == reason
    assert rows(run, PROBE, "trace", "layer").status.tolist() == [reason]
    here, along = (rows(run, PROBE, "loss").status.tolist()[i] for i in (0, -1))
    assert (here == "nan") is (what == "weights")
    assert isinstance(here, str) is (what == "weights")
    assert (along == reason) is (what != "second derivative")


def test_what_did_not_converge_is_null() -> None:
    model = Quadratic(np.diag(np.linspace(1, 1.001, 300)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = stepped(model, optimizer, ANY, task=Itself(), krylov=3, restarts=1, tolerance=1e-12, direction="eigenvector")
    for name in ("sharpness", "eigenvalue", "sharpness_ratio", "loss"):
        assert math.isnan(one(run, name))
        assert "raise krylov or restarts" in why(run, name)
    assert one(run, "sharpness_threshold") == pytest.approx(20.0)
    assert one(run, "trace") == pytest.approx(300.15)  # a diagonal matrix: exact from any signs
    assert one(run, "trace_error") == pytest.approx(0, abs=1e-12)


def test_at_a_flat_point() -> None:
    model = Quadratic(np.zeros((30, 30)))
    run = stepped(model, torch.optim.SGD(model.parameters(), lr=0.1), ANY, task=Itself())
    assert one(run, "sharpness") == one(run, "trace") == one(run, "gradient_norm") == 0
    assert why(run, "loss") == "the gradient is zero"


def test_one_parameter_and_one_sample() -> None:
    model = Quadratic(np.array([[3.0]]))
    run = stepped(
        model, torch.optim.SGD(model.parameters(), lr=0.1), ANY, task=Itself(), eigenvalues=5, trace_samples=1
    )
    assert one(run, "sharpness") == one(run, "trace") == pytest.approx(3.0)
    assert len(rows(run, PROBE, "eigenvalue")) == 1
    assert "two samples" in why(run, "trace_error")


def test_adam_before_its_first_step_and_no_optimizer_at_all() -> None:
    model = mlp(5, 6, 3).double()
    run = ls.audit(model, [classifier_data()], probes=[ls.LossLandscape()], strict=True)
    assert one(run, "sharpness") > 0
    for name in ("sharpness_threshold", "sharpness_ratio", "preconditioned_sharpness"):
        assert why(run, name) == "no optimizer of these parameters is known"
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with ls.watch(
        model, optimizer, probes=[ls.LossLandscape(at="once")], holdout=[classifier_data()], strict=True
    ) as w:
        pass
    assert why(w.run, "preconditioned_ratio") == "the optimizer has made no step for 0.weight yet"


def test_memory_is_refused_by_name_with_the_cure_and_pattern_and_graphs_obey_it() -> None:
    model = mlp(40, 60, 3)
    x, y = torch.randn(8, 40), torch.randint(0, 3, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda: F.cross_entropy(model(x), y)  # noqa: E731
    n = sum(p.numel() for p in model.parameters())
    small = 20 * n * 4 / 2**30  # the basis alone, without room for anything else
    with pytest.raises(
        ValueError, match=r"20 Krylov vectors .* 2,643 parameters .*GiB.*parameters=.*fewer krylov.*memory="
    ):
        stepped(model, optimizer, [(x, y)], loss=loss, memory=small)
    run = stepped(model, optimizer, [(x, y)], loss=loss, memory=small * 2)
    assert notes(run)["basis"] == "float32"
    assert notes(run)["graph"] == "kept"
    tight = stepped(model, optimizer, [(x, y)], loss=loss, memory=small * 1.55)
    assert notes(tight)["graph"] == "rebuilt for every product"
    run = stepped(model, optimizer, [(x, y)], loss=loss, memory=small, parameters=r"^2\.")
    assert notes(run)["parameters"] == 183
    assert set(at_scope(run, PROBE, "trace", "layer")) == {"2"}
    half = copy.deepcopy(model).bfloat16()
    optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"float32 copies.*widen=False"):
        stepped(half, optimizer, [(x.bfloat16(), y)], loss=lambda: half(x.bfloat16()).sum(), memory=4 * n / 2**30 / 2)


def test_unused_and_frozen_parameters_are_left_out_and_counted() -> None:
    model = nn.ModuleDict({"net": mlp(5, 6, 3), "idle": nn.Linear(2, 2)})
    model["net"][0].bias.requires_grad_(False)
    x, y = classifier_data()

    class Part(ls.TupleTask):
        def logits(self, model: Any, batch: Any) -> Tensor:
            return model["net"](batch[0].float())

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    run = stepped(model, optimizer, [(x, y)], loss=lambda: model["net"](x.float()).sum(), task=Part())
    assert notes(run)["tensors"] == 3
    assert notes(run)["tensors_not_in_the_loss"] == 2
    assert set(at_scope(run, PROBE, "trace", "layer")) == {"net.0", "net.2"}


def test_data_without_targets_are_refused_with_the_reason() -> None:
    model = mlp(5, 6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, _ = classifier_data()
    with pytest.warns(ls.ProbeWarning, match="give holdout data with targets"):
        run = stepped(model, optimizer, [(x.float(),)], loss=lambda: model(x.float()).sum(), strict=False)
    assert "needs targets" in failures(run)[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"direction": "random"}, "gradient, eigenvector, update"),
        ({"points": (0.0, 0.0)}, "different finite"),
        ({"points": (0.0, math.inf)}, "different finite"),
        ({"eigenvalues": 0}, "from 1"),
        ({"trace_samples": -1}, "from 0"),
        ({"krylov": 4, "eigenvalues": 3}, "at least 5"),
        ({"tolerance": 0.0}, "above 0"),
        ({"memory": -1.0}, "above 0"),
        ({"parameters": "("}, "no regular expression"),
        ({"examples": True}, "whole number"),
    ],
)
def test_options_are_refused_when_the_probe_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ls.LossLandscape(**options)


def test_update_is_refused_where_there_are_no_previous_weights() -> None:
    with pytest.raises(ValueError, match="needs 'previous'"):
        ls.audit(mlp(5, 6, 3).double(), [classifier_data()], probes=[ls.LossLandscape(direction="update")])
    base = mlp(5, 6, 3).double()
    run = ls.audit(
        copy.deepcopy(base), [classifier_data()], base=base, probes=[ls.LossLandscape(direction="update")], strict=True
    )
    assert len({*values(run, PROBE, "loss")}) == 1  # the same weights: every point is the same


def test_the_same_numbers_at_the_same_weights() -> None:
    model = mlp(5, 8, 3).double()
    before = torch.get_rng_state()
    runs = [ls.audit(model, [classifier_data()], probes=[ls.LossLandscape(smallest=True)]) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    first, second = (run.frame(PROBE).drop(columns=["time", "cost"], errors="ignore") for run in runs)
    assert first.equals(second)


def test_gradient_descent_settles_at_the_edge_of_stability() -> None:
    """The phenomenon itself (arXiv 2103.00065): sharpness rises to 2/η and hovers there. And the finding says so."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 6, generator=generator)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2] * x[:, 3], x[:, 4]], 1)
    model = mlp(6, 32, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    loss = lambda: F.mse_loss(model(x), y)  # noqa: E731
    run = stepped(model, optimizer, [(x, y)], steps=900, loss=loss, every=150, examples=64, trace_samples=0)
    ratios = values(run, PROBE, "sharpness_ratio")
    assert len(ratios) == 6
    assert all(0.9 < ratio < 1.1 for ratio in ratios[2:])
    assert [finding.kind for finding in run.findings()] == ["edge_of_stability"]
