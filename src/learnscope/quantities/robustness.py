"""What is recorded of a finished model under attack, noise and damaged inputs."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure, with_interval

_EXAMPLES = (
    "over examples, studentised; Wilson's where each has one position, and, with the positions that count as "
    "independent, where all or none are right or too few examples differ"
)
_kl = partial(Quantity, unit="nats", better="lower", scale="log", drawn="in a figure of its own", when="for classes")
_PAIRED = (
    "over examples, studentised, paired; where too few examples differ, from Wilson's of what was gained and lost, "
    "with the positions that count as independent (`learnscope.intervals.independent_positions`)"
)
_SEEDS = "of the mean over seeds, by Student's t"
_accuracy = partial(Quantity, better="higher", scale="share", drawn="in a figure of its own", when="for classes")
_ATTACK = {
    "norm": "`l2` or `linf`",
    "epsilon": "the size, in `unit`",
    "unit": "`absolute`, `relative` to what is attacked, or `token`: the distance to the nearest other token",
    "steps": "of PGD; 1 for FGSM, 0 for random perturbations and clean inputs",
}
_attack = partial(Quantity, kinds=("attack",), labels=_ATTACK, drawn="not")


class Attacks(Quantities):
    records = "loss and accuracy under FGSM, PGD and random perturbations"

    accuracy, accuracy_low, accuracy_high = with_interval(
        _accuracy("share predicted right; `random`: mean over seeds", kinds=("attack",), labels=_ATTACK), _EXAMPLES
    )
    loss = _attack("Σ losses / Σ positions under an attack; `random`: mean over seeds", better="lower")
    kl = _kl("KL(clean ‖ attacked); `random`: mean over seeds", kinds=("attack",), labels=_ATTACK, drawn="not")
    zero_gradient_share = own_figure(
        "share of the gradients' entries over all steps that are exactly 0, without tokens after the last with a "
        "gradient", kinds=("attack",), labels=_ATTACK, scale="share", when="where a gradient is taken",
    )  # fmt: skip
    epsilon_absolute = _attack("ε as an absolute size, mean over what it bounds")
    epsilon_relative = _attack("ε relative to what is attacked, mean over what it bounds")
    epsilon_token = _attack(
        "ε as a share of the distance to the nearest other token, mean over what it bounds", when="for token ids"
    )
    examples = not_drawn("how many examples the numbers beside it rest on", kinds=("attack", "model"), labels=_ATTACK)
    robustness_gap, robustness_gap_low, robustness_gap_high = with_interval(
        own_figure("clean − worst attacked accuracy at the largest ε", better="lower", when="for classes"), _PAIRED
    )
    pgd_at_least_fgsm = own_figure("1 if the mean loss of PGD is at least that of FGSM at every ε, else 0")
    monotone_in_epsilon = own_figure("1 if the loss under PGD never falls as ε grows")
    monotone_in_steps = own_figure("1 if `steps` steps do at least the damage of a third of them, at the largest ε")
    random_below_attack = own_figure("1 if no random perturbation has a higher mean loss than PGD at the same ε")


_SIZE = {name: _ATTACK[name] for name in ("norm",)} | {"epsilon": "the size, in the units of the inputs; 0: clean"}


class AutoAttack(Quantities):
    records = "accuracy of image classifiers under AutoAttack beside PGD, and whether gradients are masked"

    accuracy, accuracy_low, accuracy_high = with_interval(
        _accuracy(
            "share of the images that stay right under one attack; `autoattack`: under all of the package's",
            kinds=("attack",), labels=_SIZE, source="Croce and Hein 2020, by the package pyautoattack",
        ), _EXAMPLES,
    )  # fmt: skip
    examples = not_drawn("how many images the numbers beside it rest on", kinds=("attack",), labels=_SIZE)
    robustness_gap, robustness_gap_low, robustness_gap_high = with_interval(
        own_figure("clean accuracy − that under AutoAttack, at the largest ε", better="lower", when="for classes"),
        _PAIRED,
    )
    pgd_gap, pgd_gap_low, pgd_gap_high = with_interval(
        own_figure("accuracy under PGD − that under AutoAttack, at the largest ε: what PGD alone overlooks"), _PAIRED
    )
    square_no_better = own_figure(
        "1 if Square, without gradients, breaks no more images than attacks with them, at any ε"
    )
    unbounded_breaks = own_figure("1 if APGD that may change all inputs to anything valid leaves no image right")
    more_steps_no_weaker = own_figure("1 if four times the steps do at least the damage of PGD, at the largest ε")
    falls_with_epsilon = own_figure("1 if the accuracy under AutoAttack never rises as ε grows")


_NOISE = {"level": "σ of `weight_noise`, the bits of `quantisation_noise`"}


class NoiseRobustness(Quantities):
    records = "loss, accuracy and KL with noise on the weights"

    accuracy_mean, accuracy_mean_low, accuracy_mean_high = with_interval(
        _accuracy("share of positions that are right, mean over seeds", kinds=("noise",), labels=_NOISE), _SEEDS
    )
    loss_mean, loss_mean_low, loss_mean_high = with_interval(
        own_figure("Σ losses / Σ positions, mean over seeds", kinds=("noise",), labels=_NOISE, better="lower"), _SEEDS
    )
    kl_mean, kl_mean_low, kl_mean_high = with_interval(
        _kl("KL(model ‖ model with noise) per position, mean over seeds", kinds=("noise",), labels=_NOISE), _SEEDS
    )
    seeds = not_drawn("how many", kinds=("noise",), labels=_NOISE)


_DAMAGE = {"level": "share of the tokens or entries; σ, relative to the input, of `input_noise`"}


class InputPerturbation(Quantities):
    records = "loss and accuracy on damaged inputs"

    accuracy_mean, accuracy_mean_low, accuracy_mean_high = with_interval(
        _accuracy("share of positions that are right, mean over seeds", kinds=("perturbation",), labels=_DAMAGE), _SEEDS
    )
    loss_mean, loss_mean_low, loss_mean_high = with_interval(
        own_figure("Σ losses / Σ positions, mean over seeds", kinds=("perturbation",), labels=_DAMAGE, better="lower"),
        _SEEDS,
    )
    changed_share = not_drawn(
        "share of the real tokens, or of the entries, that was changed, over all seeds", kinds=("perturbation",),
        labels=_DAMAGE, scale="share",
    )  # fmt: skip
    seeds = not_drawn("how many; 1 for `clean`, which involves no chance", kinds=("perturbation",), labels=_DAMAGE)


_WIDTHS = {
    "attack_bits": "of kind `transfer`: the width whose gradients made the attack; 0: as stored",
    "test_bits": "of kind `transfer`: the width that it is tried on; 0: as stored",
    "bits": "of kind `bits`, the same examples as they are: the width; 0: as stored",
}


class BitRobustness(Quantities):
    records = "attacks made at one bit width and tried at others"

    accuracy, accuracy_low, accuracy_high = with_interval(
        _accuracy("share of positions predicted right", kinds=("transfer", "bits"), labels=_WIDTHS), _EXAMPLES
    )
    accuracy_change, accuracy_change_low, accuracy_change_high = with_interval(
        not_drawn(
            "accuracy under an attack made at the width that it is tried on, minus that of the model as stored under "
            "its own", kinds=("transfer",), labels=_WIDTHS, scale="share",
            when="for classes, where both widths are equal",
        ), _PAIRED,
    )  # fmt: skip
    loss = not_drawn("Σ losses / Σ positions", kinds=("transfer", "bits"), labels=_WIDTHS, better="lower")
    examples = not_drawn("how many examples these rest on", kinds=("transfer", "bits"), labels=_WIDTHS)


_PROMPT = {"level": "share of the letters, spaces, words or tokens that could be changed"}
_prompt = partial(Quantity, kinds=("prompt",), labels=_PROMPT, drawn="not")
_MEANS = "over examples, studentised, each the mean over its seeds"


class PromptPerturbation(Quantities):
    records = "what typing errors, reformatting and distractors in prompts do to the outputs"

    loss = _prompt("Σ losses / Σ positions of what follows the prompts, mean over seeds", better="lower")
    accuracy = _prompt("share of the same that is right, mean over seeds", better="higher", scale="share")
    loss_change, loss_change_low, loss_change_high = with_interval(
        _prompt("loss minus that after the prompts as they are, at the same positions", better="lower"), _MEANS
    )
    accuracy_change, accuracy_change_low, accuracy_change_high = with_interval(
        _prompt("accuracy minus that after the prompts as they are", better="higher", scale="share"), _PAIRED
    )
    kl, kl_low, kl_high = with_interval(
        _prompt("KL(as it is ‖ changed) per position", unit="nats", better="lower", scale="log"), _MEANS
    )
    changed_share = _prompt(
        "share of the letters, spaces, words or tokens that was changed; of distractors, words or tokens added for "
        "each of the prompt's own", scale="share",
    )  # fmt: skip
    seeds = _prompt("how many; 1 for `clean`")
    examples = _prompt("how many examples these rest on")
