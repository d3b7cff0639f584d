"""What is recorded of a finished model under attack, noise and damaged inputs."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity, with_interval

_EXAMPLES = "over examples drawn again; Wilson's where each has one position, and where all or none are right"
_SEEDS = "of the mean over seeds, by Student's t"
_ATTACK = {
    "norm": "`l2` or `linf`",
    "epsilon": "the size, in `unit`",
    "unit": "`absolute`, `relative` to what is attacked, or `token`: the distance to the nearest other token",
    "steps": "of PGD; 1 for FGSM, 0 for random perturbations and clean inputs",
}


class Attacks(Quantities):
    records = "loss and accuracy under FGSM, PGD and random perturbations"

    accuracy, accuracy_low, accuracy_high = with_interval(
        Quantity(
            "share of positions predicted right under an attack; of `random`, mean over its seeds", kinds=("attack",),
            labels=_ATTACK, better="higher", scale="share", drawn="in a figure of its own", when="for classes",
        ), _EXAMPLES,
    )  # fmt: skip
    loss = Quantity(
        "Σ losses / Σ positions under an attack; of `random`, mean over its seeds", kinds=("attack",), labels=_ATTACK,
        better="lower", drawn="not",
    )  # fmt: skip
    kl = Quantity(
        "KL(clean ‖ attacked) per position; of `random`, mean over its seeds", kinds=("attack",), labels=_ATTACK,
        unit="nats", better="lower", scale="log", drawn="not", when="for classes",
    )  # fmt: skip
    zero_gradient_share = Quantity(
        "share of the gradients' entries, of all steps taken, that are exactly 0; tokens behind the last one with a "
        "gradient are left out", kinds=("attack",), labels=_ATTACK, scale="share", drawn="in a figure of its own",
        when="where a gradient is taken",
    )  # fmt: skip
    epsilon_absolute = Quantity(
        "ε as an absolute size, mean over what it bounds", kinds=("attack",), labels=_ATTACK, drawn="not"
    )
    epsilon_relative = Quantity(
        "ε relative to what is attacked, mean over what it bounds", kinds=("attack",), labels=_ATTACK, drawn="not"
    )
    epsilon_token = Quantity(
        "ε as a share of the distance to the nearest other token, mean over what it bounds", kinds=("attack",),
        labels=_ATTACK, drawn="not", when="for token ids",
    )  # fmt: skip
    robustness_gap, robustness_gap_low, robustness_gap_high = with_interval(
        Quantity(
            "clean − worst attacked accuracy at the largest ε", better="lower", drawn="in a figure of its own",
            when="for classes",
        ), "over examples drawn again, paired",
    )  # fmt: skip
    pgd_at_least_fgsm = Quantity(
        "1 if the mean loss of PGD is at least that of FGSM at every ε, else 0", drawn="in a figure of its own"
    )
    monotone_in_epsilon = Quantity("1 if the loss under PGD never falls as ε grows", drawn="in a figure of its own")
    monotone_in_steps = Quantity(
        "1 if `steps` steps do at least the damage of a third of them, at the largest ε", drawn="in a figure of its own"
    )
    random_below_attack = Quantity(
        "1 if no random perturbation has a higher mean loss than PGD at the same ε", drawn="in a figure of its own"
    )


_NOISE = {"level": "σ of `weight_noise`, the bits of `quantisation_noise`"}


class NoiseRobustness(Quantities):
    records = "loss, accuracy and KL with noise on the weights"

    accuracy_mean, accuracy_mean_low, accuracy_mean_high = with_interval(
        Quantity(
            "share of positions predicted right, mean over seeds", kinds=("noise",), labels=_NOISE, better="higher",
            scale="share", drawn="in a figure of its own", when="for classes",
        ), _SEEDS,
    )  # fmt: skip
    loss_mean, loss_mean_low, loss_mean_high = with_interval(
        Quantity(
            "Σ losses / Σ positions, mean over seeds", kinds=("noise",), labels=_NOISE, better="lower",
            drawn="in a figure of its own",
        ), _SEEDS,
    )  # fmt: skip
    kl_mean, kl_mean_low, kl_mean_high = with_interval(
        Quantity(
            "KL(model ‖ model with noise) per position, mean over seeds", kinds=("noise",), labels=_NOISE, unit="nats",
            better="lower", scale="log", drawn="in a figure of its own", when="for classes",
        ), _SEEDS,
    )  # fmt: skip
    seeds = Quantity("how many", kinds=("noise",), labels=_NOISE, drawn="not")


_DAMAGE = {"level": "share of the tokens or entries; σ, relative to the input, of `input_noise`"}


class InputPerturbation(Quantities):
    records = "loss and accuracy on damaged inputs"

    accuracy_mean, accuracy_mean_low, accuracy_mean_high = with_interval(
        Quantity(
            "share of positions predicted right, mean over seeds", kinds=("perturbation",), labels=_DAMAGE,
            better="higher", scale="share", drawn="in a figure of its own", when="for classes",
        ), _SEEDS,
    )  # fmt: skip
    loss_mean, loss_mean_low, loss_mean_high = with_interval(
        Quantity(
            "Σ losses / Σ positions, mean over seeds", kinds=("perturbation",), labels=_DAMAGE, better="lower",
            drawn="in a figure of its own",
        ), _SEEDS,
    )  # fmt: skip
    changed_share = Quantity(
        "share of the real tokens, or of the entries, that was changed, over all seeds", kinds=("perturbation",),
        labels=_DAMAGE, scale="share", drawn="not",
    )  # fmt: skip
    seeds = Quantity(
        "how many; 1 for `clean`, which is no matter of chance", kinds=("perturbation",), labels=_DAMAGE, drawn="not"
    )


_WIDTHS = {
    "attack_bits": "of kind `transfer`: the width whose gradients made the attack; 0: as stored",
    "test_bits": "of kind `transfer`: the width that it is tried on; 0: as stored",
    "bits": "of kind `bits`, the same examples as they are: the width; 0: as stored",
}


class BitRobustness(Quantities):
    records = "attacks made at one bit width and tried at others"

    accuracy, accuracy_low, accuracy_high = with_interval(
        Quantity(
            "share of positions predicted right", kinds=("transfer", "bits"), labels=_WIDTHS, better="higher",
            scale="share", drawn="in a figure of its own", when="for classes",
        ), _EXAMPLES,
    )  # fmt: skip
    loss = Quantity("Σ losses / Σ positions", kinds=("transfer", "bits"), labels=_WIDTHS, better="lower", drawn="not")
