"""What is recorded of activations and features."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity

_EVERYWHERE = ("model", "layer", "site")
_FUNCTION = {"function": "of sites: the activation function"}


class Activations(Quantities):
    records = "dead and saturated units, size and tails of activations"

    dead_share = Quantity(
        "share of units whose output was 0 for every input", kinds=_EVERYWHERE, labels=_FUNCTION,
        scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    saturated_share = Quantity(
        "share of units for which |f′(x)| < 1 % of max|f′| at more than 95 % of the inputs x; a dead ReLU is saturated "
        "too. max|f′| is over −20 ≤ x ≤ 20; for a PReLU it is each channel's own. Inputs at which f′ is NaN are left "
        "out", kinds=_EVERYWHERE, labels=_FUNCTION, scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    units = Quantity("how many units", kinds=_EVERYWHERE, labels=_FUNCTION, drawn="not")
    sites = Quantity("how many sites", drawn="not")
    rms = Quantity(
        "√(Σy²/n) of the outputs y of the activations; null where one is not finite", kinds=("layer", "site"),
        labels=_FUNCTION, scale="log", drawn="not",
    )  # fmt: skip
    kurtosis = Quantity(
        "m₄/m₂² − 3 of the same (population, 0 for a normal distribution)", kinds=("layer", "site"), labels=_FUNCTION,
        drawn="not",
    )  # fmt: skip
    nan = Quantity(
        "values that are NaN", kinds=_EVERYWHERE, labels=_FUNCTION, drawn="not",
        when="where an activation was seen",
    )  # fmt: skip
    inf = Quantity(
        "values that are ±∞", kinds=_EVERYWHERE, labels=_FUNCTION, drawn="not",
        when="where an activation was seen",
    )  # fmt: skip
    output_rms = Quantity(
        "√(Σy²/n) of what the layer gives out (the first tensor of several), of blocks and of modules with parameters "
        "outside of blocks", kinds=("layer",), scale="log", drawn="not",
    )  # fmt: skip
    output_kurtosis = Quantity("m₄/m₂² − 3 of the same", kinds=("layer",), drawn="not")
    output_nan = Quantity("values of it that are NaN", kinds=("layer",), drawn="not")
    output_inf = Quantity("values of it that are ±∞", kinds=("layer",), drawn="not")


class FeatureEvolution(Quantities):
    records = "features of layers: how classes lie apart, directions in use, how far they have come"

    silhouette = Quantity(
        "mean of (b − a)/max(a, b), of 1,000 examples at most", kinds=("layer",),
        drawn="in a figure of its own",
    )  # fmt: skip
    separability = Quantity(
        "between-class over within-class scatter, Σ n_c‖μ_c − μ‖² / Σ‖x − μ_y‖²; no units", kinds=("layer",),
        scale="log", drawn="not",
    )  # fmt: skip
    within_distance = Quantity("mean Euclidean distance of two examples of one class", kinds=("layer",), drawn="not")
    between_distance = Quantity("mean Euclidean distance of two examples of two classes", kinds=("layer",), drawn="not")
    linear_probe = Quantity(
        "held-out accuracy of a ridge classifier on standardised features, 5 folds", kinds=("layer",),
        scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    linear_probe_examples = Quantity(
        "how many examples it has: those in classes of 5 or more", kinds=("layer",), drawn="not"
    )
    linear_probe_chance = Quantity("the largest class's share of them", kinds=("layer",), scale="share", drawn="not")
    effective_rank = Quantity(
        "exp(−Σ p ln p), p = σ/Σσ, of the features without their mean", kinds=("layer",), source="Roy & Vetterli 2007",
        drawn="in a figure of its own",
    )  # fmt: skip
    rankme = Quantity("the same of p + 1e-7 with their mean", kinds=("layer",), source="arXiv 2210.02885", drawn="not")
    cka_previous = Quantity("unbiased linear CKA with this probe's last measurement", kinds=("layer",), drawn="not")
    cka_first = Quantity(
        "unbiased linear CKA with this probe's first measurement", kinds=("layer",), drawn="in a figure of its own"
    )
    dimensions = Quantity("of the features", kinds=("layer",), drawn="not")
