"""What an examination of robustness computes once: outputs of passes that were seen, random draws, quantised copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from learnscope.model.bits.quantised_units import find_units
from learnscope.model.guard import guard
from learnscope.model.outputs.example_sums import example_sums, kept
from learnscope.model.robustness import weight_noise
from learnscope.model.robustness.attack import attacked_sums, gradient_at_input, pgd
from learnscope.model.robustness.ball import Threat, unit_ball
from learnscope.model.robustness.target import find_target
from learnscope.model.robustness.weight_noise import Draws, noised
from learnscope.task import HuggingFaceTask, Task, TupleTask
from probes.bits.bit_models import texts
from probes.reference import tiny_gpt2


def language_model() -> tuple[nn.Module, Task, Any]:
    torch.manual_seed(0)
    return tiny_gpt2(n_layer=2, n_head=2, n_embd=16).eval(), HuggingFaceTask(), texts([9, 4, 1, 7], 9)


def classifier() -> tuple[nn.Module, Task, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return model, TupleTask(), (torch.randn(5, 6), torch.tensor([0, 1, -100, 2, 1]))


@pytest.mark.parametrize("make", [language_model, classifier])
def test_the_outputs_at_the_worst_points_are_those_of_running_them(make: Any) -> None:
    model, task, batch = make()
    target = find_target(model, task, batch)
    threat = Threat("l2", "token" if target.tokens is not None else "example", "absolute")
    ball = unit_ball(target, threat, None).of(0.5)
    start = gradient_at_input(model, task, target)
    own = kept(start.outputs)
    clean, alone = example_sums(own.outputs, task.size(batch), own), attacked_sums(model, task, target, None, own)
    assert clean.loss == pytest.approx(alone.loss, rel=1e-6)
    assert clean.correct == alone.correct
    generator = torch.Generator().manual_seed(0)
    for restarts in (1, 3):  # with several starts the worst points of examples are of different passes
        attacked = pgd(model, task, target, ball, steps=3, restarts=restarts, generator=generator, start=start)
        assert attacked.outputs is not None
        seen = example_sums(attacked.outputs, task.size(batch), own)
        again = attacked_sums(model, task, target, attacked.delta, own)
        assert (seen.positions, seen.correct) == (again.positions, again.correct)
        assert seen.loss == pytest.approx(again.loss, rel=1e-6)
        assert seen.kl == pytest.approx(again.kl, rel=1e-5, abs=1e-9)


def test_looking_for_the_embedding_does_not_run_the_blocks() -> None:
    model, task, batch = language_model()
    ran: list[nn.Module] = []
    for block in model.transformer.h:  # type: ignore[union-attr]
        block.register_forward_hook(lambda module, *_: ran.append(module))
    assert find_target(model, task, batch).embedding is model.get_input_embeddings()  # type: ignore[operator]
    assert not ran


@pytest.mark.parametrize("kind", ["weight_noise", "quantisation_noise"])
@pytest.mark.parametrize("room", [1 << 30, 3000, 0])
def test_kept_draws_are_those_of_the_seed_and_keep_to_their_room(kind: Any, room: int, monkeypatch: Any) -> None:
    model, _, _ = language_model()
    units = find_units(model)
    monkeypatch.setattr(weight_noise, "KEPT", room)
    draws, made = Draws(kind, 7), []
    own = weight_noise.numbers_for
    monkeypatch.setattr(weight_noise, "numbers_for", lambda *inputs: made.append(inputs) or own(*inputs))
    for level in (4, 8, 4):
        found = []
        for seed in (draws, 7):
            with guard(model), noised(model, units, kind, level, seed):
                found.append({name: p.detach().clone() for name, p in model.named_parameters()})
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    tensors = sum(len(unit.tensors) for unit in units)
    assert len(made) == 3 * tensors + (tensors if room == 1 << 30 else 3 * tensors)
    assert sum(tensor.nbytes for tensor in draws._kept) <= room
