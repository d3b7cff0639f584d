"""How far the smallest changes take a model that are made to harm it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.robustness.ball import Per, Threat, Unit
from learnscope.model.robustness.target import What
from learnscope.model.robustness.token_units import vocabulary_digest
from learnscope.options import check_whole
from learnscope.probes.robustness.attack_flags import Found, flag_columns, gap_columns
from learnscope.probes.robustness.attacking import Attacking, threat_for
from learnscope.probes.robustness.rows import (
    REGRESSION,
    batches_for,
    check_numbers,
    check_threat,
    column,
    mean_kl,
    outcome_columns,
)
from learnscope.quantities import Quantities
from learnscope.quantities.robustness import Attacks as Q
from learnscope.record import Column, Label, Measurement, Table
from learnscope.tensor.robustness.perturbation import Norm

EPSILONS: Mapping[What, Sequence[float]] = {"embeddings": (0.25, 0.5, 1.0), "inputs": (0.01, 0.03, 0.1)}
NO_GRADIENT = "no gradient is taken"
CONTINUOUS = "continuous inputs have no tokens"


class Attacks(Probe):
    """FGSM and PGD beside random perturbations of the same size, on inputs or on the embeddings of tokens.

    The loss is the task's, labels stay, padding never moves nor counts. FGSM takes one step of ε, PGD `steps` of
    2.5 ε/steps, from the input and then from random points of the ball, `restarts` in all, and every example keeps the
    worst point that a step led to.
    What ε means is said by `norm`, `per` and `unit`: see `model.robustness.ball.Threat`. By default it is, for
    tokens, the L2 length of what is added to each embedding as a share of the distance to the nearest other token
    (below 0.5 no text corresponds to it); for inputs L∞ relative to the input.

    Rows of kind `attack` have the scope "clean", "random", "fgsm" or "pgd". The last four names are flags: a 0 among
    them, or many zero gradients, says that the attack failed, not that the model held.

    Notes: `target` ("embeddings" or "inputs"), `per`, `steps`, `restarts`, `examples`, `positions`, and for language
    models `texts`: for each ε what the attack amounts to as text (see `learnscope.model.robustness.texts`).
    """

    at: At = "once"
    examples: int | None = None
    """How many are attacked; by default 8 sequences of tokens, or 32 inputs."""
    epsilons: Sequence[float] | None = None
    norm: Norm | None = None
    per: Per | None = None
    """L2 of token models: of each token's embedding, or of the sequence's as one vector."""
    unit: Unit | None = None
    steps: int = 10
    restarts: int = 1
    """Starts of PGD: the input itself, and from the second on random points of the ball."""
    seeds: int = 5
    """Random perturbations for each ε."""
    clip: tuple[float, float] | None = None
    """The range of valid inputs, such as (0, 1), which attacks do not leave."""
    texts: int = 2
    """Examples whose attacked text is kept, for each ε."""
    seed: int = 0

    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    reads_only: ClassVar[bool] = True  # whatever runs the model has a guard of its own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "forward and backward passes over the examples for each ε and step, and one for each seed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1, steps=1, restarts=1, seeds=1, texts=0, seed=0)
        if self.epsilons is not None:
            check_numbers("Attacks", "epsilons", self.epsilons, low=0)
        check_threat(self)

    def measure(self, moment: Moment) -> Measurement:
        batches, what = batches_for(moment, self.examples)
        threat = threat_for(moment, batches, self.norm, self.per, self.unit)
        found = self._found(moment, Attacking(moment, batches, threat, self.clip, self.seed), what)
        tables = [Table("attack", [one.scope], self._columns(one, threat, what)) for one in found]
        model = Table("model", ["model"], [*gap_columns(found), *flag_columns(found)])
        notes: dict[str, Any] = {
            "target": what, "per": threat.per, "steps": self.steps, "restarts": self.restarts,
            "examples": len(found[0].told["positions"]), "positions": sum(found[0].told["positions"]),
        }  # fmt: skip
        if what == "embeddings":
            notes["texts"] = [
                {"epsilon": one.epsilon, "unit": threat.unit, **text}
                for one in found
                for text in one.told.get("texts", ())
            ]
        if lost := sum(one.told.get("not_finite", 0) for one in found):
            notes["not_finite"] = lost
        return Measurement([*tables, model], notes=notes)

    def _found(self, moment: Moment, attacking: Attacking, what: What) -> list[Found]:
        """Every attack at every ε, each remembered by itself."""
        epsilons = sorted({float(e) for e in (EPSILONS[what] if self.epsilons is None else self.epsilons)})
        plan: list[tuple[str, float, int]] = [("clean", 0.0, 0)]
        for epsilon in epsilons:
            plan += [("random", epsilon, 0), ("fgsm", epsilon, 1), ("pgd", epsilon, self.steps)]
        if (fewer := max(1, self.steps // 3)) < self.steps:
            plan.append(("pgd", epsilons[-1], fewer))
        shared = self._part(moment, attacking)
        found = []
        for scope, epsilon, steps in moment.track(plan, "attacks"):
            texts = self.texts if scope == "pgd" and steps == self.steps and what == "embeddings" else 0
            part = {**shared, "scope": scope, "epsilon": epsilon, "steps": steps}
            part |= {"restarts": self.restarts, "texts": texts} if scope == "pgd" else {}
            part |= {"seeds": self.seeds} if scope == "random" else {}

            def run(scope: str = scope, epsilon: float = epsilon, steps: int = steps, texts: int = texts) -> Any:
                if scope == "clean":
                    return attacking.clean()
                if scope == "random":
                    return attacking.random(epsilon, self.seeds)
                return (
                    attacking.fgsm(epsilon) if scope == "fgsm" else attacking.pgd(epsilon, steps, self.restarts, texts)
                )

            found.append(Found(scope, epsilon, steps, moment.remember(part, run)))
        return found

    def _part(self, moment: Moment, attacking: Attacking) -> dict[str, Any]:
        threat: Threat = attacking.threat
        return {
            "what": "attack", "norm": threat.norm, "per": threat.per, "unit": threat.unit, "seed": self.seed,
            "clip": None if self.clip is None else [float(end) for end in self.clip],
            "examples": [moment.task.size(batch) for batch in attacking.batches],
            "vocabulary": vocabulary_digest(moment.subject.tokenizer),
        }  # fmt: skip

    def _columns(self, one: Found, threat: Threat, what: What) -> list[Column]:
        labels: dict[str, Label] = {
            "norm": threat.norm, "epsilon": one.epsilon, "unit": threat.unit, "steps": one.steps
        }  # fmt: skip
        told = one.told
        columns = [*outcome_columns(Q, told, labels), column(Q.kl, mean_kl(told), labels, REGRESSION)]
        if one.scope == "clean":
            return columns
        share = told["zero_gradients"] / told["gradients"] if told.get("gradients") else math.nan
        columns.append(column(Q.zero_gradient_share, share, labels, NO_GRADIENT))
        sizes = {"absolute": Q.epsilon_absolute, "relative": Q.epsilon_relative, "token": Q.epsilon_token}
        for unit, size in sizes.items():
            reason = "what is attacked has length 0"
            if unit == "token":
                reason = CONTINUOUS if what == "inputs" else "no token of the data has another that differs from it"
            columns.append(column(size, told[size.name], labels, reason))
        return columns
