"""A model in a file that other libraries load: written, loaded by them, and compared with what was promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.model.bits.exports import compressed_tensors_folder, gguf_file, packed_file, torchao_folder
from learnscope.model.bits.exports.judging import Judgement, judge
from learnscope.model.bits.exports.placing import check_target, place
from learnscope.model.bits.exports.planning import Plan, Prepared, Ready, plan_export
from learnscope.model.bits.quantise import Bits
from learnscope.model.bits.torchao_export import ExportError
from learnscope.model.guard import preserve_rng
from learnscope.options import did_you_mean
from learnscope.task import Task, task_for
from learnscope.tensor.bits.quantize import Scheme


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store a model."""

    prepare: Callable[[Plan, Any], Prepared]
    """From a plan and a tokenizer; refuses what the format cannot hold."""
    ending: str
    """Of a file; empty for a folder."""
    is_our_file: Callable[[Path], bool]


FORMATS = {
    "packed": Format(packed_file.prepare, ".safetensors", packed_file.is_ours),
    "torchao": Format(torchao_folder.prepare, "", lambda _path: False),
    "compressed-tensors": Format(compressed_tensors_folder.prepare, "", lambda _path: False),
    "gguf": Format(gguf_file.prepare, ".gguf", gguf_file.is_ours),
}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and how it compares with what was promised before.

    kl, promised_kl: mean KL from the original model, in nats a position, of the model that was loaded from the file,
    and of the original with the numbers that were to be written; None where they were not measured. difference: the
    largest between the logits of these two, as a share of the largest logit.
    """

    path: Path
    format: str
    file_bytes: int
    """Of the file with the weights."""
    promised_bytes: int
    """From shapes, before anything was written."""
    kl: float | None
    promised_kl: float | None
    difference: float | None
    checked_by: str
    notes: tuple[str, ...] = ()


def guessed_format(path: str | Path) -> str:
    """By the ending: .gguf, .safetensors (packed); a folder is for compressed-tensors.

    >>> guessed_format("model.gguf"), guessed_format("model.safetensors"), guessed_format("out/model")
    ('gguf', 'packed', 'compressed-tensors')
    """
    ending = Path(path).suffix.lower()
    named = {form.ending: name for name, form in FORMATS.items() if form.ending}
    if ending in (".pt", ".pth", ".bin", ".onnx", ".json"):
        raise ExportError(f"name a file that ends in {' or '.join(named)}, or a folder, not {ending}")
    return named.get(ending, "compressed-tensors")


def checked_format(path: str | Path, format: str | None) -> str:
    """The format, guessed if it is None; refuses an unknown one, and a path that does not fit."""
    name = guessed_format(path) if format is None else format
    if name not in FORMATS:
        raise ExportError(f"format={name!r} is not known.{did_you_mean(name, list(FORMATS))} {', '.join(FORMATS)} are")
    ending = FORMATS[name].ending
    if ending and Path(path).suffix.lower() != ending:
        raise ExportError(f"{path}: name a file that ends in {ending}, by which it is known when it is read")
    if not ending and Path(path).suffix.lower() in (".gguf", ".safetensors"):
        raise ExportError(f"{path}: {name} is a folder, not a file")
    return name


def export(
    model: nn.Module,
    bits: Bits,
    scheme: Scheme | None,
    path: str | Path,
    *,
    format: str | None = None,
    tokenizer: Any = None,
    quantised: Ready | None = None,
    batches: Sequence[Any] = (),
    task: Task | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write `model` with its units at `bits`, load it with the library that the format is for, and compare.

    Whole or not at all: what cannot be held is refused before anything is written, and a file that cannot be loaded, or
    computes something else on `batches`, is not kept. `quantised` are codes and scales by the names of parameters, as
    calibrated methods choose them; others are rounded to the nearest. An earlier export at `path` is replaced, anything
    else only with `overwrite`. The model stays as it is.
    """
    path = Path(path)
    name = checked_format(path, format)
    form = FORMATS[name]
    plan = plan_export(model, bits, scheme, quantised)
    check_target(path, folder=not form.ending, overwrite=overwrite, is_our_file=form.is_our_file)
    prepared = form.prepare(plan, tokenizer)

    def written(new: Path) -> tuple[int, Judgement | None]:
        prepared.write(new)
        size = (new if prepared.weights_file is None else new / prepared.weights_file).stat().st_size
        with preserve_rng():
            loaded = prepared.load(new)
        if not batches:
            return size, None
        weights = {weight: prepared.values(weight) for weight in plan.quantised_names}
        return size, judge(model, loaded, weights, task or task_for(batches[0], model), batches)

    size, judged = place(path, written, folder=not form.ending)
    measured = judged or Judgement(None, None, 0.0)
    return Exported(
        path, name, size, prepared.promised_bytes, measured.kl, measured.promised_kl,
        None if judged is None else judged.difference, prepared.checked_by, prepared.notes,
    )  # fmt: skip
