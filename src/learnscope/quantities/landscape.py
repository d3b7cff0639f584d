"""What is recorded of the loss around the weights."""

from __future__ import annotations

from learnscope.quantities.base import Drawn, Quantities, Quantity

_OWN: Drawn = "in a figure of its own"


class LossLandscape(Quantities):
    records = "the sharpness of the loss, and the loss on a line through the weights"

    loss = Quantity(
        "L at the weights; with labels at W + at·d, for each of `points`",
        labels={"direction": "d: `gradient`, `eigenvector` or `update`", "at": "how far along it, in shares of d"},
        better="lower", drawn=_OWN,
    )  # fmt: skip
    gradient_norm = Quantity("‖∇L‖", scale="log", drawn="not")
    eigenvalue = Quantity(
        "the largest eigenvalues of H, algebraically; null if Lanczos did not converge",
        labels={"rank": "1 is the largest"}, scale="log", drawn="not",
    )  # fmt: skip
    sharpness = Quantity("λ_max(H), the first of them", scale="log", drawn=_OWN)
    sharpness_threshold = Quantity(
        "2/η of gradient descent; η is the largest learning rate of the parameters' groups", scale="log", drawn=_OWN
    )
    sharpness_ratio = Quantity("sharpness·η/2", drawn="not")
    momentum_threshold = Quantity(
        "(2 + 2μ)/((1 − τ)η) with dampening τ, for Nesterov (2 + 2μ)/((1 + 2μ)η)", source="arXiv 2103.00065",
        scale="log", drawn=_OWN, when="with torch's SGD and momentum μ only",
    )  # fmt: skip
    momentum_ratio = Quantity(
        "`sharpness`/`momentum_threshold`", drawn="not", when="with torch's SGD and momentum μ only"
    )
    preconditioned_sharpness = Quantity(
        "λ_max(P^(−1/2) H P^(−1/2)), P = diag(√v̂ + ε) of Adam or AdamW, v̂ bias-corrected; null for other optimizers",
        source="arXiv 2207.14484", scale="log", drawn=_OWN,
    )  # fmt: skip
    preconditioned_threshold = Quantity(
        "(2 + 2β₁)/((1 − β₁)η), that is 38/η at β₁ = 0.9", source="arXiv 2207.14484", scale="log", drawn=_OWN
    )
    preconditioned_ratio = Quantity("`preconditioned_sharpness`/`preconditioned_threshold`", drawn="not")
    smallest_eigenvalue = Quantity("λ_min(H)", drawn="not", when="with `smallest=True`")
    trace = Quantity(
        "Hutchinson's estimate of tr H, for a layer of its block on the diagonal", kinds=("model", "layer"),
        drawn="not", when="with `trace_samples` above 0",
    )  # fmt: skip
    trace_error = Quantity(
        "the estimate's standard error", kinds=("model", "layer"), drawn="not", when="with `trace_samples` above 0"
    )
    products = Quantity("Hessian-vector products made", drawn="not")
