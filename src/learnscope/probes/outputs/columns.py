"""Columns for the outputs of a variant of the model beside those of the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.model.outputs.activations import fused_activations
from learnscope.model.outputs.reference import Reference, compare_outputs, reference_outputs
from learnscope.quantities.outputs import VariantOutputs
from learnscope.record import Column, Label, Table

REGRESSION = "float targets: the outputs are numbers, not distributions"
SINGLE = "one number a position has no direction"
ZEROS = "at some position all outputs of the model, or of the variant, are 0: they have no direction"
SAMPLED = "the sequences are the model's own samples: their loss is its entropy, and no perplexity on any text"
_Variant = TypeVar("_Variant")
_OF_DISTRIBUTIONS = (
    VariantOutputs.kl, VariantOutputs.kl_median, VariantOutputs.kl_p99, VariantOutputs.top1_agree,
)  # fmt: skip


def holdout_reference(moment: Moment, examples: int) -> tuple[list[Any], Sequence[Reference]]:
    """The batches of the first holdout examples, and the model's outputs on them, computed once for all probes."""
    batches, key = moment.holdout_batches(examples), ("reference_outputs", examples)

    def outputs() -> Sequence[Reference]:
        with fused_activations(moment.model):
            return reference_outputs(moment.model, moment.task, batches)

    return batches, moment.once(key, outputs)


def compared_with(moment: Moment, batches: Sequence[Any], reference: Sequence[Reference]) -> dict[str, Tensor]:
    """What `compare_outputs` says of the model as it is now beside its `holdout_reference`."""
    with fused_activations(moment.model):
        return compare_outputs(moment.model, moment.task, batches, reference)


def output_columns(
    quantities: type[VariantOutputs],
    compared: Mapping[str, Any],
    reference: Sequence[Reference],
    labels: Mapping[str, Label],
) -> list[Column]:
    """What `compare_outputs` gave, with the reasons for what has no meaning for outputs of this kind."""
    reasons = undefined_comparisons(reference)
    return [
        quantities.named(name).column(value.reshape(1) if hasattr(value, "reshape") else [value], labels, reason)
        for name, value in compared.items()
        for reason in [{0: reasons[name]} if name in reasons else {}]
    ]


def with_cosine_reasons(tables: Sequence[Table]) -> list[Table]:
    """The tables, once read, with the reason for a cosine that is NaN beside a finite error: a vector of zeros."""
    return [replace(table, columns=[_with_reasons(column, table) for column in table.columns]) for table in tables]


def _with_reasons(column: Column, table: Table) -> Column:
    if column.name != VariantOutputs.cosine.name:
        return column
    errors = [c.values for c in table.columns if c.name == VariantOutputs.mse.name and c.labels == column.labels]
    undefined = [place for place, status in column.status.items() if status == "nan" and errors[0][place] is not None]
    return replace(column, status={**column.status, **dict.fromkeys(undefined, ZEROS)})


def read_together(compared: Mapping[_Variant, Mapping[str, Tensor]]) -> dict[_Variant, dict[str, float]]:
    """What `compare_outputs` gave for several variants, read with one wait for the device."""
    keys = [(variant, name) for variant, numbers in compared.items() for name in numbers]
    values = torch.stack([compared[variant][name] for variant, name in keys]).tolist()
    numbers: dict[_Variant, dict[str, float]] = {variant: {} for variant in compared}
    for (variant, name), value in zip(keys, values, strict=True):
        numbers[variant][name] = value
    return numbers


def undefined_comparisons(reference: Sequence[Reference]) -> dict[str, str]:
    """The comparisons that have no meaning for these outputs, and why."""
    first = reference[0]
    reasons = dict.fromkeys([quantity.name for quantity in _OF_DISTRIBUTIONS], REGRESSION) if first.regression else {}
    if first.outputs.logits[:1].numel() == 1:
        reasons[VariantOutputs.cosine.name] = SINGLE
    return reasons
