"""What examining a model takes: passes over examples, counted before they are run, and operations of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from learnscope.model.bits.quantise import is_switchable
from learnscope.model.bits.quantised_units import UnitsError, find_units
from learnscope.model.cost.calls import call_of, counted_flops, token_length
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.robustness.prompts import TEXT_KINDS, TOKEN_KINDS
from learnscope.probes.bits.bit_frontier import ALONE, BitFrontier
from learnscope.probes.bits.trials import Judged
from learnscope.probes.robustness.attacks import EPSILONS, Attacks
from learnscope.probes.robustness.bit_robustness import BitRobustness
from learnscope.probes.robustness.input_perturbation import InputPerturbation
from learnscope.probes.robustness.noise_robustness import NoiseRobustness
from learnscope.probes.robustness.prompt_perturbation import PromptPerturbation
from learnscope.task import Task

SEARCHED = 30
JUDGED: Mapping[Judged, int] = {"all": 28, "frontier": 9}
"""Configurations that the search over bit widths tries on one part of the examples, and judges on the other, about."""
PER_OUTPUT = {"plain": 50.0, "compared": 150.0, "gradient": 100.0}
"""Multiply-adds of a matrix product that take as long as what is done with one of the outputs in a pass."""


@dataclass(frozen=True, slots=True)
class OneExample:
    """What a forward pass over one example takes."""

    operations: float
    outputs: int
    """Logits, of all positions."""
    tokens: int
    """0 if the inputs are no token ids."""

    def shortened(self, tokens: int) -> OneExample:
        """The same of fewer tokens."""
        if not self.tokens or tokens >= self.tokens:
            return self
        share = tokens / self.tokens
        return OneExample(self.operations * share, round(self.outputs * share), tokens)


@dataclass(frozen=True, slots=True)
class Passes:
    """How often an example is run: with a loss, beside the model's own outputs, and back for a gradient."""

    plain: float = 0.0
    compared: float = 0.0
    gradient: float = 0.0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.plain + other.plain, self.compared + other.compared, self.gradient + other.gradient)

    @property
    def forwards(self) -> float:
        return self.plain + self.compared + self.gradient

    def work(self, one: OneExample) -> float:
        """In multiply-adds of a matrix product."""
        return sum(self.work_by_kind(one).values())

    def work_by_kind(self, one: OneExample) -> dict[str, float]:
        times: Mapping[str, tuple[float, int]] = {
            "plain": (self.plain, 1), "compared": (self.compared, 1), "gradient": (self.gradient, 2),
        }  # fmt: skip
        return {kind: n * (way * one.operations + PER_OUTPUT[kind] * one.outputs) for kind, (n, way) in times.items()}


def one_example(model: nn.Module, task: Task, batch: Any) -> OneExample:
    """Counted on the first example of a batch; operations that cannot be counted are two for each weight and token."""
    first = task.to(task.take(batch, 1), model_device(model))
    tokens = token_length(first)
    with torch.no_grad(), guard(model):
        call = call_of(model, task, first)
        counted = counted_flops(call.run)
    weights = sum(parameter.numel() for parameter in model.parameters())
    operations = counted / 2 if isinstance(counted, int) else weights * max(tokens, 1)
    return OneExample(float(operations), call.logits.numel(), tokens)


def bit_passes(
    model: nn.Module, examples: int = 0, alone: int = BitFrontier.alone_examples, searched: int = 0,
    judged: Judged = "all",
) -> Passes:  # fmt: skip
    """Of one of so many examples, by sensitivities, of the first `alone` of them, by the search, on so many of them (0:
    half), and by what is judged on the others."""
    try:
        units = find_units(model, embeddings=not is_switchable(model))
    except UnitsError:
        return Passes()
    share, part = min(1.0, alone / max(examples, 1)), searched / examples if searched else 0.5
    search = part * SEARCHED + (1 - part) * JUDGED[judged]
    return Passes(compared=2 + share * len(units) * len(ALONE) + search)


def robustness_passes(
    steps: int, transfer_steps: int, kinds: Sequence[str] = TOKEN_KINDS,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Passes:  # fmt: skip
    """Of one example, by attacks, noise, changed inputs, prompts changed in these ways, and attacks across bit
    widths; `options` of the probes by their names, where they are not their own."""
    probes: tuple[type[Any], ...] = (Attacks, NoiseRobustness, InputPerturbation, PromptPerturbation)
    attacked, noisy, inputs, prompts = (probe(**(options or {}).get(probe.__name__, {})) for probe in probes)
    sizes, fewer = len(EPSILONS["embeddings"]), max(1, steps // 3)
    twice = fewer < steps
    # all attacks begin with the same gradient, in a pass whose outputs are the clean ones; the last step of PGD needs a
    # loss only, and the outputs at its worst point have been seen
    attacks = Passes(
        plain=sizes + twice,
        compared=sizes * (attacked.seeds + 1),
        gradient=1 + sizes * (steps - 1) + twice * (fewer - 1),
    )
    noise = Passes(compared=noisy.seeds * (len(noisy.sigmas) + len(noisy.bits)))
    changed = Passes(plain=2 * inputs.seeds * len(inputs.levels))
    # prompts as they are, as tokens and as text that is encoded again
    clean = bool(kinds) + any(kind in TEXT_KINDS for kind in kinds)
    changed += Passes(compared=clean + len(kinds) * prompts.seeds * len(prompts.levels))
    widths = 1 + len(BitRobustness.bits)
    others = widths - 1  # where an attack was made, and without any at the first width, the outputs have been seen
    transfer = Passes(plain=widths + widths * others + others, gradient=widths * transfer_steps - 1)
    return attacks + noise + changed + transfer
