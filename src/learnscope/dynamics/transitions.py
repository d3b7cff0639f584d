"""Which training examples were critical for a transition between two checkpoints."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learnscope.core.moment import NotAvailable
from learnscope.findings.examples.critical import Attributions, CriticalExamples, analyze, critical_examples
from learnscope.model.data import fixed_batches
from learnscope.model.examples.attribution import Attribution, tracin, transition_scores
from learnscope.model.examples.groups import BatchesWithMetadata, Metadata
from learnscope.model.examples.per_example import MAX_BYTES
from learnscope.model.examples.trak import trak
from learnscope.model.guard import preserve_rng
from learnscope.model.sharded import refuse_sharded
from learnscope.model.weights.checkpoint import load_into, memory_of, read_weights
from learnscope.options import explain_options, known_name, whole_number
from learnscope.progress import progress_bar
from learnscope.report.examples.transitions import plot_attributions
from learnscope.session.opening import check_model
from learnscope.task import Task, task_for

KIND = "PhaseTransitionAttributor"
METHODS = ("transition", "tracin", "trak")
NO_TARGET = "no target that counts, or a loss or gradient that is not finite"


class PhaseTransitionAttributor:
    """Scores of training examples between two checkpoints, by the id of an example or its position in the data set.

    >>> import copy, torch
    >>> before = nn.Linear(4, 2)
    >>> after = copy.deepcopy(before)
    >>> _ = after.weight.data.mul_(3.0)
    >>> data = torch.utils.data.TensorDataset(torch.randn(50, 4), torch.arange(50) % 2)
    >>> attributor = PhaseTransitionAttributor({10: before, 40: after}, train_data=data)
    >>> attributions = attributor.compute_transition_attributions(10, 40)
    >>> critical = attributor.find_critical_examples(attributions, top_k=5)
    >>> len(attributions), len(critical), attributions[critical[0]] == max(attributions.values())
    (50, 5, True)
    >>> sum(attributor.analyze_critical_examples(critical)["label_distribution"].values())
    5

    No call leaves a trace on the models. Loaders are not iterated: their data sets are read in order.
    """

    @partial(explain_options, owner=KIND)
    def __init__(
        self, model_checkpoints: Mapping[int, Any], train_data: Any, test_data: Any = None, *,
        model: nn.Module | None = None, task: Task | None = None, max_bytes: int = MAX_BYTES,
        parameters: str | None = None,
    ) -> None:  # fmt: skip
        """What to compare.

        Args:
            model_checkpoints: by epoch: models, or with `model` state dictionaries or files of them.
            train_data: the examples that are scored: a data set, a loader, or a list of batches.
            test_data: what `tracin` and `trak` score them for.
            model: the architecture of state dictionaries; a copy of it takes them.
            task: how a batch becomes logits and targets, where the defaults do not recognise it.
            max_bytes: bound for the gradients that are held at a time.
            parameters: a pattern that chooses among the parameters; by default all that are trained.
        """
        if not isinstance(model_checkpoints, Mapping) or not model_checkpoints:
            raise TypeError("model_checkpoints is a dictionary from epochs to models, such as {10: before, 40: after}")
        self.checkpoints = {whole_number("epoch", epoch): weights for epoch, weights in model_checkpoints.items()}
        refuse_sharded(model)
        for epoch, weights in self.checkpoints.items():
            refuse_sharded(weights)
            if isinstance(weights, nn.Module):
                check_model(weights)
            elif model is None:
                raise ValueError(f"the checkpoint of epoch {epoch} is a {type(weights).__name__}: give model=, the "
                                 "architecture that it belongs to")  # fmt: skip
        if train_data is None:
            raise ValueError("train_data is None: give the examples that are to be scored")
        self.train_data, self.test_data, self.model = train_data, test_data, model
        self.task = task or task_for(fixed_batches(train_data, task, examples=1)[0], model)
        self._options: dict[str, Any] = {
            "max_bytes": whole_number("max_bytes", max_bytes, 1), "parameters": parameters,
        }  # fmt: skip
        self._last: Attributions | None = None

    def compute_transition_attributions(
        self, pre_transition_epoch: int, post_transition_epoch: int, *, method: str = "transition",
        learning_rates: float | Mapping[int, float] | None = None, dims: int | None = 512, ridge: float = 0.0,
        seed: int = 0, progress: bool = True,
    ) -> Attributions:  # fmt: skip
        """A score for every training example; an example without one is NaN, and `reasons` says why.

        Args:
            pre_transition_epoch: a checkpoint before the transition.
            post_transition_epoch: one after it.
            method: `transition`: the cosine of an example's gradients before and after, times the loss that it lost.
                `tracin` (arXiv 2002.08484): Σ η ∇ℓ·∇ℓ′ over the checkpoints from the one to the other, ∇ℓ′ being the
                mean gradient of the test data. `trak` (arXiv 2303.14186): the mean of its scores over the test data,
                from the same checkpoints.
            learning_rates: for `tracin`: one, or one for each epoch.
            dims, ridge, seed: for `trak`, see `learnscope.model.examples.trak.trak`.
            progress: show a progress bar on a terminal, after two seconds.
        """
        before, after = self._epochs(pre_transition_epoch, post_transition_epoch)
        known_name("method", method, METHODS)
        epochs = [epoch for epoch in sorted(self.checkpoints) if before <= epoch <= after]
        self._check_apart([before, after] if method == "transition" else epochs)
        with preserve_rng(), progress_bar(f"{method} scores", show=progress) as update:
            options = {**self._options, "progress": update}
            if method == "transition":
                self._last = self._transition(before, after, options)
            elif method == "tracin":
                rates = _rates(learning_rates, epochs)
                self._last = self._against_test(method, epochs, lambda models, *data: tracin(
                    list(zip(models, rates, strict=True)), self.task, *data, **options
                ))  # fmt: skip
            else:
                options |= {"dims": dims, "ridge": ridge, "seed": seed}
                self._last = self._against_test(
                    method, epochs, lambda models, *data: trak(models, self.task, *data, **options)
                )
        return self._last

    def find_critical_examples(self, attributions: Attributions, top_k: int = 100) -> CriticalExamples:
        """The ids of the examples with the highest scores, the highest first; fewer if fewer have a score."""
        return critical_examples(_checked(attributions), whole_number("top_k", top_k))

    def analyze_critical_examples(self, critical: CriticalExamples | Iterable[int]) -> dict[str, Any]:
        """What critical examples have in common, see `learnscope.findings.examples.critical.analyze`.

        Plain ids are looked up in the last attributions.
        """
        if not isinstance(critical, CriticalExamples):
            attributions, ids = self._computed(), [whole_number("id", example, -(2**63)) for example in critical]
            unknown = [example for example in ids if example not in attributions.place]
            if unknown:
                raise ValueError(f"there is no example {unknown[0]} in the attributions ({len(unknown)} such ids)")
            for example, times in Counter(ids).items():
                if times > 1:
                    raise ValueError(
                        f"example {example} is named more than once, and would be counted so: name each once"
                    )
            places = np.array([attributions.place[example] for example in ids], dtype=np.int64)
            critical = CriticalExamples(attributions, places)
        return analyze(critical)

    def plot_attributions(
        self, save_dir: str | Path, attributions: Attributions | None = None, *, top_k: int = 100
    ) -> list[Path]:
        """Draw scores, losses (of `transition`), labels and groups of the critical examples; the figures' paths."""
        drawn = self._computed() if attributions is None else _checked(attributions)
        return plot_attributions(drawn, Path(save_dir), whole_number("top_k", top_k))

    def _transition(self, before: int, after: int, options: dict[str, Any]) -> Attributions:
        data = BatchesWithMetadata(self.train_data, self.task)
        transition = transition_scores(self._model(before), self._model(after), self.task, data, **options)
        return _attributions(
            "transition", before, after, data.metadata(), transition.reasons, transition.how, scores=transition.score,
            cosine=transition.cosine, loss_before=transition.loss_before, loss_after=transition.loss_after,
        )  # fmt: skip

    def _against_test(self, method: str, epochs: list[int], score: Any) -> Attributions:
        if self.test_data is None:
            raise ValueError(f"method={method!r} scores examples for test data: give test_data=")
        # both go over the data once for each checkpoint: what a data set augments at random is the same each time
        train, test = (fixed_batches(data, self.task) for data in (self.train_data, self.test_data))
        data = BatchesWithMetadata(train, self.task)
        attribution: Attribution = score([self._model(epoch) for epoch in epochs], list(data), test)
        without_score = attribution.scores.isnan().all(0)
        if bool(without_score.any()) and not bool(without_score.all()):
            raise ValueError(f"test example {int(without_score.nonzero()[0])} has {NO_TARGET}: leave it out")
        scores = attribution.scores.mean(1)
        reasons = {int(place): f"it has {NO_TARGET}" for place in scores.isnan().nonzero().flatten()}
        return _attributions(method, epochs[0], epochs[-1], data.metadata(), reasons, attribution.how, scores=scores)

    def _check_apart(self, epochs: list[int]) -> None:
        """Refuse checkpoints that are one set of weights under two epochs."""
        epoch_of: dict[Any, int] = {}
        for epoch in epochs:
            place = _place_of(self.checkpoints[epoch])
            if place in epoch_of:
                raise ValueError(
                    f"the checkpoints of epochs {epoch_of[place]} and {epoch} are the same weights in one place, so "
                    "that nothing lies between them: keep copies, such as copy.deepcopy(model), or "
                    "{name: value.clone() for name, value in model.state_dict().items()}"
                )
            epoch_of[place] = epoch

    def _model(self, epoch: int) -> nn.Module:
        weights = self.checkpoints[epoch]
        if isinstance(weights, nn.Module):
            return weights
        assert self.model is not None
        model = copy.deepcopy(self.model)
        load_into(model, read_weights(weights), f"the checkpoint of epoch {epoch}")
        return model

    def _epochs(self, before: Any, after: Any) -> tuple[int, int]:
        for name, epoch in (("pre_transition_epoch", before), ("post_transition_epoch", after)):
            known_name(name, epoch, sorted(self.checkpoints))
        if not before < after:
            raise ValueError(f"pre_transition_epoch={before} is not before post_transition_epoch={after}")
        return int(before), int(after)

    def _computed(self) -> Attributions:
        if self._last is None:
            raise NotAvailable("there are no attributions yet: call compute_transition_attributions first")
        return self._last


def _place_of(weights: Any) -> Any:
    """Where the weights of a checkpoint lie: two that lie in the same place are always equal."""
    if not isinstance(weights, nn.Module | Mapping):
        return str(Path(weights).resolve()) if isinstance(weights, str | Path) else id(weights)
    tensors = [value for value in read_weights(weights).values() if isinstance(value, Tensor) and value.numel()]
    return frozenset(map(memory_of, tensors)) or id(weights)


def _checked(attributions: Any) -> Attributions:
    if not isinstance(attributions, Attributions):
        raise TypeError(
            f"attributions are what compute_transition_attributions gives, not a {type(attributions).__name__}"
        )
    return attributions


def _attributions(
    method: str, before: int, after: int, examples: Metadata, reasons: Mapping[int, str], how: str, **columns: Tensor
) -> Attributions:
    ids, labels = examples.ids.numpy(), examples.labels
    return Attributions(
        method=method, before=before, after=after, ids=ids, groups=examples.groups, how=how,
        labels=None if isinstance(labels, str) else labels.numpy(),
        unlabelled=labels if isinstance(labels, str) else None,
        reasons={int(ids[place]): reason for place, reason in reasons.items()},
        **{name: column.to(torch.float64).numpy() for name, column in columns.items()},
    )  # fmt: skip


def _rates(rates: float | Mapping[int, float] | None, epochs: list[int]) -> list[float]:
    if rates is None:
        raise ValueError("method='tracin' weighs checkpoints by the learning rate in force: give learning_rates=0.1, "
                         "or one for each epoch, learning_rates={10: 0.1, 40: 0.01}")  # fmt: skip
    by_epoch = rates if isinstance(rates, Mapping) else dict.fromkeys(epochs, rates)
    missing = [epoch for epoch in epochs if epoch not in by_epoch]
    if missing:
        raise ValueError(f"learning_rates has none for epoch {missing[0]}; checkpoints taken: {epochs}")
    return [_rate(by_epoch[epoch]) for epoch in epochs]


def _rate(number: Any) -> float:
    try:
        rate = math.nan if isinstance(number, bool | str) else float(number)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise ValueError(f"learning_rates has {number!r}: a learning rate is a number from 0, such as 0.1")
    return rate
