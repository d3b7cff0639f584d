"""The recommended bit widths in a file that other libraries load, and the check that they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from learnscope.model.bits.exports.export import FORMATS, Exported, checked_format, export
from learnscope.model.bits.exports.gguf_blocks import BLOCK
from learnscope.model.bits.exports.placing import check_target
from learnscope.model.bits.exports.planning import Ready, plan_export
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.bits.torchao_export import ExportError
from learnscope.model.data import fixed_batches
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.session import AuditSession
from learnscope.probes.bits.bit_frontier import BitFrontier
from learnscope.probes.bits.candidates import Quantiser
from learnscope.tensor.bits.methods import METHODS
from learnscope.tensor.bits.quantize import HALF_BITS, WHOLE_BITS, Scheme

EXAMPLES = 32
"""On which the model that was loaded back is compared."""
WIDTHS_OF_GGUF = (8, 5, 4)


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

    If the format cannot hold what was recommended, the best is written that was measured and answers the same question
    (the smallest as good, or the best for the budget; without a budget, at last the smallest within the loss that is
    allowed), and `notes` say so.

    On the first examples of `data` the model that was loaded is compared with what was promised. See
    `learnscope.model.bits.exports.export.export`, which does it, and takes any model.
    """
    session, ready, notes = analyzer.session, None, list[str]()
    if bits is None:
        (bits, scheme, ready), notes = held_weights(session, checked_format(path, format))
    batches = [] if data is None else fixed_batches(data, session.task, model=session.model, examples=EXAMPLES)
    task = session.task_of(batches) if batches else None
    told = export(
        session.model, bits, scheme, path, format=format, tokenizer=session.tokenizer, batches=batches, task=task,
        overwrite=overwrite, quantised=ready,
    )  # fmt: skip
    return replace(told, notes=(*notes, *told.notes))


def in_words(told: Exported) -> list[str]:
    """What was written and how it compares, a line each."""
    lines = [f"exported as {told.format}: {told.path}, {told.file_bytes:,} bytes ({told.promised_bytes:,} promised)"]
    if told.kl is not None:
        lines.append(f"{told.checked_by}: KL {told.kl:.3g} from the original, {told.promised_kl:.3g} promised")
    return [*lines, *told.notes]


Weights = tuple[Mapping[str, int], Scheme, Ready | None]
"""Bits by unit, the scheme, and the codes where they are not those of rounding to the nearest."""


def recommended_weights(session: AuditSession) -> Weights:
    """The bits and the scheme that were recommended last, with the codes of another method than rounding."""
    probe, notes = _recommendation(session)
    return _weights(session, probe, notes["recommended"], notes.get("recommended_scheme", notes["scheme"]))


def held_weights(session: AuditSession, name: str) -> tuple[Weights, list[str]]:
    """What was recommended last, or the best of what else answers the same question that the format `name` can hold, or
    the smallest that loses no more than is allowed; with a line on why it is another."""
    probe, notes = _recommendation(session)
    first, refused = notes.get("recommended_name", "what is recommended"), None
    others, nearly = list(notes.get("usable", ())), list(notes.get("within", ()))
    if "at_size" in notes.get("choices", ()) or "at_damage" in notes.get("choices", ()):
        nearly = []  # a budget was given, and is kept
    others += [other for other in nearly if other not in others]
    ways: Mapping[str, Any] = {**notes.get("schemes", {}), first: notes.get("recommended_scheme", notes["scheme"])}
    mixes: Mapping[str, Any] = {**notes.get("bits", {}), first: notes["recommended"]}
    rounded = ways[first].get("activation_bits")
    alike = [other for other in others if other != first and ways[other].get("activation_bits") == rounded]
    for each in [first, *alike]:
        weights = _weights(session, probe, mixes[each], ways[each])
        try:
            FORMATS[name].prepare(plan_export(session.model, *weights), session.tokenizer)
        except ExportError as error:
            refused = refused or error
            continue
        if refused is None:
            return weights, []
        more = "" if each in notes.get("usable", ()) else f" ({each} loses no more than allowed, but is told apart)"
        return weights, [f"{each} instead of {first}, which {name} cannot hold: {refused}{more}"]
    raise ExportError(
        f"{name} can hold neither {first}, which is recommended, nor another that was measured and is as good: "
        f"{refused}. Export it as packed (a file that ends in .safetensors), or search only what {name} can hold "
        "(bits=, granularity=, embeddings=)"
    ) from refused


def _recommendation(session: AuditSession) -> tuple[str, Mapping[str, Any]]:
    """The probe that recommended something last, and its notes."""
    records = {name: record for name in ("BitFrontier", "BitOptimum") if (record := session.record(name)) is not None}
    if not records:
        raise PosttrainError("nothing is recommended yet: call find_frontier(data_loader) first, or give the bits")
    last = max(records, key=lambda name: records[name].time)
    return last, records[last].notes


def _weights(session: AuditSession, probe: str, bits: Mapping[str, int], described: Mapping[str, Any]) -> Weights:
    """As the probe measured them: a method that is calibrated is, on the same examples."""
    made_by, batches = session.measured(probe)
    way = Quantiser(**described, examples=made_by.examples)  # type: ignore[attr-defined]
    if way.method == "rtn":
        return bits, way.scheme(), None
    copies, parameters = way.copies(session.moment(batches)), dict(session.model.named_parameters())
    ready = {
        tensor.name: copies.quantised(tensor, tensor.as_matrix(parameters[tensor.name].detach()), bits[unit.name])
        for unit in find_units(session.model, embeddings=True)
        for tensor in unit.tensors
        if bits.get(unit.name, HALF_BITS) < HALF_BITS
    }
    return bits, way.scheme(), ready


def kept_to(path: Path, format: str | None, given: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """In words, what the search leaves out because of the export.

    >>> kept_to(Path("m.gguf"), None, {"bits": (8, 4), "methods": ("mse", "gptq")}, {"bits": (8, 4)})
    'only what gguf can hold is searched: methods mse, gptq'
    """
    each = [
        f"{name.replace('_', ' ')} {', '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in given.items()
        if name not in asked
    ]
    return f"only what {checked_format(path, format)} can hold is searched: {'; '.join(each)}"


def search_options(
    path: Path, format: str | None, given: Mapping[str, Any], stored: torch.dtype = torch.float32
) -> dict[str, Any]:
    """The options of the search with which it tries what the format can hold, and not what it never can; `stored` is
    the dtype of the model's weights.

    >>> search_options(Path("m.safetensors"), None, {"bits": (4,)})
    {'bits': (4,)}
    >>> search_options(Path("m.gguf"), None, {"bits": (4,)})
    {'methods': ('mse', 'gptq'), 'granularity': 'group', 'group_size': 32, 'bits': (4,)}
    """
    name = checked_format(path, format)
    if name == "packed":
        return dict(given)
    method = given.get("method", "rtn")
    if method in METHODS and METHODS[method].input_scales:
        raise PosttrainError(
            f"method={method!r} stores a factor for each input, which {name} has no place for: choose another method, "
            "or export a packed file, which ends in .safetensors"
        )
    options: dict[str, Any] = {"methods": tuple(each for each in BitFrontier.methods if not METHODS[each].input_scales)}
    if name == "gguf":
        options |= {} if {"granularity", "group_size"} & set(given) else {"granularity": "group", "group_size": BLOCK}
        options |= {"bits": WIDTHS_OF_GGUF}
    elif name == "torchao":
        options |= {"bits": (8,), "embeddings": False}  # its 4 bits need scales in bfloat16, its embeddings are whole
    elif stored.itemsize > 2:  # 16 bits beside what stays as it is would be two dtypes
        options |= {"bits": tuple(WHOLE_BITS)[::-1]}
    return {**options, **given}
