"""What is recorded of weights."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity


class Spectrum(Quantities):
    """What the singular values σ₁ ≥ … ≥ σ_r of a matrix tell; r is the largest rank that it can have."""

    largest_sv = Quantity("σ₁", kinds=("tensor",), scale="log", drawn="not")
    smallest_sv = Quantity("σ_r", kinds=("tensor",), scale="log", drawn="not")
    spectral_gap = Quantity("σ₁ − σ_r", kinds=("tensor",), scale="log", drawn="not")
    leading_gap = Quantity("σ₁ − σ₂", kinds=("tensor",), scale="log", drawn="not")
    condition_number = Quantity(
        "σ₁/σ_r; infinite, and so null, if σ_r ≤ `tolerance`·σ₁", kinds=("tensor",), scale="log", drawn="not"
    )
    numerical_rank = Quantity("how many σ are above `tolerance`·σ₁", kinds=("tensor",), drawn="not")
    effective_rank = Quantity(
        "exp(−Σ p ln p), p = σ/Σσ", kinds=("tensor",), source="Roy & Vetterli 2007", drawn="in a figure of its own"
    )
    rank_utilisation = Quantity("the effective rank as a share of r", kinds=("tensor",), scale="share", drawn="not")
    stable_rank = Quantity("Σσ²/σ₁²", kinds=("tensor",), drawn="not")
    participation_ratio = Quantity("(Σσ)²/Σσ²", kinds=("tensor",), drawn="not")
    nuclear_norm = Quantity("Σσ", kinds=("tensor",), scale="log", drawn="not")
    frobenius_norm = Quantity("√Σσ²", kinds=("tensor",), scale="log", drawn="in a figure of its own")
    top_sv_ratio = Quantity(
        "Σ_{i≤k} σ²/Σσ² for k = 1, 5, 10: energy", name="top{k}_sv_ratio", kinds=("tensor",), scale="share",
        drawn="not",
    )  # fmt: skip
    top_nuclear_share = Quantity(
        "Σ_{i≤k} σ/Σσ for k = 1, 5, 10", name="top{k}_nuclear_share", kinds=("tensor",), scale="share", drawn="not"
    )


_FULL = {"spectrum": "`full`, or `leading` where only the largest were computed; what needs all of them is then null"}


class WeightSpectrum(Spectrum, labels=_FULL, drawn="not"):
    records = "singular values of the weight matrices"

    power_law_alpha = Quantity(
        "α of ρ(λ) ∝ λ^−α over the eigenvalues λ = σ², above the smallest λ it holds for", kinds=("tensor",),
        labels=_FULL, source="Martin & Mahoney", drawn="not",
    )  # fmt: skip
    power_law_distance = Quantity(
        "how far those eigenvalues are from the power law (Kolmogorov–Smirnov)", kinds=("tensor",), labels=_FULL,
        drawn="not",
    )  # fmt: skip
    power_law_tail = Quantity("how many of them the power law holds for", kinds=("tensor",), labels=_FULL, drawn="not")
    power_law_smallest = Quantity(
        "the smallest λ that it holds for", kinds=("tensor",), labels=_FULL, scale="log", drawn="not"
    )
    leading_error = Quantity(
        "each value is within this share of σ₁ of a true one, and usually within about its square", kinds=("tensor",),
        labels=_FULL, scale="log", drawn="not", when="with `full=False`, of large matrices",
    )  # fmt: skip


class WeightKurtosis(Quantities):
    records = "how heavy the tails of the weights and of their updates are"

    weight_kurtosis = Quantity(
        "excess kurtosis m₄/m₂² − 3 of the entries of the layer's matrices: 0 for a normal distribution",
        kinds=("layer",),
    )
    update_kurtosis = Quantity(
        "excess kurtosis m₄/m₂² − 3 of the entries of Δ since the last measurement", kinds=("layer",)
    )
