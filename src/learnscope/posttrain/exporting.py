"""The recommended bit widths in a file that other libraries load, and the check that they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.exports.export import FORMATS, Exported, checked_format, export
from learnscope.model.bits.exports.placing import check_target
from learnscope.model.bits.exports.planning import Ready, plan_export
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.data import fixed_batches
from learnscope.model.outputs.scores import halves
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.session import AuditSession
from learnscope.tensor.bits.methods import find_method
from learnscope.tensor.bits.quantize import HALF_BITS, Scheme

EXAMPLES = 32
"""On which the model that was loaded back is compared."""


def check_export(path: Path, format: str | None, model: nn.Module | None = None) -> None:
    """Refuse a path, a format, and a model that the format has no place for, before minutes are spent."""
    try:
        name = checked_format(path, format)
        form = FORMATS[name]
        check_target(path, folder=not form.ending, overwrite=False, is_our_file=form.is_our_file)
        if model is not None:
            form.prepare(plan_export(model, {}), None)
    except ValueError as error:
        raise PosttrainError(f"export={str(path)!r}: {error}") from error


class _Examined(Protocol):
    """A `ModelAnalyzer`, or its `BitWidthAnalyzer`."""

    session: AuditSession


def export_model(
    analyzer: _Examined,
    path: str | Path,
    data: Any = None,
    bits: Mapping[str, int] | None = None,
    scheme: Scheme | None = None,
    *,
    format: str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the model in the bits that were recommended last, or in those given by unit, and load it again.

    On the first examples of `data` the model that was loaded is compared with what was promised. See
    `learnscope.model.bits.exports.export.export`, which does it, and takes any model.
    """
    session, ready = analyzer.session, None
    if bits is None:
        bits, scheme, ready = recommended_weights(session, data)
    batches = [] if data is None else fixed_batches(data, session.task, model=session.model, examples=EXAMPLES)
    task = session.task_of(batches) if batches else None
    return export(
        session.model, bits, scheme, path, format=format, tokenizer=session.tokenizer, batches=batches, task=task,
        overwrite=overwrite, quantised=ready,
    )  # fmt: skip


def in_words(told: Exported) -> list[str]:
    """What was written and how it compares, a line each."""
    lines = [f"exported as {told.format}: {told.path}, {told.file_bytes:,} bytes ({told.promised_bytes:,} promised)"]
    if told.kl is not None:
        lines.append(f"{told.checked_by}: KL {told.kl:.3g} from the original, {told.promised_kl:.3g} promised")
    return [*lines, *told.notes]


def recommended_weights(session: AuditSession, data: Any) -> tuple[Mapping[str, int], Scheme, Ready | None]:
    """The bits and the scheme that were recommended last, with the codes of a method that is calibrated on `data`."""
    records = [record for name in ("BitFrontier", "BitOptimum") if (record := session.record(name)) is not None]
    if not records:
        raise PosttrainError("nothing is recommended yet: examine the bit widths first, or give the bits")
    notes = max(records, key=lambda record: record.time).notes
    described, bits = notes.get("recommended_scheme", notes["scheme"]), notes["recommended"]
    scheme, method = scheme_of(described), find_method(described.get("method", "rtn"))
    if described.get("method", "rtn") == "rtn":
        return bits, scheme, None
    calibration = None
    if method.needs_calibration:
        if data is None:
            raise PosttrainError(
                f"the recommended weights are rounded by {described['method']}, which is calibrated on data: give them"
            )
        batches = fixed_batches(
            data, session.task, model=session.model, examples=notes["search_examples"] + notes["held_out_examples"]
        )
        task = session.task_of(batches)
        calibration = Calibration.collect(session.model, halves(task, batches)[0], task=task)
    copies = QuantisedCopies(session.model, scheme, described["method"], calibration)
    parameters = dict(session.model.named_parameters())
    ready = {
        tensor.name: copies.quantised(tensor, tensor.as_matrix(parameters[tensor.name].detach()), bits[unit.name])
        for unit in find_units(session.model, embeddings=True)
        for tensor in unit.tensors
        if bits.get(unit.name, HALF_BITS) < HALF_BITS
    }
    return bits, copies.scheme, ready


def scheme_of(described: Mapping[str, Any]) -> Scheme:
    """The way of rounding that a record's note describes."""
    known = {field.name for field in fields(Scheme)}
    options = {name: value for name, value in described.items() if name in known}
    if "scales" in described:
        options["scale_dtype"] = getattr(torch, described["scales"])
    return Scheme(**options)
