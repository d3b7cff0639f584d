"""Bytes and effective bits, counted by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.quantise import from_layers
from learnscope.model.bits.quantised_units import UnitsError, find_units
from learnscope.tensor.bits.quantize import Scheme
from model.bits.quantised_models import BUILDERS, build


def test_gpt2_by_hand() -> None:
    """Width 24, two blocks, 40 tokens, 16 positions, a tied head; 8, 4, 2 and 16 bits."""
    model = build("gpt2")
    bits = from_layers(model, [{"attn_bits": 8, "mlp_bits": 4}, {"attn_bits": 2, "mlp_bits": 16}])
    found = ledger(model, bits)
    attention, mlp = 24 * 72 + 24 * 24, 24 * 96 + 96 * 24
    attention_rows, mlp_rows = 72 + 24, 96 + 24  # a scale for each output channel
    others = (40 + 16) * 24 + 2 * (4 * 24 + 72 + 24 + 96 + 24) + 2 * 24
    by_unit = {
        "transformer.h.0.attn": attention + 4 * attention_rows,
        "transformer.h.0.mlp": mlp // 2 + 4 * mlp_rows,
        "transformer.h.1.attn": attention // 4 + 4 * attention_rows + attention_rows // 4,  # zero points in 2 bits
        "transformer.h.1.mlp": 2 * mlp,
    }
    inside = {name: size for name, size in found.by_unit.items() if name in by_unit}
    assert inside == by_unit
    assert found.original_bytes == 4 * (others + 2 * attention + 2 * mlp)
    assert found.packed_bytes == 4 * others + sum(by_unit.values())
    assert found.block_bits == 8 * sum(by_unit.values()) / (2 * attention + 2 * mlp)
    assert found.model_bits == 8 * found.packed_bytes / (others + 2 * attention + 2 * mlp)
    assert found.compression == found.original_bytes / found.packed_bytes


def test_groups_of_odd_sizes() -> None:
    """[7, 6] and [3, 7] in groups of 4 at 3 bits: the last byte is filled, the effective bits do not count that."""
    model = build("sequential")
    scheme = Scheme(granularity="group", group_size=4, scale_dtype=torch.float16)
    found = ledger(model, {"0": 3, "2": 3}, scheme)
    first = math.ceil(42 * 3 / 8) + 14 * 2 + math.ceil(14 * 3 / 8)
    second = math.ceil(21 * 3 / 8) + 6 * 2 + math.ceil(6 * 3 / 8)
    assert found.by_unit == {"0": first, "2": second}
    assert found.packed_bytes == first + second + 4 * (7 + 3)
    assert found.block_bits == (63 * 3 + 20 * (16 + 3)) / 63


@pytest.mark.parametrize("family", BUILDERS)
def test_as_stored_is_what_a_state_dict_takes(family: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = build(family).to(dtype)
        kept = {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}
        for bits in ({}, {unit.name: 32 for unit in find_units(model, embeddings=True)}):
            found = ledger(model, bits)
            assert found.packed_bytes == found.original_bytes == sum(tensor.nbytes for tensor in kept.values())
            assert found.compression == 1
            assert found.block_bits == 8 * dtype.itemsize


def test_buffers_count_if_they_are_saved() -> None:
    model = build("conv")
    assert ledger(model, {}).original_bytes == 4 * sum(p.numel() for p in model.parameters()) + 4 * 12 + 8
    model.register_buffer("scratch", torch.zeros(1000), persistent=False)
    model.register_buffer("kept", torch.zeros(5, dtype=torch.int8))
    assert ledger(model, {}).original_bytes == 4 * sum(p.numel() for p in model.parameters()) + 4 * 12 + 8 + 5


def test_shapes_are_enough_and_only_the_units_given_count() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False))
    found = ledger(model, {"0": 4}, units=find_units(model)[:1])
    assert found.by_unit == {"0": 16 + 16}
    assert found.block_bits == (32 * 4 + 4 * 32) / 32
    assert found.packed_bytes == 32 + 128
    with pytest.raises(UnitsError, match="'1' is not a unit"):
        ledger(model, {"1": 4}, units=find_units(model)[:1])
    empty = ledger(nn.Sequential(nn.Linear(3, 0, bias=False)), {"0": 4})
    assert empty.packed_bytes == 0
    assert math.isnan(empty.block_bits)
    assert math.isnan(empty.compression)
