"""Columns for the outputs of a variant of the model beside those of the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.model.outputs.reference import Reference
from learnscope.record import Column, Label

REGRESSION = "float targets: the outputs are numbers, not distributions"
SINGLE = "one number a position has no direction"
_OF_DISTRIBUTIONS = ("kl", "kl_median", "kl_p99", "top1_agree")


def output_columns(
    compared: Mapping[str, Any], reference: Sequence[Reference], labels: Mapping[str, Label]
) -> list[Column]:
    """What `compare_outputs` gave, with the reasons for what has no meaning for outputs of this kind."""
    reasons = undefined(reference)
    return [
        Column(name, value.reshape(1) if hasattr(value, "reshape") else [value], labels, reason)
        for name, value in compared.items()
        for reason in [{0: reasons[name]} if name in reasons else {}]
    ]


def undefined(reference: Sequence[Reference]) -> dict[str, str]:
    """The comparisons that have no meaning for these outputs, and why."""
    first = reference[0]
    reasons = dict.fromkeys(_OF_DISTRIBUTIONS, REGRESSION) if first.regression else {}
    if first.outputs.logits[:1].numel() == 1:
        reasons["cosine"] = SINGLE
    return reasons
