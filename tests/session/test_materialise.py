"""Whatever a probe returns becomes plain numbers, or an error that says what is wrong with it."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from learnscope.record import Column, Measurement, Row, Table
from learnscope.session.materialise import as_measurement, read_arrays, read_tables


def read(returned: Any) -> dict[str, Any]:
    measured = as_measurement(returned)
    assert measured is not None
    return {row.name: row.value for table in read_tables(measured.tables) for row in table.rows()}


def test_numbers_of_every_kind() -> None:
    got = read(
        {
            "int": 3, "float": 0.5, "bool": True, "none": None, "np.float32": np.float32(0.25), "np.int64": np.int64(7),
            "np.bool": np.bool_(False), "np.float16": np.float16(2), "array": np.array(1.5), "array1": np.array([2.5]),
            "tensor": torch.tensor(1.25), "tensor1": torch.tensor([[4.0]]), "whole": torch.tensor(9),
            "flag": torch.tensor(True), "half": torch.tensor(0.5, dtype=torch.bfloat16),
            "tracked": torch.tensor(2.0, requires_grad=True), "wide": torch.tensor(1 / 3, dtype=torch.float64),
        }
    )  # fmt: skip
    expected = {
        "int": 3, "float": 0.5, "bool": 1, "none": None, "np.float32": 0.25, "np.int64": 7, "np.bool": 0,
        "np.float16": 2.0, "array": 1.5, "array1": 2.5, "tensor": 1.25, "tensor1": 4.0, "whole": 9.0, "flag": 1.0,
        "half": 0.5, "tracked": 2.0, "wide": 1 / 3,
    }  # fmt: skip
    assert got == expected
    assert all(value is None or type(value) in (int, float) for value in got.values()), "plain, as JSON knows them"


def test_what_is_not_finite_is_none_with_a_status() -> None:
    column = Column("x", torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]))
    table = read_tables([Table("tensor", ["a", "b", "c", "d"], [column])])[0]
    assert table.columns[0].values == [1.0, None, None, None]
    assert table.columns[0].status == {1: "nan", 2: "inf", 3: "-inf"}
    told = read_tables([Table("model", ["model"], [Column("x", [None], {}, {0: "no optimizer"})])])[0]
    assert told.columns[0].status == {0: "no optimizer"}
    untold = read_tables([Table("model", ["model"], [Column("x", [None])])])[0]
    assert untold.columns[0].status == {0: "not measured"}
    mine = read_tables([Table("model", ["model"], [Column("x", [float("nan")], {}, {0: "my reason"})])])[0]
    assert mine.columns[0].status == {0: "my reason"}


def test_columns_of_every_kind() -> None:
    names = ["a", "b", "c"]
    for values in (
        torch.arange(3), [0, 1, 2], np.arange(3), (0.0, 1.0, 2.0), np.arange(3.0, dtype=np.float32),
        [torch.tensor(0), np.int32(1), 2], [torch.tensor([0.0, 1.0]), 2],
    ):  # fmt: skip
        assert list(read_tables([Table("tensor", names, [Column("x", values)])])[0].columns[0].values) == [0, 1, 2]


def test_several_tables_keep_their_numbers_apart() -> None:
    tables = [
        Table("model", ["model"], [Column("a", torch.tensor([1.0])), Column("b", [2])]),
        Table("layer", ["x", "y"], [Column("c", torch.tensor([3.0, 4.0])), Column("d", [torch.tensor(5.0), 6])]),
    ]
    assert [[list(c.values) for c in t.columns] for t in read_tables(tables)] == [[[1], [2]], [[3, 4], [5, 6]]]


def test_every_shape_of_an_answer() -> None:
    table = Table("model", ["model"], [Column("a", [1])])
    assert as_measurement(None) is None
    kept = Measurement([table])
    assert as_measurement(kept) is kept
    assert read(table) == {"a": 1}
    assert read(Row("b", 2.0)) == {"b": 2.0}
    assert read([table, Row("b", 2.0), Row("c", torch.tensor(3.0), scope="h.0", kind="layer")]) == {
        "a": 1,
        "b": 2,
        "c": 3,
    }
    assert read(row for row in [Row("b", 2.0)]) == {"b": 2.0}
    assert read({}) == {}
    measured = as_measurement([Row("x", None, status="why", labels={"k": 3})])
    assert measured is not None
    row = next(iter(read_tables(measured.tables)[0].rows()))
    assert (row.value, row.status, row.labels) == (None, "why", {"k": 3})


@pytest.mark.parametrize("wrong", ["norm", b"norm", 3.0, 7, [1.0, 2.0], [Row("a", 1), 3], object()])
def test_another_type_is_refused_with_what_is_allowed(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"measure returned \w+; it may return \{name: number\}, rows, tables"):
        as_measurement(wrong)


@pytest.mark.parametrize(
    "value", ["high", [1.0], {"a": 1}, np.array([1.0, 2.0]), 1 + 2j, np.complex64(1), Fraction(1, 2), object]
)
def test_a_value_that_is_no_number_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"loss is \w+, not a number; strings belong into scopes"):
        read({"loss": value})


def test_a_complex_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="loss is complex64, not a number"):
        read({"loss": torch.tensor(1 + 2j)})


def test_the_wrong_number_of_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="norm: 3 numbers for 2 scopes of 'layer'"):
        read(Table("layer", ["a", "b"], [Column("norm", torch.zeros(3))]))
    with pytest.raises(ValueError, match="loss: 4 numbers for 1 scopes of 'model'"):
        read({"loss": torch.zeros(4)})
    with pytest.raises(ValueError, match="norm: 0 numbers for 1 scopes"):
        read(Table("model", ["model"], [Column("norm", [])]))


def test_a_column_that_is_one_bare_number_is_refused() -> None:
    with pytest.raises(TypeError, match="norm is float, not a list or tensor of numbers"):
        read(Table("model", ["model"], [Column("norm", 3.0)]))
    with pytest.raises(TypeError, match="norm is str, not a list or tensor of numbers"):
        read(Table("model", ["model"], [Column("norm", "high")]))


def test_arrays() -> None:
    got = read_arrays(
        {
            "half": torch.tensor([0.5], dtype=torch.bfloat16), "float16": torch.zeros(2, dtype=torch.float16),
            "tracked": torch.ones(2, requires_grad=True), "list": [1, 2], "numpy": np.arange(3),
            "flag": torch.tensor([True]),
        }
    )  # fmt: skip
    assert {name: str(value.dtype) for name, value in got.items()} == {
        "half": "float32", "float16": "float16", "tracked": "float32", "list": "int64", "numpy": "int64",
        "flag": "bool",
    }  # fmt: skip
    assert got["half"].tolist() == [0.5]


VALUES: list[Any] = [0.5, 7, -0.0, 2**60, 10**300, None, math.nan, math.inf, True, np.float32(2), torch.tensor(3.0)]


@pytest.mark.parametrize("seed", range(200))
def test_columns_that_need_no_reading_are_what_reading_makes_of_them(seed: int) -> None:
    """Whatever stands in the first column, the second is read as it would be on its own."""
    draw = random.Random(seed)
    scopes = [f"s{number}" for number in range(draw.randint(1, 3))]
    known = [value for value in VALUES if seed % 2 or value is None or type(value) in (int, float)]
    columns = []
    for _ in range(2):
        values = [draw.choice(known) for _ in scopes]
        places = [place for place, value in enumerate(values) if value is None and draw.random() < 0.7]
        columns.append(Column("x", values, {}, dict.fromkeys(places, "a reason")))
    (table,) = read_tables([Table("layer", scopes, columns)])
    for column, read in zip(columns, table.columns, strict=True):
        numbers = [float(v) if isinstance(v, torch.Tensor | np.floating) else v for v in column.values]
        right = Column("x", [], {}, column.status).finished([int(v) if v is True else v for v in numbers])
        assert read == right
        assert list(map(type, read.values)) == list(map(type, right.values))


def test_reasons_for_values_that_are_not_there_change_nothing_but_are_kept() -> None:
    column = Column("x", [1.0, None], {}, {7: "of nothing"})
    (table,) = read_tables([Table("layer", ["a", "b"], [column])])
    assert table.columns[0].status == {7: "of nothing", 1: "not measured"}
