"""Ids of any size and in any order of arrival have the rows that a dictionary would give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learnscope.ledger.columns import Columns
from learnscope.ledger.index import HashedIds, IdIndex

LOW, HIGH = -(2**63), 2**63 - 1
IDS = st.one_of(
    st.integers(LOW, HIGH),
    st.integers(-3, 40),
    st.sampled_from([LOW, HIGH, 0, -1, 2**24 - 1, 2**24]),
    # equal in their low or in their high bits, as ids made of two numbers are
    st.integers(0, 200).map(lambda n: n << 50),
    st.integers(0, 200).map(lambda n: (n << 32) + 7),
)


def held(columns: Columns, index: IdIndex, ids: list[int]) -> None:
    """Bring new ids in, as a ledger does."""
    start = columns.size
    columns.grow(start + len(ids))
    columns["id"][start : columns.size] = ids
    index.add(np.array(ids, dtype=np.int64))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(IDS, unique=True, max_size=60), max_size=6), st.lists(IDS, max_size=40))
def test_rows_are_those_of_a_dictionary(batches: list[list[int]], others: list[int]) -> None:
    columns, rows = Columns(), dict[int, int]()
    index = IdIndex(columns.ids_at)
    for batch in batches:
        new = [id_ for id_ in batch if id_ not in rows]
        rows |= {id_: len(rows) + place for place, id_ in enumerate(new)}
        held(columns, index, new)
        asked = [*batch, *others]
        wanted = [rows.get(id_, -1) for id_ in asked]
        assert index.find(np.array(asked, dtype=np.int64)).tolist() == wanted
        guessed = index.guess(np.array(batch, dtype=np.int64)).tolist()
        assert guessed == [rows[id_] for id_ in batch]


@pytest.mark.parametrize(
    "make", [lambda n: n << 50, lambda n: n * 2**32, lambda n: -n - 1, lambda n: n * 0x9E3779B97F4A]
)
def test_regular_ids_do_not_crowd_into_the_same_slots(make: object) -> None:
    ids = np.array([make(n) for n in range(5000)], dtype=np.int64)  # type: ignore[operator]
    reads = []

    def ids_at(rows: Any) -> Any:
        reads.append(len(rows))
        return ids[rows]

    hashed = HashedIds(ids_at)
    for part in np.split(ids, 50):
        hashed.add(part)
    reads.clear()
    assert hashed.find(ids).tolist() == list(range(5000))
    assert sum(reads) < 3 * len(ids)
    assert hashed.nbytes <= 16 * len(ids) + 2048 * 4
