"""What happens to every example while a model trains, one call a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learnscope.core.handed import Examples
from learnscope.core.probe import ProbeWarning
from learnscope.dynamics.batches import BatchReader, quick_logits
from learnscope.dynamics.checks import check_device, check_targets, needs_no_task
from learnscope.dynamics.saved import RecordingAnalyzer, load_session, save_session
from learnscope.ledger import Ledger
from learnscope.ledger.index import Sample
from learnscope.ledger.patterns import patterns, unknown_patterns
from learnscope.model.data import InOrder
from learnscope.model.guard import preserve_rng
from learnscope.model.sharded import refuse_sharded
from learnscope.options import explain_options, whole_number
from learnscope.probes.examples.example_ledger import ExampleLedger
from learnscope.probes.examples.ledger_writer import LedgerWriter, presentations
from learnscope.reading.cells import epoch_statistics
from learnscope.record import Record
from learnscope.task import Task, task_for

if TYPE_CHECKING:
    import pandas as pd

KIND = "LearningDynamicsAnalyzer"
_PROBE = "ledger"


class LearningDynamicsAnalyzer(RecordingAnalyzer):
    """Follows training examples by their ids: forgetting, data map, EL2N, AUM, loss, when each was learned.

    Call `track_batch` once for every batch, with the ids of its examples. An id must always stand for the same
    example; `learnscope.IndexedDataset` makes a data set's items carry theirs. A position in a shuffled loader does
    not: as soon as an id comes back with another target or another input, a warning says so, and from then on nothing
    is told of single examples (null, with the reason); accuracy and loss of the epochs go on. `strict=True` raises.

    >>> import torch
    >>> from learnscope.dynamics import LearningDynamicsAnalyzer
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> analyzer = LearningDynamicsAnalyzer()
    >>> analyzer.track_batch(model, x, y, torch.arange(6), epoch=0, logits=model(x))
    >>> analyzer.compute_epoch_statistics(epoch=0)["examples"]
    6
    """

    @partial(explain_options, owner=KIND)
    def __init__(
        self, num_classes: int | None = None, track_examples: int | None = None, device: Any = None, *,
        sample: Sample = "first", examples: int | None = None, seed: int = 0, check_ids: bool = True,
        check_inputs: bool = True, grand_every: int = 0, task: Task | None = None, run: str | Path | None = None,
        strict: bool = False,
    ) -> None:  # fmt: skip
        """What to follow.

        Args:
            num_classes: checked against the targets.
            track_examples: how many examples to follow at most; None for all.
            device: where the model is; inputs go there by themselves.
            sample, examples, seed: which to follow: the `first` ids that come, or an `even` or `random` choice of
                0..examples−1.
            check_ids: refuse ids that come back with another target or input.
            check_inputs: refuse those with another input; False for inputs that are augmented at random.
            grand_every: also gradient norms (GraNd) every this many epochs: one more forward and backward each batch.
            task: how inputs and targets are read, where the defaults do not recognise them.
            run: a folder to write the records to; None keeps them in memory.
            strict: raise where ids turn out to name different examples, instead of warning and going on.
        """
        self.strict, self._said = strict, False
        self.num_classes, self.device, self.task = _or_none("num_classes", num_classes), device, task
        self._options: dict[str, Any] = {
            "track": _or_none("track_examples", track_examples), "sample": sample,
            "total": _or_none("examples", examples), "seed": whole_number("seed", seed), "check_ids": check_ids,
            "check_inputs": check_inputs, "grand_every": whole_number("grand_every", grand_every),
        }  # fmt: skip
        if sample != "first" and (track_examples is None or examples is None):
            raise ValueError(
                f"sample={sample!r} chooses track_examples= of the ids 0..examples−1: say track_examples= and "
                "examples=, the data set's size"
            )
        self._probe = ExampleLedger(**self._options, keep_every=0)
        super().__init__({_PROBE: self._probe}, run)
        self._batches, self._measured, self._checked = 0, 0, False
        self._model: nn.Module | None = None
        self._epoch: int | None = None
        self._writer: LedgerWriter | None = None
        self._reader = BatchReader(task)
        self._direct = task is None and device is None and not grand_every
        """Whether a batch like the one before goes to the ledger as it is."""

    def track_batch(
        self, model: nn.Module, inputs: Any, targets: Any, batch_indices: Any, epoch: int, *, logits: Any = None,
        groups: Any = None,
    ) -> None:  # fmt: skip
        """One presentation of each example of a batch.

        With `logits`, what the loop's own forward gave, the model is not run. Without, it runs once more, in eval mode
        and with the weights that it has now: train/eval flags, batch norm, gradients and random numbers are as they
        were.

        Args:
            inputs: a tensor, or a dictionary for Hugging Face models. Not kept. With logits of a classifier, None will
                do, but reused ids cannot be recognised by their inputs then.
            targets: classes; a causal language model's are its tokens, and are shifted here.
            batch_indices: the ids of the examples, whole numbers.
            groups: the group of each example, numbers or names, to follow groups apart; by default the classes.
        """
        writer = self._writer if groups is None and self._direct and model is self._model else None
        if writer is not None and logits is None:
            logits = quick_logits(model, inputs, targets)
        if writer is not None and writer.add_alike(batch_indices, logits, targets, inputs, epoch):  # as most are
            self._batches, self._epoch = self._batches + 1, epoch
            if writer.refused is not None:
                self._say_refused()
            return
        if model is not self._model:
            refuse_sharded(model)
        epoch = whole_number("epoch", epoch)
        targets = torch.as_tensor(targets)
        if self.task is not None or not needs_no_task(inputs, logits):
            logits, targets, batch = self._reader.read(model, inputs, targets, logits)
            # a tensor as it is: batches like it then go to the ledger without further checks
            inputs = inputs if self._direct and needs_no_task(inputs, logits) else batch
        if self.device is not None:
            check_device(model, self.device)
        self._model = model
        self._take(model, Examples(batch_indices, logits, targets, inputs, groups), epoch)

    def compute_epoch_statistics(
        self, train_loader: Any = None, model: nn.Module | None = None, epoch: int | None = None
    ) -> dict[str, Any]:
        """Statistics of the presentations since the last call: accuracy, loss, what was learned and forgotten.

        If no batch was tracked since, the loader's data set is read in order once, in eval mode, as a presentation of
        each example; ids are those that batches carry, or places in the data set. The loader itself is not iterated,
        and the model stays as it was. `epoch` is by default that of the last batch.
        """
        epoch = None if epoch is None else whole_number("epoch", epoch)
        model = model if model is not None else self._model
        if self._batches == self._measured:
            measured = {record.epoch: record for record in self._records()}
            if epoch is not None and epoch in measured:
                return epoch_statistics(measured[epoch])
            if train_loader is None or model is None:
                raise ValueError(
                    "no batch was tracked since the last call: call track_batch in the loop, or pass the loader and "
                    "the model, so that the data can be looked at once"
                )
            self._present(train_loader, model, epoch or 0)
        assert model is not None, "a batch was tracked, or the model was given"
        self._ledger_writer().flush()  # what is refused is refused here, and leaves the ledger as it was
        self._say_refused()
        epoch = self._epoch if epoch is None else epoch
        record = self._measure(model, "epoch", epoch)
        self._measured = self._batches
        return epoch_statistics(record)

    def analyze_learning_patterns(self) -> dict[str, Any]:
        """Ids of hard, easy and medium examples, counts of what was forgotten, and the statistics of each epoch.

        See `learnscope.ledger.patterns` for the definitions.
        """
        return {**self._patterns(), "epochs": self.epoch_statistics}

    @property
    def refused(self) -> str | None:
        """Why nothing is known of single examples; None while the ids have always named the same ones."""
        self._ledger_writer().flush()
        return self._ledger_writer().refused

    def plot_learning_dynamics(self, save_dir: str | PathLike[str]) -> list[Path]:
        """Draw curves over epochs, the data map and the hardest examples into `save_dir`; the paths of the files."""
        from learnscope.report.examples.learning import plot_learning

        return plot_learning(self.epoch_statistics, self.frame(), self._patterns(), Path(save_dir))

    @property
    def epoch_statistics(self) -> list[dict[str, Any]]:
        """What `compute_epoch_statistics` returned, epoch by epoch."""
        return [epoch_statistics(record) for record in self._records() if record.tables]

    @property
    def ledger(self) -> Ledger:
        """All that is known of every example."""
        writer = self._ledger_writer()
        writer.flush()
        self._say_refused()
        return writer.ledger

    def frame(self) -> pd.DataFrame:
        """One row an example; the columns are those of `learnscope.ledger.table.frame`.

        Empty, with the reason in its `attrs`, if the ids turned out to name different examples.
        """
        frame = self.ledger.frame()
        if self.refused is not None:
            frame.attrs["reason"] = self.refused
        return frame

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything to one file, whole or not at all. Any name is allowed; it is never a pickle."""
        options = {
            "options": self._options, "num_classes": self.num_classes, "batches": self._batches,
            "measured": self._measured, "epoch": self._epoch,
        }  # fmt: skip
        save_session(path, self._session, KIND, options)

    @classmethod
    def load(cls, path: str | PathLike[str], *, task: Task | None = None) -> LearningDynamicsAnalyzer:
        """The saved analyzer, which can be continued; pass a task of your own again."""
        saved, session = load_session(path, KIND)
        options = saved["options"]
        analyzer = cls(saved["num_classes"], options.pop("track"), examples=options.pop("total"), task=task, **options)
        analyzer._session.restore(session)
        analyzer._batches, analyzer._measured, analyzer._epoch = saved["batches"], saved["measured"], saved.get("epoch")
        return analyzer

    def close(self) -> None:
        """Finish the run, if there is one on disk: it keeps the ledger as its `examples.parquet`."""
        if self.run.path is not None and self._model is not None:
            self._measure(self._model, "end", None)
        self._session.close()

    def _measure(self, model: nn.Module, phase: str, epoch: int | None) -> Record:
        self._session.open(model)
        return self._session.measure(self._session.moment(phase, step=self._batches, epoch=epoch))[_PROBE]

    def _present(self, loader: Any, model: nn.Module, epoch: int) -> None:
        refuse_sharded(model)
        check_device(model, self.device)
        batches = InOrder(loader)
        with preserve_rng():  # a data set that augments at random draws
            task = self.task or task_for(next(iter(batches)), model)
        for batch in presentations(model, task, batches):
            self._take(model, batch, epoch)

    def _take(self, model: nn.Module, batch: Examples, epoch: int) -> None:
        if not self._checked:
            check_targets(self.num_classes, batch.logits, batch.targets)
            self._checked = True
        self._probe.take(self._ledger_writer(), batch, epoch, model, self.task)
        self._batches, self._epoch = self._batches + 1, epoch
        self._say_refused()

    def _ledger_writer(self) -> LedgerWriter:
        if self._writer is None:
            self._writer = self._probe.writer(self._session.state(_PROBE))
            self._writer.classes, self._writer.forgiving = self.num_classes, not self.strict
        return self._writer

    def _say_refused(self) -> None:
        """Say once that nothing is told of single examples any more."""
        if self._writer is None or self._writer.refused is None or self._said:
            return
        self._said = True
        warnings.warn(
            f"{self._writer.refused}\nFrom here on nothing is told of single examples; accuracy and loss of the epochs "
            "go on. LearningDynamicsAnalyzer(strict=True) raises an error instead.",
            ProbeWarning,
            stacklevel=4,
        )

    def _patterns(self) -> dict[str, Any]:
        arrays = self.ledger.arrays()
        return patterns(arrays) if self.refused is None else unknown_patterns(arrays, self.refused)

    def _records(self) -> Iterator[Record]:
        return self._session.run.records(ExampleLedger.__name__)


def _or_none(name: str, number: Any) -> int | None:
    return None if number is None else whole_number(name, number, 1)
