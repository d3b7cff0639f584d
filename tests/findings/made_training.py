"""A training written by hand as the default probes record it: losses at every step, the rest at every tenth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from findings.made_run import MadeRun
from learnscope.findings import find
from learnscope.record import Column, Finding, Table

Over = float | Sequence[float] | Callable[[int], float]
LAYERS = ["first", "second", "last"]


def at(value: Over, step: int) -> float:
    if callable(value):
        return float(value(step))
    return float(value[step - 1]) if isinstance(value, Sequence | np.ndarray) else float(value)


def falling(n: int = 300, start: float = 2.3, end: float = 0.2, noise: float = 0.05, seed: int = 0) -> list[float]:
    draw = np.random.default_rng(seed)
    return (end + (start - end) * np.exp(-5 * np.arange(n) / n) + noise * draw.standard_normal(n)).tolist()


def flat(n: int = 300, level: float = 2.3, noise: float = 0.02, seed: int = 0) -> list[float]:
    return (level + noise * np.random.default_rng(seed).standard_normal(n)).tolist()


class MadeTraining(MadeRun):
    """`optimizer` is the class of the one optimizer, with the options of its group."""

    def __init__(self, optimizer: str = "Adam", **options: Any) -> None:
        super().__init__(layers=LAYERS, parameters=10_000)
        self.manifest["optimizers"] = [{"class": optimizer, "groups": [{"lr": 1e-3, "tensors": 6, **options}]}]

    def train(
        self, losses: Sequence[float], *, rate: Over = 1e-3, update: Over = 1e-3, gradient: Over = 0.5,
        weight: Over = 10.0, decay: float | None = None, clip: float | None = None, every: int = 10,
    ) -> MadeTraining:  # fmt: skip
        """`update` is ‖Δ‖/‖W‖ of one step, `gradient` ‖g‖ before a clip at `clip`."""
        for step, loss in enumerate(losses, 1):
            self.loss(step, float(loss))
            if step % every:
                continue
            columns = [Column("learning_rate", [at(rate, step)])]
            columns += [Column("weight_decay", [decay])] if decay is not None else []
            self.write("LearningRate", step, [Table("group", ["group_0"], columns)], phase="before_step")
            norms = dict.fromkeys(LAYERS, at(gradient, step) / len(LAYERS) ** 0.5)
            self.gradients(step, norms, at(weight, step), clip=clip)
            self.moved((step - every, step), at(update, step), at(weight, step))
        return self

    def moved(self, span: tuple[int, int], update: float, weight: float) -> None:
        ratio = update * (span[1] - span[0])
        columns = [Column("update_to_weight", [ratio]), Column("l2", [ratio * weight])]
        layers = [Column("update_to_weight", [ratio] * 3), Column("l2", [ratio * weight] * 3)]
        tables = [Table("model", ["model"], columns), Table("layer", LAYERS, layers)]
        self.write("ParameterChange", span[1], tables, notes={"span": list(span)})

    def objective(
        self, steps: int, function: str = "cross_entropy", reduction: str = "mean", *, value: Over | None = None,
        every: int = 10, size: int = 32, **numbers: Over,
    ) -> MadeTraining:  # fmt: skip
        """What the loss function showed at every tenth step, on batches of `size`."""
        for step in range(every, steps + 1, every):
            labels = {"function": function, "reduction": reduction}
            columns = []
            if value is not None:
                one = at(value, step) / (size if reduction == "sum" else 1)
                columns = [Column("objective_value", [at(value, step)], labels)]
                columns.append(Column("objective_mean", [one], {"function": function}))
            columns += [Column(name, [at(number, step)]) for name, number in numbers.items()]
            self.write("Objective", step, [Table("model", ["model"], columns)], notes={"of": f"{function} of 10"})
        return self

    def inputs(self, steps: int, data: str = "train", every: int = 10, **numbers: Over) -> MadeTraining:
        for step in range(every, steps + 1, every):
            columns = [Column(name, [at(number, step)], {"data": data}) for name, number in numbers.items()]
            self.write("Inputs", step, [Table("model", ["model"], columns)])
        return self

    def calls(self, steps: int, every: int = 10, **counts: Over) -> MadeTraining:
        for step in range(every, steps + 1, every):
            usual: Mapping[str, Over] = {"steps": every, "backwards": every}
            self.model("LoopCalls", step, **{name: at(count, step) for name, count in {**usual, **counts}.items()})
        return self

    @property
    def alarms(self) -> list[Finding]:
        return [finding for finding in find(self.reader) if finding.severity != "info"]

    @property
    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.alarms]
