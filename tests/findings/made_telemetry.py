"""Telemetry written by hand: accuracies on training batches and on the holdout, by epoch, and weights that move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from findings.made_run import MadeRun, Number
from learnscope.record import Column, Table

BACKBONE, HEAD = ["backbone.0", "backbone.2"], ["head"]
SIZES = {"backbone.0": 600, "backbone.2": 300, "head": 100}


class MadeTelemetry(MadeRun):
    """A run of `backbone` and `head`, with an optimizer group of each."""

    def __init__(self, *, source: str = "telemetry", **model: Any) -> None:
        super().__init__(layers=[*BACKBONE, *HEAD], layer_parameters=SIZES, parameters=1000, tensors=6, **model)
        self.manifest["source"] = source
        self.optimizer({"backbone": BACKBONE, "head": HEAD}, {"backbone": 1e-3, "head": 1e-2})

    def optimizer(self, held: Mapping[str | None, Sequence[str]], rates: Mapping[str | None, float]) -> None:
        """Its groups by their names, None for one without."""
        groups = [
            {"lr": rates[name], "tensors": 2 * len(layers), "layers": list(layers), **({"name": name} if name else {})}
            for name, layers in held.items()
        ]
        self.manifest["optimizers"] = [{"class": "Adam", "groups": groups}]

    def batch(self, step: int, epoch: int | None, accuracy: Number, *, size: int = 20, name: str = "train_accuracy",
              shares: Sequence[float] = (0.5, 0.5)) -> None:  # fmt: skip
        """A training batch; `shares` are those of its classes."""
        self.write("Loss", step, [Table("model", ["model"], [Column(name, [accuracy])])], epoch=epoch)
        tables = [Table("model", ["model"], [Column("batch_size", [size]), Column("targets", [size])])]
        classes = [str(number) for number in range(len(shares))]
        tables += [Table("class", classes, [Column("share", list(shares))])] if shares else []
        self.write("BatchStats", step, tables, epoch=epoch)

    def validate(self, step: int, epoch: int | None, accuracy: Number, *, examples: int = 200, probe: str = "Holdout",
                 labels: Sequence[int] | None = None) -> None:  # fmt: skip
        columns = [Column("holdout_accuracy", [accuracy]), Column("holdout_examples", [examples])]
        arrays = None if labels is None else {"labels": labels}
        self.write(probe, step, [Table("model", ["model"], columns)], epoch=epoch, arrays=arrays)

    def epochs(self, training: Sequence[Number], holdout: Sequence[Number] | Number = 0.5, *, per_epoch: int = 4,
               first: int = 0, batch: Mapping[str, Any] | None = None,
               validate: Mapping[str, Any] | None = None) -> None:  # fmt: skip
        """An accuracy for each epoch, the same in all its batches; epochs are numbered from `first`."""
        step = 0
        for number, accuracy in enumerate(training):
            value = holdout[number] if isinstance(holdout, Sequence) else holdout
            for _ in range(per_epoch):
                step += 10
                self.batch(step, first + number, accuracy, **(batch or {}))
                self.validate(step, first + number, value, **(validate or {}))

    def delta(self, span: tuple[int, int], moved: Mapping[str, Number], ratios: Mapping[str, Number] | None = None, *,
              probe: str = "WeightDelta") -> None:  # fmt: skip
        """‖Δ‖ by layer; the groups' follow from it. `ratios` are ‖Δ‖/‖W‖ of `backbone` and `head`."""
        tables = [Table("layer", list(moved), [Column("l2", list(moved.values()))])]
        for kind in ("named", "group"):
            sums: list[Number] = []
            for inside in (BACKBONE, HEAD):
                known = [moved[layer] for layer in inside]
                sums.append(None if None in known else sum(v for v in known if v is not None))
            columns = [Column("l2", sums)]
            if ratios is not None:
                columns.append(Column("update_to_weight", [ratios["backbone"], ratios["head"]]))
            tables.append(Table(kind, ["backbone", "head"], columns))
        self.write(probe, span[1], tables, notes={"span": list(span)})

    def rates(self, step: int, backbone: Number, head: Number, *, kinds: Sequence[str] = ("group", "named")) -> None:
        columns = [Column("learning_rate", [backbone, head])]
        self.write("LearningRate", step, [Table(kind, ["backbone", "head"], columns) for kind in kinds])
