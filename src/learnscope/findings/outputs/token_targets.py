"""Targets of language models: the next token, and no padding."""

from __future__ import annotations

from learnscope.findings import analysis
from learnscope.findings.outputs.objective_checks import finding_of, steady
from learnscope.quantities.outputs import Objective
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

MUCH_IGNORED = 0.02
"""Share of the targets from which a token that is ignored is missed: marks between passages are rarer."""
MUCH_PADDING = 0.1
"""Share of the targets from which padding matters."""


@analysis(place=23, check="targets of a language model", needs=[Objective.targets_equal_inputs])
def token_targets(reader: RunReader, cuts: Cuts) -> list[Finding]:
    equal = {shift: series(reader, Objective.targets_equal_inputs, shift=shift).finite for shift in (-1, 0, 1, 2)}
    shares = {shift: steady(found, cuts) or 0.0 for shift, found in equal.items()}
    top = max(shares, key=lambda shift: shares[shift])
    findings = []
    if shares[top] >= cuts.surely and shares[1] < 0.9:
        findings.append(_copies(equal[0], shares[0]) if top == 0 else _shifted(equal[top], shares[top], top))
    padding = series(reader, Objective.padding_share).finite
    share = steady(padding, cuts)
    mostly = 2 * len(padding) >= len(equal[0])  # a token that only seems to be padding is one now and then
    if share is not None and share >= MUCH_PADDING and mostly:
        findings.append(
            finding_of(
                padding, Objective.padding_share, share, "padding_in_loss",
                f"Padding counts in the loss: {percent(share)} of the targets",
                f"{percent(share)} of the counted targets are padding after padding; predicting them is easy and "
                "makes the "
                "loss look low",
                "Set these targets to the loss's ignore_index (−100), or mask them.",
                ["plateau"],
                alternatives=["A token at the ends of rows that is meant to be predicted: nothing is wrong then."],
            )
        )  # fmt: skip
    return [*findings, *_ignored_tokens(reader, cuts)]


def _ignored_tokens(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = series(reader, Objective.ignored_inside).finite
    share = steady(found, cuts)
    if share is None or share < MUCH_IGNORED:
        return []
    return [
        finding_of(
            found, Objective.ignored_inside, share, "ignored_class",
            f"A token of the text is ignored: {percent(share)} of the targets equal ignore_index",
            f"{percent(share)} of the targets are the next token, stand between others that count, and are ignored: "
            "ignore_index is the number of a token that the text has, which is never learned",
            "Use an ignore_index that is no token, such as −100, or the number of the padding alone.",
            ["class_never_seen", "overfitting", "worsening", "plateau", "holdout_differs"],
            alternatives=["A mark between passages of one row that need not be predicted: nothing is wrong then."],
        )
    ]  # fmt: skip


def _copies(found: Series, share: float) -> Finding:
    return finding_of(
        found, Objective.targets_equal_inputs, share, "copies_input",
        f"The target of each position is its own input: {percent(share)} of them",
        f"{percent(share)} of the targets equal the token that is put in at the same place, so that copying is all "
        "that "
        "there is to learn",
        "Shift the targets by one: the output at a position is scored against the token after it.",
        ["overfitting", "worsening", "plateau"],
        alternatives=["A model that is meant to give its input back, such as an autoencoder: nothing is wrong then."],
    )  # fmt: skip


def _shifted(found: Series, share: float, shift: int) -> Finding:
    where = f"{shift} places after" if shift > 0 else "the place before"
    return finding_of(
        found, Objective.targets_equal_inputs, share, "labels_shifted",
        f"Targets are shifted: they are the tokens {where} the input, not the next ones",
        f"{percent(share)} of the targets equal the input token {where} the one whose output is scored; for "
        "predicting the "
        "next token it is 1 place",
        "Shift once: models of Hugging Face shift labels themselves, so give them the inputs as labels.",
        ["not_learning", "plateau", "worsening", "labels_unrelated", "overfitting"],
    )  # fmt: skip
