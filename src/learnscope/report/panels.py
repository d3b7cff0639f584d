"""The figures that a run has data for, in the order of the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure

from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.gather import grid, one_pass, series
from learnscope.report.adapters.panels import cut_figure, gradient_figure, rank_figure, update_figure
from learnscope.report.audit.panels import AUDIT_PANELS
from learnscope.report.broken import breaks
from learnscope.report.by_kind import layer_panels, other_figure
from learnscope.report.examples.groups import group_figure
from learnscope.report.examples.learning import data_map, hardest, learning_figure, ledger_figure
from learnscope.report.features.curves import activation_figure, features_figure, memorization_figure
from learnscope.report.gradients.batches import class_figure, noise_figure
from learnscope.report.heatmap import heatmap, layer_types
from learnscope.report.layout import Panel
from learnscope.report.lines import change_figure, change_note, loss_figure, loss_note, norm_figure, rate_figure
from learnscope.report.outputs.confusion import confusion_figure, confusion_table
from learnscope.report.updates.optimizer import landscape_figure, momentum_figure
from learnscope.report.updates.reduced import low_rank_figure, sparse_figure
from learnscope.store.reader import RunReader


def gradient_heatmap(reader: RunReader) -> Figure | None:
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    if not norms:
        return None
    return heatmap(
        norms, "Gradient norm by layer", "‖g‖", series(reader, Loss.loss), meaning="as given to the optimizer",
        breaks=breaks(reader), types=layer_types(reader),
    )  # fmt: skip


def update_heatmap(reader: RunReader) -> Figure | None:
    ratios = grid(reader, ParameterChange.update_to_weight)
    if not ratios:
        return None
    counts = [grid(reader, quantity) for quantity in (ParameterChange.nan, ParameterChange.inf)]
    if all(counts):  # a ratio is also infinite where the weights were zero, which is not broken: only bad entries are
        ratios = replace(ratios, broken=(counts[0].aligned(ratios) > 0) | (counts[1].aligned(ratios) > 0))
    return heatmap(
        ratios, "Size of the updates by layer", "‖Δ‖/‖W‖", meaning="between two measurements",
        breaks=breaks(reader), types=layer_types(reader),
    )  # fmt: skip


def _no_prediction(reader: RunReader) -> str:
    confusion = confusion_table(reader)
    if confusion is None or not confusion.none.any():
        return ""
    return 'The column "none" is no class: those examples have logits that are not finite, so nothing is predicted.'


PANELS = (
    Panel(
        "gradients.png", "Gradient norm by layer",
        "Layers from input to output, top to bottom, over the steps. The colour is the norm of the gradient that the "
        "optimizer was given, on a logarithmic scale.",
        gradient_heatmap,
    ),
    Panel(
        "loss.png", "Loss",
        "Training loss and accuracy as the loop logged them; holdout loss and accuracy on the same fixed examples "
        "every time.",
        loss_figure, loss_note,
    ),
    Panel(
        "norm.png", "Gradient norm",
        "The norm over all parameters; marks at the foot are steps at which clipping made it smaller.",
        norm_figure,
    ),
    Panel(
        "updates.png", "Size of the updates by layer",
        "How far each layer moved between two measurements, relative to its weights, on a logarithmic scale.",
        update_heatmap,
    ),
    Panel(
        "moved.png", "Share of the weights that moved",
        "Entries whose stored bits changed between two measurements, and entries that moved by no more than each "
        "threshold. Of half-precision weights also those whose last update or weight decay was lost to rounding.",
        change_figure, change_note,
    ),
    Panel(
        "activations.png", "Dead and saturated units by layer",
        "The share of each layer's units whose output is 0 for every measured input, and of those whose slope is flat "
        "for more than 95 % of them.",
        activation_figure,
    ),
    Panel(
        "sparse_quality.png", "Outputs with a sparse update",
        "How far the outputs would be from the model's own if all changes of at most a threshold t since the last "
        "measurement had not been made, and if as many entries were kept at random instead. A sparse update is worth "
        "something where the largest changes do far better than those at random.",
        sparse_figure,
    ),
    Panel(
        "low_rank_quality.png", "Outputs with a low-rank update",
        "How far the outputs would be from the model's own if the update of every matrix since the last measurement "
        "were cut to a rank, as LoRA would make it. No update at all gives the scale.",
        low_rank_figure,
    ),
    Panel(
        "adapter_gradients.png", "Gradient norm of the adapters' parts",
        "Layers from input to output, top to bottom, over the steps, a panel for each part of the adapters, on a "
        "logarithmic scale. The gradient of A is exactly zero while B is.",
        gradient_figure,
    ),
    Panel(
        "adapter_updates.png", "Size of the adapters' updates",
        "What each adapter adds to its weight, by layer and type of module, on a logarithmic scale: where the work is "
        "done, and what has learned nothing.",
        update_figure,
    ),
    Panel(
        "adapter_ranks.png", "Directions that the adapters use",
        "The effective rank of each update: how many directions it would have if all were equally strong. Far below "
        "the adapter's rank, a lower rank may do; close to it, a higher one may help.",
        rank_figure,
    ),
    Panel(
        "adapter_cuts.png", "Adapters with lower ranks",
        "What the model's outputs lose when every update is cut to fewer directions, beside what they lose without "
        "adapters. The marked point is what is recommended: it has been tried.",
        cut_figure,
    ),
    Panel(
        "momentum.png", "Moments of the optimizer",
        "The cosine of the first moment with the gradient (1 is fresh, 0 has nothing to do with it), the signal to "
        "noise of the gradients that it averages, and the step that follows from it, relative to the weights.",
        momentum_figure,
    ),
    Panel(
        "landscape.png", "Sharpness of the loss",
        "The largest curvature of the loss, on a logarithmic scale. Beyond its threshold, dashed, the optimizer "
        "oscillates along that direction. Beside it, the loss on a line through the weights.",
        landscape_figure,
    ),
    Panel(
        "noise.png", "Gradient noise scale",
        "S/|G|²: batches far smaller than this are ruled by noise, far larger ones gain little by their size.",
        noise_figure,
    ),
    Panel("rates.png", "Learning rate", "What each optimizer group used, as set by the schedule.", rate_figure),
    Panel(
        "confusion.png", "Holdout predictions by class",
        "Rows are the labels, columns the predictions; the colour is the share of the label's examples.",
        confusion_figure, _no_prediction,
    ),
    Panel(
        "groups.png", "Accuracy by group of examples",
        "Accuracy on each group of examples: those that the batches name, else the classes. Where groups suggest a "
        "class, by what is most frequent in training, examples in line with that and in conflict with it stand above, "
        "with 95 % intervals: a model that follows the group gets the former right and not the latter.",
        group_figure,
    ),
    Panel(
        "memorization.png", "Training and test data",
        "Accuracy and loss of the same model on training and on test data, in eval mode. What lies between the lines "
        "is memorised, not generalised.",
        memorization_figure,
    ),
    Panel(
        "features.png", "Features by layer",
        "How well the classes lie apart in each layer's features, what a linear classifier makes of them, how many "
        "directions they use, and how similar they still are to those at the start.",
        features_figure,
    ),
    Panel(
        "learning.png", "Learning by example",
        "Accuracy and loss of the presentations of each epoch, and the shares of the examples that were correct last "
        "time, never forgotten, or never correct.",
        learning_figure,
    ),
    Panel(
        "data_map.png", "Data map of the training examples",
        "Each training example by the mean of the probability that its label got over its presentations, and how much "
        "that varied (arXiv 2009.10795). High on the left are easy examples, low on the left hard or mislabelled ones, "
        "on the right those that the model is undecided about.",
        partial(ledger_figure, data_map),
    ),
    Panel(
        "hardest.png", "The hardest training examples",
        "Those whose labels got the least probability over their presentations, and the mean loss of each: look here "
        "first if labels may be wrong.",
        partial(ledger_figure, hardest),
    ),
    Panel(
        "classes.png", "Classes in the batches",
        "The share of each class among the targets of a batch; a class that does not occur has none.",
        class_figure,
    ),
    *AUDIT_PANELS,
    Panel(
        "others.png", "Other numbers",
        "Numbers of probes that have no figure of their own, and what else the loop logged.",
        other_figure,
    ),
)  # fmt: skip


def drawn(reader: RunReader) -> Iterator[tuple[Panel, Figure]]:
    """Every panel that the run has data for, one at a time: a figure is a few megabytes."""
    run = one_pass(reader)
    for panel in (*PANELS, *layer_panels(run)):
        figure = panel.draw(run)
        if figure is not None:
            yield panel, figure
