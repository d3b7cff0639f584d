"""The moment that a probe is given: a lazy, read-only view of a model in training.

What two probes ask for at the same moment is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from learnscope.core.subject import Subject
from learnscope.model.features.pooling import Pooling
from learnscope.model.features.vectors import Features, pooled_features
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import Evaluation, evaluate
from learnscope.model.weights.content import data_content, machine, model_content, task_content
from learnscope.model.weights.snapshot import Snapshot
from learnscope.model.weights.swap import swapped
from learnscope.progress import tracked
from learnscope.store.memo import Memo
from learnscope.task import Task
from learnscope.tensor.gradients.gradient import GradientTable, gradient_statistics

T = TypeVar("T")


class NotAvailable(LookupError):
    """A probe asked for something that this moment does not have; the message says how to give it."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of one step and what is known about them.

    `table` holds statistics per parameter of `names`, taken before clipping where a clip was seen;
    `coefficients` is what clipping multiplied each by (None: no clip was seen).
    """

    names: Sequence[str]
    positions: Sequence[int]
    tensors: Sequence[Tensor]
    missing: Sequence[str]
    table: GradientTable
    coefficients: Tensor | None = None
    scale: float | Tensor = 1.0
    origin: str = "accumulated"


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Squared gradient norms of the micro-batches of one step, and of their sum, all in the same units."""

    sum_squares: Sequence[Tensor]
    accumulated: Tensor
    sizes: Sequence[float] | None
    """Examples or tokens in each, where the loop said so."""


@dataclass(frozen=True, slots=True)
class Examples:
    """A batch that the loop has run: ids, its own logits and targets, and what else it handed over."""

    ids: Any
    logits: Tensor
    targets: Tensor
    inputs: Any = None
    """What the model was given, or the whole batch: ids that come back with other inputs are noticed by it."""
    groups: Any = None
    """The group of each example, numbers or names; without, its class."""


@dataclass(slots=True, kw_only=True)
class Moment:
    """One look at a model: the step, the weights, and whatever the source can give about them."""

    step: int
    phase: str
    source: str
    subject: Subject
    epoch: int | None = None
    state: dict[str, Any] = field(default_factory=dict)
    """The probe's own small memory, kept and saved by the session."""
    logged: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    micro_batches: MicroBatches | None = None
    take_gradients: Callable[[], Gradients] | None = None
    cache: dict[Any, Any] = field(default_factory=dict)
    memo: Memo | None = None
    """Results of earlier examinations of the same weights on the same data."""
    show_progress: bool = False
    sealed: bool = False
    """Set while weights are exchanged: what is not computed yet must not be computed from a variant."""

    @property
    def model(self) -> nn.Module:
        return self.subject.model

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return self.subject.optimizers

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        if not self.subject.optimizers:
            raise NotAvailable("this source has no optimizer: pass one to ls.watch(model, optimizer)")
        return self.subject.optimizers[0]

    @property
    def task(self) -> Task:
        if self.subject.task is None:
            raise NotAvailable("no task is known: pass task=, or data from which it can be recognised")
        return self.subject.task

    @property
    def gradients(self) -> Gradients:
        """The gradients with their statistics, computed once for all probes."""
        if self.take_gradients is None:
            raise NotAvailable(f"there are no gradients at {self.phase!r}: use at='before_step'")
        return self.once("gradients", self.take_gradients)

    @property
    def grads(self) -> dict[str, Tensor]:
        """The gradients by parameter name, unscaled, as the optimizer will use them."""
        found = self.gradients
        if isinstance(found.scale, float) and found.scale == 1.0:
            return dict(zip(found.names, found.tensors, strict=True))
        return {name: g / found.scale for name, g in zip(found.names, found.tensors, strict=True)}

    @property
    def previous(self) -> Snapshot:
        """The weights at this probe's last measurement."""
        if self.snapshot is None:
            raise NotAvailable("no previous weights are kept: declare needs = frozenset({'previous'})")
        return self.snapshot

    @property
    def holdout(self) -> Evaluation:
        """Outputs on the fixed holdout batches."""
        return self.once("holdout", lambda: self._evaluate("holdout"))

    @property
    def train_data(self) -> Sequence[Any]:
        return self._data("train_data")

    @property
    def test_data(self) -> Sequence[Any]:
        return self._data("test_data")

    @property
    def batch(self) -> Any:
        """What the loop passed to `w.batch(...)` for this step."""
        return self._given("batch", "call w.batch(batch) in the loop")

    @property
    def examples(self) -> Any:
        """What the loop passed to `w.examples(ids, logits, targets)` for this step: these three."""
        return self._given("examples", "call w.examples(ids, logits, targets) in the loop")

    @property
    def all_examples(self) -> Sequence[Examples]:
        """All that it passed, for each micro-batch of the step, in order."""
        found: Sequence[Examples] = self._given("all_examples", "call w.examples(ids, logits, targets) in the loop")
        return found

    def holdout_batches(self, examples: int) -> list[Any]:
        """The first so many examples of the holdout batches, for what runs the model more than once."""
        taken, left = [], examples
        for batch in self._data("holdout"):
            if left <= 0:
                break
            taken.append(self.task.take(batch, left))
            left -= self.task.size(batch)
        return taken

    def features(self, *layers: str) -> dict[str, Tensor]:
        """Outputs of the named layers on the holdout batches."""
        key = ("features", layers)
        return self.once(key, lambda: self._evaluate("holdout", layers)).features

    def pooled_features(self, *layers: str, examples: int, pooling: Pooling = "mean") -> Features:
        """One vector for each of the first holdout examples from each layer; sequences are pooled on the way."""
        key = ("pooled features", layers, examples, pooling)
        batches = self.holdout_batches(examples)
        return self.once(key, lambda: pooled_features(self.model, self.task, batches, layers, pooling))

    @contextmanager
    def exchanged(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """The model with other weights, under the guard; this moment is sealed meanwhile."""
        with guard(self.model), swapped(self.model, weights), self.sealing():
            yield

    @contextmanager
    def sealing(self) -> Iterator[None]:
        """While weights are not the model's own: what is not computed yet cannot be computed from a variant."""
        self.sealed = True
        try:
            yield
        finally:
            self.sealed = False

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """`compute()`, the first time at this moment; the same object for every later asker."""
        if key not in self.cache:
            if self.sealed:
                raise NotAvailable(f"{key} was not computed before the weights were exchanged: ask for it first")
            self.cache[key] = compute()
        value: T = self.cache[key]
        return value

    def remember(
        self, part: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]], *, on_this_machine: bool = False
    ) -> dict[str, Any]:
        """`compute()`, unless it is known for these weights and data: plain numbers, text, lists and dictionaries.

        `part` says all else that the result depends on. Times are known for this machine and thread count only.
        """
        if self.sealed:
            raise NotAvailable(f"{part} was asked for while the weights were exchanged: ask outside")
        if self.memo is None:
            return dict(compute())
        of = self.once("content", self._content)
        return self.memo.once({**of, **(machine() if on_this_machine else {}), "part": part}, compute)

    def track(self, items: Sequence[T], title: str) -> Iterator[T]:
        """The items one by one, with a progress bar where the session shows any."""
        return tracked(items, title, show=self.show_progress)

    def _content(self) -> dict[str, str]:
        given = {name: getattr(self.subject, name) for name in ("holdout", "train_data", "test_data")}
        return {
            "model": model_content(self.model),
            "task": task_content(self.subject.task),
            "torch": torch.__version__,
            **{name: data_content(batches) for name, batches in given.items() if batches is not None},
        }

    def _data(self, which: str) -> Sequence[Any]:
        data: Sequence[Any] | None = getattr(self.subject, which)
        if data is None:
            raise NotAvailable(f"no {which} was given: pass {which.removesuffix('_data')}= when opening the session")
        return data

    def _evaluate(self, which: str, layers: Sequence[str] = ()) -> Evaluation:
        return evaluate(self.model, self.task, self._data(which), layers)

    def _given(self, what: str, cure: str) -> Any:
        if what not in self.given:
            raise NotAvailable(f"no {what} was given for step {self.step}: {cure}")
        return self.given[what]


def read_gradients(
    subject: Subject,
    found: Mapping[int, Tensor],
    *,
    scale: float | Tensor = 1.0,
    coefficients: Tensor | None = None,
    origin: str = "accumulated",
) -> Gradients:
    """Statistics of the gradients `found`, by position among the subject's parameters."""
    positions = sorted(found)
    missing = [
        name
        for position, (name, p) in enumerate(zip(subject.names, subject.parameters, strict=True))
        if p.requires_grad and position not in found
    ]
    tensors = [found[position] for position in positions]
    return Gradients(
        [subject.names[position] for position in positions],
        positions,
        tensors,
        missing,
        gradient_statistics(tensors),
        coefficients,
        scale,
        origin,
    )


def standing_gradients(subject: Subject) -> Gradients:
    """Those that stand beside the weights: after the step as before it, until they are cleared."""
    return read_gradients(subject, {i: p.grad for i, p in enumerate(subject.parameters) if p.grad is not None})
