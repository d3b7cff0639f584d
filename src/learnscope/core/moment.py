"""The moment that a probe is given: a read-only view of a model in training, which computes each result once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from learnscope.core.gradients import Gradients
from learnscope.core.handed import Examples, HandedOver, MicroBatches
from learnscope.core.subject import Subject
from learnscope.model.features.pooling import Features, Pooling, pooled_features
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import Evaluation, evaluate
from learnscope.model.weights.content import machine
from learnscope.model.weights.snapshot import Snapshot
from learnscope.model.weights.swap import swapped
from learnscope.progress import tracked
from learnscope.task import Task

T = TypeVar("T")


class NotAvailable(LookupError):
    """A probe asked for something that this moment does not have; the message says how to provide it."""


class Cache(dict[Any, Any]):
    sealed = False  # True while weights are exchanged


@dataclass(slots=True, kw_only=True)
class Moment:
    """A model at one step, with whatever the source can provide about it."""

    step: int
    phase: str
    source: str
    subject: Subject
    epoch: int | None = None
    state: dict[str, Any] = field(default_factory=dict)  # the probe's own, saved by the session
    handed: HandedOver = field(default_factory=HandedOver)
    snapshot: Snapshot | None = None
    take_gradients: Callable[[], Gradients] | None = None
    cache: Cache = field(default_factory=Cache)

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
        """The gradients with their statistics."""
        if self.take_gradients is None:
            raise NotAvailable(f"there are no gradients at {self.phase!r}: use at='before_step'")
        return self.once("gradients", self.take_gradients)

    @property
    def grads(self) -> dict[str, Tensor]:
        """The gradients by parameter name, unscaled, as the optimizer will use them."""
        return self.gradients.by_name()

    @property
    def logged(self) -> Mapping[str, Sequence[Any]]:
        """Numbers that the loop passed to `w.log(...)` for this step, by name."""
        return self.handed.logged

    @property
    def micro_batches(self) -> MicroBatches | None:
        """Gradient norms of this step's micro-batches, where there were several and a probe uses them."""
        return self.handed.micro_batches

    @property
    def previous(self) -> Snapshot:
        """The weights at this probe's last measurement."""
        if self.snapshot is None:
            raise NotAvailable("no previous weights are kept: declare needs = frozenset({'previous'})")
        return self.snapshot

    @property
    def holdout(self) -> Evaluation:
        """Outputs on the fixed holdout batches."""
        return self.once("holdout", self._evaluate)

    @property
    def train_data(self) -> Sequence[Any]:
        return self._data("train_data")

    @property
    def test_data(self) -> Sequence[Any]:
        return self._data("test_data")

    @property
    def batch(self) -> Any:
        """What the loop passed to `w.batch(...)` for this step."""
        self._check_handed("batch", "w.batch(batch)")
        return self.handed.batch

    @property
    def examples(self) -> Any:
        """What the loop passed to `w.examples(ids, logits, targets)` for this step: these three."""
        last = self.all_examples[-1]
        return last.ids, last.logits, last.targets

    @property
    def all_examples(self) -> Sequence[Examples]:
        """All that it passed, for each micro-batch of the step, in order."""
        self._check_handed("examples", "w.examples(ids, logits, targets)")
        return self.handed.examples

    def holdout_batches(self, examples: int) -> list[Any]:
        """The first `examples` examples of the holdout batches, for probes that run the model more than once."""
        batches, left = [], examples
        for batch in self._data("holdout"):
            if left > 0:
                batches.append(self.task.take(batch, left))
            left -= self.task.size(batch)
        return batches

    def features(self, *layers: str) -> dict[str, Tensor]:
        """Outputs of the named layers on the holdout batches."""
        return self.once(("features", layers), lambda: self._evaluate(layers)).features

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
        """While weights are exchanged, nothing new can be computed."""
        self.cache.sealed = True
        try:
            yield
        finally:
            self.cache.sealed = False

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """`compute()`, called once for this moment; later calls return the same object."""
        if key not in self.cache:
            if self.cache.sealed:
                raise NotAvailable(f"{key} was not computed before the weights were exchanged: ask for it first")
            self.cache[key] = compute()
        return cast(T, self.cache[key])

    def remember(
        self, part: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]], *, on_this_machine: bool = False
    ) -> dict[str, Any]:
        """`compute()`, a JSON-able result, unless it is stored for these weights, these data and this `part`."""
        if self.cache.sealed:
            raise NotAvailable(f"{part} was asked for while the weights were exchanged: ask outside")
        memo = self.subject.memo
        if memo is None:
            return dict(compute())
        content = self.once("content", self.subject.content) | (machine() if on_this_machine else {})
        return memo.once({**content, "part": part}, compute)

    def track(self, items: Sequence[T], title: str) -> Iterator[T]:
        """The items one by one, with a progress bar where the session shows any."""
        return tracked(items, title, show=self.subject.show_progress)

    def _data(self, which: str) -> Sequence[Any]:
        if (data := getattr(self.subject, which)) is None:
            raise NotAvailable(f"no {which} was given: pass {which.removesuffix('_data')}= when opening the session")
        return cast(Sequence[Any], data)

    def _evaluate(self, layers: Sequence[str] = ()) -> Evaluation:
        return evaluate(self.model, self.task, self._data("holdout"), layers)

    def _check_handed(self, what: str, call: str) -> None:
        if what not in self.handed.needs_met():
            raise NotAvailable(f"no {what} was given for step {self.step}: call {call} in the loop")
