"""What is recorded of single examples and of groups of them."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure, with_interval

_accuracy = partial(Quantity, better="higher", scale="share", drawn="in a figure of its own")
_quantile = partial(Quantity, kinds=("quantile",), drawn="not")


class ExampleLedger(Quantities):
    records = "every training example over its presentations: learned, forgotten, how sure"

    untracked = not_drawn("presentations of examples beyond `track`")
    unscored = not_drawn("presentations without a target that counts")
    examples = own_figure("examples that were presented so far")
    presentations = own_figure("presentations so far")
    nonfinite = not_drawn("presentations with a score that is not finite")
    forgetting_events = own_figure(
        "times an example was correct at one presentation and wrong at the next", source="arXiv 1812.05159"
    )
    learned = own_figure("share of the examples that were correct at their last presentation", scale="share")
    never_learned = own_figure("share of the examples that were never correct", scale="share")
    unforgettable = own_figure(
        "share of the examples that were once correct and never forgotten", source="arXiv 1812.05159", scale="share"
    )
    mean_confidence = not_drawn("mean over the examples of `confidence`", source="arXiv 2009.10795", scale="share")
    mean_variability = not_drawn("mean over the examples of `variability`", source="arXiv 2009.10795")
    mean_aum = not_drawn("mean over the examples of `aum`", source="arXiv 2001.10528")
    mean_el2n = not_drawn("mean over the examples of `el2n`", source="arXiv 2107.07075")
    mean_cumulative_loss = not_drawn("mean over the examples of `cumulative_loss`", better="lower")
    accuracy = _accuracy(
        "share correct since the last measurement; groups or else classes, if at most 100", kinds=("model", "group")
    )
    mean_p_gold = own_figure(
        "mean probability of the right class, of the same presentations", kinds=("model", "group"), scale="share"
    )
    mean_loss = own_figure("mean loss of the same presentations", kinds=("model", "group"), better="lower")
    confidence = _quantile(
        "quantiles (0.1, 0.5, 0.9) of an example's mean gold probability", source="arXiv 2009.10795", scale="share"
    )
    variability = _quantile(
        "quantiles of that probability's standard deviation (population) over presentations", source="arXiv 2009.10795"
    )
    aum = _quantile(
        "quantiles of an example's mean margin, right class's logit − largest other", source="arXiv 2001.10528"
    )
    el2n = _quantile("quantiles of an example's mean ‖p − onehot(y)‖₂", source="arXiv 2107.07075")
    cumulative_loss = _quantile("quantiles of the sum of an example's losses", better="lower")
    group_presentations = not_drawn("presentations of the group since the last measurement", kinds=("group",))


_of_split = partial(Quantity, kinds=("split",), drawn="not")


class Memorization(Quantities):
    records = "training data beside test data: accuracy, loss, calibration, what is memorised"

    accuracy = _accuracy("share of the split's positions that are right", kinds=("split",))
    loss = own_figure("mean loss of the split's positions", kinds=("split",), better="lower")
    confidence = _of_split("mean probability of the predicted class", scale="share")
    brier = _of_split("mean Σ_c (p_c − [c = y])², between 0 and 2")
    calibration_error = _of_split(
        "Σ_b (n_b/n)·|accuracy_b − confidence_b| over bins of equal mass; equal confidences share a bin",
        source='the bins of scikit-learn\'s `calibration_curve(strategy="quantile")`',
        labels={"bins": "as many as `bins`, fewer where a bin would have fewer than 10 predictions"}, scale="share",
    )  # fmt: skip
    positions = _of_split("positions of the split that have a target")
    examples = _of_split("examples that they belong to")
    loss_gap = not_drawn("test loss − train loss")
    proxy_membership_auc = not_drawn("chance that a training position's loss is below a test position's", scale="share")
    generalization_gap = not_drawn("train accuracy − test accuracy")
    proxy_excess_confidence = not_drawn("mean over training positions of `proxy_excess`")


_SIDES = "Wilson's, over test examples"
_GAPS = "Newcombe's, over test examples"
_BY = {"by": "`group` or `class`"}
_OF_CELLS = {"by": "of groups: `group` or `class`", "target": "of cells: the class"}
_of_group = partial(Quantity, kinds=("group",), labels=_BY, drawn="not")


class GroupAccuracy(Quantities):
    records = "accuracy of every group of examples, and whether the group is what is predicted"

    accuracy = _accuracy(
        "share of the positions that are right, of a group or of a cell (a group's positions of one class)",
        kinds=("group", "cell"), labels={**_OF_CELLS, "by": "of groups: `group`, or `class` where there are none"},
    )  # fmt: skip
    gold_probability = _of_group("mean probability of the right class", scale="share")
    loss = _of_group("mean loss of the group's positions", better="lower")
    positions = not_drawn(
        "positions of the group or cell that have a target", kinds=("group", "cell"), labels=_OF_CELLS
    )
    examples = own_figure("examples that they belong to", kinds=("group",), labels=_BY)
    aligned_accuracy, aligned_accuracy_low, aligned_accuracy_high = with_interval(
        _accuracy("accuracy on test examples whose group suggests their own class"), _SIDES
    )
    conflicting_accuracy, conflicting_accuracy_low, conflicting_accuracy_high = with_interval(
        _accuracy("accuracy on test examples whose group suggests another class"), _SIDES
    )
    bias_gap, bias_gap_low, bias_gap_high = with_interval(own_figure("aligned − conflicting accuracy"), _GAPS)
    within_class_gap, within_class_gap_low, within_class_gap_high = with_interval(
        not_drawn("the same within classes, by Mantel and Haenszel: not due to harder classes in conflict"), _GAPS
    )
    attribute_following, attribute_following_low, attribute_following_high = with_interval(
        own_figure("share of the conflicting predicted as the group suggests", scale="share"), _SIDES
    )
    chance_following = own_figure(
        "the same share if errors fell on all other classes alike, (1 − conflicting accuracy)/(C − 1)", scale="share"
    )
    aligned_examples = own_figure("how many test examples are aligned")
    conflicting_examples = own_figure("how many test examples are in conflict")
    undecided_examples = not_drawn("how many test examples have a group that suggests no class")
    association = own_figure("Cramér's V of group and class in the training data", scale="share")
    train_examples = not_drawn("training examples with a class")
    train_conflicting = not_drawn("training examples of another class than their group suggests")
    classes = not_drawn("C, the classes among the training examples")


class ExampleTransitions(Quantities):
    records = "which training examples the way since the last measurement rests on"

    examples = Quantity("training examples that were examined")
    without_score = Quantity("those without a score")
    mean_cosine = Quantity("mean over scored examples of the cosine of their gradients then and now")
    mean_loss_drop = Quantity("mean over scored examples of their loss then − now")
    top_share = Quantity(
        "share of the total drop in loss due to the tenth with the highest scores; above 1 if others rose"
    )
    cosine = _quantile("quantiles (0.05, 0.25, 0.5, 0.75, 0.95) of that cosine")
    loss_drop = _quantile("the same quantiles of loss then − now")
