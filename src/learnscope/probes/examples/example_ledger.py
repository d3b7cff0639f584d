"""What happens to every training example, followed by its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from learnscope.core.handed import Examples
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.ledger import IdError, Ledger
from learnscope.ledger.index import Sample
from learnscope.ledger.sums import MOST_GROUPS, GroupSums
from learnscope.ledger.table import QUANTILES
from learnscope.model.examples.factored import example_gradient_norms
from learnscope.options import check_whole
from learnscope.probes.examples.gathering import Gathering
from learnscope.quantities import Quantities
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

    The whole ledger is the run's `examples.parquet`, written every `keep_every` epochs and at the end:
    `run.examples()`, or `Ledger.load`.
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
    """Also gradient norms (GraNd), in every so many epochs from the first, for batches handed over with their inputs:
    another forward and backward of the batch, with the weights after the step. 0: never."""
    keep_every: int = 10
    """0: at the end only."""
    needs: ClassVar[frozenset[str]] = frozenset({"examples"})
    reads_only: ClassVar[bool] = True  # what runs the model has a guard of its own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = (
        "one pass over the loop's own logits, many small batches at a time; GraNd a forward and backward more"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at != "epoch":
            raise ValueError(
                f"ExampleLedger(at={self.at!r}): it takes examples in at every step and measures at='epoch'"
            )
        check_whole(self, keep_every=0, grand_every=0)
        Ledger(**self._settings())

    def prepare(self, moment: Moment) -> None:
        state = moment.state
        if "_refused" in state:
            return
        state.setdefault("since", moment.step)
        epoch, model, task = moment.epoch or 0, moment.model, moment.subject.task
        gathering = self.gathering(state)
        for given in moment.all_examples:
            self._refusing(state, lambda given=given: self.take(gathering, given, epoch, model, task))

    def take(self, gathering: Gathering, given: Examples, epoch: int, model: nn.Module, task: Task | None) -> None:
        """A batch that was presented in `epoch`, with its gradient norms where they are due."""
        due = self.grand_every and epoch % self.grand_every == 0
        gathering.add(given, epoch, _norms(model, task, given) if due else None)

    def measure(self, moment: Moment) -> Measurement | None:
        state = moment.state
        gathering = self.gathering(state)
        self._refusing(state, gathering.take_in)
        if "_refused" in state:
            raise IdError(state["_refused"])
        ledger = gathering.ledger
        ledger.trim()
        tables = _tables(gathering) if gathering.fresh else []
        due = self.keep_every and ((moment.epoch or 0) + 1) % self.keep_every == 0
        keep = (due or moment.phase != "epoch") and state.get("kept") != moment.step and len(ledger) > 0
        if tables:
            gathering.begin_anew()
        if keep:
            state["kept"] = moment.step
        elif not tables:
            return None
        return Measurement(tables, notes={"since_step": state.get("since")}, examples=ledger if keep else None)

    def settle(self, state: dict[str, Any]) -> None:
        if "_gathering" not in state:  # refused, or as it was saved before
            return
        gathering = self.gathering(state)
        self._refusing(state, gathering.take_in)
        # in the order in which they came: sums over examples are then the same to the last digit
        kept = gathering.ledger.arrays(by_id=False)
        state |= {f"{_COLUMN}{name}": torch.from_numpy(array) for name, array in kept.items()}
        state |= {"untracked": gathering.ledger.untracked, "unscored": gathering.unscored, "fresh": gathering.fresh}
        for which in _SUMS:
            sums: GroupSums = getattr(gathering, which)
            state |= {f"{which}/table": torch.from_numpy(sums.table.copy()), f"{which}/names": list(sums.names)}
            state[f"{which}/too_many"] = sums.too_many

    def gathering(self, state: dict[str, Any]) -> Gathering:
        """The live ledger and what waits for it, made from the saved state if there is one."""
        if "_gathering" in state:
            for key in [key for key in state if key.startswith(_COLUMN)]:
                del state[key]  # a copy of what the ledger holds
            live: Gathering = state["_gathering"]
            return live
        saved = {key.removeprefix(_COLUMN): state.pop(key).numpy() for key in list(state) if key.startswith(_COLUMN)}
        ledger = Ledger.from_arrays(saved, **self._settings()) if saved else Ledger(**self._settings())
        made = Gathering(ledger, check_inputs=self.check_inputs and self.check_ids)
        ledger.untracked, made.unscored = state.get("untracked", 0), state.get("unscored", 0)
        made.fresh = state.get("fresh", False)
        for which in _SUMS:
            if f"{which}/table" in state:
                sums: GroupSums = getattr(made, which)
                sums.table, sums.names = state.pop(f"{which}/table").numpy(), state.pop(f"{which}/names")
                sums.too_many = state.pop(f"{which}/too_many")
        state["_gathering"] = made
        return made

    def _settings(self) -> dict[str, Any]:
        return {
            "track": self.track, "sample": self.sample, "examples": self.total, "seed": self.seed,
            "check_ids": self.check_ids,
        }  # fmt: skip

    def _refusing(self, state: dict[str, Any], action: Any) -> None:
        try:
            action()
        except IdError as error:  # what is in the ledger so far is of mixed examples, too
            state["_refused"] = str(error)
            state.pop("_gathering", None)
            state.pop("since", None)
            raise


def batch_of(model: nn.Module, inputs: Any, targets: Tensor) -> Any:
    """Inputs and targets as one batch that a task reads; tokens of a Hugging Face model are its `input_ids`."""
    if isinstance(inputs, Mapping):
        return {**inputs, "labels": targets}
    tokens = isinstance(inputs, Tensor) and inputs.ndim == 2 and not inputs.is_floating_point()
    if tokens and hasattr(getattr(unwrap(model), "config", None), "model_type"):
        return {"input_ids": inputs, "labels": targets}
    return (inputs, targets)


def _norms(model: nn.Module, task: Task | None, given: Examples) -> Tensor:
    if given.inputs is None:
        raise ValueError(
            "grand_every asks for gradient norms, which need what the model was given: "
            "w.examples(ids, logits, targets, inputs=inputs)"
        )
    whole = isinstance(given.inputs, tuple | list) or (isinstance(given.inputs, Mapping) and "labels" in given.inputs)
    batch = given.inputs if whole else batch_of(model, given.inputs, given.targets)
    with torch.inference_mode(False):  # a loop that only looks may be in it, and nothing can be differentiated there
        return example_gradient_norms(model, task or task_for(batch, model), [map_leaves(batch, _differentiable)])


def _differentiable(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf


def _tables(gathering: Gathering) -> list[Table]:
    columns = [Q.untracked.column([gathering.ledger.untracked]), Q.unscored.column([gathering.unscored])]
    numbers, quantiles = gathering.ledger.summary()
    columns += [Q.named(name).column([value]) for name, value in numbers.items()]
    means = gathering.all.means()
    columns += [quantity.column(means[key].tolist()) for key, quantity in _MEANS.items()]
    tables = [Table("model", ["model"], columns)]
    if quantiles:
        made = [Q.named(name).column(values) for name, values in quantiles.items()]
        tables.append(Table("quantile", [str(q) for q in QUANTILES], made))
    sums = gathering.groups
    if sums.too_many:
        why = f"there are more than {MOST_GROUPS} groups"
        return [*tables, Table("group", ["all"], [Q.accuracy.column([None], status={0: why})])]
    order = sums.in_order()
    if order:
        by_group = sums.means()
        named = {**_MEANS, "presentations": Q.group_presentations}
        columns = [quantity.column(by_group[key][order].tolist()) for key, quantity in named.items()]
        tables.append(Table("group", [sums.names[i] for i in order], columns))
    return tables


_MEANS = {"accuracy": Q.accuracy, "confidence": Q.mean_p_gold, "loss": Q.mean_loss}
"""What `GroupSums` calls them."""
