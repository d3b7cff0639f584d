"""Several optimizers: what is recorded of each is what it was given at its own step, whichever of them is the clock."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import learnscope as ls
from learnscope.core.probe import At
from session.several import LIMIT, Game, Recorded, Taken, size
from session.turn_cases import CASES, Steps

EXACT = {"rel": 1e-6, "abs": 1e-12}
IDLE = "its optimizer did not step"


class Given(ls.Probe):
    """A user's probe: what the moment says the gradients are, before the step or after it."""

    at: At = "before_step"

    def measure(self, moment: ls.Moment) -> list[ls.Row]:
        return [ls.Row("size", size([g]), name, "tensor") for name, g in moment.grads.items()]


def probes() -> list[ls.Probe]:
    return [
        ls.GradientFlow(every=1, per_tensor=True, variance=True, weights_every=1, noise_scale=True),
        ls.LearningRate(every=1),
        ls.ParameterChange(every=1, absorbed=True),
        ls.Momentum(every=1),
        Given(),
        Given(at="after_step"),
    ]


def played(case: str, *, watched: bool = True) -> Game:
    names, events, options, _ = CASES[case]
    game = Game(names, options)
    if watched:
        with game.watch(probes()):
            game.play(events)
    else:
        game.play(events)
    return game


def group_of(game: Game) -> dict[str, str]:
    """The names that the optimizers' groups have, by position among those passed."""
    listed = [name for name in game.options.listed if name in game.nets]
    return {name: f"group_{place}" for place, name in enumerate(listed)}


@pytest.mark.parametrize("case", CASES)
def test_every_number_is_of_the_optimizers_own_step(case: str) -> None:
    game, expected = played(case), CASES[case][-1]
    assert game.w is not None
    recorded = Recorded(game.w.run)
    assert game.w.steps == len(expected)
    assert [record.step for record in game.w.run.records("GradientFlow")] == list(range(1, len(expected) + 1))
    spans = [record.notes["span"] for record in game.w.run.records("ParameterChange")]
    assert spans == [[step, step + 1] for step in range(len(expected))]
    for step, numbers in enumerate(expected, 1):
        for name, number in numbers.items():
            check_given(game, recorded, step, name, number)
            if number is None:
                check_idle(game, recorded, step, name)
            else:
                check_gradients(game, recorded, step, name, game.account[name][number - 1])
                check_moments(game, recorded, step, name, game.account[name][number - 1])
    check_changes(game, recorded, expected)
    check_absorbed(game, recorded, expected)
    plain = played(case, watched=False)
    for a, b in zip(game.nets.state_dict().values(), plain.nets.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    for name in game.nets:
        assert [taken.loss for taken in game.account[name]] == [taken.loss for taken in plain.account[name]]


def check_given(game: Game, recorded: Recorded, step: int, name: str, number: int | None) -> None:
    """What a user's probe is given, before the step and after it."""
    for probe in ("Given", "Given_2"):
        found = {
            n: [float(row.value) for row in recorded.all(probe, "size", "tensor", f"{name}.{n}", step)]  # type: ignore[arg-type]
            for n, _ in game.nets[name].named_parameters()
        }
        truth = {} if number is None else game.account[name][number - 1].gradients
        assert found == {n: pytest.approx([size([truth[n]])] if n in truth else [], **EXACT) for n in found}, probe


def check_idle(game: Game, recorded: Recorded, step: int, name: str) -> None:
    """Null with the reason."""
    group = group_of(game)[name]
    for scope in game.account[name][0].layers:
        assert recorded.statuses("GradientFlow", "norm", "layer", f"{name}.{scope}", step) == [IDLE]
    for probe, quantity in (("GradientFlow", "norm"), ("LearningRate", "learning_rate"), ("Momentum", "lr")):
        assert recorded.statuses(probe, quantity, "group", group, step) == [IDLE]
    assert set(recorded.statuses("Momentum", "first_moment_norm", "group", group, step)) == {IDLE}


def check_gradients(game: Game, recorded: Recorded, step: int, name: str, taken: Taken) -> None:
    for n, gradient in taken.gradients.items():
        found = recorded.one("GradientFlow", "norm", "tensor", f"{name}.{n}", step, stage="stepped")
        assert found == pytest.approx(size([gradient]), **EXACT)
    whole, group = size(taken.gradients.values()), group_of(game)[name]
    assert recorded.one("GradientFlow", "norm", "group", group, step, stage="stepped") == pytest.approx(whole, **EXACT)
    if game.options.clip:
        before = recorded.one("GradientFlow", "norm", "group", group, step, stage="before_clip")
        assert before == pytest.approx(taken.norm_before_clip, **EXACT)
    factor = taken.norm_before_clip / whole  # these are of the gradient before the clip
    for layer, members in taken.layers.items():
        gradient, weight = (size(named[n] for n in members) for named in (taken.gradients, taken.before))
        ratio = recorded.one("GradientFlow", "gradient_to_weight", "layer", f"{name}.{layer}", step)
        assert ratio == pytest.approx(factor * gradient / weight, rel=1e-6)
        variance = float(torch.cat([taken.gradients[n].flatten() for n in members]).var()) * factor**2
        found = recorded.one("GradientFlow", "variance", "layer", f"{name}.{layer}", step)
        assert found == pytest.approx(variance, rel=1e-6)


def check_moments(game: Game, recorded: Recorded, step: int, name: str, taken: Taken) -> None:
    group = group_of(game)[name]
    for probe, quantity in (("LearningRate", "learning_rate"), ("Momentum", "lr")):
        assert recorded.one(probe, quantity, "group", group, step) == pytest.approx(taken.rate, rel=1e-12)
    gradient = torch.cat([taken.gradients[n].flatten() for n in taken.state])
    rule = {"rule": "momentum" if name == "E" else "adam"}
    if name == "E":
        first = torch.cat([s["momentum_buffer"].flatten() for s in taken.state.values()])
    else:
        options = game.optimizers[name].param_groups[0]
        parts, updates = [], []
        for s in taken.state.values():
            m = s["exp_avg"] / (1 - options["betas"][0] ** float(s["step"]))
            v = s["exp_avg_sq"] / (1 - options["betas"][1] ** float(s["step"]))
            parts.append(m.flatten())
            updates.append((taken.rate * m / (v.sqrt() + options["eps"])).flatten())
        first = torch.cat(parts)
        moved = recorded.one("Momentum", "effective_step_norm", "group", group, step)
        assert moved == pytest.approx(size(updates), rel=1e-6)
    length = recorded.one("Momentum", "first_moment_norm", "group", group, step, **rule)
    assert length == pytest.approx(size([first]), rel=1e-6)
    cosine = float(first @ gradient) / (size([first]) * size([gradient]))
    found = recorded.one("Momentum", "staleness", "group", group, step, **rule)
    assert found == pytest.approx(cosine, rel=1e-6, abs=1e-9)


def check_changes(game: Game, recorded: Recorded, expected: Steps) -> None:
    """From the weights after the last training step to those after this one."""
    for name in game.nets:
        weights = game.account[name][0].before
        for step, numbers in enumerate(expected, 1):
            number = numbers[name]
            now = weights if number is None else game.account[name][number - 1].after
            for n, tensor in now.items():
                found = recorded.one("ParameterChange", "l2", "tensor", f"{name}.{n}", step)
                assert found == pytest.approx(size([tensor - weights[n]]), **EXACT)
            weights = now


def check_absorbed(game: Game, recorded: Recorded, expected: Steps) -> None:
    """Of float32 weights next to nothing is absorbed; after several steps of one optimizer there is no share."""
    last = Counter[str]()
    for step, numbers in enumerate(expected, 1):
        for name, number in numbers.items():
            times, last[name] = (number or last[name]) - last[name], number or last[name]
            for layer in game.account[name][0].layers:
                rows = recorded.all("ParameterChange", "absorbed_share", "layer", f"{name}.{layer}", step)
                assert len(rows) == (times > 0), "without a step there is no update to be absorbed"
                if times > 1:
                    assert rows[0].status == f"its optimizer stepped {times} times in this training step"
                elif times == 1:
                    assert rows[0].value is not None
                    assert rows[0].value < 0.05


def test_a_clip_cannot_reach_the_other_network() -> None:
    game = played("clipped apart")
    assert game.w is not None
    norm = game.w.run.frame("GradientFlow", "norm", "group")
    stepped = norm[norm.stage == "stepped"].value
    assert (stepped <= LIMIT * 1.001).all()
    assert (norm[norm.stage == "before_clip"].value > LIMIT).any()
