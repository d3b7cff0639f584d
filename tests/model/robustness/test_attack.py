"""FGSM and PGD, against plain loops of autograd."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.model.data import DataError
from learnscope.model.outputs.example_sums import outputs_of_batches
from learnscope.model.robustness.attack import attackable, attacked_sums, fgsm, pgd, random_perturbation
from learnscope.model.robustness.ball import Threat, sizes, token_distances, unit_ball
from learnscope.model.robustness.target import Target, find_target
from learnscope.task import TupleTask, task_for
from learnscope.task.huggingface import is_causal
from learnscope.tensor.robustness.perturbation import Ball, uniform
from model.robustness.attacked import digits_classifier, language_models, plain_pgd, token_batch

TASK = TupleTask()
ABSOLUTE = Threat("linf", "example", "absolute")


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    return digits_classifier()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def aimed(model: nn.Module, batch: Any, threat: Threat = ABSOLUTE) -> tuple[Target, Ball]:
    target = find_target(model, TASK, batch)
    return target, unit_ball(target, threat, None)


def test_fgsm_is_the_sign_of_the_gradient(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    target, ball = aimed(model, (x, y))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), y, reduction="sum"), [leaf])
    found = fgsm(model, TASK, target, ball.of(0.1))
    assert torch.equal(found.delta, 0.1 * gradient.sign())
    assert (found.zero_gradients, found.gradients) == (int((gradient == 0).sum()), x.numel())
    clipped = fgsm(model, TASK, target, ball.of(0.1), clip=(0, 1)).delta
    assert torch.allclose(x + clipped, (x + 0.1 * gradient.sign()).clamp(0, 1), atol=1e-12)
    length = unit_ball(target, Threat("l2", "example", "absolute"), None).of(0.5)
    step = fgsm(model, TASK, target, length).delta.numpy()
    exact = gradient.numpy() / np.linalg.norm(gradient.numpy(), axis=1, keepdims=True)
    np.testing.assert_allclose(step, 0.5 * exact, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("clip", [None, (0.0, 1.0)])
def test_pgd_is_that_of_a_plain_loop(digits: tuple[nn.Module, Tensor, Tensor], clip: Any) -> None:
    model, x, y = digits
    target, ball = aimed(model, (x, y))
    epsilon, steps = 0.08, 7
    found = pgd(model, TASK, target, ball.of(epsilon), steps=steps, restarts=1, clip=clip).delta
    alone = plain_pgd(model, x, y, torch.zeros_like(x), epsilon, 2.5 * epsilon / steps, steps, clip)
    assert float((x + found - alone).abs().max()) < 1e-6
    start = uniform(ball.of(epsilon), x, seeded(4))
    assert float(start.abs().max()) > 0.9 * epsilon
    # the second start is drawn, and every example keeps the worse of both ends
    found = pgd(model, TASK, target, ball.of(epsilon), steps=steps, restarts=2, generator=seeded(4), clip=clip).delta
    drawn = plain_pgd(model, x, y, start, epsilon, 2.5 * epsilon / steps, steps, clip)
    with torch.no_grad():
        losses = [F.cross_entropy(model(ends), y, reduction="none") for ends in (alone, drawn)]
    worse = torch.where((losses[1] > losses[0])[:, None], drawn, alone)
    assert float((x + found - worse).abs().max()) < 1e-6
    assert (losses[1] > losses[0]).any()


def test_one_step_of_pgd_is_fgsm_and_more_restarts_only_help(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    target, ball = aimed(model, (x, y))
    one = pgd(model, TASK, target, ball.of(0.1), steps=1, restarts=1, step_size=1.0).delta
    assert torch.equal(one, fgsm(model, TASK, target, ball.of(0.1)).delta)
    losses = []
    for restarts in (1, 3):
        delta = pgd(model, TASK, target, ball.of(0.1), steps=3, restarts=restarts, generator=seeded()).delta
        losses.append(np.array(attacked_sums(model, TASK, target, delta).loss))
    assert (losses[1] >= losses[0]).all()
    assert (losses[1] > losses[0]).any()


def test_a_trained_classifier_loses_what_noise_does_not_take(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    target, ball = aimed(model, (x, y))
    ball = ball.of(0.15)

    def right(delta: Tensor | None) -> int:
        return sum(attacked_sums(model, TASK, target, delta).correct or [])

    attacked = right(pgd(model, TASK, target, ball, clip=(0, 1), generator=seeded()).delta)
    noise = right(random_perturbation(target, ball, seeded(), clip=(0, 1)))
    assert right(None) == int((model(x).argmax(1) == y).sum()) >= 34
    assert attacked < 13
    assert noise > 28


def test_no_epsilon_is_the_clean_input_exactly(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    target, ball = aimed(model, (x, y))
    (reference,) = outputs_of_batches(model, TASK, [(x, y)])
    clean = attacked_sums(model, TASK, target, None, reference)
    for delta in (
        fgsm(model, TASK, target, ball.of(0)).delta,
        pgd(model, TASK, target, ball.of(0), generator=seeded()).delta,
        random_perturbation(target, ball.of(0), seeded()),
    ):
        assert not delta.any()
        assert attacked_sums(model, TASK, target, delta, reference) == clean
    assert clean.kl == [0.0] * len(x)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "bert"])
def test_embeddings_are_attacked_where_the_model_reads_them(family: str) -> None:
    """The model is given `inputs_embeds` in the reference: what it adds later, it adds there too."""
    torch.manual_seed(1)
    model = language_models()[family]().train()
    batch = token_batch(family)
    task = task_for(batch, model)
    target = find_target(model, task, batch)
    own = model.get_input_embeddings().weight.detach()[batch["input_ids"]]  # type: ignore[operator]
    assert torch.equal(target.origin, own)
    ball = unit_ball(target, Threat("linf", "token", "absolute"), None).of(0.02)
    found = fgsm(model, task, target, ball)
    leaf = own.clone().requires_grad_()
    losses = embedded_losses(copy.deepcopy(model).eval(), batch, leaf)
    (gradient,) = torch.autograd.grad(losses.sum(), [leaf])
    real = batch["attention_mask"].bool()
    expected = 0.02 * gradient.sign() * real[..., None]
    sure = gradient.abs() > 1e-12
    assert torch.equal(found.delta[sure & real[..., None]], expected[sure & real[..., None]])
    assert not found.delta[~real].any()
    # what is predicted from the last token of a causal model is nobody's target: it is no sign of a failed attack
    unread = len(real) if is_causal(model) else 0
    assert found.gradients == (int(real.sum()) - unread) * own.shape[-1]
    zeros = int(((gradient == 0) & real[..., None]).sum())
    assert found.zero_gradients == zeros - unread * own.shape[-1]
    after = embedded_losses(copy.deepcopy(model).eval(), batch, own + found.delta).detach()
    assert sum(attacked_sums(model, task, target, found.delta).loss) == pytest.approx(after.sum().item(), rel=1e-10)
    assert after.sum() > losses.detach().sum() + 1e-6
    assert model.training


def embedded_losses(model: nn.Module, batch: dict[str, Tensor], embeddings: Tensor) -> Tensor:
    logits = model(inputs_embeds=embeddings, attention_mask=batch["attention_mask"]).logits
    if "labels" in batch:
        return F.cross_entropy(logits, batch["labels"], reduction="none")
    mask, tokens = batch["attention_mask"].bool(), batch["input_ids"]
    counted = mask[:, 1:] & mask[:, :-1]
    return F.cross_entropy(logits[:, :-1][counted], tokens[:, 1:][counted], reduction="none")


@pytest.mark.parametrize("family", ["gpt2", "bert"])
@pytest.mark.parametrize("per", ["token", "sequence"])
def test_padding_changes_nothing(family: str, per: Any) -> None:
    torch.manual_seed(2)
    model = language_models()[family]()
    found = []
    for padding in (0, 5):
        batch = token_batch(family, padding=padding)
        task = task_for(batch, model)
        target = find_target(model, task, batch)
        (distances,) = token_distances(model, [target], None)
        ball = unit_ball(target, Threat("l2", per, "token"), distances).of(0.7)
        attacked = pgd(model, task, target, ball, steps=3, restarts=2, generator=seeded(1))
        numbers = attacked_sums(model, task, target, attacked.delta)
        size = {unit: np.mean(values) for unit, values in sizes(target, ball, distances).items()}
        found.append((attacked.delta[:, :9], numbers.loss, numbers.positions, size, attacked.gradients))
        assert not attacked.delta[~batch["attention_mask"].bool()].any()
    (delta, loss, positions, size, entries), (padded, padded_loss, *rest) = found
    assert torch.allclose(delta, padded, atol=1e-9)
    assert loss == pytest.approx(padded_loss, rel=1e-9)
    assert [positions, size, entries] == [rest[0], pytest.approx(rest[1]), rest[2]]


def test_epsilon_in_every_unit() -> None:
    model = language_models()["gpt2"]()
    batch = token_batch("gpt2")
    task = task_for(batch, model)
    target = find_target(model, task, batch)
    (distances,) = token_distances(model, [target], None)
    assert distances is not None
    origin, real = target.origin.numpy(), batch["attention_mask"].numpy().astype(bool)
    norms, away = np.linalg.norm(origin, axis=2), distances.numpy()
    for norm, root in (("l2", 1.0), ("linf", 4.0)):  # √16 entries a token
        token = unit_ball(target, Threat(norm, "token", "relative"), distances).of(0.3)  # type: ignore[arg-type]
        np.testing.assert_allclose(token.radius[..., 0].numpy()[real], 0.3 * norms[real] / root, rtol=1e-12)
        told = sizes(target, token, distances)
        np.testing.assert_allclose(told["relative"], 0.3, rtol=1e-12)
        np.testing.assert_allclose(told["absolute"], 0.3 * norms[real] / root, rtol=1e-12)
        np.testing.assert_allclose(told["token"], 0.3 * norms[real] / away[real], rtol=1e-12)
    whole = unit_ball(target, Threat("l2", "sequence", "token"), distances)
    expected = np.sqrt((np.where(real, away, 0) ** 2).sum(1))
    np.testing.assert_allclose(whole.radius.reshape(-1).numpy(), expected, rtol=1e-12)
    assert (unit_ball(target, Threat("l2", "sequence", "absolute"), distances).radius == 1).all()


class Saturated(nn.Module):
    """Right on its data, and flat: float32 has no gradient left where tanh is 1."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(1e4 * x.sum(1))
        return torch.stack([-z, z], 1)


@pytest.mark.parametrize("model", [Saturated(), nn.Sequential(nn.Hardtanh(-1e-9, 1e-9), nn.Flatten())])
def test_vanished_gradients_are_counted(model: nn.Module) -> None:
    x = torch.tensor([[1.0, 2.0], [-1.0, -3.0], [2.0, 2.0]])
    target, ball = aimed(model, (x, torch.tensor([1, 0, 1])))
    for attacked in (
        fgsm(model, TASK, target, ball.of(0.3)),
        pgd(model, TASK, target, ball.of(0.3), generator=seeded()),
    ):
        assert attacked.zero_gradients == attacked.gradients > 0
    assert not fgsm(model, TASK, target, ball.of(0.3)).delta.any()


class Detached(nn.Linear):
    """A model whose loss is not differentiable in its input at all."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach().round())


def test_a_loss_without_a_path_to_the_input_has_zero_gradients() -> None:
    model = Detached(2, 2)
    target, ball = aimed(model, (torch.ones(2, 2), torch.tensor([0, 1])))
    found = pgd(model, TASK, target, ball.of(0.1), steps=2, restarts=1)
    assert found.zero_gradients == found.gradients == 8
    assert not found.delta.any()


class Wavy(nn.Linear):
    """A loss that a long step along its gradient lowers."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.cos(20 * x.sum(1))
        return torch.stack([z, -z], 1)


def test_only_points_that_steps_have_led_to_count() -> None:
    model, x = Wavy(1, 1), torch.tensor([[0.15]])
    target, ball = aimed(model, (x, torch.tensor([0])))
    ball = ball.of(0.15)
    one = pgd(model, TASK, target, ball, steps=1, restarts=1, step_size=1.0).delta
    assert torch.equal(one, fgsm(model, TASK, target, ball).delta)
    assert attacked_sums(model, TASK, target, one).loss < attacked_sums(model, TASK, target, None).loss


class Fails(nn.Module):
    """Raises at the third call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("out of luck")
        found: Tensor = self.inner(x)
        return found


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_it_was(digits: tuple[nn.Module, Tensor, Tensor], fails: bool) -> None:
    inner, x, y = digits
    model = Fails(copy.deepcopy(inner))
    model.calls = 0 if fails else 10
    model.train()
    model.inner[2].eval()
    model.inner[0].weight.requires_grad_(False)
    model.inner[3].weight.grad = torch.ones_like(model.inner[3].weight)
    before = trace(model)
    leaf_x = x.clone()

    def attack() -> None:
        target, ball = aimed(model, (leaf_x, y))
        pgd(model, TASK, target, ball.of(0.1), steps=4, generator=seeded())

    if fails:
        with pytest.raises(RuntimeError, match="out of luck"):
            attack()
    else:
        attack()
    assert torch.equal(leaf_x, x)
    assert not leaf_x.requires_grad
    after = trace(model)
    assert before.keys() == after.keys()
    for name, kept in before.items():
        assert torch.equal(kept, after[name]) if isinstance(kept, Tensor) else kept == after[name], name


def trace(model: nn.Module) -> dict[str, Any]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
        "modes": [module.training for module in model.modules()],
        "hooks": [len(getattr(module, kind)) for module in model.modules() for kind in kinds],
        "needs": [p.requires_grad for p in model.parameters()],
        "empty": [p.grad is None for p in model.parameters()],
    }
    found |= {f"weight {name}": p.detach().clone() for name, p in model.named_parameters()}
    return found | {f"grad {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_only_inputs_have_gradients_while_it_is_attacked() -> None:
    model = nn.Linear(2, 2)
    with attackable(model):
        assert not any(p.requires_grad for p in model.parameters())
        assert torch.is_grad_enabled()
    assert all(p.requires_grad for p in model.parameters())
    with torch.inference_mode():
        target, ball = aimed(model, (torch.ones(2, 2), torch.tensor([0, 1])))
        assert fgsm(model, TASK, target, ball.of(0.1)).delta.abs().sum() > 0


def test_a_half_precision_model_is_attacked_in_steps_that_are_not_lost() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 3).bfloat16()
    x, y = torch.ones(4, 8, dtype=torch.bfloat16) * 3, torch.tensor([0, 1, 2, 0])
    target, ball = aimed(model, (x, y))
    delta = pgd(model, TASK, target, ball.of(0.01), steps=10, restarts=1).delta
    assert delta.dtype is torch.float32
    assert float(delta.abs().max()) == pytest.approx(0.01)  # a step of 0.0025 is nothing beside 3 in bfloat16


class OwnEmbedding(nn.Module):
    """Token ids that go through no nn.Embedding."""

    def forward(self, tokens: Tensor) -> Tensor:
        return F.one_hot(tokens, 5).double().mean(1)


@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        (OwnEmbedding(), (torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 1])), "no embedding of OwnEmbedding"),
        (nn.Linear(2, 2), (torch.ones(2, 2),), "needs targets"),
    ],
)
def test_what_cannot_be_attacked_is_refused(model: nn.Module, batch: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        find_target(model, TASK, batch)


def test_a_range_that_the_inputs_leave_is_refused(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    target, ball = aimed(model, (x * 2, y))
    with pytest.raises(ValueError, match="go from 0 to 2, beyond the range"):
        fgsm(model, TASK, target, ball, clip=(0, 1))


class Tagger(nn.Module):
    """A model of its own kind, with an embedding of positions and one of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.words, self.head = nn.Embedding(9, 4), nn.Embedding(20, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        return found


def test_models_without_a_name_for_their_embedding_are_attacked_too() -> None:
    model: Callable[[Tensor], Tensor] | Any = Tagger()
    tokens, tags = torch.tensor([[3, 4, 0], [5, 6, 7]]), torch.tensor([[0, 1, -100], [2, 0, 1]])
    target = find_target(model, TASK, (tokens, tags))
    assert target.embedding is model.words
    assert target.free[..., 0].tolist() == [[True, True, False], [True, True, True]]
    delta = fgsm(model, TASK, target, unit_ball(target, Threat("linf", "token", "absolute"), None).of(0.1)).delta
    assert not delta[0, 2].any()
    assert delta[0, :2].abs().min() > 0
