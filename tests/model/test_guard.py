"""Under the guard anything may be done to a model; afterwards there is no trace of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.model.guard import GuardError, guard, preserve_rng


class Net(nn.Module):
    """Everything that a careless look leaves behind: modes, statistics, caches that are reassigned."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(6, 2)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.register_buffer("empty", None)
        self.register_buffer("expanded", torch.ones(1).expand(5), persistent=False)
        self.register_buffer("turned", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("alias", self.count)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1  # in place
        self.cache = self.cache + x.mean()  # another tensor
        self.turned.mul_(1.5)
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def prepared() -> Net:
    model = Net().train()
    model.norm.eval()  # frozen on purpose
    model.first.weight.requires_grad_(False)
    model(torch.randn(8, 4)).square().mean().backward()
    model.last.register_forward_hook(lambda *_: None)
    model.last.weight.register_hook(lambda g: g)
    return model


class Trace:
    """All that must be the same afterwards, with the identity of what is an object of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modes = [module.training for module in model.modules()]
        self.values = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
        self.objects = [id(b) for module in model.modules() for b in module._buffers.values()]
        self.grads = [(id(p.grad), None if p.grad is None else p.grad.clone()) for p in model.parameters()]
        self.requires = [p.requires_grad for p in model.parameters()]
        self.random = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
        self.hooks = [
            len(getattr(owner, kind) or ())
            for owner, kinds in [
                *((m, ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")) for m in model.modules()),
                *((p, ("_backward_hooks", "_post_accumulate_grad_hooks")) for p in model.parameters()),
            ]
            for kind in kinds
        ]

    def differences(self) -> list[str]:
        now = Trace(self.model)
        found = [
            what for what in ("modes", "objects", "requires", "hooks") if getattr(self, what) != getattr(now, what)
        ]
        if len(self.values) != len(now.values) or not all(map(torch.equal, self.values, now.values)):
            found.append("values")
        for (mine, copy), (other, current) in zip(self.grads, now.grads, strict=True):
            if mine != other or (copy is not None and not torch.equal(copy, current)):
                found.append("gradients")
        if self.random[0] != now.random[0]:
            found.append("python random")
        if self.random[1] != now.random[1]:
            found.append("numpy random")
        if not torch.equal(self.random[2], now.random[2]):
            found.append("torch random")
        return found


def forward(model: Net) -> None:
    model(torch.ones(3, 4))


def train_mode(model: Net) -> None:
    model.train()
    model(torch.ones(3, 4))


def backward(model: Net) -> None:
    model(torch.ones(3, 4)).sum().backward()
    model(torch.ones(3, 4)).sum().backward()


def zero_gradients(model: Net) -> None:
    model.zero_grad()


def other_gradients(model: Net) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)


def freeze(model: Net) -> None:
    model.requires_grad_(False)


def thaw(model: Net) -> None:
    model.requires_grad_(True)
    model(torch.ones(3, 4)).sum().backward()


def draw(_model: Net) -> None:
    torch.randn(3), np.random.rand(), random.random()
    torch.manual_seed(9)


def hook(model: Net) -> None:
    model.first.register_forward_hook(lambda *_: 1 / 0)
    model.first.register_forward_pre_hook(lambda *_: 1 / 0)
    model.last.register_full_backward_hook(lambda *_: 1 / 0)
    model.last.bias.register_hook(lambda g: g * 0)
    model.last.weight.register_hook(lambda g: g * 0)
    model.last.bias.register_post_accumulate_grad_hook(lambda p: p.grad.zero_())


def other_buffer(model: Net) -> None:
    model.empty = torch.ones(2)
    model.count = torch.full((), 99)
    model.norm.reset_running_stats()
    model.expanded = torch.zeros(5)


DEEDS: list[Callable[[Net], None]] = [
    forward, train_mode, backward, zero_gradients, other_gradients, freeze, thaw, draw, hook, other_buffer,
]  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_no_trace_remains(deed: Callable[[Net], None], fails: bool) -> None:
    model = prepared()
    trace = Trace(model)
    try:
        with guard(model):
            assert not any(module.training for module in model.modules())
            deed(model)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert trace.differences() == []


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_the_comparison_sees_what_was_done(deed: Callable[[Net], None]) -> None:
    """The positive control: without the guard, every one of these leaves a trace."""
    model = prepared()
    trace = Trace(model)
    deed(model)
    assert trace.differences() != []


@pytest.mark.parametrize("call", range(6))
def test_an_exception_inside_the_model_at_every_point(call: int) -> None:
    model = prepared()
    modules = [model, model.first, model.norm, model.drop, model.last, model]
    original = modules[call].forward

    def broken(*args: Any) -> Any:
        if call == 5:
            original(*args)  # after everything has run
        raise ValueError("broken")

    modules[call].forward = broken  # type: ignore[method-assign]
    trace = Trace(model)
    with pytest.raises(ValueError, match="broken"), guard(model):
        train_mode(model)
    assert trace.differences() == []


def test_training_mode_can_be_asked_for() -> None:
    model = prepared()
    trace = Trace(model)
    with guard(model, training=True):
        assert all(module.training for module in model.modules())
    assert trace.differences() == []


def test_a_gradient_can_be_read_until_a_backward_reaches_it_and_is_never_added_to() -> None:
    model = nn.Linear(3, 1, bias=False)
    model(torch.ones(1, 3)).sum().backward()
    mine = model.weight.grad
    assert mine is not None
    seen: list[Tensor] = []
    with guard(model):
        assert model.weight.grad is mine
        (2 * model(torch.ones(1, 3))).sum().backward()
        assert model.weight.grad is not mine
        seen.append(model.weight.grad.clone())
        (2 * model(torch.ones(1, 3))).sum().backward()
        seen.append(model.weight.grad.clone())
    assert model.weight.grad is mine
    assert torch.equal(mine, torch.ones(1, 3))
    assert torch.equal(seen[0], torch.full((1, 3), 2.0)), "the loop's own 1 is not in it"
    assert torch.equal(seen[1], torch.full((1, 3), 4.0)), "the guarded code's own are added up"


@pytest.mark.parametrize("what", ["weight", "gradient"])
def test_what_cannot_be_undone_is_named(what: str) -> None:
    model = prepared()
    named = "weight last.bias" if what == "weight" else "gradient of last.bias"
    with pytest.raises(GuardError, match=named), guard(model), torch.no_grad():
        (model.last.bias if what == "weight" else model.last.bias.grad).add_(1.0)


def test_an_error_inside_is_not_hidden_by_the_report() -> None:
    model = prepared()

    def write_and_fail() -> None:
        model.last.bias.add_(1.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), guard(model), torch.no_grad():
        write_and_fail()


def test_guards_within_guards() -> None:
    model = prepared()
    trace = Trace(model)
    with guard(model):
        model.first.train()
        inside = Trace(model)
        with guard(model, training=True):
            train_mode(model)
            backward(model)
        assert inside.differences() == []
    assert trace.differences() == []


def test_the_autocast_cache_does_not_outlive_the_guard() -> None:
    """Inside the user's autocast a cast of a weight is kept; exchanged weights would otherwise not be seen."""
    model = nn.Linear(4, 4, bias=False)
    x = torch.ones(1, 4)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x)
        with guard(model):
            model.weight.data.zero_()
            assert float(model(x).abs().max()) == 0.0
            model.weight.data.fill_(1.0)
        assert float(model(x)[0, 0]) == 4.0
    assert before.shape == (1, 4)


def test_random_numbers_go_on_where_they_were() -> None:
    torch.manual_seed(1)
    expected = torch.randn(4), torch.randn(4)
    torch.manual_seed(1)
    first = torch.randn(4)
    with preserve_rng():
        torch.randn(100)
    assert torch.equal(torch.stack([first, torch.randn(4)]), torch.stack(expected))


def test_a_pending_backward_survives_a_guarded_forward() -> None:
    """Batch norm in eval mode saves its running statistics for the backward: restoring them must not break it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model(torch.randn(8, 4))
    model[1].eval()
    loss = model(torch.ones(2, 4)).sum()
    with guard(model, training=True):
        model(torch.randn(8, 4))
    loss.backward()
    assert model[0].weight.grad is not None


def test_a_model_without_gradients_or_buffers() -> None:
    model = nn.Linear(2, 2)
    with guard(model):
        model(torch.ones(1, 2)).sum().backward()
    assert all(p.grad is None for p in model.parameters())
