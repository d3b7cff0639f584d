"""From records to a line of `telemetry.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from learnscope.core.subject import Subject
from learnscope.model.outputs.evaluate import Evaluation
from learnscope.probes.gradients.gradient_flow import NO_GRADIENTS
from learnscope.quantities import Quantity
from learnscope.record import Column, Record, plain_json
from learnscope.task import PairTask, Task, predictions, task_for
from learnscope.telemetry.config import TAKEN

NO_GRADIENT = "no gradient: frozen, outside the loss, or cleared; call on_batch_end before zero_grad()"


@dataclass(frozen=True)
class Keys:
    """What groups are called in a line, and where their numbers stand in records: kind and scope."""

    places: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, subject: Subject) -> Keys:
        """`group_N` for every group of the optimizer, its name if it has one, and the named groups.

        Where an optimizer's group has the name of a named group but holds other parameters, the name means the latter.
        """
        places: dict[str, tuple[str, str]] = {}
        named = subject.scopes("named")
        if subject.optimizers:
            for number, (scope, inside) in enumerate(subject.scopes("group").items()):
                places[f"group_{number}"] = ("group", scope)
                known = scope not in named or sorted(named[scope]) == sorted(inside)
                if known and not TAKEN.fullmatch(scope):
                    places[scope] = ("group", scope)
        places |= {name: ("named", name) for name in named}
        return cls(places)


@dataclass
class Line:
    """A line in the making: sections of numbers, and why some are missing."""

    body: dict[str, Any]
    status: dict[str, str] = field(default_factory=dict)

    def add(
        self, section: str, record: Record | None, quantity: Quantity, keys: Keys, missing: str, *, overall: bool = True
    ) -> None:
        """A section with one number a group, from the column of a quantity in a record."""
        if record is None or record.error is not None:
            self._add_failure(section, record)
            return
        places = {"overall": ("model", "model"), **keys.places} if overall else keys.places
        found = {
            (table.kind, scope): (value, column.status.get(position))
            for table in record.tables
            for column in _plain_columns(table.columns, quantity.name)
            for position, (scope, value) in enumerate(zip(table.scopes, column.values, strict=True))
        }
        self.body[section] = {}
        for key, place in places.items():
            value, reason = found.get(place, (None, missing))
            self.body[section][key] = value
            if value is None:
                self.status[f"{section}.{key}"] = missing if reason in (None, NO_GRADIENTS) else reason

    def add_holdout(self, record: Record | None, seen: Evaluation | None, limit: int) -> None:
        """Logits, labels and predictions of every position, with accuracy and loss."""
        section = "holdout_logits"
        if record is None or record.error is not None or seen is None:
            self._add_failure(section, record)
            return
        classes = seen.targets is None or not seen.targets.is_floating_point()
        body: dict[str, Any] = {"logits": None, "labels": None, "predictions": None, "accuracy": None, "loss": None}
        if seen.logits.numel() <= limit:
            body["logits"] = plain_list(seen.logits)
        else:
            self.status[f"{section}.logits"] = f"{seen.logits.numel()} numbers are more than a line holds ({limit})"
        if seen.logits.is_floating_point() and (bad := int((~seen.logits.isfinite()).sum())):
            self.status.setdefault(
                f"{section}.logits", f"{bad} are not finite: null; where one is NaN, the prediction is -1"
            )
        body["labels"] = None if seen.targets is None else plain_list(seen.targets)
        body["predictions"] = plain_list(predictions(seen.logits)) if classes else None
        for row in record.rows():
            if row.name in ("holdout_accuracy", "holdout_loss"):
                key = row.name.removeprefix("holdout_")
                body[key] = row.value
                if row.value is None:
                    self.status[f"{section}.{key}"] = row.status or "not measured"
        absent = "the batches have no labels" if seen.targets is None else "the targets are numbers, not classes"
        for key in ("labels", "predictions", "accuracy", "loss"):
            if body[key] is None:
                self.status.setdefault(f"{section}.{key}", absent)
        self.body[section] = body

    def add_batch(self, record: Record | None, batch: Any, task: Task | None) -> None:
        """Batch size and class shares in percent; for pairs `winner_0_pct` and `winner_1_pct`."""
        section = "batch_stats"
        if record is None or record.error is not None:
            self._add_failure(section, record)
            return
        pairs = isinstance(task or task_for(batch), PairTask)
        prefix = "winner" if pairs else "class"
        rows = list(record.rows())
        shares = {row.scope: row.value for row in rows if row.kind == "class"}
        if pairs and shares:  # a class of two that does not occur has a share, of 0
            shares = {key: shares.get(key, 0.0) for key in ("0", "1")}
        body = {f"{prefix}_{scope}_pct": None if value is None else 100 * value for scope, value in shares.items()}
        for row in rows:
            if row.kind == "model" and not (row.name == "targets" and (shares or pairs)):
                body[row.name] = row.value
                if row.value is None:
                    self.status[f"{section}.{row.name}"] = row.status or "not measured"
        self.body[section] = body

    def add_logged(self, record: Record | None) -> None:
        """The numbers that the loop gave."""
        section = "logged"
        if record is None or record.error is not None:
            self._add_failure(section, record)
            return
        self.body[section] = {row.name: row.value for row in record.rows()}
        self.status |= {f"{section}.{row.name}": row.status for row in record.rows() if row.status}

    def add_own(self, section: str, value: Any) -> None:
        """What a method of a subclass returned."""
        lost: set[str] = set()

        def absent(number: float) -> None:
            lost.add(str(number))

        self.body[section] = plain_json(value, nonfinite=absent)
        if lost:
            self.status[section] = f"null where it is not finite: {', '.join(sorted(lost))}"

    def _add_failure(self, section: str, record: Record | None) -> None:
        self.body[section] = None
        self.status[section] = "not measured" if record is None else record.error or "not measured"

    def finished(self) -> dict[str, Any]:
        return {**self.body, "status": self.status} if self.status else self.body


def _plain_columns(columns: Sequence[Column], name: str) -> Iterator[Column]:
    """Those of this name; of gradients that were clipped, as the optimizer was given them."""
    for column in columns:
        if column.name == name and column.labels.get("stage") in (None, "stepped"):
            yield column


def plain_list(tensor: Tensor) -> Any:
    """Nested lists; what is not finite is null, as JSON knows no NaN."""
    values = tensor.tolist()
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        return plain_json(values)
    return values
