"""What is recorded of gradients."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure

STAGE = "`stepped`: as the optimizer was given it; `before_clip` beside it where a clip by norm was seen"
ORIGIN = "`replayed` where the gradient is that of a fixed batch, computed for a checkpoint"
_entries = partial(Quantity, kinds=("model", "layer"), drawn="not")
_noise = partial(
    Quantity, source="arXiv 1812.06162", scale="log", when="where a step has several micro-batches", drawn="not"
)
_moment = partial(
    Quantity, kinds=("model", "layer", "component"), labels={"origin": ORIGIN}, drawn="not", when="with `variance=True`"
)


class GradientFlow(Quantities):
    records = "gradient norms by layer, clipping, NaN and infinity"

    norm = own_figure(
        "√Σg²", kinds=("model", "layer", "component", "group", "named", "tensor"),
        labels={"stage": STAGE, "origin": ORIGIN}, scale="log",
    )  # fmt: skip
    gradient_to_weight = not_drawn(
        "‖g‖/‖W‖ before clipping", kinds=("layer",), labels={"origin": ORIGIN}, scale="log",
        when="on steps that `weights_every` names",
    )  # fmt: skip
    clip_coefficient = own_figure(
        "smallest factor by which clipping multiplied a gradient", scale="share", when="where a clip by norm was seen"
    )
    zero_share = _entries("share of entries that are 0", scale="share")
    nan = _entries("entries that are NaN")
    inf = _entries("entries that are ±∞")
    nonfinite_tensors = not_drawn("tensors with a NaN or ±∞")
    first_nonfinite = not_drawn(
        "NaN and ±∞ in the first tensor, in backward order, that has any", kinds=("tensor",),
        when="where a tensor has any",
    )  # fmt: skip
    without_gradient = not_drawn("trainable parameters that have no gradient at all")
    noise_scale = own_figure(
        "B_simple = S/|G|², from the micro-batches of one step, both smoothed",
        labels={"unit": "what the micro-batches' sizes count"}, source="arXiv 1812.06162", scale="log",
        when="where a step has several micro-batches",
    )  # fmt: skip
    noise = _noise("this step's unbiased S")
    signal = _noise("this step's unbiased |G|²")
    stability = not_drawn(
        "cosine with the previously measured gradient, from a sketch", kinds=("layer",), when="with `stability=True`"
    )
    mean = _moment("mean of the entries of g before clipping")
    variance = _moment("unbiased variance of the entries of g before clipping", scale="log")
