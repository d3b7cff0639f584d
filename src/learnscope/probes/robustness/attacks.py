"""How much harm small changes do that are made to harm the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.robustness.ball import Threat
from learnscope.model.robustness.target import What
from learnscope.options import check_whole
from learnscope.probes.robustness.attack_runner import AttackProbe, AttackRunner
from learnscope.probes.robustness.shared import (
    REGRESSION,
    check_numbers,
    column,
    counted,
    difference_columns,
    means,
    outcome_columns,
)
from learnscope.quantities import Quantity
from learnscope.quantities.robustness import Attacks as Q
from learnscope.record import Column, Label, Measurement, Table

EPSILONS: Mapping[What, Sequence[float]] = {"embeddings": (0.25, 0.5, 1.0), "inputs": (0.01, 0.03, 0.1)}
ROUNDING = 1e-6
"""Share of a loss by which equal losses of float32 passes differ."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack at one ε, and its result."""

    scope: str
    epsilon: float
    steps: int
    result: Mapping[str, Any]

    @property
    def loss(self) -> float:
        loss = means(self.result)["loss"]
        return math.nan if loss is None else loss


class Attacks(AttackProbe):
    """FGSM and PGD beside random perturbations of the same size, on inputs or on the embeddings of tokens.

    The loss is the task's; labels stay; padding neither moves nor counts. FGSM takes one step of ε, PGD `steps` of
    2.5 ε/steps, from the input and then from random points of the ball, `restarts` in all, and every example keeps the
    worst point that a step led to.
    `norm`, `per` and `unit` define ε: see `model.robustness.ball.Threat`. By default it is, for tokens, the L2 length
    of what is added to each embedding as a share of the distance to the nearest other token (below 0.5 no text
    corresponds to it); for inputs L∞ relative to the input.

    Rows of kind `attack` have the scope "clean", "random", "fgsm" or "pgd". The last four names are flags: a 0 among
    them, or many zero gradients, means that the attack failed, not that the model is robust.

    Notes: `target` ("embeddings" or "inputs"), `per`, `steps`, `restarts`, `examples`, `positions`, and for language
    models `texts`: for each ε the attack as text (see `learnscope.model.robustness.attack`).
    """

    epsilons: Sequence[float] | None = None
    seeds: int = 5
    """Random perturbations for each ε."""
    texts: int = 2
    """Examples whose attacked text is kept, for each ε."""

    cost = "forward and backward passes over the examples for each ε and step, and one for each seed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, seeds=1, texts=0)
        if self.epsilons is not None:
            check_numbers(self, "epsilons", self.epsilons, low=0)

    def measure(self, moment: Moment) -> Measurement:
        runner, what = self.runner(moment)
        threat = runner.threat
        attacks = self._attacks(runner, what)
        tables = [Table("attack", [attack.scope], _columns(attack, threat, what)) for attack in attacks]
        model = Table("model", ["model"], [*_gap_columns(attacks), *_flag_columns(attacks)])
        positions = attacks[0].result["positions"]
        notes: dict[str, Any] = {
            "target": what, "per": threat.per, "steps": self.steps, "restarts": self.restarts,
            "examples": len(positions), "positions": sum(positions),
        }  # fmt: skip
        if what == "embeddings":
            notes["texts"] = [
                {"epsilon": attack.epsilon, "unit": threat.unit, **text}
                for attack in attacks
                for text in attack.result.get("texts", ())
            ]
        if not_finite := sum(attack.result.get("not_finite", 0) for attack in attacks):
            notes["not_finite"] = not_finite
        return Measurement([*tables, model], notes=notes)

    def _attacks(self, runner: AttackRunner, what: What) -> list[Attack]:
        """Every attack at every ε, each cached by itself."""
        epsilons = sorted({float(e) for e in (EPSILONS[what] if self.epsilons is None else self.epsilons)})
        plan: list[tuple[str, float, int]] = [("clean", 0.0, 0)]
        for epsilon in epsilons:
            plan += [("random", epsilon, 0), ("fgsm", epsilon, 1), ("pgd", epsilon, self.steps)]
        if (fewer := max(1, self.steps // 3)) < self.steps:
            plan.append(("pgd", epsilons[-1], fewer))
        attacks = []
        for scope, epsilon, steps in runner.moment.track(plan, "attacks"):
            texts = self.texts if scope == "pgd" and steps == self.steps and what == "embeddings" else 0
            key = {**runner.key("attack"), "scope": scope, "epsilon": epsilon, "steps": steps}
            key |= {"restarts": self.restarts, "texts": texts} if scope == "pgd" else {}
            key |= {"seeds": self.seeds} if scope == "random" else {}
            runs: dict[str, Callable[[], dict[str, Any]]] = {
                "clean": runner.clean,
                "random": partial(runner.random, epsilon, self.seeds),
                "fgsm": partial(runner.fgsm, epsilon),
                "pgd": partial(runner.pgd, epsilon, steps, self.restarts, texts),
            }
            attacks.append(Attack(scope, epsilon, steps, runner.moment.remember(key, runs[scope])))
        return attacks


def _columns(attack: Attack, threat: Threat, what: What) -> list[Column]:
    result = attack.result
    labels: dict[str, Label] = {
        "norm": threat.norm, "epsilon": attack.epsilon, "unit": threat.unit, "steps": attack.steps
    }  # fmt: skip
    columns = [*outcome_columns(Q, result, labels), column(Q.kl, means(result)["kl"], labels, REGRESSION)]
    if attack.scope == "clean":
        return columns
    share = result["zero_gradients"] / result["gradients"] if result.get("gradients") else math.nan
    columns.append(column(Q.zero_gradient_share, share, labels, "no gradient is taken"))
    zero_length = "what is attacked has length 0"
    no_token = "no token of the data has another that differs from it"
    sizes = {
        Q.epsilon_absolute: zero_length,
        Q.epsilon_relative: zero_length,
        Q.epsilon_token: no_token if what == "embeddings" else "continuous inputs have no tokens",
    }
    return columns + [column(size, result[size.name], labels, reason) for size, reason in sizes.items()]


def _accuracy(result: Mapping[str, Any]) -> float:
    return means(result)["accuracy"] or 0.0


def _gap_columns(attacks: Sequence[Attack]) -> list[Column]:
    """`robustness_gap`: clean accuracy less the lowest of FGSM and PGD at the largest ε, paired by example."""
    clean = next(attack for attack in attacks if attack.scope == "clean").result
    by_gradient = [attack for attack in attacks if attack.scope in ("fgsm", "pgd")]
    largest = max(attack.epsilon for attack in by_gradient)
    worst = min([attack.result for attack in by_gradient if attack.epsilon == largest], key=_accuracy)
    quantities = (Q.robustness_gap, Q.robustness_gap_low, Q.robustness_gap_high)
    return [
        *difference_columns(quantities, clean, worst, {}),
        column(Q.examples, counted(clean["positions"]), {}),
    ]


def _flag_columns(attacks: Sequence[Attack]) -> list[Column]:
    """The four flags: 1 if the first loss of every pair is at most the second, 0, or null with the reason."""
    most = max(attack.steps for attack in attacks if attack.scope == "pgd")
    pgd = {attack.epsilon: attack.loss for attack in attacks if attack.scope == "pgd" and attack.steps == most}
    fewer = [attack for attack in attacks if attack.scope == "pgd" and attack.steps < most]
    randoms = [(loss, pgd[a.epsilon]) for a in attacks if a.scope == "random" for loss in a.result["losses"]]
    flags: list[tuple[Quantity, list[tuple[float, float]], str]] = [
        (Q.pgd_at_least_fgsm, [(a.loss, pgd[a.epsilon]) for a in attacks if a.scope == "fgsm"], ""),
        (Q.monotone_in_epsilon, [*pairwise(pgd[e] for e in sorted(pgd))], "there is one epsilon only"),
        (Q.monotone_in_steps, [(a.loss, pgd[a.epsilon]) for a in fewer], "PGD takes one step: there are no fewer"),
        (Q.random_below_attack, randoms, ""),
    ]
    return [column(quantity, *_flag(pairs, reason)) for quantity, pairs, reason in flags]


def _flag(pairs: Sequence[tuple[float, float]], reason: str) -> tuple[float | None, dict[str, Any], str]:
    if not pairs:
        return None, {}, reason
    if any(math.isnan(value) for pair in pairs for value in pair):
        return None, {}, "a loss is NaN"
    return float(all(low <= high + ROUNDING * max(1.0, abs(high)) for low, high in pairs)), {}, ""
