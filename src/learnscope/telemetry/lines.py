"""From records to a line of `telemetry.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from learnscope.core.subject import Subject
from learnscope.model.outputs.evaluate import Evaluation
from learnscope.probes.gradients.gradient_flow import NO_GRADIENTS
from learnscope.quantities import Quantity
from learnscope.record import Record, Row, plain_json
from learnscope.task import predictions
from learnscope.telemetry.config import TAKEN

PLACE = ("batch_idx", "epoch", "global_step", "timestamp")
"""What says which batch a line is of."""
Places = Mapping[str, tuple[str, str]]
"""Kind and scope of the numbers of a group in records, by what the group is called in a line."""


def group_places(subject: Subject) -> Places:
    """The optimizer's groups as `group_N` and by name, and the named groups, which win where names are the same."""
    places: dict[str, tuple[str, str]] = {}
    named = subject.scopes("named")
    if subject.optimizers:
        for number, (scope, members) in enumerate(subject.scopes("group").items()):
            places[f"group_{number}"] = ("group", scope)
            same = scope not in named or sorted(named[scope]) == sorted(members)
            if same and not TAKEN.fullmatch(scope):
                places[scope] = ("group", scope)
    return places | {name: ("named", name) for name in named}


@dataclass
class Line:
    """A line being written: sections of numbers, and why some are missing."""

    body: dict[str, Any]
    status: dict[str, str] = field(default_factory=dict)

    def add(self, section: str, record: Record, quantity: Quantity, places: Places, missing: str) -> None:
        """One number per group, from the column of a quantity; for clipped gradients, after the clip."""
        rows = {
            (row.kind, row.scope): row
            for row in record.rows()
            if row.name == quantity.name and row.labels.get("stage") in (None, "stepped")
        }
        self.body[section] = {}
        for key, place in places.items():
            row = rows.get(place, Row(quantity.name, None))
            self.body[section][key] = row.value
            if row.value is None:
                self.status[f"{section}.{key}"] = missing if row.status in (None, NO_GRADIENTS) else row.status

    def add_holdout(self, record: Record, outputs: Evaluation, limit: int) -> None:
        """Logits, labels and predictions of every position, with accuracy and loss."""
        section, logits, targets = "holdout_logits", outputs.logits, outputs.targets
        classes = targets is None or not targets.is_floating_point()
        if logits.numel() > limit:
            self.status[f"{section}.logits"] = f"{logits.numel()} numbers are more than a line holds ({limit})"
        elif logits.is_floating_point() and (bad := int((~logits.isfinite()).sum())):
            self.status[f"{section}.logits"] = f"{bad} are not finite: null; where one is NaN, the prediction is -1"
        self.body[section] = {
            "logits": plain_list(logits) if logits.numel() <= limit else None,
            "labels": None if targets is None else plain_list(targets),
            "predictions": plain_list(predictions(logits)) if classes else None,
            "accuracy": None,
            "loss": None,
        }
        for row in record.rows():
            if row.name in ("holdout_accuracy", "holdout_loss"):
                self._add_row(section, row, row.name.removeprefix("holdout_"))
                if which := row.labels.get("loss"):
                    self.status.setdefault(f"{section}.loss", f"{which}: which loss is trained is not known")
        absent = "the batches have no labels" if targets is None else "the targets are numbers, not classes"
        for key in ("labels", "predictions", "accuracy", "loss"):
            if self.body[section][key] is None:
                self.status.setdefault(f"{section}.{key}", absent)

    def add_batch(self, record: Record, pairs: bool) -> None:
        """Batch size and class shares in percent; for pairs `winner_0_pct` and `winner_1_pct`."""
        section, prefix = "batch_stats", "winner" if pairs else "class"
        shares = {row.scope: row.value for row in record.rows() if row.kind == "class"}
        if pairs and shares:  # a class of two that does not occur has a share, of 0
            shares = {key: shares.get(key, 0.0) for key in ("0", "1")}
        self.body[section] = {
            f"{prefix}_{scope}_pct": None if value is None else 100 * value for scope, value in shares.items()
        }
        for row in record.rows():
            if row.kind == "model" and not (row.name == "targets" and (shares or pairs)):
                self._add_row(section, row, row.name)

    def add_logged(self, record: Record) -> None:
        self.body["logged"] = {row.name: row.value for row in record.rows()}
        self.status |= {f"logged.{row.name}": row.status for row in record.rows() if row.status}

    def add_own(self, section: str, value: Any) -> None:
        lost: set[str] = set()

        def absent(number: float) -> None:
            lost.add(str(number))

        self.body[section] = plain_json(value, nonfinite=absent)
        if lost:
            self.status[section] = f"null where it is not finite: {', '.join(sorted(lost))}"

    def replace(self, section: str, value: Any) -> None:
        """What a subclass makes of a section; reasons of numbers that are still null stay."""
        earlier = {key: reason for key, reason in self.status.items() if key.partition(".")[0] == section}
        for key in earlier:
            del self.status[key]
        self.add_own(section, value)
        kept = self.body[section]
        for key, reason in earlier.items():
            entry = key.partition(".")[2]
            if isinstance(kept, dict) and entry in kept and kept[entry] is None:
                self.status[key] = reason

    def ordered(self, sections: Sequence[str]) -> None:
        """Put these sections first, in this order, after the place of the batch."""
        first = [key for key in self.body if key in PLACE]
        keys = [*first, *(key for key in sections if key in self.body)]
        self.body = {key: self.body[key] for key in dict.fromkeys([*keys, *self.body])}

    def add_failure(self, section: str, reason: str | None) -> None:
        self.body[section], self.status[section] = None, reason or "not measured"

    def finished(self) -> dict[str, Any]:
        return {**self.body, "status": self.status} if self.status else self.body

    def _add_row(self, section: str, row: Row, key: str) -> None:
        self.body[section][key] = row.value
        if row.value is None:
            self.status[f"{section}.{key}"] = row.status or "not measured"


def plain_list(tensor: Tensor) -> Any:
    """Nested lists; what is not finite is null, as JSON knows no NaN."""
    values = tensor.tolist()
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        return plain_json(values)
    return values
