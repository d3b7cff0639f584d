"""The robustness analyzer: attacks, noise on weights, damaged inputs, and how bit widths bear on attacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from learnscope.options import explain_options
from learnscope.posttrain.examined import Examined
from learnscope.posttrain.views import entries
from learnscope.probes.robustness.attacks import Attacks
from learnscope.probes.robustness.bit_robustness import BitRobustness
from learnscope.probes.robustness.input_perturbation import InputPerturbation
from learnscope.probes.robustness.noise_robustness import NoiseRobustness

FLAGS = ("pgd_at_least_fgsm", "monotone_in_epsilon", "monotone_in_steps", "random_below_attack")


class RobustnessAnalyzer:
    """Examines how a finished model stands up to attacks, noise and damaged inputs, and leaves it as it was.

    Results are plain numbers, text, lists and dictionaries. NaN is "not measured"; where there is one, `reasons` beside
    it says why. An entry of a list is one setting: its labels, such as `epsilon` or `level`, and its numbers.
    """

    def __init__(self, examined: Examined) -> None:
        self.examined = examined

    @explain_options
    def test_adversarial_robustness(
        self, data_loader: Any, epsilons: Sequence[float] | None = None, *, examples: int | None = None,
        norm: Any = None, per: Any = None, unit: Any = None, steps: int = 10, restarts: int = 1, seeds: int = 5,
        clip: tuple[float, float] | None = None, texts: int = 2, seed: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """FGSM and PGD at several ε beside random perturbations of the same size; see `learnscope.probes.Attacks`.

        `clean`, and the lists `random`, `fgsm`, `pgd`, an entry an ε (`pgd` has a second one with fewer steps at the
        largest); `robustness_gap` = clean − worst attacked accuracy at the largest ε; `flags`, which say whether the
        attacks can be believed; `texts` of language models, and `target`, `norm`, `per`, `unit`.
        """
        record = self.examined.look(
            Attacks(
                examples=examples, epsilons=epsilons, norm=norm, per=per, unit=unit, steps=steps, restarts=restarts,
                seeds=seeds, clip=clip, texts=texts, seed=seed,
            ),
            data_loader,
        )  # fmt: skip
        attacks = entries(record, "attack")
        found: dict[str, Any] = {"clean": attacks["clean"][0]}
        found |= {scope: attacks[scope] for scope in ("random", "fgsm", "pgd")}
        model = entries(record, "model")["model"][0]
        names = ("robustness_gap", "robustness_gap_low", "robustness_gap_high")
        reasons = model.get("reasons", {})
        found |= {name: model[name] for name in names} | {"flags": {name: _flag(model[name]) for name in FLAGS}}
        found |= {"reasons": reasons} if reasons else {}
        first = found["clean"]
        return found | {"norm": first["norm"], "unit": first["unit"]} | dict(record.notes)

    @explain_options
    def test_noise_robustness(
        self, data_loader: Any, noise_levels: Sequence[float] = NoiseRobustness.sigmas, *,
        bits: Sequence[int] = NoiseRobustness.bits, examples: int | None = None, seeds: int = 5, seed: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Gaussian noise on the weights (`noise_levels`, shares of each channel's rms) and noise as rounding makes it.

        `weight_noise` and `quantisation_noise`, an entry a level; see `learnscope.probes.NoiseRobustness`.
        """
        record = self.examined.look(
            NoiseRobustness(sigmas=noise_levels, bits=bits, examples=examples, seeds=seeds, seed=seed), data_loader
        )
        return {**entries(record, "noise"), **record.notes}

    @explain_options
    def test_input_perturbations(
        self, data_loader: Any, levels: Sequence[float] = InputPerturbation.levels, *, dropout: Any = "remove",
        examples: int | None = None, seeds: int = 5, seed: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Tokens removed and replaced at random, or entries of continuous inputs; see `InputPerturbation`.

        `clean`, and a list for each kind of damage, an entry a level.
        """
        record = self.examined.look(
            InputPerturbation(examples=examples, dropout=dropout, seeds=seeds, seed=seed, levels=levels), data_loader
        )
        damaged = entries(record, "perturbation")
        return {**damaged, "clean": damaged["clean"][0], **record.notes}

    @explain_options
    def test_bit_robustness(
        self, data_loader: Any, bits: Sequence[int] = BitRobustness.bits, *, epsilon: float | None = None,
        examples: int | None = None, norm: Any = None, per: Any = None, unit: Any = None, steps: int = 5,
        restarts: int = 1, clip: tuple[float, float] | None = None, seed: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """PGD made at one bit width and tried at every other; see `learnscope.probes.BitRobustness`.

        `clean`, an entry a width, and `transfer`, an entry a pair of `attack_bits` and `test_bits` (0: as stored).
        """
        record = self.examined.look(
            BitRobustness(
                epsilon=epsilon, examples=examples, norm=norm, per=per, unit=unit, steps=steps, restarts=restarts,
                clip=clip, seed=seed, bits=bits,
            ),
            data_loader,
        )  # fmt: skip
        clean, transfer = entries(record, "bits")["clean"], entries(record, "transfer")["pgd"]
        return {"clean": clean, "transfer": transfer, **record.notes}

    @explain_options
    def analyze(
        self, data_loader: Any, *, epsilons: Sequence[float] | None = None, examples: int | None = None,
        clip: tuple[float, float] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """All four, on the same data: `adversarial`, `noise`, `perturbations`, `bits`, `robustness_gap`, `flags`."""
        with self.examined.together(data_loader):
            adversarial = self.test_adversarial_robustness(data_loader, epsilons, examples=examples, clip=clip)
            return {
                "adversarial": adversarial,
                "noise": self.test_noise_robustness(data_loader, examples=examples),
                "perturbations": self.test_input_perturbations(data_loader, examples=examples),
                "bits": self.test_bit_robustness(data_loader, examples=examples, clip=clip),
                "robustness_gap": adversarial["robustness_gap"],
                "flags": adversarial["flags"],
            }


def _flag(value: float) -> bool | float:
    """True or False; NaN where it was not measured."""
    return value if math.isnan(value) else bool(value)
