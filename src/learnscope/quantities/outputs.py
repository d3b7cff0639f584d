"""What is recorded of a model's outputs."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity, with_interval


class VariantOutputs(Quantities):
    """Outputs of a variant of the model beside the model's own, over the positions of the same examples."""

    kl = Quantity(
        "KL(model ‖ variant) per position: mean", unit="nats", scale="log", drawn="in a figure of its own"
    )  # fmt: skip
    kl_median = Quantity("KL(model ‖ variant) per position: median", unit="nats", scale="log", drawn="not")
    kl_p99 = Quantity("KL(model ‖ variant) per position: 99th percentile", unit="nats", scale="log", drawn="not")
    cosine = Quantity("cosine of the logits, mean over positions", drawn="not")
    mse = Quantity(
        "mean squared difference of the logits, mean over positions", scale="log", drawn="in a figure of its own"
    )  # fmt: skip
    top1_agree = Quantity("share of positions with the same most likely class", scale="share", drawn="not")
    broke = Quantity(
        "share of positions where the model is right and the variant wrong", scale="share", drawn="not",
        when="where the targets are classes",
    )  # fmt: skip
    mended = Quantity(
        "share of positions where the model is wrong and the variant right", scale="share", drawn="not",
        when="where the targets are classes",
    )  # fmt: skip


class Loss(Quantities):
    records = "the training loss (`w.log(loss=loss)` in the loop)"

    loss = Quantity(
        "mean of the losses logged for the step: several with gradient accumulation", better="lower",
        drawn="in a figure of its own",
    )  # fmt: skip
    accuracy = Quantity(
        "mean of the accuracies logged for the step; any name with accuracy in it is drawn beside the holdout's",
        better="higher", scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    deviation = Quantity(
        "unbiased standard deviation of what was logged under a name", name="{key}_std", drawn="not",
        when="where a step logged several values",
    )  # fmt: skip
    logged = Quantity("mean of the values logged for the step under any other name", name="{key}")


class Holdout(Quantities):
    records = "loss, accuracy and predictions on examples that are not trained on"

    holdout_examples = Quantity("how many examples", drawn="not")
    holdout_positions = Quantity("how many positions: those that have a target, where there are targets", drawn="not")
    holdout_nonfinite = Quantity("positions with a logit that is NaN or ±∞; NaN ones predict nothing (-1)", drawn="not")
    holdout_accuracy = Quantity(
        "share of the positions that are predicted right", better="higher", scale="share",
        drawn="in a figure of its own", when="where the targets are classes",
    )  # fmt: skip
    holdout_loss = Quantity(
        "mean loss over the positions that have a target", better="lower", drawn="in a figure of its own",
        when="where there are targets",
    )  # fmt: skip


class BatchStats(Quantities):
    records = "batch size and class balance (`w.batch(batch)` in the loop)"

    batch_size = Quantity("number of examples", drawn="not")
    targets = Quantity(
        "number of targets that count (positions, for language models)", drawn="not", when="where there are targets"
    )
    share = Quantity(
        "share of the targets in each class that occurs", kinds=("class",), scale="share",
        drawn="in a figure of its own", when="for classes, up to `max_classes`",
    )  # fmt: skip
    target_mean = Quantity("mean of the targets", drawn="not", when="for float targets")
    target_std = Quantity("unbiased standard deviation of the targets", drawn="not", when="for float targets")


_EXAMPLES = "over examples drawn again"
_SHARES = f"{_EXAMPLES}; Wilson's where each has one position, and where all or none are right"


class Performance(Quantities):
    records = "loss, perplexity and accuracy with their intervals"

    loss, loss_low, loss_high = with_interval(
        Quantity("Σ losses / Σ positions that count, over all batches", better="lower", drawn="not"), _EXAMPLES
    )
    perplexity, perplexity_low, perplexity_high = with_interval(
        Quantity("exp of that", better="lower", scale="log", drawn="not", when="for models that predict tokens"),
        _EXAMPLES,
    )
    accuracy, accuracy_low, accuracy_high = with_interval(
        Quantity(
            "share of the positions predicted right", better="higher", scale="share", drawn="not", when="for classes"
        ), _SHARES,
    )  # fmt: skip
    top_k_accuracy, top_k_accuracy_low, top_k_accuracy_high = with_interval(
        Quantity(
            "share of them with fewer than k classes before the right one", labels={"k": "as in `top_k`"},
            better="higher", scale="share", drawn="not", when="for classes",
        ), _SHARES,
    )  # fmt: skip
    examples = Quantity("how many examples have a target", drawn="not")
    positions = Quantity("how many positions have a target", drawn="not")
