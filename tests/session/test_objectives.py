"""Torch's loss functions while a loop is listened to: the same bits and graphs, and torch's own again afterwards."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy as imported_earlier

import learnscope as ls
from compiler import needs_compiler
from learnscope.session.steps import objectives
from probes.reference import values

PLACES = [(place, kernel) for place, kernel, *_ in objectives._KERNELS.values()]


def kernels() -> list[Any]:
    return [getattr(place, kernel) for place, kernel in PLACES]


def heard(action: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What an action gives while somebody listens, and the functions that were heard."""
    names: list[str] = []

    def listener(function: str, *_args: Any) -> None:
        names.append(function)

    objectives.listeners.add(listener)
    try:
        return action(), names
    finally:
        objectives.listeners.remove(listener)


def calls(run: ls.Run) -> float:
    return values(run, "Objective", "objective_calls")[-1]


@pytest.mark.parametrize("function", list(objectives._KERNELS))
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_function_and_module_gives_the_same_bits_and_is_heard(function: str, reduction: str) -> None:
    modules = {
        "cross_entropy": nn.CrossEntropyLoss, "nll_loss": nn.NLLLoss, "binary_cross_entropy": nn.BCELoss,
        "binary_cross_entropy_with_logits": nn.BCEWithLogitsLoss, "mse_loss": nn.MSELoss, "l1_loss": nn.L1Loss,
        "smooth_l1_loss": nn.SmoothL1Loss, "huber_loss": nn.HuberLoss, "soft_margin_loss": nn.SoftMarginLoss,
        "hinge_embedding_loss": nn.HingeEmbeddingLoss, "cosine_embedding_loss": nn.CosineEmbeddingLoss,
        "margin_ranking_loss": nn.MarginRankingLoss, "triplet_margin_loss": nn.TripletMarginLoss,
    }  # fmt: skip
    signs = (torch.arange(6) % 2 * 2 - 1).float()
    others: dict[str, list[Tensor]] = {
        "cosine_embedding_loss": [torch.rand(6, 5), signs], "triplet_margin_loss": [torch.rand(6, 5)] * 2,
        "margin_ranking_loss": [torch.rand(6, 5), signs[:, None].expand(6, 5)],
    }  # fmt: skip
    x = torch.rand(6, 5).log_softmax(1) if function == "nll_loss" else torch.rand(6, 5)
    y = torch.arange(6) % 5 if function in ("cross_entropy", "nll_loss") else torch.rand(6, 5)
    rest = others.get(function, [y])

    def both() -> list[Tensor]:
        found = []
        for loss in (
            lambda a: getattr(F, function)(a, *rest, reduction=reduction),
            lambda a: modules[function](reduction=reduction)(a, *rest),
        ):
            given = x.clone().requires_grad_()
            value = loss(given)
            value.sum().backward()
            assert given.grad is not None
            found += [value.detach(), given.grad]
        return found

    expected = both()
    found, names = heard(both)
    assert all(map(torch.equal, expected, found))
    assert names == [function] * 2


def test_functions_imported_earlier_are_heard_and_everything_is_put_back() -> None:
    before = kernels()
    x = torch.randn(3, 4, requires_grad=True)
    _, names = heard(lambda: imported_earlier(x, torch.tensor([0, 1, 2]), weight=torch.ones(4), label_smoothing=0.1))
    assert names == ["cross_entropy"]
    assert kernels() == before
    _, names = heard(lambda: torch._C._nn.mse_loss(input=x, target=x.detach()))
    assert names == ["mse_loss"]


def test_a_wrapper_put_around_ours_stays_and_ours_passes_on() -> None:
    before = torch._C._nn.mse_loss
    x = torch.randn(3, requires_grad=True)
    names: list[str] = []

    def listener(function: str, *_args: Any) -> None:
        names.append(function)

    objectives.listeners.add(listener)
    ours = torch._C._nn.mse_loss
    theirs = lambda *args: ours(*args)  # noqa: E731
    torch._C._nn.mse_loss = theirs
    try:
        objectives.listeners.remove(listener)
        assert torch._C._nn.mse_loss is theirs
        F.mse_loss(x, x.detach())
        assert names == []
    finally:
        torch._C._nn.mse_loss = before


@pytest.mark.parametrize("what", ["no_grad", "inference", "no graph", "grad", "vmap", "subclass", "checkpoint"])
def test_what_no_ordinary_backward_comes_by_is_not_heard(what: str) -> None:
    x, y = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 2])

    def action() -> Any:
        if what == "no_grad":
            with torch.no_grad():
                return F.cross_entropy(x, y)
        if what == "inference":
            with torch.inference_mode():
                return F.cross_entropy(x.detach().clone(), y)
        if what == "no graph":
            return F.cross_entropy(x.detach(), y)
        if what == "grad":
            return torch.func.grad(lambda a: F.cross_entropy(a, y))(x.detach())
        if what == "vmap":
            return torch.vmap(lambda a, b: F.cross_entropy(a[None], b[None]))(x, y).detach()
        if what == "checkpoint":
            loss = torch.utils.checkpoint.checkpoint(lambda a: F.cross_entropy(a, y), x, use_reentrant=True)
            loss.backward()
            return loss.detach()

        class Own(Tensor):
            pass

        return F.cross_entropy(x.detach().as_subclass(Own).requires_grad_(), y).detach().as_subclass(Tensor)

    expected = action()
    found, names = heard(action)
    assert torch.equal(expected, found)
    assert names == []


def test_a_checkpointed_forward_counts_once() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        loss = torch.utils.checkpoint.checkpoint(
            lambda a: F.cross_entropy(model(a), torch.tensor([0, 1])), torch.randn(2, 3), use_reentrant=False
        )
        loss.backward()
        optimizer.step()
    assert calls(w.run) == 1


def test_only_looked_at_steps_are_listened_to() -> None:
    before, model = kernels(), nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=3)], strict=True) as w:
        for step in range(1, 8):
            assert (kernels() == before) == (step % 3 != 0)
            assert bool(model._forward_pre_hooks) == (step % 3 == 0)
            F.cross_entropy(model(torch.randn(2, 3)), torch.tensor([0, 1])).backward()
            optimizer.step()
    assert kernels() == before
    assert [record.step for record in w.run.records()] == [3, 6]


def test_a_session_that_is_cut_short_leaves_nothing_behind() -> None:
    before, model = kernels(), nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError), ls.watch(model, optimizer, probes=[ls.Objective(every=1)]):
        assert kernels() != before
        raise ZeroDivisionError
    assert kernels() == before
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.soak)])
def test_a_compiled_loss_has_the_same_bits_one_graph_and_no_break(backend: str) -> None:
    """Compiled while listened to, and compiled before: neither is compiled again when listening begins or ends."""
    if backend == "inductor":
        needs_compiler()
    dynamo = pytest.importorskip("torch._dynamo")
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    for listen_first in (True, False):
        dynamo.reset()
        dynamo.utils.counters.clear()
        step = torch.compile(lambda a, b: F.cross_entropy(model(a), b), backend=backend, fullgraph=True)

        def gradient(step: Any = step) -> Tensor:
            model.zero_grad()
            step(x, y).backward()
            assert model.weight.grad is not None
            return model.weight.grad.clone()

        if listen_first:
            heard_, _ = heard(gradient)
            alone = gradient()
        else:
            alone = gradient()
            heard_, _ = heard(gradient)
        assert torch.equal(heard_, alone)
        assert dynamo.utils.counters["stats"]["unique_graphs"] == 1
        assert not dynamo.utils.counters["graph_break"]
    dynamo.reset()


def test_the_outputs_of_a_compiled_model_are_seen_and_a_model_compiled_later_is_as_it_was() -> None:
    dynamo = pytest.importorskip("torch._dynamo")
    for late in (False, True):
        dynamo.reset()
        dynamo.utils.counters.clear()
        torch.manual_seed(0)
        inner = nn.Linear(4, 3)
        model: Any = inner if late else torch.compile(inner, backend="aot_eager", fullgraph=True)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        with ls.watch(model, optimizer, probes=[ls.Objective(every=lambda step: step < 3)], strict=True) as w:
            called = torch.compile(model, backend="aot_eager", fullgraph=True) if late else model
            for _ in range(4):
                F.cross_entropy(called(torch.randn(5, 4)), torch.tensor([0, 1, 2, 1, 0])).backward()
                optimizer.step()
        assert calls(w.run) == 1
        assert dynamo.utils.counters["stats"]["unique_graphs"] == 1
    dynamo.reset()


def test_under_autocast_the_numbers_are_not_rounded() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    targets = 1000 + torch.arange(64.0).reshape(32, 2)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        with torch.autocast("cpu", torch.bfloat16):
            F.mse_loss(model(torch.randn(32, 4)), targets).backward()
        optimizer.step()
    assert values(w.run, "Objective", "target_mean") == [1031.5]


def test_no_graph_and_no_outputs_are_kept() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True):
        outputs = model(torch.randn(2, 3))
        loss = F.cross_entropy(outputs, torch.tensor([0, 1]))
        alive = [weakref.ref(outputs), weakref.ref(loss)]
        loss.backward()
        del outputs, loss
        gc.collect()
        assert [each() for each in alive] == [None, None]  # before the step, and so before the measurement
        optimizer.step()


def test_a_backward_that_is_kept_and_taken_twice_has_the_same_gradients() -> None:
    def gradients(*, listening: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        w = ls.watch(model, optimizer, probes=[ls.Objective(every=1)] if listening else [], strict=True)
        loss = F.cross_entropy(model(torch.randn(2, 3)), torch.tensor([0, 1]))
        first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(each.square().sum() for each in first).backward(retain_graph=True)  # type: ignore[union-attr]
        loss.backward()
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        w.close()
        return found

    assert all(map(torch.equal, gradients(listening=False), gradients(listening=True)))


def test_a_failure_in_what_is_measured_does_not_reach_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: Any, **_kwargs: Any) -> Any:
        raise ZeroDivisionError("no such sum")

    monkeypatch.setattr(objectives, "class_sums", fails)
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)]) as w:
        with pytest.warns(UserWarning, match="no such sum"):
            F.cross_entropy(model(torch.randn(2, 3)), torch.tensor([0, 1])).backward()
        optimizer.step()
    assert "unseen" in next(iter(w.run.records())).notes


def test_a_model_that_is_copied_or_pickled_meanwhile_takes_no_session_with_it(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Objective(every=1)], strict=True) as w:
        optimizer.step()
        assert model._forward_pre_hooks
        copied = copy.deepcopy(model)
        torch.save(model, tmp_path / "model.pt")
        loaded = torch.load(tmp_path / "model.pt", weights_only=False)
        F.cross_entropy(model(torch.randn(2, 3)), torch.tensor([0, 1])).backward()
        optimizer.step()
    for other in (copied, loaded):
        other(torch.randn(2, 3))
    assert b"learnscope" not in (tmp_path / "model.pt").read_bytes()
    assert calls(w.run) == 1


@pytest.mark.parametrize("last", [1, 40])
def test_columns_that_only_a_late_row_touches(last: int) -> None:
    """The first rows are looked at before all are."""
    outputs = torch.zeros(50, 6, requires_grad=True) + 0
    call = objectives.summed_up("mse_loss", outputs, torch.zeros(50, 6), {}, outputs.mean())
    objectives.follow_gradient(call, outputs)
    chosen = torch.zeros(50, 6)
    chosen[0, :3] = chosen[last, 3:5] = 1
    (outputs * chosen).sum().backward()
    assert call.touched is not None
    assert call.touched.tolist() == [True] * 5 + [False]


@pytest.mark.parametrize("broken", ["objectives.small_touched", "forwards.gradient_disorder"])
def test_a_backward_does_not_end_because_what_is_read_there_fails(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(f"learnscope.session.steps.{broken}", fails)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.warns(UserWarning, match="training goes on"),
        ls.watch(model, optimizer, probes=[ls.Objective(every=1), ls.Inputs(every=1)]),
    ):
        for _ in range(2):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 3)), torch.randn(8, 1)).backward()
            assert model.weight.grad is not None
            optimizer.step()
