"""What is recorded of the loss around the weights."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure

_SGD = "with torch's SGD and momentum μ only"
_trace = partial(Quantity, kinds=("model", "layer"), when="with `trace_samples` above 0", drawn="not")


class LossLandscape(Quantities):
    records = "the sharpness of the loss, and the loss on a line through the weights"

    loss = own_figure(
        "L at the weights; with labels at W + at·d, for each of `points`",
        labels={"direction": "d: `gradient`, `eigenvector` or `update`", "at": "how far along it, in shares of d"},
        better="lower",
    )  # fmt: skip
    gradient_norm = not_drawn("‖∇L‖", scale="log")
    eigenvalue = not_drawn(
        "algebraically largest eigenvalues of H; null if Lanczos did not converge",
        labels={"rank": "1 is the largest"},
        scale="log",
    )
    sharpness = own_figure("λ_max(H), the first of them", scale="log")
    sharpness_threshold = own_figure(
        "2/η, the limit of gradient descent; η is the largest learning rate of the parameters' groups", scale="log"
    )
    sharpness_ratio = not_drawn("sharpness·η/2")
    momentum_threshold = own_figure(
        "(2 + 2μ)/((1 − τ)η) with dampening τ, for Nesterov (2 + 2μ)/((1 + 2μ)η)", source="arXiv 2103.00065",
        scale="log", when=_SGD,
    )  # fmt: skip
    momentum_ratio = not_drawn("`sharpness`/`momentum_threshold`", when=_SGD)
    preconditioned_sharpness = own_figure(
        "λ_max(P^(−1/2) H P^(−1/2)), P = diag(√v̂ + ε) of Adam or AdamW, v̂ bias-corrected; null for other optimizers",
        source="arXiv 2207.14484", scale="log",
    )  # fmt: skip
    preconditioned_threshold = own_figure(
        "(2 + 2β₁)/((1 − β₁)η), that is 38/η at β₁ = 0.9", source="arXiv 2207.14484", scale="log"
    )
    preconditioned_ratio = not_drawn("`preconditioned_sharpness`/`preconditioned_threshold`")
    smallest_eigenvalue = not_drawn("λ_min(H)", when="with `smallest=True`")
    trace = _trace("Hutchinson's estimate of tr H; for a layer, of its diagonal block")
    trace_error = _trace("the estimate's standard error")
    products = not_drawn("Hessian-vector products made")
