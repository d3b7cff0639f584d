"""What is recorded of a model's outputs."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure, with_interval


class VariantOutputs(Quantities):
    """Outputs of a variant of the model beside the model's own, over the positions of the same examples."""

    kl = own_figure("KL(model ‖ variant) per position: mean", unit="nats", scale="log")
    kl_median = not_drawn("KL(model ‖ variant) per position: median", unit="nats", scale="log")
    kl_p99 = not_drawn("KL(model ‖ variant) per position: 99th percentile", unit="nats", scale="log")
    cosine = not_drawn("cosine of the logits, mean over positions")
    mse = own_figure("mean squared difference of the logits, mean over positions", scale="log")
    top1_agree = not_drawn("share of positions with the same most likely class", scale="share")
    broke = not_drawn(
        "share of positions: model right, variant wrong", scale="share", when="where the targets are classes"
    )
    mended = not_drawn(
        "share of positions: model wrong, variant right", scale="share", when="where the targets are classes"
    )


class Loss(Quantities):
    records = "the training loss (`w.log(loss=loss)` in the loop)"

    loss = own_figure("mean of the losses logged for the step: several with gradient accumulation", better="lower")
    accuracy = own_figure(
        "mean of the logged accuracies; names with `accuracy` in them share a figure", better="higher", scale="share"
    )
    deviation = not_drawn(
        "unbiased standard deviation of logged values", name="{key}_std", when="where a step logged several values"
    )
    logged = Quantity("mean of the values logged for the step under any other name", name="{key}")


class Holdout(Quantities):
    records = "loss, accuracy and predictions on examples that are not trained on"

    holdout_examples = not_drawn("how many examples")
    holdout_positions = not_drawn("how many positions; with targets, only those that have one")
    holdout_nonfinite = not_drawn("positions with a logit that is NaN or ±∞; NaN ones predict nothing (-1)")
    holdout_accuracy = own_figure(
        "share of the positions predicted right", better="higher", scale="share", when="where the targets are classes"
    )
    holdout_loss = own_figure(
        "mean loss over the positions that have a target", better="lower", when="where there are targets",
        labels={"loss": "which loss it is, where the training loop's own is not known"},
    )  # fmt: skip


class BatchStats(Quantities):
    records = "batch size and class balance (`w.batch(batch)` in the loop)"

    batch_size = not_drawn("number of examples")
    targets = not_drawn("number of targets that count (positions, for language models)", when="where there are targets")
    share = own_figure(
        "share of the targets in each class", kinds=("class",), scale="share", when="for classes, up to `max_classes`"
    )
    target_mean = not_drawn("mean of the targets", when="for float targets")
    target_std = not_drawn("unbiased standard deviation of the targets", when="for float targets")


_EXAMPLES = "over examples, studentised"
_SHARES = f"{_EXAMPLES}; Wilson's where each has one position, and where all or none are right"
_accuracy = partial(Quantity, better="higher", scale="share", drawn="not", when="for classes")


class Performance(Quantities):
    records = "loss, perplexity and accuracy with their intervals"

    loss, loss_low, loss_high = with_interval(
        not_drawn("Σ losses / Σ positions that count, over all batches", better="lower"), _EXAMPLES
    )
    perplexity, perplexity_low, perplexity_high = with_interval(
        not_drawn("exp of that", better="lower", scale="log", when="for models that predict tokens"), _EXAMPLES
    )
    accuracy, accuracy_low, accuracy_high = with_interval(_accuracy("share of the positions predicted right"), _SHARES)
    top_k_accuracy, top_k_accuracy_low, top_k_accuracy_high = with_interval(
        _accuracy("share of them whose right class is among the k most likely", labels={"k": "as in `top_k`"}), _SHARES
    )
    examples = not_drawn("how many examples have a target")
    positions = not_drawn("how many positions have a target")
