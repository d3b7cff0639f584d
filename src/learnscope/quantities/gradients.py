"""What is recorded of gradients."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity

STAGE = "`stepped`: as the optimizer was given it; `before_clip` beside it where a clip by norm was seen"
ORIGIN = "`replayed` where the gradient is that of a fixed batch, computed for a checkpoint"


class GradientFlow(Quantities):
    records = "gradient norms by layer, clipping, NaN and infinity"

    norm = Quantity(
        "√Σg²", kinds=("model", "layer", "component", "group", "named", "tensor"),
        labels={"stage": STAGE, "origin": ORIGIN}, scale="log", drawn="in a figure of its own",
    )  # fmt: skip
    gradient_to_weight = Quantity(
        "‖g‖/‖W‖ before clipping", kinds=("layer",), labels={"origin": ORIGIN}, scale="log", drawn="not",
        when="on steps that `weights_every` names",
    )  # fmt: skip
    clip_coefficient = Quantity(
        "smallest factor by which clipping multiplied a gradient", scale="share", drawn="in a figure of its own",
        when="where a clip by norm was seen",
    )  # fmt: skip
    zero_share = Quantity("share of entries that are 0", kinds=("model", "layer"), scale="share", drawn="not")
    nan = Quantity("entries that are NaN", kinds=("model", "layer"), drawn="not")
    inf = Quantity("entries that are ±∞", kinds=("model", "layer"), drawn="not")
    nonfinite_tensors = Quantity("tensors with a NaN or ±∞", drawn="not")
    first_nonfinite = Quantity(
        "bad entries of the first tensor in backward order that has any", kinds=("tensor",), drawn="not",
        when="where a tensor has any",
    )  # fmt: skip
    without_gradient = Quantity("trainable parameters that have no gradient at all", drawn="not")
    noise_scale = Quantity(
        "B_simple = S/|G|², from the micro-batches of one step, both smoothed",
        labels={"unit": "what the micro-batches' sizes count"}, source="arXiv 1812.06162", scale="log",
        drawn="in a figure of its own", when="where a step has several micro-batches",
    )  # fmt: skip
    noise = Quantity(
        "this step's unbiased S", source="arXiv 1812.06162", scale="log", drawn="not",
        when="where a step has several micro-batches",
    )  # fmt: skip
    signal = Quantity(
        "this step's unbiased |G|²", source="arXiv 1812.06162", scale="log", drawn="not",
        when="where a step has several micro-batches",
    )  # fmt: skip
    stability = Quantity(
        "cosine with the previously measured gradient, from a sketch", kinds=("layer",), drawn="not",
        when="with `stability=True`",
    )  # fmt: skip
    mean = Quantity(
        "mean of the entries of g before clipping", kinds=("model", "layer", "component"), labels={"origin": ORIGIN},
        drawn="not", when="with `variance=True`",
    )  # fmt: skip
    variance = Quantity(
        "unbiased variance of the entries of g before clipping", kinds=("model", "layer", "component"),
        labels={"origin": ORIGIN}, scale="log", drawn="not", when="with `variance=True`",
    )  # fmt: skip
