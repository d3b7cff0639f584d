"""Runs written by hand, with the rows that the probes record, for whatever reads runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from learnscope.record import SCHEMA_VERSION, Column, Record, Table
from learnscope.store.backend import Backend, MemoryBackend
from learnscope.store.reader import RunReader

Number = float | int | None


class MadeRun:
    """Append firings of the probes by hand; `reader` reads them back as any run."""

    def __init__(self, backend: Backend | None = None, **model: Any) -> None:
        self.backend = backend or MemoryBackend()
        self.manifest: dict[str, Any] = {
            "schema": SCHEMA_VERSION, "source": "watch", "created": 1e9, "status": "finished", "probes": {},
            "model": {
                "class": "Net", "parameters": 1000, "tensors": 10, "frozen": [], "trainable_outside_optimizer": [],
                "dtypes": {"float32": 1000}, "layers": [], **model,
            },
            "optimizers": [{"class": "AdamW", "groups": [{"lr": 1e-3, "tensors": 10}]}],
            "environment": {"learnscope": "0.1.0", "python": "3.11.2", "torch": "2.9.0", "platform": "Linux",
                            "threads": 2, "accelerator": None, "git": {"commit": "a" * 40, "changed": True}},
            "attempts": [{"attempt": 0, "start_step": 0, "started": 1e9, "ended": 1e9 + 100}],
        }  # fmt: skip
        self.attempt = 0
        self.backend.put_manifest(self.manifest)

    @property
    def reader(self) -> RunReader:
        self.backend.put_manifest(self.manifest)
        return RunReader(self.backend)

    def resume(self, start_step: int) -> None:
        self.attempt += 1
        self.manifest["attempts"].append(
            {"attempt": self.attempt, "start_step": start_step, "started": 1e9 + 200, "ended": 1e9 + 250}
        )

    def write(self, probe: str, step: int, tables: Sequence[Table] = (), *, phase: str = "after_step",
              arrays: Mapping[str, Any] | None = None, cost: float = 0.002, **more: Any) -> None:  # fmt: skip
        """One record; values that are not finite become null with their status, as the session writes them."""
        reference = None
        if arrays is not None:
            reference = f"arrays/{probe}-{step:010d}-{phase}-{self.attempt}.safetensors"
            self.backend.put_arrays(reference, {name: np.asarray(value) for name, value in arrays.items()})
        clean = [Table(t.kind, t.scopes, [column.finished(column.values) for column in t.columns]) for t in tables]
        record = Record(
            probe=probe, step=step, phase=phase, source="watch", time=1e9 + step / 10, cost=cost,
            attempt=self.attempt, tables=clean, arrays=reference, **more,
        )  # fmt: skip
        self.backend.append(record.to_json())

    def model(self, probe: str, step: int, **values: Number) -> None:
        self.write(probe, step, [Table("model", ["model"], [Column(n, [v]) for n, v in values.items()])])

    def loss(self, step: int, value: Number) -> None:
        self.model("Loss", step, loss=value)

    def gradients(self, step: int, norms: Mapping[str, Number], weight: float | Mapping[str, float] = 1.0, *,
                  clip: float | None = None, nan: int = 0, inf: int = 0, first: str | None = None,
                  bad_tensors: int = 0, without: int = 0, probe: str = "GradientFlow") -> None:  # fmt: skip
        """Norms by layer before clipping, and the norms of the layers' weights."""
        layers = list(norms)
        before = [norms[layer] for layer in layers]
        weights = [weight if isinstance(weight, float) else weight[layer] for layer in layers]
        known = [0.0 if n is None else n for n in before]
        total = float(np.sqrt(np.sum(np.square(known))))
        factor = min(1.0, clip / total) if clip and total else 1.0
        ratio = [None if n is None else (n / w if w else float("inf")) for n, w in zip(before, weights, strict=True)]

        def columns(values: list[Number]) -> list[Column]:
            stepped = [None if v is None else v * factor for v in values]
            found = [Column("norm", stepped, {"stage": "stepped"})]
            return [*found, Column("norm", values, {"stage": "before_clip"})] if clip else found

        counts = [Column("nan", [nan]), Column("inf", [inf]), Column("nonfinite_tensors", [bad_tensors])]
        counts += [Column("zero_share", [0.1]), Column("without_gradient", [without])]
        counts += [Column("clip_coefficient", [factor])] if clip else []
        tables = [
            Table("model", ["model"], [*columns([total]), *counts]),
            Table("layer", layers, [*columns(before), Column("gradient_to_weight", ratio)]),
        ]
        if first is not None:
            tables.append(Table("tensor", [first], [Column("first_nonfinite", [nan + inf])]))
        self.write(probe, step, tables, phase="before_step")

    def change(self, span: tuple[int, int], visible: Mapping[str, Number], *, nan: int = 0, dtype: str = "float32",
               layers: Mapping[str, Number] | None = None, bad: Mapping[str, int] | None = None) -> None:  # fmt: skip
        """Visible share by tensor; `layers` gives update-to-weight ratios by layer."""
        names = list(visible)
        label = {"threshold": 1e-8, "dtype": dtype}
        shares = [visible[name] for name in names]
        sparse = [None if s is None else 1 - s for s in shares]
        bad_entries = [(bad or {}).get(name, 0) for name in names]
        tables = [
            Table("tensor", names, [
                Column("visible_share", shares), Column("sparsity", sparse, label), Column("nan", bad_entries),
                Column("inf", [0] * len(names)), Column("l1", [1.0] * len(names)),
            ]),
            Table("model", ["model"], [
                Column("visible_share", [float(np.mean([s or 0.0 for s in shares]))]), Column("nan", [nan]),
                Column("inf", [0]), Column("sparsity", [0.1], label),
                Column("sparsity", [0.3], {"threshold": 1e-6, "dtype": dtype}),
            ]),
        ]  # fmt: skip
        if layers:
            tables.append(Table("layer", list(layers), [Column("update_to_weight", list(layers.values()))]))
        self.write("ParameterChange", span[1], tables, notes={"span": list(span)})

    def activations(self, step: int, dead: Mapping[str, Number], saturated: Mapping[str, Number] | None = None, *,
                    units: int = 64, examples: int = 256) -> None:  # fmt: skip
        """Shares of dead and saturated units by layer; what is not saturated otherwise is what is dead."""
        flat = [(saturated or {}).get(layer, share) for layer, share in dead.items()]
        columns = [Column("dead_share", list(dead.values())), Column("saturated_share", flat)]
        columns.append(Column("units", [units] * len(dead)))
        whole = [Column("dead_share", [0.1]), Column("units", [units * len(dead)]), Column("sites", [len(dead)])]
        tables = [Table("model", ["model"], whole), Table("layer", list(dead), columns)]
        self.write("Activations", step, tables, notes={"examples": examples})

    def absorbed(self, step: int, layers: Mapping[str, Number], decay: Mapping[str, Number] | None = None, *,
                 half: float = 0.01, rounding: str = "apart", coverage: float = 1.0) -> None:  # fmt: skip
        """Shares of updates, and of weight decay, lost to rounding, by layer; the model's is their mean."""

        def columns(
            values: Mapping[str, Number], name: str, labels: Mapping[str, str]
        ) -> tuple[list[Column], list[Column]]:
            known = [v for v in values.values() if v is not None]
            found = []
            for shares in ([float(np.mean(known))] if known else [None]), list(values.values()):
                low = [None if v is None else max(v - half, 0.0) for v in shares]
                high = [None if v is None else min(v + half, 1.0) for v in shares]
                ends = (("", shares), ("_low", low), ("_high", high))
                found.append([Column(f"{name}{end}", numbers, labels) for end, numbers in ends])
            return found[0], found[1]

        model, each = columns(layers, "absorbed_share", {})
        model.append(Column("absorbed_coverage", [coverage]))
        each.append(Column("absorbed_coverage", [coverage] * len(layers)))
        if decay is not None:
            for table, more in zip(
                (model, each), columns(decay, "decay_absorbed_share", {"rounding": rounding}), strict=True
            ):
                table += more
        self.write("ParameterChange", step, [Table("model", ["model"], model), Table("layer", list(layers), each)])

    def holdout(self, step: int, losses: Sequence[float] | None, example: Sequence[int] | None = None, *,
                mean: Number = None, accuracy: float | None = None, probe: str = "Holdout",
                stand_in: str | None = None) -> None:  # fmt: skip
        """Losses by position; without them only the mean is recorded, as with keep_arrays=False."""
        arrays = None
        if losses is not None:
            mean = float(np.mean(losses)) if mean is None else mean
            ids = np.arange(len(losses)) if example is None else np.asarray(example)
            arrays = {"losses": np.asarray(losses, dtype=np.float32), "example": ids}
        columns = [Column("holdout_loss", [mean], {} if stand_in is None else {"loss": stand_in})]
        columns += [Column("holdout_accuracy", [accuracy])] if accuracy is not None else []
        self.write("Holdout" if probe is None else probe, step, [Table("model", ["model"], columns)], arrays=arrays)
