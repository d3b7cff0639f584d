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
    top1_agree = not_drawn(
        "share of positions with the same most likely class; the others flip, of which `broke` from right to wrong, "
        "`mended` from wrong to right, and the rest from wrong to wrong", scale="share",
    )  # fmt: skip
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
_SHARES = (
    f"{_EXAMPLES}; Wilson's where each has one position, and, with the positions that count as independent "
    "(`learnscope.intervals.independent_positions`), where all or none are right or too few examples differ"
)
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
    class_accuracy, class_accuracy_low, class_accuracy_high = with_interval(
        Quantity(
            "share of the examples of the class that are predicted right", kinds=("class",), better="higher",
            scale="share", drawn="not", when="for classifiers with one target an example, up to 1,000 classes",
        ), "Wilson's, over examples",
    )  # fmt: skip
    class_examples = Quantity("how many examples are of the class", kinds=("class",), drawn="not", when="with it")


_FUNCTION = {"function": "torch's name of it, such as `cross_entropy`"}
_SHIFT = {"shift": "k: the input token k places after the one whose output is scored; 1 is next-token prediction"}
_ALONE = "for tokens that are the model's only input"
_SERIES = "for sequences (B, T, 1) of numbers that are the model's only input"
_of_objective = partial(Quantity, drawn="not")
_share = partial(Quantity, scale="share", drawn="not")


class Objective(Quantities):
    records = "what the loop's loss function is given and returns: accuracy, class balance, padding, ranges"

    objective_value = _of_objective(
        "mean over the calls of the step of what the loss function returned; of several numbers their mean",
        labels={**_FUNCTION, "reduction": "`mean`, `sum` or `none`"},
    )
    objective_mean = _of_objective(
        'the same for each counted target, as with reduction="mean", over all calls of the step', labels=_FUNCTION
    )
    objective_calls = _of_objective("how often the step called it", labels=_FUNCTION)
    objective_accuracy = own_figure(
        "share of the counted targets predicted right, in training mode and before the step; two classes and several "
        "yes/no answers are cut at 1/2", better="higher", scale="share", when="for classes",
    )  # fmt: skip
    majority_share = _share("largest share of one class among all counted targets seen so far", when="for classes")
    step_majority = _share("the same among the counted targets of this step alone", when="for classes")
    step_targets = _of_objective("how many targets of this step are counted", when="for classes")
    target_entropy = _of_objective(
        "−Σ p ln p of the classes' shares p so far: the loss of the best constant guess; of yes/no answers, the mean "
        "over outputs", unit="nats", when="for classes",
    )  # fmt: skip
    classes = _of_objective("width of the outputs: how many classes, or yes/no answers, there are", when="for classes")
    classes_seen = _of_objective("how many of them have been a target so far", when="for classes")
    predicted_majority = _share("share of this step's predictions that are the most frequent one", when="for classes")
    target_share = _share(
        "share of the class among all counted targets so far; of yes/no answers, the share of yes", kinds=("class",),
        when="for up to 100 classes",
    )  # fmt: skip
    predicted_share = _share("the same of this step's predictions", kinds=("class",), when="for up to 100 classes")
    targets_out_of_range = _share(
        "share of counted targets that are no class: below 0, or not below `classes`; of yes/no answers, outside 0…1; "
        "of losses that want −1 and 1, anything else", when="for classes and signs",
    )  # fmt: skip
    negative_targets = _share("share of the targets that are −1", when="for losses that want −1 and 1")
    probability_rows = _share(
        "share of the outputs given as logits (rows, for classes) that are all in 0…1 and, of classes, add up to 1 "
        "± 0.004: softmax or sigmoid was applied already", when="for cross_entropy and yes/no answers from logits",
    )  # fmt: skip
    logprob_rows = _share(
        "share of the rows given as logits whose exponentials add up to 1 (± 0.4 % · ln K): log_softmax was applied "
        "already; given to nll_loss, which expects this, 1 is right", when="for cross_entropy and nll_loss",
    )  # fmt: skip
    batch_softmax_columns = _share(
        "share of the columns of the outputs that are, or whose exponentials are, probabilities over the examples of "
        "the batch, or over the places of each sequence: softmax was taken over the wrong dimension. 0 where there are "
        "as many examples as classes",
        when="for classes",
    )
    twice_squashed = _share(
        "share of the probabilities between 1/2 and 0.731 (± 0.004): a sigmoid of a sigmoid gives no others",
        when="for binary_cross_entropy",
    )
    ignored_share = _share("share of the step's targets equal to `ignore_index`", when="for classes")
    ignored_class_share = _share(
        "the same, where `ignore_index` is a class that the outputs have", when="where 0 ≤ ignore_index < classes"
    )
    ignored_inside = _share(
        "share of the targets that are ignored, are the next token of the text, and have counted ones before and after "
        "them in their row: no padding",
        when="for token inputs",
    )
    padding_share = _share(
        "share of counted targets that are padding, as is the input token whose output is scored; where the model does "
        "not say which token that is, the places of a token that fills the ends of at least half of the rows and "
        "stands nowhere else, if their targets are all the same",
        when="for token inputs",
    )
    targets_equal_inputs = _share(
        "share of counted targets equal to the input token at that place", labels=_SHIFT, when="for token inputs"
    )
    inputs_as_targets = _share(
        "share of targets that are the input at that place", labels=_SHIFT, when="for sequences (B, T, C) of numbers"
    )
    first_place_rows = _of_objective(
        "sequences of the step whose first token others have too; with 256 sequences at most", when=_ALONE
    )
    first_place_right = _share("share of these predicted right at their first place", when=_ALONE)
    first_place_bound = _share(
        "the largest share that a function of the first token alone can get right there", when=_ALONE
    )
    first_place_error = _of_objective(
        "mean squared error at the first place of sequences, in units of the variance of its targets", when=_SERIES
    )
    first_place_floor = _of_objective(
        "what the first input leaves open of these targets, in the same units: how far they are off a line between the "
        "targets of the sequences with the nearest first inputs", when=_SERIES,
    )  # fmt: skip
    constant_loss = _of_objective(
        "`objective_mean` of the best constant outputs. Classes: the entropy of their shares so far, class weights or "
        "label smoothing included; yes/no answers: `target_entropy`; mse_loss: the variance of all targets so far, by "
        "column; l1_loss: mean |y − median| of the step's targets, by column",
    )
    nonfinite_outputs = _of_objective("how many rows of the outputs (entries, if not classes) predict NaN or ±∞")
    nonfinite_targets = _of_objective("how many targets are NaN or ±∞; they are left out", when="for numbers")
    broadcast = _of_objective(
        "entries compared for each entry of the outputs or targets, the larger: above 1, shapes did not match and were "
        "broadcast", when="for numbers",
    )  # fmt: skip
    target_mean = _of_objective("mean of all targets so far", when="for numbers")
    target_std = _of_objective("population standard deviation of the same", when="for numbers")
    output_mean = _of_objective("mean of the step's outputs", when="for numbers")
    output_std = _of_objective("population standard deviation of the same", when="for numbers")
    untouched_outputs = _share(
        "share of output columns whose gradient from the loss is exactly 0 in every call of the step",
        when="where the backward reached the outputs",
    )


_of_task = partial(Quantity, kinds=("task",), drawn="not")
_task_share = partial(_of_task, better="higher", scale="share")
_QUESTIONS = "Wilson's, over questions"
_CHOICE = "for multiple choice"


class TaskAccuracy(Quantities):
    records = "accuracy on questions with known answers"

    acc, acc_low, acc_high = with_interval(
        _task_share(
            "share of the questions whose right choice has the highest log-likelihood, Σ ln p(token | context and "
            "tokens before it)", when=_CHOICE, source="as lm-eval's `acc`",
        ), _QUESTIONS,
    )  # fmt: skip
    acc_norm, acc_norm_low, acc_norm_high = with_interval(
        _task_share(
            "the same by the log-likelihood over the choice's characters", when=_CHOICE,
            source="as lm-eval's `acc_norm`",
        ), _QUESTIONS,
    )  # fmt: skip
    acc_bytes, acc_bytes_low, acc_bytes_high = with_interval(
        _task_share(
            "the same by the log-likelihood over the choice's UTF-8 bytes", when=_CHOICE,
            source="as lm-eval's `acc_bytes`",
        ), _QUESTIONS,
    )  # fmt: skip
    exact_match, exact_match_low, exact_match_high = with_interval(
        _task_share(
            "share of the questions to which the most likely next tokens, one after the other, are a right answer, "
            "without spaces around it", when="for answers in words", source="as lm-eval's `exact_match`",
        ), _QUESTIONS,
    )  # fmt: skip
    chance = _of_task("mean of 1 / choices: the accuracy of guessing", scale="share", when=_CHOICE)
    questions = _of_task("how many were asked")
    cut = _of_task("questions whose context was cut from the left, as the model takes no more tokens")
