"""Memory that a kernel does not read as it is: it is copied first, or read by torch, with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learnscope.ledger import Ledger
from learnscope.model.examples.scores import example_scores
from learnscope.tensor.examples.at_once import Places, own_numbers
from learnscope.tensor.features.inputs import text_numbers
from learnscope.tensor.features.outputs import output_numbers
from learnscope.tensor.gradients.host import host_statistics
from learnscope.tensor.host import plain_array
from learnscope.tensor.outputs.objective import class_sums, token_sums
from native_builds import builds, needed

pytestmark = needed


def askew(tensor: Tensor) -> Tensor:
    """The same numbers at an odd address, as in the bytes of a file."""
    held = torch.frombuffer(bytearray(b"x" + tensor.numpy().tobytes()), dtype=tensor.dtype, offset=1)
    return held.view(tensor.shape)


def packed(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(bytearray(b"x" + array.tobytes()), array.dtype, offset=1)


def listed(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: listed(value) for name, value in found.items()}
    return [listed(each) for each in found] if isinstance(found, tuple) else found.tolist()


LOGITS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
CLASSES, TOKENS = torch.tensor([0, 1, 2, 3, 4, 0]), torch.arange(27).view(3, 9) % 7


@pytest.mark.parametrize(
    "measured",
    [
        lambda change: class_sums(change(LOGITS), CLASSES, -100),
        lambda change: class_sums(LOGITS, change(CLASSES), -100),
        lambda change: token_sums(change(TOKENS), TOKENS, -100, None),
        lambda change: token_sums(TOKENS, change(TOKENS), -100, None),
        lambda change: text_numbers(change(TOKENS), None),
        lambda change: output_numbers(change(LOGITS)),
        lambda change: torch.from_numpy(example_scores(change(LOGITS), CLASSES).loss),
        lambda change: torch.from_numpy(example_scores(LOGITS, change(CLASSES)).loss),
    ],
)
def test_odd_addresses_give_the_same_numbers(measured: Any) -> None:
    assert askew(LOGITS).data_ptr() % 4
    found, right = listed(measured(askew)), listed(measured(torch.clone))
    if isinstance(right, dict):
        assert found == right
    else:
        np.testing.assert_allclose(np.hstack([np.ravel(each) for each in found]),
                                   np.hstack([np.ravel(each) for each in right]), rtol=1e-9)  # fmt: skip


def test_a_ledger_takes_arrays_at_odd_addresses() -> None:
    found = []
    for change in (packed, np.copy):
        ledger, rng = Ledger(), np.random.default_rng(0)
        for epoch in range(3):
            scores = {name: change(rng.random(9)) for name in ("p_gold", "margin", "loss", "el2n")}
            ids = change(rng.permutation(9))
            ledger.update(
                ids, correct=rng.random(9) < 0.5, epoch=epoch, target=change(ids % 3), checksum=change(ids * 0.5),
                predicted=change(ids % 2), **scores,
            )  # fmt: skip
        found.append(ledger.arrays())
    for name, values in found[1].items():
        np.testing.assert_array_equal(found[0][name], values)


def test_what_has_no_memory_of_the_usual_kind_is_no_array() -> None:
    x = torch.eye(3)
    for each in (x.to_sparse(), x.to_sparse_csr(), x.to_mkldnn(), x.to("meta"),
                 x.clone().requires_grad_(), torch._neg_view(x), x[:, :2], x.half()):  # fmt: skip
        assert plain_array(each, torch.float32) is None
    for each in (x, torch._efficientzerotensor(3), torch.zeros(0, 3), torch.tensor(2.0)):
        found = plain_array(each, torch.float32)
        assert found is not None
        assert found.tolist() == each.clone().tolist()


def test_gaps_beside_numbers_of_another_kind_are_left_to_torch() -> None:
    assert host_statistics([torch.zeros(8)[::2], torch.zeros(4, dtype=torch.float16)]) is None


def test_ids_without_memory_of_their_own_are_copied_by_torch() -> None:
    found = []

    def keep(ids: Tensor) -> Tensor:
        found.append(own_numbers(ids))
        return ids

    torch.vmap(keep)(torch.arange(6).view(2, 3))
    assert isinstance(found[0], Tensor)


def test_inputs_that_are_still_to_be_conjugated_are_copied_by_torch() -> None:
    ids, z = torch.arange(2), torch.zeros(2, 3)
    x = torch.ones(2, 4, dtype=torch.complex64) * 1j
    places = Places([[torch.zeros_like(each) for each in (ids, z, ids, x)]])
    assert places.put(0, ids, z, ids, x)
    assert not places.put(0, ids, z, ids, x.conj())


def test_whole_numbers_of_numpy_are_taken() -> None:
    for ignored in (np.int64(0), np.int32(0), torch.tensor(0)):
        found, right = (class_sums(LOGITS, CLASSES, number) for number in (ignored, 0))
        assert listed(found) == listed(right)


def test_numbers_that_make_no_sense_read_nothing_outside() -> None:
    tokens, ends = np.arange(20).reshape(4, 5), np.iinfo(np.int64)
    ranks, offsets = np.arange(64, dtype=np.int32), np.zeros(1, np.int32)
    for build in builds():
        out = np.full((8, 2), 9.0)
        shifts = np.array([ends.min, ends.max, ends.min + 1, -6, 6, 0])
        build.token_counts(tokens, tokens, 4, -100, None, shifts, out)
        assert out[:6].tolist() == [[0, 0]] * 5 + [[20, 20]]
        cuts = np.full((2, 1), 9, np.int32)
        ones = [np.ones(64, np.float32)], [np.zeros(64, np.float32)]
        build.cut_changed(*ones, ranks, offsets, np.array([[-1], [ends.min]]), cuts, 1)
        assert not cuts.any()
        out, threads = np.empty((6, 1)), -(2**31)
        build.gradient_sums(ones[0], out, threads)
        assert out[0, 0] == 64
