"""Arrays that grow in place hold what they held, whoever else looks at them, and in whatever process."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest
from numpy.typing import NDArray

from learnscope.ledger import Ledger, room

DTYPE = np.dtype((np.void, 112))


def filled(capacity: int, size: int) -> dict[str, NDArray[np.void]]:
    arrays = {"rows": room.room(capacity, DTYPE)}
    numbers(arrays["rows"])[:size] = np.arange(size * 14).reshape(size, 14)
    return arrays


def numbers(rows: NDArray[np.void]) -> NDArray[np.int64]:
    return rows.view(np.int64).reshape(-1, 14)


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("capacity", [5, 40, 100_000])
def test_rows_stay_and_the_rest_is_zero(capacity: int, moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_CAN_MOVE", moves and room._CAN_MOVE)
    arrays = filled(20, 5)
    for wanted in (capacity, 5, capacity):  # also after it was cut off
        room.resize(arrays, "rows", 5, wanted)
        found = numbers(arrays["rows"])
        np.testing.assert_array_equal(found[:5], np.arange(70).reshape(5, 14))
        assert len(found) == wanted
        assert not found[5:].any()
        arrays["rows"][4] = arrays["rows"][4].copy()  # it can be written


def test_whoever_looks_at_it_sees_what_was_there() -> None:
    arrays = filled(1000, 1000)
    view = numbers(arrays["rows"])[:, 3]
    before = view.copy()
    room.resize(arrays, "rows", 1000, 50_000)
    numbers(arrays["rows"])[:1000] = -1
    np.testing.assert_array_equal(view, before)


@pytest.mark.skipif(not room._CAN_MOVE, reason="memory is copied here")
def test_growing_moves_the_memory() -> None:
    arrays = filled(1000, 1000)
    pages = arrays["rows"].base.obj  # type: ignore[union-attr]
    room.resize(arrays, "rows", 1000, 3_000_000)
    assert arrays["rows"].base.obj is pages  # type: ignore[union-attr]
    assert len(pages) >= 3_000_000 * DTYPE.itemsize


def test_nothing_to_hold() -> None:
    arrays = filled(10, 0)
    for capacity in (0, 3, 0):
        room.resize(arrays, "rows", 0, capacity)
        assert len(arrays["rows"]) == capacity


def shown(ledger: Ledger, ids: NDArray[np.int64], epoch: int) -> None:
    p = (ids % 97 + epoch) / 200
    ledger.update(ids, p_gold=p, margin=p, loss=p, el2n=p, correct=p > 0.3, epoch=epoch, target=ids % 10)


def test_a_copy_of_a_ledger_goes_on_by_itself() -> None:
    ledger, ids = Ledger(), np.arange(3000)
    shown(ledger, ids, 0)
    copies = [copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger))]
    for one in copies:
        shown(one, np.arange(9000), 1)
        assert one.frame()["presentations"].tolist() == [2] * 3000 + [1] * 6000
    assert ledger.frame()["presentations"].tolist() == [1] * 3000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_writes_to_memory_of_its_own() -> None:
    arrays = filled(2000, 2000)
    before = numbers(arrays["rows"]).copy()
    child = os.fork()
    if not child:
        numbers(arrays["rows"])[:] = 7
        room.resize(arrays, "rows", 2000, 4000)
        os._exit(0 if int(numbers(arrays["rows"])[0, 0]) == 7 else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(numbers(arrays["rows"]), before)
