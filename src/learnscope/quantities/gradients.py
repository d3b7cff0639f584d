"""What is recorded of gradients."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure

STAGE = "`stepped`: as the optimizer was given it; `before_clip` beside it where a clip by norm was seen"
ORIGIN = "`replayed` where the gradient is that of a fixed batch, computed for a checkpoint"
_UNIT = {"unit": "what the micro-batches' sizes count"}
_ORIGIN = {"origin": ORIGIN}
_PARTS = ("model", "layer", "component")
_entries = partial(Quantity, kinds=("model", "layer"), drawn="not")
_noise = partial(
    Quantity, source="arXiv 1812.06162", scale="log", when="where a step has several micro-batches", drawn="not"
)
_ALL_SEEN = "where a step has several micro-batches, all of one process"
_moment = partial(Quantity, kinds=_PARTS, labels=_ORIGIN, drawn="not", when="with `variance=True`")

_stability = partial(Quantity, kinds=("layer",), drawn="not", when="with `stability=True`")


class GradientFlow(Quantities):
    records = "gradient norms by layer, clipping, NaN and infinity"

    norm = own_figure(
        "√Σg²", kinds=(*_PARTS, "group", "named", "tensor"), labels={"stage": STAGE, **_ORIGIN}, scale="log"
    )
    gradient_to_weight = not_drawn(
        "‖g‖/‖W‖ before clipping", kinds=("layer",), labels=_ORIGIN, scale="log", when="at steps of `weights_every`"
    )
    clip_coefficient = own_figure(
        "smallest factor by which clipping multiplied a gradient", scale="share", when="where a clip by norm was seen"
    )
    zero_share = _entries("share of entries that are 0", scale="share")
    nan = _entries("entries that are NaN")
    inf = _entries("entries that are ±∞")
    nonfinite_tensors = not_drawn("tensors with a NaN or ±∞")
    first_nonfinite = not_drawn(
        "how many NaN and ±∞ it has: the first bad tensor in backward order", kinds=("tensor",), when="if there is one"
    )
    without_gradient = not_drawn("trainable parameters that have no gradient at all")
    noise_scale = _noise("B_simple = S/|G|², both smoothed", labels=_UNIT, drawn="in a figure of its own")
    noise = _noise("this step's unbiased S; null where sizes differ and `weighted_by` is not given", when=_ALL_SEEN)
    signal = _noise("this step's unbiased |G|²; null with `noise`", when=_ALL_SEEN)
    stability = _stability(
        "cosine with the previously measured gradient, from a sketch of each tensor; exact where `stability_error` is 0"
    )
    stability_error = _stability(
        "half of the 95 % interval of `stability`, of sketching alone: 2(1 − cos²)/√`sketch_size`, more where a few "
        "entries make up most of a gradient; 0 in a layer whose tensors have at most `sketch_size` entries"
    )
    mean = _moment("mean of the entries of g before clipping")
    variance = _moment("unbiased variance of the entries of g before clipping", scale="log")
