"""Loops in the shape of public scripts: what is recorded equals the loop's own tensors, at every step.

Each loop runs twice, unwatched and watched, with the same losses and weights bit for bit (`check_loop`).
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import learnscope as ls
from clients import gpt, images, plain
from clients.account import Account, check_loop
from compiler import needs_compiler


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_gpt_with_accumulation_clipping_and_a_cosine(accumulation: int) -> None:
    account = check_loop(partial(gpt.train, accumulation=accumulation))
    assert account.w is not None
    rates = [step.rates for step in account.steps]
    assert len({tuple(each) for each in rates}) == len(rates), "the test itself: the rate changes at every step"
    noise = account.w.run.frame("GradientFlow", "noise", "model")
    assert len(noise) == (0 if accumulation == 1 else gpt.STEPS - 1)


def test_a_gpt_behind_torch_compile() -> None:
    torch._dynamo.reset()
    account = check_loop(partial(gpt.train, backend="aot_eager"))
    assert all(name.startswith("_orig_mod.") for name in account.steps[0].gradients)


@pytest.mark.soak
def test_a_gpt_compiled_by_inductor() -> None:
    needs_compiler()
    torch._dynamo.reset()
    check_loop(partial(gpt.train, backend="inductor"))


@pytest.mark.parametrize("clock", [None, "D", "G"])
def test_a_gan_with_two_optimizers(clock: str | None) -> None:
    account = check_loop(partial(images.gan, clock=clock))
    both = {name.split(".")[0] for name in account.steps[0].gradients}
    assert both == {"netD", "netG"}


def test_a_vae_with_a_summed_loss() -> None:
    check_loop(images.vae)


def test_a_siamese_network_with_pairs() -> None:
    evaluated: list[float] = []
    account = check_loop(partial(images.siamese, evaluated=evaluated))
    assert account.w is not None
    losses = list(account.w.run.frame("Holdout", "holdout_loss").value)
    assert losses == pytest.approx(evaluated[len(losses) :], rel=1e-6)


def test_gradient_descent_by_hand() -> None:
    check_loop(plain.by_hand)


def test_lbfgs_is_refused_and_what_the_refusal_advises_works() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"call w\.step\(\) after each of its steps: ls\.watch\(model\) without"):
        ls.watch(model, torch.optim.LBFGS(model.parameters()))
    check_loop(plain.lbfgs)


def test_reinforce_with_episodes_of_varying_length() -> None:
    lengths: list[int] = []
    check_loop(partial(plain.reinforce, lengths=lengths))
    assert len(set(lengths)) > 2, "the test itself"


def test_an_lstm_with_truncated_backpropagation() -> None:
    check_loop(plain.language_model)


def test_the_comparison_notices_a_wrong_number() -> None:
    """The control: an account that is off by a little more than is allowed does not pass."""
    for change in ("gradients", "moved", "logged"):
        account = Account(watched=True)
        plain.by_hand(account)
        values = getattr(account.steps[2], change)
        values[next(iter(values))] *= 1 + 3e-6
        with pytest.raises(AssertionError):
            account.check()
