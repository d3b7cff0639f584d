"""A GGUF file, for llama.cpp and all that is built on it: written, quantised and read by the `gguf` package.

| bits | symmetric | not |
|---|---|---|
| 16 | F16 (BF16 if the weight is, or is beyond float16's range) | |
| 8 | Q8_0 | |
| 5 | Q5_0 | Q5_1 |
| 4 | Q4_0 | Q4_1 |

Blocks of 32 input features share a scale in float16, whatever the scheme's granularity is.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learnscope.model.bits.exports.gguf_blocks import BLOCK, blocks
from learnscope.model.bits.exports.gguf_families import Family, family_of, reordered, rotated_heads
from learnscope.model.bits.exports.gguf_tokenizer import Write, tokenizer_metadata
from learnscope.model.bits.exports.planning import Plan, Prepared, library, refuse_other_parts, refuse_widths
from learnscope.model.bits.exports.transformers_folder import load_folder
from learnscope.model.bits.torchao_export import ExportError

_HAS = {16: "F16", 8: "Q8_0", 5: "Q5_0, Q5_1", 4: "Q4_0, Q4_1"}
_MARK = "learnscope.export"
_WHOLE = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the file."""

    name: str
    kind: str
    shape: tuple[int, ...]
    nbytes: int
    data: Callable[[], NDArray[Any]]


def prepare(plan: Plan, tokenizer: Any) -> Prepared:
    family = family_of(plan.model)
    library("gguf")
    refuse_other_parts(plan, "GGUF")
    refuse_widths(plan, _HAS, "GGUF")
    if not plan.scheme.is_symmetric(8) and 8 in plan.bits.values():
        raise ExportError("GGUF's 8 bits (Q8_0) are symmetric: give Scheme(symmetric=True) or None")
    entries = [_entry(plan, family, name) for name in plan.stored]
    write_tokenizer, left_out = tokenizer_metadata(tokenizer, int(plan.model.config.vocab_size))  # type: ignore[union-attr, arg-type]
    notes = [] if left_out is None else [left_out]
    if set(plan.quantised_names) - plan.ready.keys() and (plan.scheme.granularity, plan.scheme.group_size) != (
        "group",
        BLOCK,
    ):
        by = "groups" if plan.scheme.granularity == "group" else f"{plan.scheme.granularity}s"
        notes.append(f"GGUF rounds in blocks of {BLOCK} by its own rule, not by {by} as it may have been measured")
    new_writer = partial(_writer, plan, family, entries, write_tokenizer)

    def write(path: Path) -> None:
        writer = new_writer()
        try:
            _write_header(writer, path)
            for entry in entries:
                writer.write_tensor_data(entry.data())
        finally:
            writer.close()

    promised = _promised(new_writer, entries)
    by = "read by gguf, loaded by transformers, and run"
    return Prepared(promised, partial(_values, plan), write, partial(_load, plan.model), by, notes=tuple(notes))


def is_ours(path: Path) -> bool:
    try:
        return _MARK in library("gguf", "GGUFReader")(path).fields
    except (ExportError, ValueError, OSError, IndexError):
        return False


def _writer(plan: Plan, family: Family, entries: list[Entry], write_tokenizer: Write) -> Any:
    gguf = library("gguf")
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[family.architecture]])
    config: Any = plan.model.config
    writer.add_name(type(plan.model).__name__)
    writer.add_vocab_size(config.vocab_size)
    family.describe(config, writer)
    share: dict[str, int] = {}
    for entry in entries:
        share[entry.kind] = share.get(entry.kind, 0) + entry.nbytes
    most = max(share, key=lambda kind: share[kind])
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if most == "F32" else f"MOSTLY_{most}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_string(_MARK, "written by learnscope")
    write_tokenizer(writer)
    for entry in entries:
        kind = gguf.GGMLQuantizationType[entry.kind]
        writer.add_tensor_info(entry.name, entry.shape, np.dtype(np.float32), entry.nbytes, raw_dtype=kind)
    return writer


def _write_header(writer: Any, path: Path) -> None:
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _promised(new_writer: Callable[[], Any], entries: list[Entry]) -> int:
    """Metadata as the library writes them, and data from shapes, each tensor filled up to 32 bytes."""
    align = int(library("gguf", "GGUF_DEFAULT_ALIGNMENT"))
    with tempfile.TemporaryDirectory() as folder:
        writer, path = new_writer(), Path(folder) / "header.gguf"
        _write_header(writer, path)
        writer.close()
        header = path.stat().st_size
    return sum(-(-size // align) * align for size in (header, *(entry.nbytes for entry in entries)))


def _entry(plan: Plan, family: Family, name: str) -> Entry:
    gguf = library("gguf")
    config: Any = plan.model.config
    layers = int(config.num_hidden_layers)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.architecture], layers)
    own = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if own is None:
        raise ExportError(f"{name} has no name in GGUF for {type(plan.model).__name__}: export it as 'packed'")
    tensor, kind = plan.stored[name], _kind(plan, name)
    shape = plan.weights[name].tensor.matrix_shape if name in plan.weights else tuple(tensor.shape)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    if shape[-1] % block:
        raise ExportError(
            f"{name}: {kind} has blocks of {block} input features, and this weight has {shape[-1]}: give "
            f"{plan.weights[name].unit} 16 bits, or leave it as stored"
        )
    heads = rotated_heads(name, config) if family.rotated_in_pairs else None
    return Entry(own, kind, shape, math.prod(shape) // block * size, partial(_data, plan, name, kind, heads))


def _kind(plan: Plan, name: str) -> str:
    """The type of a tensor in the file."""
    tensor, weight = plan.stored[name], plan.weights.get(name)
    if tensor.dtype not in _WHOLE:
        raise ExportError(f"{name} is {tensor.dtype}: GGUF has float32, float16 and bfloat16; export model.float()")
    if weight is None or weight.bits is None:
        return "F32" if tensor.ndim == 1 else _WHOLE[tensor.dtype]  # vectors are always whole in llama.cpp
    if weight.bits == 16:
        return _WHOLE[plan.codes(name).codes.dtype]
    if name in plan.ready and (plan.scheme.granularity, plan.scheme.group_size) != ("group", BLOCK):
        raise ExportError(
            f"quantised: {name} has scales by {plan.scheme.granularity}, and GGUF has one for {BLOCK} input features: "
            f"choose its codes with Scheme(granularity='group', group_size={BLOCK})"
        )
    return f"Q{weight.bits}_{0 if plan.scheme.is_symmetric(weight.bits) else 1}"


def _data(plan: Plan, name: str, kind: str, heads: int | None) -> NDArray[Any]:
    gguf = library("gguf")
    if name in plan.ready:
        rows = torch.from_numpy(blocks(name, plan.ready[name]))
        return (rows if heads is None else reordered(rows, heads)).numpy()
    tensor = plan.matrix(name) if name in plan.weights else plan.stored[name].detach()
    plain = tensor.float().cpu()
    plain = plain if heads is None else reordered(plain, heads)
    found: NDArray[Any] = gguf.quantize(np.ascontiguousarray(plain.numpy()), gguf.GGMLQuantizationType[kind])
    return found


def _values(plan: Plan, name: str) -> Tensor:
    gguf = library("gguf")
    kind = _kind(plan, name)
    weight = plan.weights[name]
    data = _data(plan, name, kind, None)
    matrix = torch.from_numpy(
        gguf.dequantize(data, gguf.GGMLQuantizationType[kind]).reshape(weight.tensor.matrix_shape)
    )
    tensor = plan.stored[name]
    return weight.tensor.as_stored(matrix).to(tensor.device, tensor.dtype)


def _load(model: nn.Module, path: Path) -> nn.Module:
    """As transformers reads it; its own configuration, since the metadata have no place for all of it."""
    dtype = next(model.parameters()).dtype
    return load_folder(model, path.parent, gguf_file=path.name, config=model.config, dtype=dtype)
