"""What is wrong with what the loss function is given: probabilities for logits, targets it cannot use, padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities import Quantity
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Holdout, Objective
from learnscope.reading.course.chance import guessing, last_of, main_function
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, labelled, rows, series
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Finding, Severity
from learnscope.store.backend import RunError
from learnscope.store.reader import RunReader


def steady(found: Series, cuts: Cuts) -> float | None:
    """The median of the measurements; None if these are too few."""
    values = found.finite.values
    return float(np.median(values)) if len(values) >= cuts.measurements else None


def of_tokens(reader: RunReader) -> bool:
    """Whether the inputs are tokens."""
    return bool(labelled(reader, Objective.targets_equal_inputs, "shift"))


SAME_OUTPUTS = 0.9
"""Share of the outputs that get no gradient, the least over the most, from which they are the same ones every time."""


def finding_of(
    found: Series, quantity: Quantity, value: float, kind: str, title: str, detail: str, advice: str,
    explains: Sequence[str] = (), severity: Severity = "warning", alternatives: Sequence[str] = (),
    scopes: Sequence[str] = (),
) -> Finding:  # fmt: skip
    first, last = int(found.steps[0]), int(found.steps[-1])
    return Finding(
        kind=kind, severity=severity, title=title,
        detail=f"{detail} ({count(len(found), 'measurement')}, {between(first, last)}).", advice=advice,
        evidence=evidence_over((first, last), found.probe, quantity, len(found), value), cause=True,
        explains=list(explains), alternatives=list(alternatives), since=first, scopes=list(scopes),
    )  # fmt: skip


@analysis(
    place=20, check="logits where logits are expected", needs=[Objective.probability_rows], at_least="measurements"
)  # fmt: skip
def probabilities(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = series(reader, Objective.probability_rows).finite
    share = steady(found, cuts)
    if share is None or share < cuts.surely:
        return _probabilities_as_logs(reader, cuts)
    function = main_function(reader) or "the loss function"
    twice = "sigmoid" if function.startswith("binary") else "softmax"
    return [
        finding_of(
            found, Objective.probability_rows, share, "double_softmax",
            f"Probabilities are given as logits: {twice} is applied twice",
            f"{percent(share)} of the outputs given to {function} are probabilities already, and it applies {twice} "
            "itself. The loss cannot come near 0 that way, and gradients are small",
            f"Give it the outputs before {twice}, or use the loss function for probabilities.",
            ["not_learning", "plateau", "learning_rate_too_low", "vanishing", "labels_unrelated"],
        )
    ]  # fmt: skip


def _probabilities_as_logs(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """nll_loss of outputs that are no log-probabilities."""
    found = series(reader, Objective.logprob_rows).finite
    share = steady(found, cuts)
    if main_function(reader) != "nll_loss" or share is None or share > 1 - cuts.surely:
        return []
    if (steady(series(reader, Objective.batch_softmax_columns), cuts) or 0.0) >= cuts.surely:
        return []  # which says more
    value = series(reader, Objective.objective_mean, function="nll_loss").finite.values
    probable = len(value) > 0 and value.max() <= 0 and value.min() >= -1
    what = "probabilities" if probable else "outputs whose exponentials do not add up to 1"
    return [
        finding_of(
            found, Objective.logprob_rows, share, "double_softmax" if probable else "wrong_outputs",
            f"nll_loss is given {what}, not log-probabilities",
            f"{percent(1 - share)} of the rows given to nll_loss are not log-probabilities",
            "Use log_softmax instead of softmax before nll_loss, or cross_entropy on the logits.",
            ["not_learning", "plateau", "vanishing", "labels_unrelated", "loss_maximised"],
        )
    ]  # fmt: skip


@analysis(place=21, check="targets in range", needs=[(Objective.targets_out_of_range, Objective.output_mean)])
def targets_in_range(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = series(reader, Objective.targets_out_of_range).finite
    share = steady(found, cuts)
    if share:
        function = main_function(reader) or "the loss function"
        return [
            finding_of(
                found, Objective.targets_out_of_range, share, "targets_out_of_range",
                f"{percent(share)} of the targets are out of the range that {function} takes",
                f"{percent(share)} of the targets are no class, or outside of 0…1 for yes/no answers; for those the "
                "loss "
                "has no least value and may fall below 0",
                "Bring targets to 0…1 (masks of 255, labels of −1 and 1), or to classes from 0 on.",
                ["not_learning", "diverging", "loss_maximised", "plateau", "exploding", "nonfinite"],
                "critical",
            )
        ]  # fmt: skip
    return _out_of_reach(reader, cuts)


def _out_of_reach(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Outputs that end at a bound of an activation, with targets far beyond it."""
    level, spread = series(reader, Objective.output_mean).finite, series(reader, Objective.output_std).finite
    target, width = last_of(reader, Objective.target_mean), last_of(reader, Objective.target_std)
    if len(level) < cuts.measurements or target is None or width is None or len(level) != len(spread):
        return []
    end, off = float(level.values[-1]), float(spread.values[-1])
    near = cuts.near_a_bound
    bound = next((bound for bound in (0.0, 1.0, -1.0) if abs(end - bound) < near and off < near), None)
    outside = np.abs(level.values).max() <= 1 + near and abs(target) > 1 and abs(target - end) > width
    if bound is None or not outside:
        return _between_bounds(level, spread, target, width, cuts)
    return [
        finding_of(
            level, Objective.output_mean, end, "targets_out_of_range",
            f"The targets are out of the outputs' reach: outputs stay at {num(bound)}, targets are around "
            f"{num(target)}",
            f"All outputs are {num(end)} ± {num(off)}, the end of what a sigmoid, a tanh or a ReLU gives, and "
            "targets are "
            f"{num(target)} ± {num(width)}",
            "Take the last activation away, or scale the targets into its range.",
            ["not_learning", "plateau", "labels_unrelated", "vanishing", "zero_gradients", "exploding", "not_moving",
             "dead_units"],
        )
    ]  # fmt: skip


def _between_bounds(level: Series, spread: Series, target: float, width: float, cuts: Cuts) -> list[Finding]:
    """Outputs that are −1 or 1 in the end, as a tanh gives them, with targets far beyond both."""
    size, wanted = np.hypot(level.values, spread.values), float(np.hypot(target, width))
    n = max(len(size) // 3, cuts.measurements)
    full = bool((size <= 1 + 1e-4).all() and (size[-n:] >= 1 - 2 * cuts.near_a_bound).all())
    if not full or wanted < 2 or len(size) < 2 * n or abs(float(level.values[-1])) > 1 - cuts.near_a_bound:
        return []
    return [
        finding_of(
            level, Objective.output_mean, float(size[-1]), "targets_out_of_range",
            f"The targets are out of the outputs' reach: outputs stay at −1 and 1, targets go to about {num(wanted)}",
            f"The root mean square of the outputs rose to {num(float(size[-1]))} and never went beyond 1, the ends of "
            f"what a tanh gives, and that of the targets is {num(wanted)}",
            "Take the last activation away, or scale the targets into its range.",
            ["not_learning", "plateau", "labels_unrelated", "vanishing", "zero_gradients", "not_moving", "dead_units",
             "saturated_units", "overfitting", "worsening"],
        )
    ]  # fmt: skip


@analysis(place=22, check="classes that are ignored or never seen", needs=[Objective.classes_seen])
def classes(reader: RunReader, cuts: Cuts) -> list[Finding]:
    if of_tokens(reader):  # padding has a number in the vocabulary, and many words are rare
        return []
    ignored = series(reader, Objective.ignored_class_share).finite
    share = steady(ignored, cuts)
    if share:
        return [
            finding_of(
                ignored, Objective.ignored_class_share, share, "ignored_class",
                f"A class is ignored: {percent(share)} of the targets equal ignore_index",
                f"ignore_index is the number of a class that the outputs have, so that {percent(share)} of the targets "
                "count for nothing and that class is never learned",
                "Use an ignore_index that is no class, such as −100.",
                ["class_never_seen", "overfitting", "worsening", "unreached_outputs", "holdout_differs"],
            )
        ]  # fmt: skip
    return _never_seen(reader, cuts)


def _never_seen(reader: RunReader, cuts: Cuts) -> list[Finding]:
    seen, all_classes = series(reader, Objective.classes_seen).finite, last_of(reader, Objective.classes)
    answers = main_function(reader).startswith("binary")  # each output for itself, and some are always no
    if len(seen) < 2 * cuts.measurements or not all_classes or not 2 < all_classes <= cuts.most_classes or answers:
        return []
    last = float(seen.values[-1])
    if _of_the_vocabulary(reader, all_classes):
        return []
    if last >= all_classes or float(seen.values[len(seen) // 2]) < last:
        return []
    frame = rows(reader, Objective.target_share, kind="class")
    frame = frame[frame["step"] == frame["step"].max()] if len(frame) else frame
    shown = set(frame[frame["value"] > 0]["scope"]) if len(frame) else set()
    missing = [str(place) for place in range(int(all_classes)) if str(place) not in shown] if shown else []
    wanted = _held_out_classes(reader) & set(missing)
    held = f" The holdout has {listed(sorted(wanted), cuts.names_listed)} among its labels." if wanted else ""
    which = f" ({listed(missing, cuts.names_listed)})" if missing else ""
    return [
        finding_of(
            seen, Objective.classes_seen, last, "class_never_seen",
            f"{count(int(all_classes - last), 'class', 'classes')} of {int(all_classes)} never came up in "
            f"training{which}",
            f"The outputs have {int(all_classes)} classes, and targets were of {int(last)} of them, of which the "
            "last was "
            f"new long before the end.{held} What is never a target is learned never to be predicted",
            "Look at how the data were cut and shuffled: a file sorted by class, a filter, labels that begin at 1. "
            "If the "
            "class is not meant, make the output narrower.",
            ["overfitting", "worsening", "unreached_outputs", "holdout_differs"],
            severity="warning" if wanted else "info",  # a spare output does no harm
            scopes=missing[:20],
        )
    ]  # fmt: skip


def _of_the_vocabulary(reader: RunReader, classes: float) -> bool:
    """Whether inputs are tokens of about as many kinds as there are classes: the next one is predicted."""
    highest = series(reader, Inputs.token_max, data="train").finite.values
    return len(highest) > 0 and classes / 2 <= float(highest.max()) + 1 <= classes


def _held_out_classes(reader: RunReader) -> set[str]:
    try:
        labels = reader.arrays(Holdout.probe).get("labels")
    except (KeyError, RunError):  # nothing was kept, or its file is gone
        return set()
    if labels is None or not np.issubdtype(labels.dtype, np.integer):
        return set()
    return {str(label) for label in np.unique(labels).tolist()}


@analysis(place=24, check="outputs that the loss does not reach", needs=[Objective.untouched_outputs])
def unreached(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = series(reader, Objective.untouched_outputs).finite
    early = found.values[: max(len(found) // 2, 1)]  # later, a gradient may underflow
    share = float(early.min()) if len(early) >= cuts.measurements else 0.0
    if share < SAME_OUTPUTS * float(early.max(initial=0.0)):  # now these and now those, as the targets have it
        return []
    judged = guessing(reader)
    few = judged is not None and judged.chance.classes is not None and judged.chance.classes > cuts.most_classes
    if not share or few:
        return []
    return [
        finding_of(
            found, Objective.untouched_outputs, share, "unreached_outputs",
            f"{percent(share)} of the outputs get no gradient from the loss",
            f"Of the columns of the outputs at least {percent(share)} had a gradient of exactly 0 at every "
            "looked-at step of "
            "the first half: the loss does not depend on them",
            "Check what is cut from the outputs, or multiplied by 0, before the loss.",
            ["not_moving", "zero_gradients", "class_never_seen", "frozen"],
        )
    ]  # fmt: skip
