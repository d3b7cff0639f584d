"""Every form of batch and model that is recognised, its losses against formulas in float64, and what is refused."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learnscope.task import IGNORE, HuggingFaceTask, OwnLossTask, Task, TupleTask
from learnscope.task.losses import BINARY, BINARY_OF_PROBABILITIES, CROSS_ENTROPY, SQUARED
from learnscope.task.trial import tried

Floats = NDArray[np.float64]
X = torch.arange(60.0).reshape(6, 10).sin()
CLASSES = torch.tensor([2, 0, 1, 2, 1, 0])
VOCABULARY, LENGTH = 11, 5


def cross_entropies(logits: Tensor, targets: Tensor) -> Floats:
    z, y = logits.detach().double().numpy(), targets.numpy()
    top = z.max(1, keepdims=True)
    return np.asarray(np.log(np.exp(z - top).sum(1)) + top[:, 0] - z[np.arange(len(y)), y])


def binary_entropies(logits: Tensor, targets: Tensor) -> Floats:
    z, y = logits.detach().double().numpy(), targets.double().numpy()
    each = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
    return np.asarray(each.reshape(len(each), -1).mean(1))


def squared_errors(logits: Tensor, targets: Tensor) -> Floats:
    error = (logits.detach().double().numpy() - targets.double().numpy()) ** 2
    return np.asarray(error.reshape(len(error), -1).mean(1))


def losses_of(task: Task, model: nn.Module, batch: Any) -> Floats:
    found = task.outputs(model, batch).losses
    assert found is not None
    return found.detach().double().numpy()


def near(task: Task, model: nn.Module, batch: Any, wanted: Floats) -> None:
    """Each position's loss, and the mean by the other way of computing it."""
    np.testing.assert_allclose(losses_of(task, model, batch), wanted, rtol=2e-5, atol=1e-7)
    assert task.loss(model, batch).item() == pytest.approx(wanted.mean(), rel=2e-5)


class Head(nn.Module):
    """A linear map, whose output is dressed up as `form` does it."""

    def __init__(self, outputs: int = 3, form: Callable[[Tensor], Any] = lambda out: out) -> None:
        super().__init__()
        torch.manual_seed(outputs)
        self.map, self.form = nn.Linear(10, outputs), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.map(x))


@dataclass
class Answer:
    features: Tensor
    logits: Tensor


Pair = namedtuple("Pair", ["loss", "scores"])
OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda out: out,
    "tuple": lambda out: (out, out.exp()),
    "loss in front": lambda out: (out.mean(), out),
    "dictionary": lambda out: {"hidden": out.exp(), "logits": out},
    "out": lambda out: {"aux": out.exp(), "out": out},
    "only one": lambda out: {"whatever": out, "loss": out.mean()},
    "object": lambda out: SimpleNamespace(logits=out, other=1),
    "dataclass": lambda out: Answer(out.exp(), out),
    "named tuple": lambda out: Pair(out.mean(), out),
}


@pytest.mark.parametrize("form", OUTPUTS)
def test_outputs_of_every_form(form: str) -> None:
    model = Head(3, OUTPUTS[form])
    task = tried(None, model, (X, CLASSES)).task
    near(task, model, (X, CLASSES), cross_entropies(model.map(X), CLASSES))
    assert task.chosen_loss is not None
    assert (task.chosen_loss.name, task.chosen_loss.certainty) == (CROSS_ENTROPY, "usual")


def test_two_unnamed_outputs_are_refused_rather_than_guessed() -> None:
    with pytest.raises(TypeError, match=r"(?s)no logits in the model's output, dict \{'a'.*task=MyTask\(\)"):
        tried(None, Head(3, lambda out: {"a": out, "b": out}), (X, CLASSES))


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.map = nn.Linear(10, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.map((x - y).abs())
        return out


class SiameseByDefault(Siamese):
    def forward(self, img1: Tensor, img2: Tensor | None = None) -> Tensor:
        return super().forward(img1, torch.zeros_like(img1) if img2 is None else img2)


class SiameseOfAny(Siamese):
    def forward(self, *images: Tensor) -> Tensor:  # type: ignore[override]
        first, second = images
        return super().forward(first, second)


@pytest.mark.parametrize("kind", [Siamese, SiameseByDefault, SiameseOfAny])
def test_two_inputs_and_a_target(kind: type[Siamese]) -> None:
    model, other = kind(), X.flip(0)
    wanted = cross_entropies(model.map((X - other).abs()), CLASSES)
    batch = (X, other, CLASSES)
    task = tried(None, model, batch).task
    near(task, model, batch, wanted)
    assert task.ids(batch) is None
    targets = task.targets(task.take(batch, 2))
    assert targets is not None
    assert targets.tolist() == [2, 0]


def test_two_inputs_with_ids_nested_and_by_name() -> None:
    model, other = Siamese(), X.flip(0)
    wanted = cross_entropies(model(X, other), CLASSES)
    with_ids = (X, other, CLASSES, torch.arange(6))
    task = tried(None, model, with_ids).task
    near(task, model, with_ids, wanted)
    ids = task.ids(with_ids)
    assert ids is not None
    assert ids.tolist() == list(range(6))
    for nested in (((X, other), CLASSES), [[X, other], CLASSES], ({"x": X, "y": other}, CLASSES)):
        near(tried(None, model, nested).task, model, nested, wanted)
    named = {"label": CLASSES, "x": X, "other": other}
    model.forward = lambda other, x: Siamese.forward(model, x, other)  # type: ignore[method-assign]
    near(tried(None, model, named).task, model, named, wanted)


def test_ids_are_still_ids_for_a_model_of_one_input() -> None:
    batch = (X, CLASSES, torch.arange(6))
    task = tried(None, Head(), batch).task
    assert isinstance(task, TupleTask)
    assert task.inputs == 1


class Language(nn.Module):
    """A model in the manner of nanoGPT: with targets all positions and the loss, without them the last position."""

    def __init__(self, *, shift: bool = False, penalty: float = 0.0, ignored: int = -1) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)
        self.drop = nn.Dropout(0.5)
        self.shift, self.penalty, self.ignored = shift, penalty, ignored

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        hidden = self.drop(self.embed(idx)).cumsum(1)
        if targets is None:
            return self.head(hidden[:, [-1]]), None
        logits: Tensor = self.head(hidden)
        used, wanted = (logits[:, :-1], targets[:, 1:]) if self.shift else (logits, targets)
        loss = nn.functional.cross_entropy(
            used.reshape(-1, VOCABULARY), wanted.reshape(-1), ignore_index=self.ignored
        )  # fmt: skip
        return logits, loss + self.penalty


def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, VOCABULARY, (6, LENGTH + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:].contiguous()


@pytest.mark.parametrize("ignored", [-1, IGNORE])
def test_a_model_that_takes_targets_and_returns_logits_and_loss(ignored: int) -> None:
    model, (idx, targets) = Language(ignored=ignored).eval(), tokens()
    targets[0, 2:] = ignored
    kept = targets.reshape(-1) >= 0
    logits, loss = model(idx, targets)
    wanted = cross_entropies(logits.reshape(-1, VOCABULARY)[kept], targets.reshape(-1)[kept])
    assert loss.item() == pytest.approx(wanted.mean(), rel=1e-5)
    task = tried(None, model, (idx, targets)).task
    assert isinstance(task, OwnLossTask)
    near(task, model, (idx, targets), wanted)
    assert task.outputs(model, (idx, targets)).example.bincount().tolist() == [2, 5, 5, 5, 5, 5]
    assert task.chosen_loss is not None
    assert task.chosen_loss.certainty == "known"


def test_a_model_that_shifts_its_targets_itself() -> None:
    model, (idx, _) = Language(shift=True).eval(), tokens()
    logits, _ = model(idx, idx)
    wanted = cross_entropies(logits[:, :-1].reshape(-1, VOCABULARY), idx[:, 1:].reshape(-1))
    near(tried(None, model, (idx, idx)).task, model, (idx, idx), wanted)


def test_a_model_whose_loss_has_another_term_keeps_it() -> None:
    model, (idx, targets) = Language(penalty=0.7).eval(), tokens()
    logits, loss = model(idx, targets)
    own = cross_entropies(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
    near(tried(None, model, (idx, targets)).task, model, (idx, targets), own * (loss.item() / own.mean()))


def test_inputs_alone_have_no_loss() -> None:
    idx, _ = tokens()
    for batch in (idx, (idx,)):
        task = tried(None, Language().eval(), batch).task
        assert task.outputs(Language().eval(), batch).losses is None


class Tagger(nn.Module):
    """Takes labels by name and returns a dictionary; its class tells nothing."""

    def __init__(self, *, shift: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.shift = Language(), shift

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.body.head(self.body.embed(input_ids).cumsum(1))
        if labels is None:
            return {"logits": logits}
        used, wanted = (logits[:, :-1], labels[:, 1:]) if self.shift else (logits, labels)
        loss = nn.functional.cross_entropy(used.reshape(-1, VOCABULARY), wanted.reshape(-1))
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("shift", [False, True])
def test_labels_in_a_dictionary_are_aligned_as_the_model_s_own_loss_is(shift: bool) -> None:
    model, (idx, labels) = Tagger(shift=shift).eval(), tokens()
    labels[1, 1:3] = IGNORE
    batch = {"input_ids": idx, "labels": labels}
    logits = model(idx)["logits"]
    used, wanted = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
    kept = wanted.reshape(-1) != IGNORE
    task = tried(None, model, batch).task
    assert isinstance(task, HuggingFaceTask)
    near(task, model, batch, cross_entropies(used.reshape(-1, VOCABULARY)[kept], wanted.reshape(-1)[kept]))
    assert task.chosen_loss is not None
    assert task.chosen_loss.certainty == "known"


def test_several_labels_as_integers_and_as_floats() -> None:
    model, generator = Head(4), torch.Generator().manual_seed(1)
    labels = (torch.rand(6, 4, generator=generator) > 0.5).long()
    task = tried(None, model, (X, labels)).task
    single = binary_entropies(model(X).reshape(-1, 1), labels.reshape(-1, 1))
    near(task, model, (X, labels), single)  # each label is a position of its own
    task = tried(None, model, (X, labels.float())).task
    near(task, model, (X, labels.float()), binary_entropies(model(X), labels))
    assert task.chosen_loss is not None
    assert (task.chosen_loss.name, task.chosen_loss.label) == (BINARY, BINARY)  # only a guess, and so labelled


def test_yes_or_no_as_floats_of_a_model_with_probabilities() -> None:
    model, answers = Head(1, torch.sigmoid), torch.tensor([1.0, 0, 1, 1, 0, 0])[:, None]
    task = tried(None, model, (X, answers)).task
    near(task, model, (X, answers), binary_entropies(model.map(X), answers))
    assert task.chosen_loss is not None
    assert task.chosen_loss.label == BINARY_OF_PROBABILITIES


@pytest.mark.parametrize(("outputs", "targets"), [((6, 1), (6,)), ((6,), (6, 1)), ((6, 1), (6, 1)), ((6,), (6,))])
def test_numbers_are_compared_one_by_one_with_a_warning_against_broadcasting(outputs: Any, targets: Any) -> None:
    model = Head(1, lambda out: out.reshape(-1, *outputs[1:]))
    values = torch.linspace(-2, 3, 6).reshape(targets)
    trial = tried(None, model, (X, values))
    near(trial.task, model, (X, values), squared_errors(model(X).reshape(-1), values.reshape(-1)))
    assert ("compare all with all" in trial.warning) == (outputs != targets)
    assert trial.task.chosen_loss is not None
    assert trial.task.chosen_loss.label == SQUARED


def test_images_and_tokens_that_do_not_count() -> None:
    model = nn.Conv2d(1, 3, 1)
    image, classes = X.reshape(6, 1, 2, 5), torch.arange(60).reshape(6, 2, 5) % 3
    classes[0] = IGNORE
    kept = classes.reshape(-1) != IGNORE
    flat = model(image).movedim(1, -1).reshape(-1, 3)
    near(tried(None, model, (image, classes)).task, model, (image, classes),
         cross_entropies(flat[kept], classes.reshape(-1)[kept]))  # fmt: skip


def test_a_refusal_says_what_was_tried_and_what_to_write() -> None:
    class Three(nn.Module):
        def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            return a + b + c

    for model, batch in [
        (Three(), (X, CLASSES)),
        (Head(3), (X, torch.rand(6, 2))),
        (Head(3), ({"z": X}, CLASSES)),
        (Head(3, lambda out: out.mean()), X),
    ]:
        with pytest.raises(TypeError) as caught:
            tried(None, model, batch)
        text = str(caught.value)
        for part in ("task=MyTask()", "class MyTask(learnscope.Task)", "def logits(self, model, batch)", "def targets"):
            assert part in text
        assert f"{type(model).__name__}" in text
        assert "Tensor[6, 10] float32" in text


def test_one_example_is_no_batch() -> None:
    with pytest.raises(TypeError, match="a single example: pass a data set or a loader"):
        tried(None, Head(3), (X[0], CLASSES[0]))


def test_a_task_may_flatten_its_examples() -> None:
    class Flat(TupleTask):
        def logits(self, model: nn.Module, batch: Any) -> Tensor:
            return super().logits(model, batch).reshape(-1, VOCABULARY)

        def targets(self, batch: Any) -> Tensor:
            return batch[1].reshape(-1)  # type: ignore[no-any-return]

    model, (idx, targets) = nn.Embedding(VOCABULARY, VOCABULARY), tokens()
    wanted = cross_entropies(model(idx).reshape(-1, VOCABULARY), targets.reshape(-1))
    near(tried(Flat(), model, (idx, targets)).task, model, (idx, targets), wanted)


def test_a_task_of_the_user_s_is_tried_too() -> None:
    class Wrong(Task):
        def logits(self, model: nn.Module, batch: Any) -> Tensor:
            return model(batch["picture"])  # type: ignore[no-any-return]

    with pytest.raises(TypeError, match=r"task=Wrong\(\) does not work for Head on dict.*KeyError: 'picture'"):
        tried(Wrong(), Head(3), {"image": X})
