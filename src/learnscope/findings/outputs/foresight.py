"""Sequence models that see what they are to predict, or are to give back what they see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.outputs.objective_checks import finding_of, steady
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import last_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

AHEAD = 0.1
"""Share of first places by which a model has to be above what their first token allows: dropout alone adds little."""
FEWEST = 20
"""Such places below which nothing is said."""
OPEN = 0.1
"""Share of the variance of first targets that the first input leaves open, for them not to be known from it."""
BELOW = 0.3
"""Share of that below which an error is not one of a model that sees the first input alone."""
COPIED = 0.01
"""Share of what the best constant gives, below which a loss is that of a copy."""
RECURRENT = ("GRU", "LSTM", "RNN")
EXPLAINS = ("overfitting", "worsening", "plateau")
AHEAD_ADVICE = (
    "Look for what lets a place see those after it: attention without a causal mask (is_causal=True, or the mask of "
    "the right sign), a convolution that is padded on both sides, a bidirectional recurrent layer, a normalisation or "
    "a mean over the whole sequence."
)


@analysis(
    place=22,
    check="what comes later is not seen",
    needs=[(Objective.first_place_right, Objective.first_place_error)],
)
def sees_ahead(reader: RunReader, cuts: Cuts) -> list[Finding]:
    return _tokens_ahead(reader, cuts) or _numbers_ahead(reader, cuts)


def _tokens_ahead(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Next tokens predicted at the first place more often than the first token allows."""
    names = (Objective.first_place_rows, Objective.first_place_right, Objective.first_place_bound)
    rows, right, bound = (series(reader, name).finite for name in names)
    shifted = steady(series(reader, Objective.targets_equal_inputs, shift=1), cuts)
    if shifted is None or shifted < cuts.surely or not len(right):
        return []
    steps = right.steps[len(right) // 2 :]
    weights, ours, best = (_at(each, steps) for each in (rows, right, bound))
    n = float(weights.sum())
    if n < FEWEST or (weights @ ours) - (weights @ best) < AHEAD * n:
        return []
    reached, allowed = float(weights @ ours / n), float(weights @ best / n)
    return [
        finding_of(
            right, Objective.first_place_right, reached, "copies_input",
            "The model sees the token that it is to predict: it is right where that cannot be known",
            f"At the first place of a sequence the model has read one token, and {percent(reached)} of the next ones "
            f"were predicted right in the second half of the run, where no function of the first token gets more than "
            f"{percent(allowed)} of these right ({num(n)} sequences that share their first token with others)",
            AHEAD_ADVICE, EXPLAINS,
            alternatives=["Something else that the model is given, such as a state that is kept from batch to batch."],
        )
    ]  # fmt: skip


def _at(found: Series, steps: np.ndarray) -> np.ndarray:
    return found.values[np.isin(found.steps, steps)]


def _numbers_ahead(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Next numbers predicted at the first place better than the first number allows."""
    error, floor = (series(reader, q).finite for q in (Objective.first_place_error, Objective.first_place_floor))
    shifted = steady(series(reader, Objective.inputs_as_targets, shift=1), cuts)
    half = len(error) // 2
    if shifted is None or shifted < cuts.surely or half < cuts.measurements:
        return []
    reached, least = (float(np.median(each.values[-half:])) for each in (error, floor))
    if least < OPEN or reached > BELOW * least:
        return []
    return [
        finding_of(
            error, Objective.first_place_error, reached, "copies_input",
            "The model sees the value that it is to predict: it is right where that cannot be known",
            f"At the first place of a series the model has read one value, which leaves {percent(least)} of the "
            f"variance of the next one open, and its squared error there is {percent(reached)} of that variance "
            f"(medians of {count(half, 'measurement')})",
            AHEAD_ADVICE, EXPLAINS,
            alternatives=["Something else that the model is given, such as a state that is kept from batch to batch."],
        )
    ]  # fmt: skip


@analysis(place=22, check="targets of a series", needs=[Objective.inputs_as_targets], at_least="measurements")
def gives_back(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A single recurrent layer, which has read its input when it gives it back: nothing is foretold or coded."""
    found = series(reader, Objective.inputs_as_targets, shift=0).finite
    share, constant = steady(found, cuts), last_of(reader, Objective.constant_loss)
    loss = series(reader, Objective.objective_mean).finite.values
    if share is None or share < cuts.surely or not constant or len(_recurrent(reader)) != 1:
        return []
    if float(np.median(loss[-cuts.measurements :])) > COPIED * constant:
        return []
    return [
        finding_of(
            found, Objective.inputs_as_targets, share, "copies_input",
            f"The target of each place is its own input: {percent(share)} of them",
            f"{percent(share)} of the targets equal the value that is put in at the same place, which a recurrent "
            f"layer has just read: copying is all that there is to learn, and the loss is {num(float(loss[-1]))}",
            "To forecast, shift the targets by one: the output at a place is scored against the value after it.",
            EXPLAINS,
            alternatives=["A model that is meant to give its input back, as an autoencoder: nothing is wrong then."],
        )
    ]  # fmt: skip


def _recurrent(reader: RunReader) -> Sequence[str]:
    types = (reader.manifest.get("model") or {}).get("layer_types") or {}
    return [layer for layer, kind in types.items() if str(kind) in RECURRENT]
