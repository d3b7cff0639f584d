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
    limit_share = not_drawn(
        "share of the entries ≠ 0 that are as large as the largest one, of the largest tensor with up to a million "
        "entries: a clip by value, or the sign alone, leaves many", scale="share",
    )  # fmt: skip
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


_ATTEMPT = {
    "attempt": "the how manieth in a row that was not finite, or not followed by a step",
    "cause": "what showed it: `clip`, a norm that is not finite; `loss`, a logged one; `scaler`, a GradScaler that "
    "left the step out; `end`, a loop that ended before the step",
}
_attempt = partial(Quantity, labels=_ATTEMPT, drawn="not", when="for a step that is lost, or not finite")


class LostSteps(Quantities):
    records = "steps that never happened: their gradients, their loss and their examples"

    skipped = _attempt("1 if the step never came, 0 if it came after all; null as long as it was not known")
    loss = _attempt("the loss that the loop logged for it")
    norm = _attempt("√Σg² over all gradients, before a clip", scale="log")
    nan = _attempt("entries of the gradients that are NaN")
    inf = _attempt("entries that are ±∞")
    nonfinite_tensors = _attempt("tensors with a NaN or ±∞; null if the gradients were gone")
    first_nonfinite = _attempt("how many NaN and ±∞ it has: the first bad tensor in backward order", kinds=("tensor",))
    lost_steps = not_drawn("steps that were lost, at the end of the session")
