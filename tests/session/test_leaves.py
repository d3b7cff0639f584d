"""Hooks on a few parameters: in C and in Python they see the same, and the training never fails because of them."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope import native
from learnscope.session.counting import leaves, quiet
from learnscope.session.steps import backwards, calls
from native_builds import needed

KINDS = ["kernels", "plain"]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions as on a machine without a compiler."""
    without_kernels(monkeypatch)


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Leaf", "Course", "Additions", "Optimizers"):
        monkeypatch.setattr(backwards, name, getattr(leaves, f"Plain{name}"))
    monkeypatch.setattr(quiet, "Quiet", quiet.PlainQuiet)
    for place in (calls, quiet):
        monkeypatch.setattr(place, "are_ordinary", leaves.plainly_ordinary)
    for place in (leaves, quiet):
        monkeypatch.setattr(place, "stepped_at_once", leaves.never)


class Loop:
    """A loop that does what comes into its mind."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.chosen = random.Random(seed)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        self.w = ls.watch(self.model, self.optimizer, probes=[ls.LoopCalls(every=5), ls.LostSteps()], strict=True)
        self.steps = 0

    def loss(self) -> Tensor:
        return self.model(torch.ones(2, 3)).square().mean()

    def ordinary(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.chosen.random() < 0.8)
        for _ in range(self.chosen.choice([1, 1, 1, 1, 2, 3])):
            self.loss().backward()
        self.step()

    def step(self) -> None:
        if self.steps < 60:
            self.optimizer.step()
            self.steps += 1

    def uncleared(self) -> None:
        self.loss().backward()
        self.step()

    def discarded(self) -> None:
        self.loss().backward()
        self.optimizer.zero_grad()

    def without_backward(self) -> None:
        self.step()

    def cleared_early(self) -> None:
        self.loss().backward()
        self.optimizer.zero_grad(set_to_none=False)
        self.step()

    def written(self) -> None:
        with torch.no_grad():
            next(self.model.parameters()).mul_(0.99)

    def evaluating(self) -> None:
        self.model.eval()
        self.ordinary()
        self.model.train()

    def of_another(self) -> None:
        self.other.step()

    def differentiated(self) -> None:
        torch.autograd.grad(self.loss(), list(self.model.parameters()))

    def clipped(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.step()

    def run(self, turns: int) -> dict[str, int]:
        rare = [
            self.uncleared, self.discarded, self.without_backward, self.cleared_early, self.written, self.evaluating,
            self.of_another, self.differentiated, self.clipped,
        ]  # fmt: skip
        for _ in range(turns):
            (self.ordinary if self.chosen.random() < 0.7 else self.chosen.choice(rare))()
        self.w.close()
        return self.w._engine.subject.calls.totals()


def counted(seed: int) -> dict[str, int]:
    return Loop(seed).run(40)


@needed
def test_both_kinds_count_the_same_in_any_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leaves.Leaf is not leaves.PlainLeaf
    compiled = [counted(seed) for seed in range(60)]
    without_kernels(monkeypatch)
    assert compiled == [counted(seed) for seed in range(60)]
    for name in ("uncleared_steps", "backwards_without_step", "eval_mode_steps", "weights_written", "cleared_steps"):
        assert sum(each[name] for each in compiled) > 10, name
    assert sum(each["steps_without_backward"] for each in compiled) > 10


@needed
def test_an_ordinary_backward_calls_nothing_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, reached = Loop(0), list[int]()
    seen = watched.w._loop._backwards.on_reach
    assert seen is not None
    at = watched.w._loop._backwards
    monkeypatch.setattr(at, "on_reach", lambda *given: (reached.append(watched.steps), seen(*given)))
    for _ in range(20):
        watched.optimizer.zero_grad()
        watched.loss().backward()
        watched.step()
    # at steps whose numbers are powers of two gradients are looked at; the first is seen before anything is known
    assert set(reached) == {0, 1, 3, 7, 15}


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_without_a_mode_does_not_end_the_training(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "plain":
        request.getfixturevalue("plain")
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(ls.ProbeWarning, match="training"), ls.watch(model, optimizer) as w:
        for step in range(12):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).mean()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if step == 5:
                model[1].eval()
                del model.training
        assert w.steps == 12


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_and_what_watched_it_can_be_collected(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "plain":
        request.getfixturevalue("plain")
    loop = Loop(1)
    loop.run(5)
    model = weakref.ref(loop.model)
    del loop
    gc.collect()
    assert model() is None


@needed
def test_what_is_no_leaf_is_refused() -> None:
    kernels: Any = native.kernels
    for given in ([object()], [None], (), 3):
        with pytest.raises(TypeError):
            kernels.leaves_ordinary(given)
        with pytest.raises(TypeError):
            kernels.leaves_stepped(given)
    with pytest.raises(TypeError):
        kernels.Leaf(1, 2, 3, 4)
    with pytest.raises(TypeError):
        kernels.leaves_ordinary()
    course = kernels.Course(kernels.Optimizers())
    with pytest.raises(TypeError):
        course.begun = 1
    assert kernels.leaves_ordinary([]) is False


class Moody(nn.Module):
    """Whose mode is told by its own code."""

    def __init__(self, ask: Any) -> None:
        super().__init__()
        self.ask = ask

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__("ask")() if name == "training" else super().__getattribute__(name)


def hooked(modules: Any, reached: list[Any]) -> tuple[Any, Any]:
    """A course at the beginning of an ordinary step, and a leaf of it."""
    kernels: Any = native.kernels
    course = kernels.Course(kernels.Optimizers())
    course.ordinary, course.modules = True, modules
    parameter = nn.Parameter(torch.ones(2))
    return course, kernels.Leaf(parameter, leaves.Additions(), course, lambda *given: reached.append(given))


@needed
def test_an_interrupt_is_not_kept_from_the_training() -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    reached: list[Any] = []
    module = nn.Linear(1, 1)
    _, leaf = hooked([(Moody(lambda: False), Moody(interrupt))], reached)
    with pytest.raises(KeyboardInterrupt):
        leaf(torch.ones(2))
    _, leaf = hooked([(Moody(lambda: 1 / 0), module)], reached)
    leaf(torch.ones(2))
    assert len(reached) == 1
    assert reached[0][0] is leaf


@needed
@pytest.mark.parametrize("strange", [[None], [()], [(None, None)], [("", "")]])
def test_lists_of_something_else_leave_a_backward_to_python(strange: Any) -> None:
    reached: list[Any] = []
    _, leaf = hooked(strange, reached)
    leaf(torch.ones(2))
    assert len(reached) == 1


@needed
def test_a_module_that_changes_the_list_it_is_in() -> None:
    reached: list[Any] = []
    course, leaf = hooked(None, reached)

    def change() -> bool:
        held = course.modules
        course.modules = None
        held.clear()
        gc.collect()
        return True

    course.modules = [(Moody(change), None), (Moody(change), None)]
    leaf(torch.ones(2))
    assert not reached
    assert (leaf.count, leaf.reached, course.begun) == (1, 1, True)


class Shy(nn.Parameter):
    """Whose gradient and writes are told by its own code."""

    ask: Any = None

    @property
    def grad(self) -> Any:
        return self.ask()

    @property
    def _version(self) -> int:
        return -1


@needed
def test_leaves_that_go_while_they_are_asked() -> None:
    kernels: Any = native.kernels
    course, held = kernels.Course(kernels.Optimizers()), []

    def forget() -> Any:
        held.clear()
        gc.collect()
        return torch.ones(2)

    for function in (kernels.leaves_ordinary, kernels.leaves_stepped):
        for _ in range(2):
            parameter = Shy(torch.ones(2))
            parameter.ask = forget
            leaf = kernels.Leaf(parameter, leaves.Additions(), course, print)
            leaf.reached = 1
            held.append(leaf)
            del leaf, parameter
        # the second one is gone; how often a parameter was written is not known, and left to Python
        assert function(held) is (function is kernels.leaves_ordinary)


def test_the_parameters_of_a_part_that_is_not_used_are_not_relied_on() -> None:
    """Backward passes are counted at the ends of the model; here at parts that the loss does not reach."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"idle": nn.Linear(3, 2), "used": nn.Linear(3, 2), "idle too": nn.Linear(3, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Loss()]) as w:
        assert not w._loop._backwards.leaves
        for step in range(8):
            if step:
                w.log(before=float(step))  # before the backward: of the step that was taken
            optimizer.zero_grad()
            model["used"](torch.ones(2, 3)).square().mean().backward()
            w.log(loss=float(step + 1))  # after it: of the coming one
            optimizer.step()
    found = {(row["step"], row["value"]) for _, row in w.run.frame("Loss").iterrows() if row["name"] == "loss"}
    assert {(step, float(step)) for step in range(3, 9)} <= found


def test_an_error_of_ours_after_a_quiet_step_does_not_end_the_training(
    plain: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_leaves: Any) -> None:
        raise ArithmeticError("ours")

    monkeypatch.setattr(quiet, "have_stepped", broken)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.warns(ls.ProbeWarning, match="ours"),
        ls.watch(model, optimizer, probes=[ls.LoopCalls(every=20), ls.LostSteps()]) as w,
    ):
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        assert w.steps == 30
