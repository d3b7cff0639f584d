"""Self and total times of modules by a clock that ticks only in their own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.cost.layer_times import layer_times, stopwatch
from learnscope.posttrain.session import AuditSession
from learnscope.probes.cost.layer_times import LayerTimes
from learnscope.quantities.cost import LayerTimes as Q
from learnscope.reading.cells import by_scope, value
from learnscope.task import TupleTask
from probes.reference import tiny_gpt2, tokens


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Takes(nn.Module):
    """Takes so many seconds of its own, and calls the others in turn."""

    def __init__(self, clock: Clock, seconds: float, **inner: nn.Module) -> None:
        super().__init__()
        self.clock, self.seconds, self.order = clock, seconds, list(inner)
        for name, module in inner.items():
            self.add_module(name, module)

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        self.clock.now += self.seconds
        for name in self.order:
            x = getattr(self, name)(x)
        return x if not depth else self(x, depth - 1)


class Recursive(nn.Module):
    def __init__(self, clock: Clock, leaf: nn.Module) -> None:
        super().__init__()
        self.clock, self.leaf = clock, leaf

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        self.clock.now += 10.0
        return self.leaf(x) if depth == 0 else self(x, depth - 1)


def timed(build: Callable[[Clock], nn.Module]) -> dict[str, Any]:
    clock = Clock()
    model = build(clock)
    return layer_times(model, TupleTask(), (torch.zeros(2, 3),), repeats=3, seconds=1e9, clock=clock)


def test_self_times_are_what_each_took_and_sum_to_the_total() -> None:
    def build(clock: Clock) -> nn.Module:
        shared = Takes(clock, 1.0)
        first = Takes(clock, 2.0, a=shared, b=Takes(clock, 4.0))
        return Takes(clock, 8.0, first=first, second=Takes(clock, 16.0, again=shared), unused=Takes(clock, 0.0))

    found = timed(build)
    modules = found["modules"]
    own = {name: module["self"] for name, module in modules.items()}
    assert own == {"(root)": 8, "first": 2, "first.a": 2, "first.b": 4, "second": 16, "unused": 0}
    total = {name: module["total"] for name, module in modules.items()}
    assert total == {"(root)": 32, "first": 7, "first.a": 2, "first.b": 4, "second": 17, "unused": 0}
    assert modules["first.a"]["calls"] == 2, "a shared module, under its first name"
    assert sum(own.values()) == found["total"] == total["(root)"]
    assert sum(found["layers"].values()) == found["total"]
    assert found["overhead"] == 0


def test_a_module_that_calls_itself_counts_once() -> None:
    modules = timed(lambda clock: Recursive(clock, Takes(clock, 5.0)))["modules"]
    assert modules["(root)"] == {"self": 30, "total": 35, "calls": 3}
    assert modules["leaf"] == {"self": 5, "total": 5, "calls": 1}


def test_times_are_medians_over_passes_and_sum_all_the_same() -> None:
    clock = Clock()

    class Varies(nn.Module):
        def __init__(self, durations: list[float]) -> None:
            super().__init__()
            self.durations, self.passes = durations, 0

        def forward(self, x: Tensor) -> Tensor:
            clock.now += self.durations[self.passes % len(self.durations)]
            self.passes += 1
            return x

    model = nn.Sequential(Varies([1.0, 100.0, 1.0]), Varies([3.0, 2.0, 1.0]))
    found = layer_times(model, TupleTask(), (torch.zeros(1, 1),), repeats=9, seconds=1e9, clock=clock)
    assert found["passes"] == 9
    own = {name: module["self"] for name, module in found["modules"].items()}
    assert own == {"(root)": 0, "0": 1, "1": 2}
    assert found["total"] == 3


def test_hooks_are_removed_also_after_an_error() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    model = nn.Sequential(nn.Linear(3, 3), Fails())
    with pytest.raises(ZeroDivisionError), stopwatch(model, Clock()) as (own, _calls):
        assert model[0]._forward_hooks
        model(torch.zeros(1, 3))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert list(own) == [("(root)", "0")], "what had ended"


def test_a_language_model() -> None:
    model = tiny_gpt2()
    model.train()
    record = AuditSession(model).measure(LayerTimes(repeats=3), [{"input_ids": tokens(2, 8)}])
    layers, _ = by_scope(record, "layer", Q.total_seconds)
    assert {"transformer.wte", "transformer.h.0", "transformer.h.1", "lm_head", "(root)"} <= layers.keys()
    assert sum(layers.values()) == pytest.approx(value(record, Q.total_seconds, "model"))
    calls, _ = by_scope(record, "module", Q.calls)
    assert calls["transformer.h.1.attn.c_attn"] == 1
    own, _ = by_scope(record, "module", Q.self_seconds)
    total, _ = by_scope(record, "module", Q.total_seconds)
    inside = [name for name in own if name == "transformer.h.0" or name.startswith("transformer.h.0.")]
    assert total["transformer.h.0"] == pytest.approx(sum(own[name] for name in inside))
    assert "transformer.h" in record.notes["not_called"], "a list is never called"
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
