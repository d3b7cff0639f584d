"""A loss that the user gives, the losses that agree with a number, and those read from a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from learnscope.model.weights import content
from learnscope.model.weights.content import task_content
from learnscope.task import IGNORE, DictTask, HuggingFaceTask, Task, TupleTask
from learnscope.task.given import given_loss
from learnscope.task.graph import loss_of_graph
from learnscope.task.losses import (
    BINARY,
    BINARY_OF_PROBABILITIES,
    CROSS_ENTROPY,
    SMOOTH,
    SQUARED,
    agreeing,
    candidates,
)
from learnscope.task.trial import tried

X = torch.arange(60.0, dtype=torch.float64).reshape(6, 10).sin()
CLASSES = torch.tensor([2, 0, 1, 2, 1, 0])
WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)


def head(outputs: int) -> nn.Module:
    torch.manual_seed(outputs)
    return nn.Linear(10, outputs, dtype=torch.float64)


def judged(loss: Any, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """The losses by position, and the mean by the differentiable way."""
    task = tried(None, model, batch, loss).task
    losses = task.outputs(model, batch).losses
    assert losses is not None
    return losses.detach(), task.loss(model, batch).detach()


YES = torch.tensor([1, 0, 1, 1, 0, 0])
TARGETS: dict[str, Tensor] = {"classes": CLASSES, "answers": YES, "numbers": X[:, :3] / 2 + 0.5}
MODULES: list[tuple[Any, str, int]] = [
    (nn.CrossEntropyLoss(), "classes", 3),
    (nn.CrossEntropyLoss(weight=WEIGHTS), "classes", 3),
    (nn.CrossEntropyLoss(label_smoothing=0.1), "classes", 3),
    (nn.MultiMarginLoss(), "classes", 3),
    (nn.BCEWithLogitsLoss(), "numbers", 3),
    (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), "numbers", 3),
    (nn.MSELoss(), "numbers", 3),
    (nn.L1Loss(), "numbers", 3),
    (nn.HuberLoss(delta=0.1), "numbers", 3),
    (F.cross_entropy, "classes", 3),
    (F.smooth_l1_loss, "numbers", 3),
]


@pytest.mark.parametrize(("loss", "kind", "outputs"), MODULES)
def test_the_mean_is_what_the_loss_gives_for_the_batch(loss: Any, kind: str, outputs: int) -> None:
    model, targets = head(outputs), TARGETS[kind]
    own = loss(model(X), targets)
    losses, mean = judged(loss, model, (X, targets))
    torch.testing.assert_close(losses.mean(), own, rtol=1e-12, atol=0)
    torch.testing.assert_close(mean, own.detach(), rtol=1e-12, atol=0)
    assert losses.shape == (6,)


def test_weighted_losses_of_single_examples_are_their_shares() -> None:
    model = head(3)
    losses, _ = judged(nn.CrossEntropyLoss(weight=WEIGHTS), model, (X, CLASSES))
    z = model(X).detach()
    plain = z.exp().sum(1).log() - z[torch.arange(6), CLASSES]
    weights = WEIGHTS[CLASSES]
    torch.testing.assert_close(losses, 6 * weights * plain / weights.sum())


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_yes_or_no_in_every_shape_and_kind(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    model = head(1)
    own = F.binary_cross_entropy_with_logits(model(X).reshape(-1), YES.double())
    for loss in (nn.BCEWithLogitsLoss(), lambda out, y: F.binary_cross_entropy_with_logits(out, y)):
        losses, mean = judged(loss, model, (X, YES.to(dtype).reshape(shape)))
        torch.testing.assert_close(losses.mean(), own, rtol=1e-12, atol=0)
        torch.testing.assert_close(mean, own, rtol=1e-12, atol=0)


def test_integers_with_a_single_output_may_be_regression_if_the_loss_says_so() -> None:
    model = head(1)
    losses, _ = judged(nn.MSELoss(), model, (X, CLASSES))
    torch.testing.assert_close(losses, (model(X).detach()[:, 0] - CLASSES) ** 2)


def test_functions_that_give_one_number_one_for_each_example_or_more() -> None:
    model, targets = head(3), TARGETS["numbers"]
    wanted = ((model(X) - targets) ** 2).mean(1).detach()
    functions: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda out, y: ((out - y) ** 2).mean(),
        lambda out, y: ((out - y) ** 2).mean(1),
        lambda out, y: (out - y) ** 2,
        lambda out, y: ((out - y) ** 2).mean().reshape(1),
    ]
    for function in functions:
        losses, mean = judged(function, model, (X, targets))
        torch.testing.assert_close(losses, wanted)
        torch.testing.assert_close(mean, wanted.mean())


OF_NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squeezes": lambda out, y: F.mse_loss(out.squeeze(-1), y),
    "squeezes, of each": lambda out, y: (out.squeeze(-1) - y) ** 2,
    "flattens": lambda out, y: ((out.flatten() - y) ** 2).mean(),
    "as it comes": lambda out, y: F.mse_loss(out, y),
    "as it comes, of each": lambda out, y: (out - y) ** 2,
    "adds a dimension": lambda out, y: F.mse_loss(out, y.view(-1, 1)),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_function_of_numbers_never_broadcasts(name: str) -> None:
    """One output a row and targets without that dimension: whichever of the two it reshapes, or neither."""
    model, numbers = head(1), TARGETS["numbers"][:, 0]
    wanted = (model(X).detach()[:, 0] - numbers) ** 2
    task = tried(None, model, (X, numbers), OF_NUMBERS[name]).task
    for rows in (slice(None), slice(1, 4), slice(2, 3)):
        losses = task.outputs(model, (X[rows], numbers[rows])).losses
        torch.testing.assert_close(losses, wanted[rows])
        torch.testing.assert_close(task.loss(model, (X[rows], numbers[rows])), wanted[rows].mean())


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_head_of_zeros_cannot_tell_and_the_next_batch_does() -> None:
    """With equal outputs a loss that broadcasts gives the same number: nothing may be concluded from it."""
    model, numbers = head(1), TARGETS["numbers"][:, 0]
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    task = tried(None, model, (X, numbers), lambda out, y: F.mse_loss(out, y)).task
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    torch.testing.assert_close(task.outputs(model, (X, numbers)).losses, (model(X).detach()[:, 0] - numbers) ** 2)


def test_a_function_gets_whole_images() -> None:
    """A loss over the picture, not over single pixels: 1 − Dice."""

    def dice(out: Tensor, y: Tensor) -> Tensor:
        assert out.ndim == 4
        p = out.softmax(1)[:, 1]
        overlap = 2 * (p * y).sum((1, 2)) + 1
        return 1 - overlap / (p.sum((1, 2)) + y.sum((1, 2)) + 1)

    model = nn.Conv2d(1, 2, 1, dtype=torch.float64)
    image = X.reshape(6, 1, 2, 5)
    masks = (image[:, 0] > 0).long()
    losses, mean = judged(dice, model, (image, masks))
    each = dice(model(image), masks).detach()
    torch.testing.assert_close(losses, each.repeat_interleave(10))
    torch.testing.assert_close(mean, each.mean())


def test_a_loss_of_the_whole_batch_is_shared_out() -> None:
    """A contrastive loss of one example alone is 0: all that is known is the mean."""

    def contrastive(out: Tensor, _y: Tensor) -> Tensor:
        z = F.normalize(out, dim=1)
        return F.cross_entropy(z @ z.T, torch.arange(len(z)))

    model = head(3)
    losses, mean = judged(contrastive, model, (X, CLASSES))
    own = contrastive(model(X), CLASSES).detach()
    torch.testing.assert_close(losses, own.expand(6))
    torch.testing.assert_close(mean, own)


def test_a_broken_output_breaks_the_loss_of_its_own_example_only() -> None:
    x = X.clone()
    x[2, 0] = float("nan")
    for loss in (nn.CrossEntropyLoss(label_smoothing=0.1), lambda out, y: F.cross_entropy(out, y)):
        losses, mean = judged(loss, head(3), (x, CLASSES))
        assert losses.isnan().tolist() == [False, False, True, False, False, False]
        assert mean.isnan()


def test_an_ignored_class_of_the_loss_s_own() -> None:
    model, targets = head(3), CLASSES.clone()
    targets[1] = 7
    loss = nn.CrossEntropyLoss(ignore_index=7)
    task = tried(None, model, (X, targets), loss).task
    found = task.outputs(model, (X, targets))
    assert found.example.tolist() == [0, 2, 3, 4, 5]
    assert found.losses is not None
    torch.testing.assert_close(found.losses.mean(), loss(model(X), targets))


def test_sums_are_labelled_since_they_depend_on_the_batch() -> None:
    model, targets = head(3), TARGETS["numbers"]
    task = tried(None, model, (X, targets), nn.MSELoss(reduction="sum")).task
    losses = task.outputs(model, (X, targets)).losses
    torch.testing.assert_close(losses, ((model(X) - targets) ** 2).sum(1))
    assert task.chosen_loss is not None
    assert task.chosen_loss.label == "MSELoss, sum over each position"


@pytest.mark.parametrize(
    "task", [TupleTask(loss=nn.L1Loss()), DictTask("x", "y", loss=nn.L1Loss()), HuggingFaceTask(loss=nn.L1Loss())]
)
def test_a_task_may_be_made_with_a_loss(task: Task) -> None:
    assert task.chosen_loss is not None
    logits, targets = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 5.0]])
    assert task.losses(logits, targets).tolist() == [2.0]


@pytest.mark.parametrize("wrong", ["mse", 3, nn.MSELoss])
def test_what_is_no_loss_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"loss=.* is no function of \(outputs, targets\)"):
        given_loss(wrong)


def test_a_loss_that_gives_no_tensor_or_a_wrong_shape_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"loss= gave a float.*not its .item"):
        tried(None, head(3), (X, CLASSES), lambda out, y: 0.5)
    with pytest.raises(TypeError, match=r"loss= gave shape \[2\] for 6 examples"):
        tried(None, head(3), (X, CLASSES), lambda out, y: torch.zeros(2))


def test_a_loss_beside_a_task_with_losses_of_its_own_is_refused() -> None:
    class Mine(TupleTask):
        def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
            return logits[:, 0]

    with pytest.raises(ValueError, match="Mine has losses"):
        tried(Mine(), head(3), (X, CLASSES), nn.MSELoss())
    known = tried(Mine(), head(3), (X, CLASSES)).task.chosen_loss
    assert known is not None
    assert (known.name, known.certainty) == ("Mine.losses", "known")


def test_the_caller_s_task_is_not_changed() -> None:
    mine = TupleTask()
    assert tried(mine, head(3), (X, CLASSES), nn.MultiMarginLoss()).task.chosen_loss is not None
    assert mine.chosen_loss is None


def test_results_are_kept_apart_by_the_loss_s_weights() -> None:
    digests = {
        task_content(TupleTask(loss=nn.CrossEntropyLoss(weight=w))) for w in (WEIGHTS, WEIGHTS.clone(), -WEIGHTS)
    }
    assert len(digests) == 2


def test_results_of_equal_tasks_are_shared_between_processes() -> None:
    """What a digest is made of has no addresses."""
    for loss in (nn.MSELoss(), F.smooth_l1_loss, None):
        task = tried(None, head(3), (X, TARGETS["numbers"]), loss).task
        seen: list[str] = []

        class Digest:
            def update(self, data: Any) -> None:
                seen.append(bytes(data).decode(errors="replace"))  # noqa: B023

        content._value(Digest(), dict(task.__dict__))
        assert " at 0x" not in "".join(seen)


def test_a_frozen_task_is_tried_as_well() -> None:
    @dataclass(frozen=True)
    class Frozen(TupleTask):
        inputs: int = 1
        spread: bool = False

    assert tried(Frozen(), head(3), (X, CLASSES)).task.chosen_loss is not None


# a number that a loop logged


LOOPS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "mse": (lambda out, y: F.mse_loss(out, y), SQUARED),
    "bce of logits": (lambda out, y: F.binary_cross_entropy_with_logits(out, y), BINARY),
    "l1": (lambda out, y: (out - y).abs().mean(), "absolute error"),
    "smooth l1": (lambda out, y: F.smooth_l1_loss(out, y), SMOOTH),
    "soft classes": (lambda out, y: -(y * out.log_softmax(1)).sum(1).mean(), CROSS_ENTROPY),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_loss_that_agrees_is_found(loop: str) -> None:
    function, name = LOOPS[loop]
    out, y = head(3)(X).detach(), TARGETS["numbers"].softmax(1)
    assert agreeing(out, y, float(function(out, y)))[0] == name
    assert agreeing(out, y, 1.001 * float(function(out, y)))[0] is None


def test_probabilities_and_logits_are_told_apart() -> None:
    p, y = torch.rand(50, generator=torch.Generator().manual_seed(0)), (X[:, 0] > 0).float().repeat(9)[:50]
    for function, name in ((F.binary_cross_entropy, BINARY_OF_PROBABILITIES),
                           (F.binary_cross_entropy_with_logits, BINARY), (F.mse_loss, SQUARED)):  # fmt: skip
        for targets in (y, y.long()) if name != SQUARED else (y,):
            assert agreeing(p, targets, float(function(p, y)))[0] == name


def test_of_classes_only_cross_entropy_comes_into_question() -> None:
    assert candidates(torch.randn(4, 3), torch.tensor([0, 1, 2, 0])) == [CROSS_ENTROPY]
    assert candidates(torch.tensor([-3.0]), torch.tensor([0])) == [BINARY]


# the graph of a loss


def graphs() -> dict[str, tuple[Tensor, tuple[str, bool] | None]]:
    model = head(3)
    out, y = model(X), TARGETS["numbers"]
    p = out.sigmoid()
    return {
        "mse": (F.mse_loss(out, y), (SQUARED, True)),
        "bce": (F.binary_cross_entropy_with_logits(out, y), (BINARY, True)),
        "bce of p": (F.binary_cross_entropy(p, y), (BINARY_OF_PROBABILITIES, True)),
        "ce": (F.cross_entropy(out, CLASSES), (CROSS_ENTROPY, True)),
        "nll": (F.nll_loss(out.log_softmax(1), CLASSES), (CROSS_ENTROPY, True)),
        "smooth": (F.smooth_l1_loss(out, y), (SMOOTH, True)),
        "cast": (F.mse_loss(out, y).float(), (SQUARED, True)),
        "smooth, other width": (F.smooth_l1_loss(out, y, beta=0.1), (SMOOTH, False)),
        "sum": (F.mse_loss(out, y, reduction="sum"), (SQUARED, False)),
        "accumulated": (F.mse_loss(out, y) / 4, (SQUARED, False)),
        "weighted": (F.cross_entropy(out, CLASSES, weight=WEIGHTS), (CROSS_ENTROPY, False)),
        "pos_weight": (F.binary_cross_entropy_with_logits(out, y, pos_weight=WEIGHTS), (BINARY, False)),
        "nll of anything": (F.nll_loss(out, CLASSES), None),
        "two terms": (F.mse_loss(out, y) + 0.1 * out.mean(), None),
        "by hand": ((out - y).square().mean(), None),
        "smoothed labels": (F.cross_entropy(out, CLASSES, label_smoothing=0.1), None),
        "no graph": (torch.tensor(1.0), None),
    }


@pytest.mark.parametrize("name", list(graphs()))
@pytest.mark.parametrize("after_backward", [False, True])
def test_the_graph_tells_the_loss(name: str, after_backward: bool) -> None:
    loss, wanted = graphs()[name]
    if after_backward and loss.grad_fn is not None:
        loss.backward()  # type: ignore[no-untyped-call]
    assert loss_of_graph(loss) == wanted


def test_ignored_targets_do_not_hide_the_loss_in_the_graph() -> None:
    targets = CLASSES.clone()
    targets[0] = IGNORE
    assert loss_of_graph(F.cross_entropy(head(3)(X), targets)) == (CROSS_ENTROPY, True)


def test_a_factor_of_one_leaves_the_loss_what_it_is() -> None:
    """Trainers divide by the number of micro-batches; before the backward the graph tells by what."""
    loss = F.mse_loss(head(3)(X), torch.zeros(6, 3, dtype=torch.float64))
    assert loss_of_graph(loss / 1) == (SQUARED, True)
    assert loss_of_graph(loss / 3 * 3) == (SQUARED, True)
    assert loss_of_graph(loss / 3) == (SQUARED, False)
    assert loss_of_graph(loss * 2) == (SQUARED, False)
    assert loss_of_graph(loss / 0) == (SQUARED, False)
    scaled = loss / 1
    scaled.backward()  # type: ignore[no-untyped-call]
    assert loss_of_graph(scaled) == (SQUARED, False), "what it was divided by is freed"
