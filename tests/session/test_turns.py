"""Which steps of several optimizers make a training step, and what is logged, counted and refused around them."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import learnscope as ls
from session.several import Game, Options, Recorded, size
from session.turn_cases import CASES


@pytest.mark.parametrize("log", ["before", "after"])
@pytest.mark.parametrize(
    "case",
    ["in turn", "in turn, clock first", "in turn, clock last", "clock in the middle", "three D a G, G counts",
     "three D a G, D counts", "two G a D, D counts", "G begins late"],
)  # fmt: skip
def test_logged_values_belong_to_their_step(case: str, log: str) -> None:
    names, events, options, expected = CASES[case]
    game = Game(names, replace(options, log=log))
    with game.watch([ls.Loss()]) as w:
        game.play(events)
    logged, last = Recorded(w.run), Counter[str]()
    for step, numbers in enumerate(expected, 1):
        for name, number in numbers.items():
            of_step = game.losses[name][last[name] : number or last[name]]
            found = [row.value for row in logged.all("Loss", name, "model", "model", step)]
            assert found == pytest.approx([sum(of_step) / len(of_step)] if of_step else [], rel=1e-9), (step, name)
            last[name] += len(of_step)


@pytest.mark.parametrize("log", ["before", "after"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("events", ["DGdGDG", "DGDgDG"])
def test_what_is_logged_in_a_turn_that_a_scaler_skips_belongs_to_its_iteration(
    events: str, fused: bool, log: str
) -> None:
    game = Game("DG", Options(scaler=True, fused=fused, log=log))
    with game.watch([ls.Loss()]) as w:
        game.play(events)
    logged = Recorded(w.run)
    for name in "DG":
        found = [[row.value for row in logged.all("Loss", name, "model", "model", step)] for step in (1, 2, 3)]
        assert found == [pytest.approx([loss], rel=1e-9) for loss in game.losses[name]], name


def test_a_step_counts_as_soon_as_its_clock_has_stepped() -> None:
    game = Game("DG", Options(clock="D"))
    with game.watch([ls.LearningRate(every=1)]) as w:
        for number in range(1, 4):
            game.play("D")
            assert w.steps == number
        w.end_epoch()
        assert [record.step for record in w.run.records("LearningRate")] == [1, 2, 3], "the open step is ended"
        game.play("DG")
        assert w.steps == 4


def test_a_state_saved_in_the_middle_of_a_training_step_is_of_that_step(tmp_path: Path) -> None:
    game = Game("DG", Options(clock="D"))
    with game.watch([ls.ParameterChange(every=1)], run=tmp_path / "run") as w:
        game.play("DD")
        path = w.save_state()
        assert path is not None
        assert path.stem == "step-0000000002"
        assert [record.step for record in w.run.records("ParameterChange")] == [1, 2]


def test_optimizers_of_one_backward_share_their_noise_scale() -> None:
    """As Muon with AdamW: the same numbers as with one optimizer over all parameters."""

    def noise(*, several: bool) -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))
        parts = [model[0], model[1]] if several else [model]
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]
        with ls.watch(model, optimizers, probes=[ls.GradientFlow(every=1)], strict=True) as w:
            for _ in range(5):
                for _ in range(4):
                    (model(torch.randn(3, 4)).square().mean() / 4).backward()
                for optimizer in optimizers:
                    optimizer.step()
                model.zero_grad()
        return list(w.run.frame("GradientFlow", "noise", "model").value)

    assert len(noise(several=True)) == 4
    assert noise(several=True) == pytest.approx(noise(several=False), rel=1e-12)


def test_gradients_of_different_backwards_have_no_noise_scale() -> None:
    game = Game("DG", Options(accumulate=3))
    with game.watch([ls.GradientFlow(every=1)]) as w:
        game.play("DG" * 4)
    assert w.run.frame("GradientFlow", "noise_scale").empty


def test_a_parameter_in_two_optimizers_is_refused_and_two_sessions_work() -> None:
    model = nn.Linear(3, 1)
    first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam([model.weight], lr=0.01)
    with pytest.raises(ValueError, match=r"parameter weight is in two of the optimizers.*ls\.watch\(model, second\)"):
        ls.watch(model, [first, second])
    watches = [ls.watch(model, each, probes=[ls.GradientFlow(every=1)], strict=True) for each in (first, second)]
    expected: tuple[list[float], list[float]] = ([], [])
    for number in range(6):
        optimizer = (first, second)[number % 2]
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        expected[number % 2].append(size(p.grad for p in model.parameters() if p.grad is not None))
        optimizer.step()
    for w, norms in zip(watches, expected, strict=True):
        w.close()
        assert list(w.run.frame("GradientFlow", "norm", "model").value) == pytest.approx(norms, rel=1e-6)


def test_what_no_optimizer_holds_is_read_with_the_clock() -> None:
    """A network that the loop steps by hand, after each of the others."""
    model = nn.ModuleDict({name: nn.Linear(2, 1) for name in "abc"})
    a, b = (torch.optim.SGD(model[name].parameters(), lr=0.1) for name in "ab")
    expected = []
    with ls.watch(model, [a, b], clock=a, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        for _ in range(3):
            for optimizer in (a, b):
                model.zero_grad()
                sum(net(torch.randn(5, 2)).square().mean() for net in model.values()).backward()  # type: ignore[union-attr]
                if optimizer is a:
                    expected.append(size(p.grad for p in model["c"].parameters()))  # type: ignore[misc]
                optimizer.step()
    frame = w.run.frame("GradientFlow", "norm", "layer")
    assert list(frame[frame.scope == "c"].value) == pytest.approx(expected, rel=1e-6)


def test_steps_out_of_turn_are_told_once_and_stay_exact() -> None:
    game = Game("DG", Options())
    with pytest.warns(ls.ProbeWarning, match="do not step in turn.*clock=") as caught:
        with game.watch([ls.GradientFlow(every=1, per_tensor=True)]):
            game.play("DDDG" * 3)
    assert len(caught) == 1
    assert game.w is not None
    assert game.w.steps == 9
    for step in range(1, 10):
        check_norms(game, game.w.run, step, "D", step)
        if step % 3 == 0:
            check_norms(game, game.w.run, step, "G", step // 3)


def check_norms(game: Game, run: ls.Run, step: int, name: str, number: int) -> None:
    recorded = Recorded(run)
    for n, gradient in game.account[name][number - 1].gradients.items():
        found = recorded.one("GradientFlow", "norm", "tensor", f"{name}.{n}", step, stage="stepped")
        assert found == pytest.approx(size([gradient]), rel=1e-6)


def test_two_optimizers_in_turn_warn_of_nothing() -> None:
    game = Game("DG", Options())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with game.watch([ls.GradientFlow(every=1)]):
            game.play("DG" * 6)
