"""What happens to every training example, followed by its id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.core.handed import Examples
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.ledger import IdError, Ledger
from learnscope.ledger.index import Sample
from learnscope.ledger.show import ShowExamples
from learnscope.ledger.sums import MOST_GROUPS, GroupSums
from learnscope.ledger.table import QUANTILES
from learnscope.model.examples.factored import example_gradient_norms
from learnscope.options import check_whole
from learnscope.probes.examples.ledger_writer import LedgerWriter
from learnscope.quantities.examples import ExampleLedger as Q
from learnscope.record import Measurement, Table
from learnscope.task import Task, task_for, unwrap
from learnscope.task.batches import map_leaves

_COLUMN = "column/"
_SUMS = ("all", "groups")


class ExampleLedger(Probe):
    """Every example over its presentations, from the loop's own logits: `w.examples(ids, logits, targets)`.

    Ids must belong to the examples (`learnscope.IndexedDataset` gives them some): a position in a shuffled loader is
    refused as soon as targets tell, or inputs, where they are handed over too. Targets are classes, aligned with the
    logits: a causal language model's are handed over shifted, `w.examples(ids, logits[:, :-1], labels[:, 1:])`.
    It measures at `w.end_epoch()`, and at the end; in `replay`, a checkpoint is a presentation of the training data.

    The whole ledger is the run's `examples.parquet`, written every `keep_every` epochs, though not more often than
    every `write_seconds` of the session, and at the end: `run.examples()`, or `Ledger.load`.
    """

    at: At = "epoch"
    track: int | None = None
    sample: Sample = "first"
    total: int | None = None
    """The data set's size, for samples other than the first."""
    seed: int = 0
    check_ids: bool = True
    check_inputs: bool = True
    """Refuse ids that come back with other inputs, where inputs are handed over; not for augmented ones."""
    grand_every: int = 0
    """Also gradient norms (GraNd), every this many epochs from the first, for batches handed over with their inputs:
    another forward and backward of the batch, with the weights after the step. 0: never."""
    keep_every: int = 10
    """0: at the end only."""
    show: Any = None
    """Where the examples are found by their ids, for the report to show the hardest, the most forgotten and the doubted
    ones as thumbnails or text: a data set, a function of the id, or `learnscope.ShowExamples`. They are read when the
    session closes, and kept in `shown.json`; `run.show_examples` does the same afterwards."""
    needs = frozenset({"examples"})
    reads_only = True  # what runs the model has a guard of its own
    cost = "one pass over the loop's own logits, many small batches at a time; GraNd a forward and backward more"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at != "epoch":
            raise ValueError(
                f"ExampleLedger(at={self.at!r}): it takes examples in at every step and measures at='epoch'"
            )
        check_whole(self, keep_every=0, grand_every=0)
        Ledger(**self._settings())
        if self.show is not None and not isinstance(self.show, ShowExamples):
            object.__setattr__(self, "show", ShowExamples(self.show))

    def prepare(self, moment: Moment) -> None:
        state = moment.state
        if "_refused" in state:
            return
        state.setdefault("since", moment.step)
        writer: LedgerWriter = state["_writer"] if "_writer" in state else self.writer(state)
        epoch, model, task = moment.epoch or 0, moment.subject.model, moment.subject.task
        try:
            for batch in moment.handed.examples:
                self.take(writer, batch, epoch, model, task)
        except IdError as error:
            _refuse(state, error)
            raise

    def take_at_once(self, state: dict[str, Any], epoch: int, *batch: Any) -> bool:
        writer: LedgerWriter | None = state.get("_writer")
        if writer is None or self.grand_every or type(self) is not ExampleLedger:  # which may prepare otherwise
            return False
        ids, logits, targets, inputs = batch
        return writer.add_alike(ids, logits, targets, inputs, epoch, only_wait=True)

    def take(self, writer: LedgerWriter, batch: Examples, epoch: int, model: nn.Module, task: Task | None) -> None:
        """A batch that was presented in `epoch`, with its gradient norms where they are due."""
        due = self.grand_every and epoch % self.grand_every == 0
        writer.add(batch, epoch, _norms(model, task, batch) if due else None)

    def measure(self, moment: Moment) -> Measurement | None:
        state = moment.state
        writer = self.writer(state)
        with _refusing(state):
            writer.flush()
        if "_refused" in state:
            raise IdError(state["_refused"])
        ledger = writer.ledger
        ledger.trim()
        tables = _tables(writer) if writer.changed else []
        due = self.keep_every and ((moment.epoch or 0) + 1) % self.keep_every == 0
        keep = (due or moment.phase != "epoch") and state.get("kept") != moment.step and len(ledger) > 0
        if tables:
            writer.reset_sums()
        if keep:
            state["kept"] = moment.step
        elif not tables:
            return None
        return Measurement(tables, notes={"since_step": state.get("since")}, examples=ledger if keep else None)

    def settle(self, state: dict[str, Any]) -> None:
        if "_writer" not in state:  # refused, or as it was saved before
            return
        writer = self.writer(state)
        with _refusing(state):
            writer.flush()
        # in the order in which they came: sums over examples are then the same to the last digit
        columns = writer.ledger.arrays(by_id=False)
        state |= {f"{_COLUMN}{name}": torch.from_numpy(array) for name, array in columns.items()}
        state |= {"untracked": writer.ledger.untracked, "unscored": writer.unscored, "fresh": writer.changed}
        state |= {} if writer.refused is None else {"refused": writer.refused}
        for which in _SUMS:
            sums: GroupSums = getattr(writer, which)
            state |= {f"{which}/table": torch.from_numpy(sums.table.copy()), f"{which}/names": list(sums.names)}
            state[f"{which}/too_many"] = sums.too_many

    def writer(self, state: dict[str, Any]) -> LedgerWriter:
        """The live ledger and the batches that wait for it, made from the saved state if there is one."""
        saved = {key.removeprefix(_COLUMN): state.pop(key).numpy() for key in list(state) if key.startswith(_COLUMN)}
        if "_writer" not in state:
            ledger = Ledger.from_arrays(saved, **self._settings()) if saved else Ledger(**self._settings())
            writer = LedgerWriter(ledger, check_inputs=self.check_inputs and self.check_ids)
            ledger.untracked, writer.unscored = state.get("untracked", 0), state.get("unscored", 0)
            writer.changed, writer.refused = state.get("fresh", False), state.get("refused")
            for which in _SUMS:
                if f"{which}/table" in state:
                    sums: GroupSums = getattr(writer, which)
                    sums.table, sums.names = state.pop(f"{which}/table").numpy(), state.pop(f"{which}/names")
                    sums.too_many = state.pop(f"{which}/too_many")
            state["_writer"] = writer
        live: LedgerWriter = state["_writer"]
        return live

    def _settings(self) -> dict[str, Any]:
        return {
            "track": self.track, "sample": self.sample, "examples": self.total, "seed": self.seed,
            "check_ids": self.check_ids,
        }  # fmt: skip


@contextmanager
def _refusing(state: dict[str, Any]) -> Iterator[None]:
    """Give the ledger up where an id is refused: what it has so far is of mixed examples, too."""
    try:
        yield
    except IdError as error:
        _refuse(state, error)
        raise


def _refuse(state: dict[str, Any], error: IdError) -> None:
    state["_refused"] = str(error)
    state.pop("_writer", None)
    state.pop("since", None)


def batch_of(model: nn.Module, inputs: Any, targets: Tensor) -> Any:
    """Inputs and targets as one batch that a task reads; tokens of a Hugging Face model are its `input_ids`."""
    if isinstance(inputs, Mapping):
        return {**inputs, "labels": targets}
    tokens = isinstance(inputs, Tensor) and inputs.ndim == 2 and not inputs.is_floating_point()
    if tokens and hasattr(getattr(unwrap(model), "config", None), "model_type"):
        return {"input_ids": inputs, "labels": targets}
    return (inputs, targets)


def _norms(model: nn.Module, task: Task | None, examples: Examples) -> Tensor:
    if examples.inputs is None:
        raise ValueError(
            "grand_every asks for gradient norms, which need what the model was given: "
            "w.examples(ids, logits, targets, inputs=inputs)"
        )
    inputs = examples.inputs
    is_batch = isinstance(inputs, tuple | list) or (isinstance(inputs, Mapping) and "labels" in inputs)
    batch = inputs if is_batch else batch_of(model, inputs, examples.targets)
    with torch.inference_mode(False):  # a loop that only looks may be in it, and nothing can be differentiated there
        return example_gradient_norms(model, task or task_for(batch, model), [map_leaves(batch, _differentiable)])


def _differentiable(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf


def _tables(writer: LedgerWriter) -> list[Table]:
    refused, (numbers, quantiles) = writer.refused, writer.ledger.summary()
    numbers = {Q.untracked.name: writer.ledger.untracked, **numbers}
    columns = [Q.named(name).cells([value if refused is None else refused]) for name, value in numbers.items()]
    columns.append(Q.unscored.column([writer.unscored]))
    means = writer.all.means()
    columns += [quantity.column(means[key].tolist()) for key, quantity in _MEANS.items()]
    tables = [Table("model", ["model"], columns)]
    if quantiles and refused is None:
        columns = [Q.named(name).column(values) for name, values in quantiles.items()]
        tables.append(Table("quantile", [str(q) for q in QUANTILES], columns))
    sums = writer.groups
    if sums.too_many:
        reason = f"there are more than {MOST_GROUPS} groups"
        return [*tables, Table("group", ["all"], [Q.accuracy.cells([reason])])]
    order = sums.in_order()
    if order:
        by_group = sums.means()
        named = {**_MEANS, "presentations": Q.group_presentations}
        columns = [quantity.column(by_group[key][order].tolist()) for key, quantity in named.items()]
        tables.append(Table("group", [sums.names[i] for i in order], columns))
    return tables


_MEANS = {"accuracy": Q.accuracy, "confidence": Q.mean_p_gold, "loss": Q.mean_loss}
"""What `GroupSums` calls them."""
