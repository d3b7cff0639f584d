"""Kernels of examples: the numbers of NumPy and torch in float64, by every build with the same bits."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from learnscope import native
from learnscope.ledger import IdError, Ledger, LedgerError
from learnscope.ledger.columns import Columns
from learnscope.ledger.sums import GroupSums
from learnscope.model.examples import scores as scoring
from learnscope.tensor.examples.at_once import Places, own_numbers
from native_builds import builds, needed

pytestmark = needed
SHAPES = [(0, 2), (1, 2), (2, 3), (3, 10), (4, 10), (5, 64), (63, 65), (64, 10), (1801, 10), (33, 1000)]


def logits_of(rows: int, classes: int, kind: Any = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Ordinary rows, and among them ties, far ones, equal ones, and what is not finite."""
    torch.manual_seed(rows * classes)
    z, y = torch.randn(rows, classes, dtype=kind) * 4, torch.randint(0, classes, (rows,))
    for row in range(rows):
        which = row % 13
        if which < 4:
            z[row, y[row]] = [torch.nan, torch.inf, -torch.inf, float(z[row].max())][which]
        elif which < 8:
            z[row, 0] = [torch.nan, torch.inf, -torch.inf, float(z[row].max())][which - 4]
        elif which < 11:
            z[row] = [0.5, -torch.inf, 1e30][which - 8]
        elif which == 11:
            z[row, y[row]] -= 700
    return z, y


def scored_by(build: Any, z: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any, Any]:
    out, right, predicted = np.full((4, len(y)), 9.0), np.zeros(len(y), bool), np.full(len(y), 9)
    assert build.example_scores(z.numpy(), y.numpy(), out, right, predicted)
    return out, right, predicted


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "classes"), SHAPES)
def test_scores_are_those_of_torch(rows: int, classes: int, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = logits_of(rows, classes, kind)
    found = [scored_by(build, z, y) for build in builds()]
    for other in found[1:]:
        for one, another in zip(found[0], other, strict=True):
            assert one.tobytes() == another.tobytes()
    if not rows:
        return
    out, right, predicted = found[0]
    wide = z.double()
    p = wide.softmax(1)
    gold = wide.gather(1, y[:, None])[:, 0]
    best = wide.scatter(1, y[:, None], -torch.inf).amax(1)
    el2n = (p - torch.nn.functional.one_hot(y, classes)).norm(dim=1)
    wanted = [p.gather(1, y[:, None])[:, 0], gold - best, torch.nn.functional.cross_entropy(wide, y, reduction="none")]
    for values, reference in zip(out, [*wanted, el2n], strict=True):
        np.testing.assert_allclose(values, reference.numpy(), rtol=1e-10, atol=1e-14)
    odd = z.isnan().any(1)
    np.testing.assert_array_equal(right, ((z.argmax(1) == y) & ~odd).numpy())
    np.testing.assert_array_equal(predicted, torch.where(odd | (z.argmax(1) == y), -1, z.argmax(1)).numpy())
    monkeypatch.setattr(native, "kernels", None)
    same = scoring.example_scores(z, y)
    fallback = np.array([same.p_gold, same.margin, same.loss, same.el2n])
    np.testing.assert_allclose(out, fallback, rtol=2e-14)
    np.testing.assert_array_equal(right, same.correct)
    np.testing.assert_array_equal(predicted, same.predicted)


def test_small_losses_and_probabilities_keep_their_digits() -> None:
    z = torch.tensor([[0.0, -40.0, -50.0], [0.0, 0.0, 744.0], [0.0, -800.0, -900.0]], dtype=torch.float64)
    out, _, _ = scored_by(builds()[0], z, torch.tensor([0, 0, 0]))
    np.testing.assert_allclose(out[2, :2], [np.exp(-40.0) + np.exp(-50.0), 744.0], rtol=1e-14)
    assert out[0, 1] > 0
    assert out[2, 2] == 0


@pytest.mark.parametrize("target", [-100, -1, 10, 2**62])
def test_targets_that_are_no_classes_are_left_to_others(target: int) -> None:
    z, y = logits_of(5, 10)
    y[3] = target
    out, right, predicted = np.full((4, 5), 9.0), np.zeros(5, bool), np.full(5, 9)
    assert builds()[0].example_scores(z.numpy(), y.numpy(), out, right, predicted) is False
    assert (out == 9).all()
    assert (predicted == 9).all()


def shown(ledger: Ledger, ids: np.ndarray, epoch: int, rng: Any, **other: Any) -> None:
    p, margin, loss, el2n = rng.random((4, len(ids)))
    for values in (p, margin, loss, el2n):
        values[rng.random(len(ids)) < 0.03] = rng.choice([np.nan, np.inf, -np.inf])
    given = {"target": ids % 7, "checksum": ids * 0.5, "predicted": rng.integers(-1, 40_000, len(ids)) // 9_000}
    ledger.update(
        ids, p_gold=p, margin=margin, loss=loss, el2n=el2n, correct=rng.random(len(ids)) < 0.6, epoch=epoch,
        **(given | other),
    )  # fmt: skip


SETTINGS: list[dict[str, Any]] = [
    {}, {"once_an_epoch": True}, {"track": 90}, {"check_ids": False},
    {"track": 50, "sample": "random", "examples": 400},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("spread", [1, 3, 0x9E3779B97F4A7C1, -(2**40)])
def test_a_ledger_is_the_same_with_kernels_and_without(
    settings: dict[str, Any], spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = native.kernels
    ledgers = []
    for used in (kernels, None, *builds()):
        monkeypatch.setattr(native, "kernels", used)
        ledger, rng = Ledger(**settings), np.random.default_rng(3)
        for turn, size in itertools.product(range(4), (1, 31, 32, 33, 200, 64, 65, 500, 0)):
            ids = rng.integers(0, 400, size) * np.int64(spread)  # many of them twice
            known = rng.random(size) < 0.9
            checksum = np.where(known, ids * 0.5, np.nan)
            shown(ledger, ids, turn, rng, checksum=checksum, grand=ids * 0.1 if size == 33 else None)
            if size == 64:
                again = Ledger.from_arrays(ledger.arrays(by_id=False), **ledger.settings)
                again.untracked, again.repeated, ledger = ledger.untracked, ledger.repeated, again
        ledgers.append(ledger)
    first = ledgers[0]
    for other in ledgers[1:]:
        assert (other.untracked, other.repeated) == (first.untracked, first.repeated)
        for name, values in first.arrays().items():
            np.testing.assert_array_equal(other.arrays()[name], values, err_msg=name)
        assert other.summary() == first.summary()


@pytest.mark.parametrize("spread", [1, 0x9E3779B97F4A7C1])
@pytest.mark.parametrize("what", ["target", "checksum"])
def test_a_batch_that_is_refused_changes_nothing(what: str, spread: int) -> None:
    ledger, rng = Ledger(), np.random.default_rng(0)
    ids = np.arange(500) * np.int64(spread)
    shown(ledger, ids, 0, rng)
    before = ledger.arrays()
    other = ids % 7 if what == "target" else ids * 0.5
    other[499] = -1
    with pytest.raises(IdError, match="1 of the batch's ids"):
        shown(ledger, ids, 1, rng, **{what: other})
    with pytest.raises(IdError):  # the new one as well
        shown(ledger, np.append(ids, np.int64(-5)), 1, rng, **{what: np.append(other, 0)})
    with pytest.raises(LedgerError):
        shown(ledger, ids, 1, rng, predicted=np.zeros(3, int))
    for name, values in ledger.arrays().items():
        np.testing.assert_array_equal(values, before[name])


@pytest.mark.parametrize("spread", [1, 0x9E3779B97F4A7C1])
def test_ids_are_found_whatever_is_asked_beside_them(spread: int) -> None:
    ledger, rng = Ledger(), np.random.default_rng(0)
    ids = rng.permutation(3000) * np.int64(spread)
    shown(ledger, ids, 0, rng)
    strange = np.array([-1, 2**63 - 1, -(2**63), 3000, 2**62 + 1, 2**31], dtype=np.int64)
    for build, size in itertools.product(builds(), (0, 1, 31, 32, 33, 63, 64, 65, 129, 3000)):
        asked = rng.permutation(np.concatenate([ids, strange]))[:size]
        at = np.full(size, 99)
        index, columns = ledger._index, ledger._columns
        given = index.slots, index.is_hashed, columns.rows, columns.size, asked
        assert build.ledger_find(*given, None, None, at) == (not np.isin(asked, strange).any())
        np.testing.assert_array_equal(at, index.find(asked))
        targets, checksums = asked % 7, asked * 0.5
        same = not np.isin(asked, strange).any()
        assert build.ledger_find(*given, targets, checksums, at) == same
        if size and same:
            assert not build.ledger_find(*given, targets + (np.arange(size) == size - 1), checksums, at)
            assert not build.ledger_find(*given, targets, np.full(size, np.nan), at)


def test_ids_that_all_want_the_same_slots_are_found() -> None:
    rows = np.zeros(600, Columns()._arrays["rows"].dtype)
    ids = np.arange(600) * 3
    rows.view(np.int64).reshape(600, -1)[:, 0] = ids
    slots = np.zeros(2048, np.int32)
    first = 2048 - 300  # one long row of neighbours, over the end
    slots[(first + np.arange(600)) % 2048] = np.arange(600) + 1
    for build in builds():
        at = np.full(600, 99)
        build.ledger_find(slots, True, rows, 600, ids, None, None, at)
        for place in range(600):  # from its own slot on there is no gap before it, or it is unknown
            assert at[place] in (place, -1)
        assert (at >= 0).any()


def test_sums_by_group_are_the_same_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, tables = native.kernels, []
    for used in (kernels, None, *builds()):
        monkeypatch.setattr(native, "kernels", used)
        sums, rng = GroupSums(), np.random.default_rng(1)
        for size in (1, 7, 300, 0, 64):
            p, loss = rng.random((2, size))
            p[rng.random(size) < 0.1], loss[rng.random(size) < 0.1] = np.nan, np.inf
            values = {"correct": rng.random(size) < 0.5, "p_gold": p, "loss": loss}
            for groups in (
                rng.integers(3, 9, size),
                rng.choice(["a", "b", "7"], size),
                "all",
                rng.integers(0, 2, size),
            ):
                sums.add(groups, **values)
        tables.append((sums.names, sums.table))
    for names, table in tables[1:]:
        assert names == tables[0][0]
        np.testing.assert_array_equal(table, tables[0][1])


def rows_of(count: int) -> np.ndarray:
    return np.zeros(count, np.dtype((np.void, 112)))


def test_what_does_not_fit_is_refused() -> None:
    f, i, b = np.zeros(4), np.zeros(4, np.int64), np.zeros(4, bool)
    z, four = np.zeros((4, 3), np.float32), np.zeros((4, 4))
    slots, votes, columns = np.zeros(8, np.int32), np.zeros(3, np.uint8), (f, f, f, f, b)
    bad: list[tuple[str, tuple[Any, ...]]] = [
        ("example_scores", (z, i, four, b)),
        ("example_scores", (z, np.zeros(3, np.int64), four, b, i)),
        ("example_scores", (np.zeros((4, 1), np.float32), i, four, b, i)),
        ("example_scores", (np.zeros((3, 4), np.float32).T, i, four, b, i)),
        ("example_scores", (z, i, np.zeros((3, 4)), b, i)),
        ("example_scores", (z, i.astype(np.int32), four, b, i)),
        ("example_scores", (z.astype(np.float16), i, four, b, i)),
        ("example_scores", (z, i, four, np.zeros(4, np.uint8), i)),
        ("ledger_find", (slots, 0, rows_of(3), 4, i, None, None, i)),
        ("ledger_find", (slots, 0, rows_of(3), -1, i, None, None, i)),
        ("ledger_find", (slots, 0, np.zeros(3), 3, i, None, None, i)),
        ("ledger_find", (slots, 1, rows_of(9), 8, i, None, None, i)),
        ("ledger_find", (slots[:7].copy(), 1, rows_of(3), 3, i, None, None, i)),
        ("ledger_find", (slots, 0, rows_of(3), 3, i, i[:3].copy(), None, i)),
        ("ledger_find", (slots, 0, rows_of(3), 3, i, None, f[:3].copy(), i)),
        ("ledger_find", (slots, 0, rows_of(3), 3, i, None, None, i[:3].copy())),
        ("ledger_find", (slots, 0, rows_of(3), "3", i, None, None, i)),
        ("ledger_present", (rows_of(3), i + 3, *columns, None, None, None, None, None, 0, 0)),
        ("ledger_present", (rows_of(3), i - 1, *columns, None, None, None, None, None, 0, 0)),
        ("ledger_present", (rows_of(3), i, f[:3].copy(), *columns[1:], None, None, None, None, None, 0, 0)),
        ("ledger_present", (rows_of(3), i, *columns, None, None, i, None, None, 0, 0)),
        ("ledger_present", (rows_of(3), i, *columns, None, None, i, np.zeros(2, np.int16), votes, 0, 0)),
        ("ledger_present", (rows_of(3), i, *columns, None, None, None, None, None, 2**31, 0)),
        ("ledger_totals", (rows_of(3), 4, np.zeros(6, np.int64), np.zeros((5, 4)))),
        ("ledger_totals", (rows_of(3), 3, np.zeros(6, np.int64), np.zeros((5, 2)))),
        ("group_sums", (i, np.zeros(0, np.int64), b, f, f, np.zeros((1, 5)))),
        ("group_sums", (i, np.array([1]), b, f, f, np.zeros((1, 5)))),
        ("group_sums", (i, np.array([0]), b, f[:3].copy(), f, np.zeros((1, 5)))),
        ("group_sums", (i, np.array([0]), b, f, f, np.zeros((1, 6)))),
        ("numbers_at", (np.zeros((2, 3)), np.array([0, 3]), np.zeros((2, 2)))),
        ("numbers_at", (np.zeros((2, 3)), np.array([1, 0]), np.zeros((2, 2)))),
        ("numbers_at", (np.zeros((2, 3)), np.array([-1, 0]), np.zeros((2, 2)))),
        ("numbers_at", (np.zeros((2, 3)), np.array([0, 1]), np.zeros(5))),
        ("numbers_at", (np.zeros(0), np.zeros(0, np.int64), np.zeros(0))),
        ("copy_memory", (1, 2)),
        ("copy_memory", (0, 1, 8)),
        ("bytes_at", (0, 8)),
        ("bytes_at", (0, -1)),
    ]  # fmt: skip
    for build, (name, given) in itertools.product(builds(), bad):
        before = [each.copy() for each in given if isinstance(each, np.ndarray)]
        with pytest.raises((ValueError, TypeError, BufferError)):
            getattr(build, name)(*given)
        after = [each for each in given if isinstance(each, np.ndarray)]
        assert all(one.tobytes() == other.tobytes() for one, other in zip(before, after, strict=True)), name


def test_memory_is_copied_as_it_is() -> None:
    source, to = np.arange(20.0), np.full(22, -1.0)
    for build in builds():
        build.copy_memory(to[1:].ctypes.data, source.ctypes.data, 160, 0, 0, 0)
        assert to.tolist() == [-1, *range(20), -1]
        assert build.bytes_at(source.ctypes.data, 160) == source.tobytes()
        assert build.bytes_at(0, 0) == b""


@pytest.mark.parametrize("with_inputs", [False, True])
def test_batches_are_copied_to_their_places_and_to_those_of_a_copy_of_these(with_inputs: bool) -> None:
    rooms = [torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 4, 2), torch.zeros(3, 4, dtype=torch.int64)]
    rooms += [torch.zeros(3, 4, 5)] if with_inputs else []
    tensors = [list(place) for place in zip(*(room.unbind() for room in rooms), strict=True)]
    places, other = copy.deepcopy((Places(tensors), tensors))[0], Places(tensors)
    ids, z, y = torch.arange(4), torch.rand(4, 2, requires_grad=True) * 2, torch.arange(4) + 7
    x = torch.rand(4, 5) if with_inputs else None
    assert places.put(1, ids, z, y, x)
    assert not any(room.any() for room in rooms)
    assert other.put(1, ids, z, y, x)
    for room, part in zip(rooms, (ids, z, y, x), strict=False):
        assert part is not None
        assert torch.equal(room[1], part.detach())
        assert not room[[0, 2]].any()
    flat = z.detach()
    strange = [flat.t().contiguous().t(), torch._neg_view(flat), flat.to_sparse(), flat.to("meta")]
    for each in strange:
        assert not other.put(2, ids, each, y, x)
    assert not other.put(2, torch.arange(8)[::2], z, y, x)
    assert not rooms[1][[0, 2]].any()
    if x is not None:
        for each in (x.t().contiguous().t(), torch._neg_view(x), x.to("meta")):
            assert not other.put(2, ids, z, y, each)


def test_whole_numbers_are_copied() -> None:
    kinds = [torch.arange(5), torch.arange(10)[::2], torch.arange(0), torch.arange(5).int(), torch.arange(4).view(2, 2)]
    for ids in kinds:
        own, before = own_numbers(ids), ids.tolist()
        ids.fill_(-1)
        assert own.tolist() == before


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 9, 10, 11, 100, 1797, 4096])
def test_numbers_at_places_are_those_of_the_sorted_row(length: int) -> None:
    rng = np.random.default_rng(length)
    some, up = rng.normal(size=length), np.arange(length, dtype=float)
    pipe, few = np.minimum(up, up[::-1]), rng.integers(0, 3, length).astype(float)
    far = np.where(rng.random(length) < 0.3, rng.choice([np.inf, -np.inf, 0.0, -0.0], length), some)
    rows = np.array([some, up, up[::-1], pipe, few, np.zeros(length), far, np.sort(far), np.repeat(up, 2)[:length]])
    places = np.unique(np.append(rng.integers(0, length, 6), [0, length - 1]))
    for build in builds():
        values, out = rows.copy(), np.empty((len(rows), len(places)))
        build.numbers_at(values, places, out)
        np.testing.assert_array_equal(out, np.sort(rows, axis=1)[:, places])
        np.testing.assert_array_equal(np.sort(values, axis=1), np.sort(rows, axis=1))
