"""Weights as they are stored: one file or several, whatever their names were wrapped in."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from learnscope.model.bits.packed import load_packed
from learnscope.model.guard import preserve_rng
from learnscope.model.weights.checkpoint import CheckpointError, load_into, memory_of, read_weights
from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.hushed import hushed, no_bars

WRAPPERS = ("module.", "_orig_mod.", "model.")
_LEFT = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.inv_freq|embeddings\.position_ids)$")
"""Buffers that older versions of transformers saved and newer ones compute."""
_AGAIN = "save it again, or take another copy of it"


def read_files(files: list[Path]) -> dict[str, Tensor]:
    """The tensors of all the files; none may be in two of them."""
    found: dict[str, Tensor] = {}
    for path in files:
        try:
            part = read_weights(path)
        except CheckpointError as error:
            cure = f": {_AGAIN}" if "damaged" in str(error) else ""
            raise PosttrainError(f"{error}{cure}") from None
        if twice := next((name for name in part if name in found), None):
            raise PosttrainError(
                f"{twice!r} is in {path} and in another file beside it: name the one file that is meant, or leave "
                "only those of one model in the folder"
            )
        found |= part
    return found


def files_of(folder: Path) -> list[Path]:
    """The files that a folder's weights are in: by its index, or all safetensors, or a torch file of the usual name."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).is_file():
            return _shards(folder / index)
    # the usual name first, as transformers has it: what else lies there may be an adapter or a packed copy
    for pattern in ("model.safetensors", "*.safetensors", "pytorch_model*.bin"):
        if found := sorted(folder.glob(pattern)):
            return found
    return []


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise PosttrainError(f"{index} is damaged: {_AGAIN}") from None
    files = [index.parent / Path(str(name)).name for name in names]  # an index names neighbours only
    if missing := [path.name for path in files if not path.is_file()]:
        raise PosttrainError(
            f"{index.parent} lacks {len(missing)} of the {len(files)} files of its weights: first {missing[0]}; copy it"
        )
    return files


def unwrappings(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """As they are, and with each prefix taken off that wrappers put in front of all names."""
    found = dict(weights)
    yield found
    while prefix := next((p for p in WRAPPERS if found and all(name.startswith(p) for name in found)), None):
        found = {name.removeprefix(prefix): value for name, value in found.items()}
        yield found


def named_as(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the model's names: wrappers, and the prefix of its body, taken off or put in front."""
    expected = model.state_dict()
    body = f"{getattr(model, 'base_model_prefix', '')}."

    def placed(name: str, there: Mapping[str, Tensor]) -> str:
        if name in expected:
            return name
        others = (f"{body}{name}", name.removeprefix(body))
        return next((other for other in others if other in expected and other not in there), name)

    candidates = [{placed(name, one): value for name, value in one.items()} for one in unwrappings(weights)]
    best = max(candidates, key=lambda found: sum(name in expected for name in found))
    return {name: value for name, value in best.items() if name in expected or not _LEFT.search(name)}


def converted(model: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Names and layouts of older versions of transformers as this one has them; None if it does not know them."""
    for unwrapped in unwrappings(weights):
        with hushed(), no_bars(), preserve_rng():  # what it does not find it would draw at random
            try:
                made, said = type(model).from_pretrained(
                    None, config=copy.deepcopy(model.config), state_dict=unwrapped, dtype=_widest(weights),
                    ignore_mismatched_sizes=True, output_loading_info=True,
                )  # fmt: skip
            except (RuntimeError, ValueError, OSError):  # it gives up: the misfit is named by what is asked next
                continue
        if not any(said.values()):
            return dict(made.state_dict())
    return None


def load_stored(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> list[str]:
    """Load them into the model, in the precision they are stored in; what is worth knowing about them."""
    expected, stored = model.state_dict(), weights
    weights = named_as(model, stored)
    if not weights.keys() <= expected.keys():
        weights = converted(model, stored) or weights
    for name, value in weights.items():
        there = expected.get(name)
        if there is not None and there.is_floating_point() and not value.is_floating_point():
            raise PosttrainError(
                f"{origin}: {name} is stored as {_word(value.dtype)}, which another package quantised: load the model "
                "with that package and pass it, or save it without quantisation"
            )
    notes = _set_precision(model, weights, origin)
    _refuse_torn_ties(model.state_dict(), weights, origin)
    try:
        load_into(model, weights, origin)
    except CheckpointError as error:
        raise PosttrainError(str(error)) from None
    return notes + _not_finite(weights, origin)


def packed_tensors(path: Path) -> dict[str, Tensor] | None:
    """Names, shapes and precisions in a file of `model.bits.packed`, without values; None for any other file."""
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("learnscope", "{}"))
        if not isinstance(header, dict) or header.get("kind") != "packed":
            return None
        rows = header["tensors"]
        return {
            row["name"]: torch.empty(row["shape"], dtype=getattr(torch, row["dtype"]), device="meta") for row in rows
        }
    except (SafetensorError, OSError, ValueError):  # said by the reader of plain files, which is asked next
        return None
    except (KeyError, TypeError, AttributeError, RuntimeError):
        raise PosttrainError(f"{path} is damaged: {_AGAIN}") from None


def unpack_into(model: nn.Module, packed: Mapping[str, Tensor], path: Path) -> list[str]:
    """Give the model what its packed bits stand for; that it has few bits is worth knowing."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in packed:
            tensor.data = tensor.data.to(packed[name].dtype)
    try:
        load_packed(path, model)
    except CheckpointError as error:
        raise PosttrainError(str(error)) from None
    return [f"{path} is packed: the model computes with what its few bits stand for"]


def _set_precision(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> list[str]:
    """Parameters and saved buffers in the stored precision, the widest where it differs; computed buffers stay."""
    kinds = {value.dtype for value in weights.values() if value.is_floating_point()}
    widest = _widest(weights)
    saved = model.state_dict().keys()
    for tensor in [*model.parameters(), *(value for name, value in model.named_buffers() if name in saved)]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(widest)
    if len(kinds) < 2:
        return []
    return [f"{origin} holds {', '.join(sorted(map(_word, kinds)))}: all of it is computed in {_word(widest)}"]


def _refuse_torn_ties(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], origin: str) -> None:
    """Two stored tensors for what the model has once: the second would silently take the place of the first."""
    first: dict[object, str] = {}
    for name, tensor in expected.items():
        if name not in weights or not tensor.numel():
            continue
        other = first.setdefault(memory_of(tensor), name)
        if other != name and not _same_bits(weights[other], weights[name]):
            raise PosttrainError(
                f"{origin} has values for {name} that differ from those of {other}, and the model's configuration ties "
                "the two: set tie_word_embeddings to false in it"
            )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Also of NaN, which equals nothing."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _not_finite(weights: Mapping[str, Tensor], origin: str) -> list[str]:
    counted = {
        name: count
        for name, value in weights.items()
        if value.is_floating_point() and (count := value.numel() - int(torch.isfinite(value).sum()))
    }
    if not counted:
        return []
    name, count = next(iter(counted.items()))
    more = f", and {len(counted) - 1} more such tensors" if len(counted) > 1 else ""
    return [f"{origin} holds weights that are not finite: {count:,} of {weights[name].numel():,} in {name}{more}"]


def _widest(weights: Mapping[str, Tensor]) -> torch.dtype:
    kinds = [value.dtype for value in weights.values() if value.is_floating_point()]
    return functools.reduce(torch.promote_types, kinds, kinds[0] if kinds else torch.float32)


def _word(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
