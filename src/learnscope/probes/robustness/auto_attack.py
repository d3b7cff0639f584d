"""AutoAttack beside PGD, on classifiers of images, with flags for gradients that are masked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.robustness.auto_attack import (
    FREE,
    GRADIENT,
    CannotAttack,
    Images,
    auto_attacked,
    check_installed,
    right_answers,
)
from learnscope.model.robustness.ball import Threat
from learnscope.model.robustness.target import What
from learnscope.options import check_whole
from learnscope.probes.robustness.attack_runner import AttackProbe, AttackRunner
from learnscope.probes.robustness.shared import accuracy_columns, check_numbers, column, difference_columns
from learnscope.quantities.robustness import AutoAttack as Q
from learnscope.record import Column, Measurement, Table

EPSILONS = {"linf": 8 / 255, "l2": 0.5}
"""Sizes for images between 0 and 1 that robustness is usually told at."""
MORE_STEPS = 4
SCOPES = ("clean", "pgd", *GRADIENT, FREE, "autoattack")
ROUNDING = 1e-6


class AutoAttack(AttackProbe):
    """AutoAttack of Croce and Hein (ICML 2020) through the package `pyautoattack`, and PGD of the same size.

    For classifiers of images, [channels, height, width]. ε is absolute, in the units of the inputs; `clip` is the range
    of valid ones, by default 0 to 1. Every attack is run by itself: `apgd-ce`, `apgd-t` and `fab-t` follow gradients,
    `square` needs none; `autoattack` counts an image as right if no attack changes its answer.

    Flags say whether gradients can be believed; 0 means that they are masked, and that the model is not as robust as
    attacks by gradients make it look (Athalye, Carlini and Wagner 2018). What cannot be attacked (no images, no
    package) has no numbers, with the reason.

    Notes: `examples`, `clip`, `queries`, `steps`, `left_out` (attacks that were not run, and why), `said` (what the
    package itself warns of).
    """

    epsilons: Sequence[float] | None = None
    """None: 8/255 of the range for `linf`, 0.5 of it for `l2`."""
    queries: int = 5000
    """Of Square, for each image."""

    cost = "some thousand forward passes for each ε, and a thousand with a backward"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, queries=1)
        if self.epsilons is not None:
            check_numbers(self, "epsilons", self.epsilons, low=0)
        if self.unit not in (None, "absolute") or self.per is not None:
            raise ValueError(
                "AutoAttack: its epsilons are absolute, of each image as a whole: leave out unit= and per="
            )

    def _threat(self, what: What) -> Threat:  # noqa: ARG002  (images, or it is refused)
        return Threat(self.norm or "linf", "example", "absolute")

    def measure(self, moment: Moment) -> Measurement:
        try:
            check_installed()
            batches, what = self.batches(moment)
            if what == "embeddings":
                raise CannotAttack("AutoAttack is for images, and these are token ids")
            runner = AttackRunner(moment, batches, self._threat(what), self.clip, self.seed)
            images = Images(moment.model, moment.task, runner.targets, self.clip)
        except CannotAttack as error:
            return _nothing(str(error))
        runner = AttackRunner(moment, batches, runner.threat, (images.low, images.high), self.seed)
        return self._measured(runner, images)

    def _measured(self, runner: AttackRunner, images: Images) -> Measurement:
        norm, moment = runner.threat.norm, runner.moment
        epsilons = sorted({float(e) for e in self.epsilons or (EPSILONS[norm] * images.span,)})
        clean = _sums(right_answers(images))
        tables, by_epsilon = [Table("attack", ["clean"], self._columns(clean, 0.0, norm))], list[dict[str, Any]]()
        said, left_out = list[str](), dict[str, str]()
        for epsilon in moment.track(epsilons, "AutoAttack"):
            attacks = partial(auto_attacked, images, norm, epsilon, seed=self.seed, queries=self.queries)
            made = moment.remember(self._key(runner, "autoattack", epsilon), attacks)
            pgd = self._pgd(runner, epsilon, self.steps)
            right: Mapping[str, list[int]] = made["right"]
            worst = [min(each) for each in zip(clean["correct"], *right.values(), strict=True)]
            found = {"pgd": pgd, **{name: _sums(each) for name, each in right.items()}, "autoattack": _sums(worst)}
            tables += [Table("attack", [name], self._columns(sums, epsilon, norm)) for name, sums in found.items()]
            by_epsilon.append(found)
            said += made["said"]
            left_out |= made["left_out"]
        tables.append(Table("model", ["model"], self._of_model(runner, images, clean, by_epsilon, epsilons)))
        notes = {
            "target": "inputs", "examples": len(images.y), "clip": [images.low, images.high], "queries": self.queries,
            "steps": self.steps, "restarts": self.restarts, "left_out": left_out, "said": list(dict.fromkeys(said)),
        }  # fmt: skip
        return Measurement(tables, notes=notes)

    def _key(self, runner: AttackRunner, what: str, epsilon: float) -> dict[str, Any]:
        return {**runner.key(what), "epsilon": epsilon, "queries": self.queries, "version": 1}

    def _pgd(self, runner: AttackRunner, epsilon: float, steps: int) -> dict[str, Any]:
        key = {**runner.key("attack"), "scope": "pgd", "epsilon": epsilon, "steps": steps, "restarts": self.restarts,
               "texts": 0}  # fmt: skip
        return runner.moment.remember(key, partial(runner.pgd, epsilon, steps, self.restarts))

    def _columns(self, sums: Mapping[str, Any], epsilon: float, norm: str) -> list[Column]:
        return accuracy_columns(Q, sums, {"norm": norm, "epsilon": epsilon})

    def _of_model(
        self, runner: AttackRunner, images: Images, clean: Mapping[str, Any], found: Sequence[Mapping[str, Any]],
        epsilons: Sequence[float],
    ) -> list[Column]:  # fmt: skip
        """The gaps at the largest ε, and the flags."""
        last, largest = found[-1], epsilons[-1]
        gap = (Q.robustness_gap, Q.robustness_gap_low, Q.robustness_gap_high)
        beside = (Q.pgd_gap, Q.pgd_gap_low, Q.pgd_gap_high)
        whole = images.span * (1.0 if runner.threat.norm == "linf" else math.sqrt(images.x[0].numel()))
        unbounded = runner.moment.remember(
            self._key(runner, "autoattack without bounds", whole),
            partial(auto_attacked, images, runner.threat.norm, whole, seed=self.seed, queries=1, only=["apgd-ce"]),
        )
        few, many = (self._pgd(runner, largest, steps) for steps in (self.steps, MORE_STEPS * self.steps))
        losses = [sum(each["loss"]) for each in (few, many)]
        accuracies = [sum(each["autoattack"]["correct"]) for each in found]
        falls = None if len(found) < 2 else all(more <= less for less, more in pairwise(accuracies))
        return [
            *difference_columns(gap, clean, last["autoattack"], {}),
            *difference_columns(beside, last["pgd"], last["autoattack"], {}),
            column(Q.square_no_better, float(all(_square_no_better(each) for each in found)), {}),
            column(Q.unbounded_breaks, float(not any(unbounded["right"]["apgd-ce"])), {}),
            column(Q.more_steps_no_weaker, float(losses[0] <= losses[1] + ROUNDING * max(1.0, abs(losses[0]))), {}),
            column(Q.falls_with_epsilon, None if falls is None else float(falls), {}, "there is one epsilon only"),
        ]


def _square_no_better(found: Mapping[str, Any]) -> bool:
    """Whether attacks by gradients, together, break at least as many images as the one without."""
    by_gradient = [min(each) for each in zip(*(found[a]["correct"] for a in GRADIENT if a in found), strict=True)]
    return bool(sum(by_gradient) <= sum(found[FREE]["correct"]))


def _sums(right: Sequence[int]) -> dict[str, Any]:
    """As all results of attacks are kept; only the answers are known of what the package made."""
    return {"correct": list(right), "positions": [1] * len(right)}


def _nothing(reason: str) -> Measurement:
    """All numbers missing, with the reason."""
    attack = [q.cells([reason] * len(SCOPES), norm="", epsilon=0.0) for q in Q.all() if "attack" in q.kinds]
    model = [q.cells([reason]) for q in Q.all() if "model" in q.kinds]
    return Measurement([Table("attack", list(SCOPES), attack), Table("model", ["model"], model)])
