"""The robustness analyzer: attacks, noise on weights, changed inputs, and how bit widths affect attacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.model.robustness.auto_attack import CannotAttack, check_installed
from learnscope.options import explain_options
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.session import AuditSession, entries
from learnscope.probes.robustness.attacks import Attacks
from learnscope.probes.robustness.auto_attack import AutoAttack
from learnscope.probes.robustness.bit_robustness import BitRobustness
from learnscope.probes.robustness.input_perturbation import InputPerturbation
from learnscope.probes.robustness.noise_robustness import NoiseRobustness
from learnscope.probes.robustness.prompt_perturbation import PromptPerturbation

GAP = ("robustness_gap", "robustness_gap_low", "robustness_gap_high", "examples")
AUTO_GAPS = ("robustness_gap", "robustness_gap_low", "robustness_gap_high", "pgd_gap", "pgd_gap_low", "pgd_gap_high")
AUTO_FLAGS = ("square_no_better", "unbounded_breaks", "more_steps_no_weaker", "falls_with_epsilon")
FLAGS = ("pgd_at_least_fgsm", "monotone_in_epsilon", "monotone_in_steps", "random_below_attack")


class RobustnessAnalyzer:
    """Examines how a finished model withstands attacks, noise and changed inputs, and leaves it as it was.

    Results are plain numbers, text, lists and dictionaries. NaN is "not measured", and `reasons` beside it says why. An
    entry of a list is one setting: its labels, such as `epsilon` or `level`, and its numbers. Every method takes the
    options of its probe: `Attacks`, `NoiseRobustness`, `InputPerturbation`, `PromptPerturbation`,
    `BitRobustness`.
    """

    def __init__(self, session: AuditSession) -> None:
        self.session = session

    def test_adversarial_robustness(
        self, data_loader: Any, epsilons: Sequence[float] | None = None, **options: Any
    ) -> dict[str, Any]:
        """FGSM and PGD at several ε beside random perturbations of the same size.

        `clean`, and the lists `random`, `fgsm`, `pgd`, an entry an ε (`pgd` has a second one with fewer steps at the
        largest); `robustness_gap` = clean − worst attacked accuracy at the largest ε; `flags`, which say whether the
        attacks can be believed; `texts` of language models, and `target`, `norm`, `per`, `unit`.
        """
        record = self.session.measure(Attacks(epsilons=epsilons, **options), data_loader)
        attacks = entries(record, "attack")
        clean = attacks["clean"][0]
        model = entries(record, "model")["model"][0]
        return {
            "clean": clean,
            **{scope: attacks[scope] for scope in ("random", "fgsm", "pgd")},
            **record.notes,
            **{name: model[name] for name in (*GAP, "reasons") if name in model},
            "flags": {name: math.nan if math.isnan(model[name]) else bool(model[name]) for name in FLAGS},
            "norm": clean["norm"],
            "unit": clean["unit"],
        }

    def test_noise_robustness(
        self, data_loader: Any, noise_levels: Sequence[float] = NoiseRobustness.sigmas, **options: Any
    ) -> dict[str, Any]:
        """Gaussian noise on the weights (`noise_levels`, shares of each channel's rms) and noise as rounding makes it.

        `weight_noise` and `quantisation_noise`, an entry a level.
        """
        record = self.session.measure(NoiseRobustness(sigmas=noise_levels, **options), data_loader)
        return {**entries(record, "noise"), **record.notes}

    def test_input_perturbations(
        self, data_loader: Any, levels: Sequence[float] = InputPerturbation.levels, **options: Any
    ) -> dict[str, Any]:
        """Tokens removed and replaced at random, or entries of continuous inputs.

        `clean`, and a list for each kind of change, an entry a level.
        """
        record = self.session.measure(InputPerturbation(levels=levels, **options), data_loader)
        changed = entries(record, "perturbation")
        return {**changed, "clean": changed["clean"][0], **record.notes}

    def test_prompt_perturbations(
        self, data_loader: Any, levels: Sequence[float] = PromptPerturbation.levels, **options: Any
    ) -> dict[str, Any]:
        """Prompts with typing errors, other casing, spaces and word order, and other text before them.

        `clean`, and a list for each kind of change, an entry a level.
        """
        record = self.session.measure(PromptPerturbation(levels=levels, **options), data_loader)
        changed = entries(record, "prompt")
        return {**changed, "clean": changed["clean"][0], **record.notes}

    def test_bit_robustness(
        self, data_loader: Any, bits: Sequence[int] = BitRobustness.bits, **options: Any
    ) -> dict[str, Any]:
        """PGD made at one bit width and tested at every other.

        `clean`, an entry a width, and `transfer`, an entry a pair of `attack_bits` and `test_bits` (0: as stored).
        """
        record = self.session.measure(BitRobustness(bits=bits, **options), data_loader)
        clean, transfer = entries(record, "bits")["clean"], entries(record, "transfer")["pgd"]
        return {"clean": clean, "transfer": transfer, **record.notes}

    def test_autoattack(
        self, data_loader: Any, epsilons: Sequence[float] | None = None, **options: Any
    ) -> dict[str, Any]:
        """AutoAttack, by the package `pyautoattack`, beside PGD: for classifiers of images.

        `clean`, and a list for each attack, an entry an ε; `autoattack` is all of them together. `robustness_gap`,
        `pgd_gap` (what PGD alone overlooks), and `flags`: a False among them means that gradients are masked. Options
        are those of `learnscope.AutoAttack`. What it is not for is refused with the reason.
        """
        record = self.session.measure(AutoAttack(epsilons=epsilons, **options), data_loader)
        attacks, model = entries(record, "attack"), entries(record, "model")["model"][0]
        clean = attacks["clean"][0]
        if math.isnan(clean["accuracy"]):
            raise PosttrainError(clean["reasons"]["accuracy"])
        return {
            **attacks,
            "clean": clean,
            **record.notes,
            **{name: model[name] for name in AUTO_GAPS},
            "flags": {name: math.nan if math.isnan(model[name]) else bool(model[name]) for name in AUTO_FLAGS},
        }

    @explain_options
    def analyze(
        self, data_loader: Any, *, epsilons: Sequence[float] | None = None, examples: int | None = None,
        clip: tuple[float, float] | None = None, steps: int = Attacks.steps, transfer_steps: int = BitRobustness.steps,
        probes: Mapping[str, Mapping[str, Any]] | None = None, autoattack: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """All five on the same data: `adversarial`, `noise`, `perturbations`, `prompts`, `bits`, and `robustness_gap`
        and `flags` of the first.

        `steps` are those of PGD, `transfer_steps` those of attacks across bit widths; `probes` are further
        options of the probes, by their names. With `autoattack`, also AutoAttack on images (`learnscope[autoattack]`),
        which takes some thousand passes.
        """
        if autoattack:
            check_autoattack()
        own = {name: dict(options) for name, options in (probes or {}).items()}
        noise = own.get("NoiseRobustness", {})
        sigmas = noise.pop("sigmas", NoiseRobustness.sigmas)
        with self.session.sharing(data_loader):
            adversarial = self.test_adversarial_robustness(
                data_loader, epsilons, examples=examples, clip=clip, steps=steps, **own.get("Attacks", {})
            )
            return {
                "adversarial": adversarial,
                "noise": self.test_noise_robustness(data_loader, sigmas, examples=examples, **noise),
                "perturbations": self.test_input_perturbations(
                    data_loader, examples=examples, **own.get("InputPerturbation", {})
                ),
                "prompts": self.test_prompt_perturbations(
                    data_loader, examples=examples, **own.get("PromptPerturbation", {})
                ),
                "bits": self.test_bit_robustness(data_loader, examples=examples, clip=clip, steps=transfer_steps),
                **{name: adversarial[name] for name in GAP},
                "flags": adversarial["flags"],
                **({"autoattack": self.test_autoattack(data_loader, examples=examples, clip=clip, steps=steps)}
                   if autoattack else {}),
            }  # fmt: skip


def check_autoattack() -> None:
    """Refuse it before anything is measured where its package is missing."""
    try:
        check_installed()
    except CannotAttack as error:
        raise PosttrainError(f"AutoAttack: {error}") from None
