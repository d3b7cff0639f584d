"""What is recorded of activations and features."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure

_EVERYWHERE = ("model", "layer", "site")
_FUNCTION = {"function": "of sites: the activation function"}
_of_sites = partial(Quantity, kinds=_EVERYWHERE, labels=_FUNCTION, drawn="not")
_of_layers = partial(Quantity, kinds=("layer",), drawn="not")


class Activations(Quantities):
    records = "dead and saturated units, size and tails of activations"

    dead_share = own_figure(
        "share of units whose output was 0 for every input", kinds=_EVERYWHERE, labels=_FUNCTION, scale="share"
    )
    saturated_share = own_figure(
        "share of units for which |f′(x)| < 1 % of max|f′| at more than 95 % of the inputs x, as for a dead ReLU; "
        "max|f′| over −20 ≤ x ≤ 20, of a PReLU by channel; inputs with a NaN f′ are left out", kinds=_EVERYWHERE,
        labels=_FUNCTION, scale="share",
    )  # fmt: skip
    units = _of_sites("how many units")
    sites = not_drawn("how many sites")
    rms = _of_sites(
        "√(Σy²/n) of the activations' outputs y; null if one is not finite", kinds=("layer", "site"), scale="log"
    )
    kurtosis = _of_sites("m₄/m₂² − 3 of the same (population, 0 for a normal distribution)", kinds=("layer", "site"))
    nan = _of_sites("values that are NaN", when="where an activation was seen")
    inf = _of_sites("values that are ±∞", when="where an activation was seen")
    output_rms = _of_layers(
        "√(Σy²/n) of the layer's (first) output; layers are blocks, and modules with parameters outside of blocks",
        scale="log",
    )  # fmt: skip
    output_kurtosis = _of_layers("m₄/m₂² − 3 of the same")
    output_nan = _of_layers("values of that output that are NaN")
    output_inf = _of_layers("values of that output that are ±∞")


class FeatureEvolution(Quantities):
    records = "features of layers: how classes lie apart, directions in use, how far they have come"

    silhouette = own_figure("mean of (b − a)/max(a, b), of 1,000 examples at most", kinds=("layer",))
    separability = _of_layers(
        "between-class over within-class scatter, Σ n_c‖μ_c − μ‖² / Σ‖x − μ_y‖²; no units", scale="log"
    )
    within_distance = _of_layers("mean Euclidean distance of two examples of one class")
    between_distance = _of_layers("mean Euclidean distance of two examples of two classes")
    linear_probe = own_figure(
        "held-out accuracy of a ridge classifier on standardised features, 5 folds", kinds=("layer",), scale="share"
    )
    linear_probe_examples = _of_layers("examples used: those in classes of 5 or more")
    linear_probe_chance = _of_layers("the largest class's share of them", scale="share")
    effective_rank = own_figure(
        "exp(−Σ p ln p), p = σ/Σσ, of the features without their mean", kinds=("layer",), source="Roy & Vetterli 2007"
    )
    rankme = _of_layers("the same of p + 1e-7 with their mean", source="arXiv 2210.02885")
    cka_previous = _of_layers("unbiased linear CKA with this probe's last measurement")
    cka_first = own_figure("unbiased linear CKA with this probe's first measurement", kinds=("layer",))
    dimensions = _of_layers("of the features")


_DATA = {"data": "`train`, or `holdout`: what the probes evaluate on"}
_of_inputs = partial(Quantity, labels=_DATA, drawn="not")


_NORMS = "where the model has batch norms"


class Inputs(Quantities):
    records = "scale of what the model is given, duplicates and overlap with the holdout, stale batch norm"

    input_mean = _of_inputs("mean of the inputs", when="for floating inputs")
    input_std = _of_inputs("population standard deviation of the inputs", when="for floating inputs")
    input_max = _of_inputs("largest |x| of the inputs", scale="log", when="for floating inputs")
    input_nonfinite = _of_inputs(
        "inputs that are NaN or ±∞; the other numbers leave them out", when="for floating inputs"
    )
    token_max = _of_inputs("largest token", when="for inputs that are whole numbers")
    token_distinct = _of_inputs("how many different tokens", when="for inputs that are whole numbers")
    first_output_rms = _of_inputs("√(Σy²/n) of the output of the first layer with weights", scale="log")
    output_rms = _of_inputs("√(Σy²/n) of the model's (first) output", scale="log")
    output_spread = _of_inputs(
        "√(Σ(y − ȳ)²/n) of the model's (first) output, ȳ its mean over the examples of the batch; of at most 128 "
        "examples and 16,384 numbers", scale="log",
    )  # fmt: skip
    output_cosine = _of_inputs("mean cosine of the outputs of two of these examples")
    output_rank = _of_inputs("(Σλ)²/Σλ² of the eigenvalues λ of their covariance", source="participation ratio")
    output_confidence = _of_inputs(
        "mean over these examples of the largest softmax(y), as if the outputs y were logits",
        when="for outputs of two dimensions",
    )
    output_width = _of_inputs("how many numbers the output has for an example")
    gradient_disorder = not_drawn(
        "share of neighbours, by output, of which the higher one has the lower gradient, of the gradient that the "
        "backward brought to the model's output; 0 where it is a rising function of the output alone, as with targets "
        "that are the same for all examples", scale="share", when="for outputs of one number an example",
    )  # fmt: skip
    outside_parameters = not_drawn(
        "entries of the `nn.Parameter`s that the model's output comes from and that are neither among its parameters "
        "nor held by its optimizers",
        when="at the first two looked-at steps, of a model that returns a tensor",
    )
    lost_calls = not_drawn(
        "the largest share of the calls of one module, of several in a forward, that the model's output does not come "
        "from: what they gave was detached, or not used", scale="share", when="with it",
    )  # fmt: skip
    rows = not_drawn(
        "rows of the step compared by content; empty and constant ones are left out, and a batch that is given again "
        "in the same step"
    )
    duplicate_share = not_drawn(
        "share of them that came before, bit for bit, in the same step; where `w.end_epoch()` tells epochs, also at an "
        "earlier looked-at step of the epoch", scale="share",
    )  # fmt: skip
    seen_share = not_drawn(
        "share of them that came before, bit for bit, at an earlier looked-at step, of any epoch", scale="share"
    )
    distinct_rows = not_drawn("how many different ones there were at the steps looked at so far")
    holdout_overlap = not_drawn(
        "share of them that are, bit for bit, an example of the holdout", scale="share", when="with a holdout"
    )
    holdout_seen = not_drawn(
        "share of the holdout's examples that have been such a row so far", scale="share", when="with a holdout"
    )
    norm_drift = _of_layers(
        "of batch norm: median over channels of |running mean − batch mean| / batch std", scale="log", when=_NORMS
    )
    norm_scale_drift = _of_layers(
        "of batch norm: median over channels of |ln(running variance / batch variance)|", when=_NORMS
    )
    norm_fixed = _of_layers(
        "of batch norm: 1 where it is in eval mode and normalises training batches by its running statistics, else 0",
        when=_NORMS,
    )
