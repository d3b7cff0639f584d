"""Models of torch's own modules run in eval mode without the guard, and nothing tells; others do not."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.dynamics import LearningDynamicsAnalyzer, batches
from learnscope.model.guard import guard
from learnscope.model.pure import PURE, pure_logits

X = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(nn.Sequential(*body), nn.Dropout(0.5), nn.LayerNorm(16), nn.Linear(16, 5))


def test_the_logits_are_those_under_the_guard_and_nothing_is_changed() -> None:
    model = convolutional()
    model(X).sum().backward()
    model[0].eval()  # frozen on purpose
    with torch.no_grad(), guard(model):
        wanted = model(X)
    state, grads = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters() if p.grad is not None]
    modes, drawn = [m.training for m in model.modules()], (random.getstate(), torch.get_rng_state())
    versions = [t._version for t in (*model.parameters(), *model.buffers())]
    found = pure_logits(model, X)
    assert found is not None
    assert torch.equal(found, wanted)
    assert not found.requires_grad
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [t._version for t in (*model.parameters(), *model.buffers())] == versions
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True) if p.grad is not None)
    assert random.getstate() == drawn[0]
    assert torch.equal(torch.get_rng_state(), drawn[1])


def test_an_error_of_the_model_leaves_it_training() -> None:
    model = convolutional()
    with pytest.raises(RuntimeError):
        pure_logits(model, torch.randn(2, 4, 6, 6))
    assert all(module.training for module in model.modules())


class Own(nn.Linear):
    pass


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].register_forward_hook(lambda *_: None)
    return model


def replaced() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].forward = lambda x: x[:, :3]  # type: ignore[method-assign]
    return model


def parametrised() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))


@pytest.mark.parametrize(
    "make",
    [lambda: Own(4, 3), hooked, replaced, parametrised, lambda: nn.Sequential(nn.RReLU(), nn.Linear(4, 3)),
     lambda: nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Linear(4, 3))],
)  # fmt: skip
def test_models_that_may_do_more_are_left_to_the_guard(make: Callable[[], nn.Module]) -> None:
    assert pure_logits(make(), torch.randn(2, 4)) is None


def test_tokens_and_global_hooks_are_left_to_the_guard() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    assert pure_logits(model, torch.ones(2, 4, dtype=torch.long)) is None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert pure_logits(model, torch.ones(2, 4)) is None
    finally:
        handle.remove()


def test_each_pure_module_writes_and_draws_nothing_in_eval_mode() -> None:
    """Of those that need no argument but sizes: their own code could change with torch."""
    made: list[tuple[nn.Module, Tensor]] = [
        (nn.BatchNorm1d(4), X[:, 0, 0, :4]), (nn.Dropout(0.5), X), (nn.AlphaDropout(0.5), X), (nn.SELU(), X),
        (nn.GroupNorm(3, 3), X), (nn.AdaptiveAvgPool2d(1), X), (nn.FeatureAlphaDropout(0.5), X),
    ]  # fmt: skip
    for module, x in made:
        assert type(module) in PURE
        module.eval()
        before, drawn = copy.deepcopy(module.state_dict()), torch.get_rng_state()
        module(x)
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("own_class", [False, True])
def test_the_analyzer_follows_either_kind_of_model_alike(own_class: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = 0
    enter = batches.guard

    def counted(model: nn.Module) -> object:
        nonlocal guarded
        guarded += 1
        return enter(model)

    monkeypatch.setattr(batches, "guard", counted)

    class Net(nn.Sequential):
        pass

    model = Net(*convolutional()) if own_class else convolutional()
    analyzer, y = LearningDynamicsAnalyzer(), torch.arange(8) % 5
    losses = []
    for epoch in range(4):
        for part in torch.arange(8).split(3):
            with torch.no_grad(), guard(model):
                losses.append(nn.functional.cross_entropy(model(X[part]).double(), y[part], reduction="sum"))
            analyzer.track_batch(model, X[part], y[part], part, epoch)
            with torch.no_grad():
                for p in model.parameters():
                    p.data.mul_(0.9)  # of which no version tells
    total = float(analyzer.frame()["cumulative_loss"].sum())
    np.testing.assert_allclose(total, float(torch.stack(losses).sum()), rtol=1e-12)
    assert guarded == (12 if own_class else 1)  # the first is for the checks
