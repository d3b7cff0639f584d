"""What is recorded of weights."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, own_figure

_number = partial(Quantity, kinds=("tensor",), drawn="not")
_size = partial(Quantity, kinds=("tensor",), scale="log", drawn="not")


class Spectrum(Quantities):
    """What the singular values σ₁ ≥ … ≥ σ_r of a matrix tell; r is the largest rank that it can have."""

    largest_sv = _size("σ₁")
    smallest_sv = _size("σ_r")
    spectral_gap = _size("σ₁ − σ_r")
    leading_gap = _size("σ₁ − σ₂")
    condition_number = _size("σ₁/σ_r; infinite, and so null, if σ_r ≤ `tolerance`·σ₁")
    numerical_rank = _number("how many σ are above `tolerance`·σ₁")
    effective_rank = own_figure("exp(−Σ p ln p), p = σ/Σσ", kinds=("tensor",), source="Roy & Vetterli 2007")
    rank_utilisation = _number("the effective rank as a share of r", scale="share")
    stable_rank = _number("Σσ²/σ₁²")
    participation_ratio = _number("(Σσ)²/Σσ²")
    nuclear_norm = _size("Σσ")
    frobenius_norm = own_figure("√Σσ²", kinds=("tensor",), scale="log")
    top_sv_ratio = _number("Σ_{i≤k} σ²/Σσ² for k = 1, 5, 10: energy", name="top{k}_sv_ratio", scale="share")
    top_nuclear_share = _number("Σ_{i≤k} σ/Σσ for k = 1, 5, 10", name="top{k}_nuclear_share", scale="share")


_FULL = {"spectrum": "`full`, or `leading` where only the largest were computed; what needs all of them is then null"}
_power_law = partial(Quantity, kinds=("tensor",), labels=_FULL, drawn="not")


class WeightSpectrum(Spectrum, labels=_FULL, drawn="not"):
    records = "singular values of the weight matrices"

    power_law_alpha = _power_law(
        "α of ρ(λ) ∝ λ^−α for the eigenvalues λ = σ² from `power_law_smallest` on", source="Martin & Mahoney"
    )
    power_law_distance = _power_law("how far those eigenvalues are from the power law (Kolmogorov–Smirnov)")
    power_law_tail = _power_law("how many of them the power law holds for")
    power_law_smallest = _size("the smallest λ that it holds for", labels=_FULL)
    leading_error = _size(
        "bound on each value's error, as a share of σ₁; the usual error is about its square",
        labels=_FULL,
        when="with `full=False`, of large matrices",
    )


class WeightKurtosis(Quantities):
    records = "how heavy the tails of the weights and of their updates are"

    weight_kurtosis = Quantity(
        "excess kurtosis m₄/m₂² − 3 of the entries of the layer's matrices (0 if normal)", kinds=("layer",)
    )
    update_kurtosis = Quantity(
        "excess kurtosis m₄/m₂² − 3 of the entries of Δ since the last measurement", kinds=("layer",)
    )
