"""Packed codes against NumPy's own bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learnscope.tensor.bits import packing
from learnscope.tensor.bits.packing import pack, packed_length, unpack


def by_numpy(codes: list[int], bits: int) -> bytes:
    """The bits of the codes one after the other, lowest first, in bytes filled from their lowest bit."""
    wide = np.unpackbits(np.array(codes, dtype=np.uint8)[:, None], axis=1, bitorder="little")[:, :bits]
    return np.packbits(wide.reshape(-1), bitorder="little").tobytes()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8).flatmap(lambda b: st.tuples(st.just(b), st.lists(st.integers(0, 2**b - 1), max_size=70))))
def test_as_numpy_packs_bits(drawn: tuple[int, list[int]]) -> None:
    bits, codes = drawn
    packed = pack(torch.tensor(codes, dtype=torch.uint8), bits)
    assert packed.numpy().tobytes() == by_numpy(codes, bits)
    assert packed.numel() == packed_length(len(codes), bits) == -(-len(codes) * bits // 8)
    assert unpack(packed, bits, len(codes)).tolist() == codes


@pytest.mark.parametrize("bits", range(2, 9))
def test_many_codes_in_pieces(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_AT_ONCE", 100)
    codes = torch.randint(0, 2**bits, (123, 17), generator=torch.Generator().manual_seed(bits), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.numpy().tobytes() == by_numpy(codes.flatten().tolist(), bits)
    assert torch.equal(unpack(packed, bits, codes.numel()), codes.flatten())
    assert torch.equal(pack(codes.T.contiguous().T, bits), packed)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="codes from 0 to 8 do not fit 3 bits"):
        pack(torch.tensor([0, 8]), 3)
    with pytest.raises(ValueError, match="codes from -1 to 2"):
        pack(torch.tensor([-1, 2], dtype=torch.int8), 3)
    for bits in (1, 9):
        with pytest.raises(ValueError, match="2 to 8 are possible"):
            pack(torch.zeros(3, dtype=torch.uint8), bits)
    for packed, count in ((torch.zeros(3, dtype=torch.uint8), 9), (torch.zeros(2, dtype=torch.int8), 5)):
        with pytest.raises(ValueError, match="bytes are needed"):
            unpack(packed, 3, count)
