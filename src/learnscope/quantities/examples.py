"""What is recorded of single examples and of groups of them."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity, with_interval


class ExampleLedger(Quantities):
    records = "every training example over its presentations: learned, forgotten, how sure"

    untracked = Quantity("presentations of examples beyond `track`", drawn="not")
    unscored = Quantity("presentations without a target that counts", drawn="not")
    examples = Quantity("examples that were presented so far", drawn="in a figure of its own")
    presentations = Quantity("presentations so far", drawn="in a figure of its own")
    nonfinite = Quantity("presentations with a score that is not finite", drawn="not")
    forgetting_events = Quantity(
        "times that an example was correct at one presentation and wrong at its next", source="arXiv 1812.05159",
        drawn="in a figure of its own",
    )  # fmt: skip
    learned = Quantity(
        "share of the examples that were correct at their last presentation", scale="share",
        drawn="in a figure of its own",
    )  # fmt: skip
    never_learned = Quantity(
        "share of the examples that were never correct", scale="share", drawn="in a figure of its own"
    )
    unforgettable = Quantity(
        "share of the examples that were correct at some time and not forgotten since", source="arXiv 1812.05159",
        scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    mean_confidence = Quantity(
        "mean over the examples of `confidence`", source="arXiv 2009.10795", scale="share", drawn="not"
    )
    mean_variability = Quantity("mean over the examples of `variability`", source="arXiv 2009.10795", drawn="not")
    mean_aum = Quantity("mean over the examples of `aum`", source="arXiv 2001.10528", drawn="not")
    mean_el2n = Quantity("mean over the examples of `el2n`", source="arXiv 2107.07075", drawn="not")
    mean_cumulative_loss = Quantity("mean over the examples of `cumulative_loss`", better="lower", drawn="not")
    accuracy = Quantity(
        "share correct of the presentations since the last measurement; groups are those handed over, else the "
        "classes; more than 100 are not told apart", kinds=("model", "group"), better="higher", scale="share",
        drawn="in a figure of its own",
    )  # fmt: skip
    mean_p_gold = Quantity(
        "mean probability of the right class, of the same presentations", kinds=("model", "group"),
        scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    mean_loss = Quantity(
        "mean loss of the same presentations", kinds=("model", "group"), better="lower", drawn="in a figure of its own"
    )
    confidence = Quantity(
        "quantiles (0.1, 0.5, 0.9) over the examples of an example's mean probability of its right class",
        kinds=("quantile",), source="arXiv 2009.10795", scale="share", drawn="not",
    )  # fmt: skip
    variability = Quantity(
        "quantiles of the population standard deviation of that probability over an example's presentations",
        kinds=("quantile",), source="arXiv 2009.10795", drawn="not",
    )  # fmt: skip
    aum = Quantity(
        "quantiles of an example's mean margin, logit of the right class − largest other", kinds=("quantile",),
        source="arXiv 2001.10528", drawn="not",
    )  # fmt: skip
    el2n = Quantity(
        "quantiles of an example's mean ‖p − onehot(y)‖₂", kinds=("quantile",), source="arXiv 2107.07075", drawn="not"
    )
    cumulative_loss = Quantity(
        "quantiles of the sum of an example's losses", kinds=("quantile",), better="lower", drawn="not"
    )
    group_presentations = Quantity(
        "how many presentations the group had since the last measurement", kinds=("group",), drawn="not"
    )


class Memorization(Quantities):
    records = "training data beside test data: accuracy, loss, calibration, what is known by heart"

    accuracy = Quantity(
        "share of the split's positions that are right", kinds=("split",), better="higher", scale="share",
        drawn="in a figure of its own",
    )  # fmt: skip
    loss = Quantity(
        "mean loss of the split's positions", kinds=("split",), better="lower", drawn="in a figure of its own"
    )
    confidence = Quantity("mean probability of the predicted class", kinds=("split",), scale="share", drawn="not")
    brier = Quantity("mean Σ_c (p_c − [c = y])², between 0 and 2", kinds=("split",), drawn="not")
    calibration_error = Quantity(
        "Σ_b (n_b/n)·|accuracy_b − confidence_b| over bins of equal mass, equal confidences in one bin",
        kinds=("split",), labels={"bins": "as many as `bins`, fewer where a bin would have fewer than 10 predictions"},
        scale="share", drawn="not",
    )  # fmt: skip
    positions = Quantity("how many positions of the split have a target", kinds=("split",), drawn="not")
    examples = Quantity("how many examples of the split these are", kinds=("split",), drawn="not")
    loss_gap = Quantity("test loss − train loss", drawn="not")
    proxy_membership_auc = Quantity(
        "chance that a training position's loss is below a test position's", scale="share", drawn="not"
    )
    generalization_gap = Quantity("train accuracy − test accuracy", drawn="not")
    proxy_excess_confidence = Quantity("mean over training positions of `proxy_excess`", drawn="not")


_SIDES = "Wilson's, over test examples"
_GAPS = "Newcombe's, over test examples"


class GroupAccuracy(Quantities):
    records = "accuracy of every group of examples, and whether the group is what is predicted"

    accuracy = Quantity(
        "share of the group's positions that are right; of a cell, of those that also have a class",
        kinds=("group", "cell"),
        labels={"by": "of groups: `group`, or `class` where there are none", "target": "of cells: the class"},
        better="higher", scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    gold_probability = Quantity(
        "mean probability of the right class", kinds=("group",), labels={"by": "`group` or `class`"},
        scale="share", drawn="not",
    )  # fmt: skip
    loss = Quantity(
        "mean loss of the group's positions", kinds=("group",), labels={"by": "`group` or `class`"}, better="lower",
        drawn="not",
    )  # fmt: skip
    positions = Quantity(
        "how many positions of the group, of the cell, have a target", kinds=("group", "cell"),
        labels={"by": "of groups: `group` or `class`", "target": "of cells: the class"}, drawn="not",
    )  # fmt: skip
    examples = Quantity(
        "how many examples of the group these are", kinds=("group",), labels={"by": "`group` or `class`"},
        drawn="in a figure of its own",
    )  # fmt: skip
    aligned_accuracy, aligned_accuracy_low, aligned_accuracy_high = with_interval(
        Quantity(
            "accuracy on test examples whose group suggests their own class", better="higher", scale="share",
            drawn="in a figure of its own",
        ), _SIDES,
    )  # fmt: skip
    conflicting_accuracy, conflicting_accuracy_low, conflicting_accuracy_high = with_interval(
        Quantity(
            "accuracy on test examples whose group suggests another class", better="higher", scale="share",
            drawn="in a figure of its own",
        ), _SIDES,
    )  # fmt: skip
    bias_gap, bias_gap_low, bias_gap_high = with_interval(
        Quantity("aligned − conflicting accuracy", drawn="in a figure of its own"), _GAPS
    )
    within_class_gap, within_class_gap_low, within_class_gap_high = with_interval(
        Quantity(
            "the same within classes, weighted as by Mantel and Haenszel: free of harder classes that are more often "
            "in conflict", drawn="not",
        ), _GAPS,
    )  # fmt: skip
    attribute_following, attribute_following_low, attribute_following_high = with_interval(
        Quantity(
            "share of the conflicting that are predicted as what the group suggests", scale="share",
            drawn="in a figure of its own",
        ), _SIDES,
    )  # fmt: skip
    chance_following = Quantity(
        "what it would be if a model of the same conflicting accuracy erred towards all other classes alike, "
        "(1 − accuracy)/(C − 1); of two classes it is the same number", scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    aligned_examples = Quantity("how many test examples are aligned", drawn="in a figure of its own")
    conflicting_examples = Quantity("how many are in conflict", drawn="in a figure of its own")
    undecided_examples = Quantity("how many have a group that suggests no class", drawn="not")
    association = Quantity(
        "Cramér's V of group and class in the training data", scale="share", drawn="in a figure of its own"
    )
    train_examples = Quantity("training examples with a class", drawn="not")
    train_conflicting = Quantity("training examples of another class than their group suggests", drawn="not")
    classes = Quantity("C, the classes among the training examples", drawn="not")


class ExampleTransitions(Quantities):
    records = "which training examples the way since the last measurement rests on"

    examples = Quantity("examples of the training data that are looked at")
    without_score = Quantity("those of them that have no score")
    mean_cosine = Quantity("mean over the examples with a score of the cosine of their gradients then and now")
    mean_loss_drop = Quantity("mean over the examples with a score of their loss then − now")
    top_share = Quantity(
        "of the loss that all examples lost together, what the tenth with the highest scores lost; above 1 if others "
        "gained"
    )
    cosine = Quantity("quantiles (0.05, 0.25, 0.5, 0.75, 0.95) of that cosine", kinds=("quantile",), drawn="not")
    loss_drop = Quantity("the same quantiles of loss then − now", kinds=("quantile",), drawn="not")
