"""The ledger against histories kept whole; ids of every kind; limits; files."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learnscope.ledger import IdError, Ledger, LedgerError, index
from ledger.histories import Visit, assert_same, expected, fill

score = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])
visit = st.builds(
    Visit,
    id=st.integers(0, 6) | st.sampled_from([-(2**63), -1, 2**40, 2**63 - 1]),
    epoch=st.integers(0, 4),
    p_gold=st.floats(0, 1) | st.just(math.nan),
    correct=st.booleans(),
    margin=score,
    loss=score,
    el2n=st.floats(0, 2),
    grand=st.floats(0, 1e3) | st.just(math.nan),
)
histories = st.lists(visit, max_size=60).map(lambda visits: sorted(visits, key=lambda v: v.epoch))


def made(count: int, examples: int, seed: int = 0) -> list[Visit]:
    rng = np.random.default_rng(seed)
    return [
        Visit(
            int(rng.integers(examples)),
            n * 5 // count,
            float(rng.random()),
            bool(rng.random() < 0.6),
            *rng.normal(size=3),
        )
        for n in range(count)
    ]


@settings(max_examples=50, deadline=None)
@given(histories, st.integers(1, 9))
def test_streamed_numbers_are_those_of_whole_histories(visits: list[Visit], batch: int) -> None:
    check_streamed(visits, batch)


@pytest.mark.soak
@settings(max_examples=1000, deadline=None)
@given(histories, st.integers(1, 9))
def test_streamed_numbers_of_many_histories(visits: list[Visit], batch: int) -> None:
    check_streamed(visits, batch)


def check_streamed(visits: list[Visit], batch: int) -> None:
    found = fill(visits, batch).frame()
    if visits:
        assert_same(found, expected(visits))
    else:
        assert len(found) == 0


def test_known_histories() -> None:
    right = {1: "0000", 2: "1111", 3: "0111", 4: "1011", 5: "1010", 6: "0100"}
    visits = [Visit(i, n, 0.5, r[n] == "1", 0, 0, 0) for n in range(4) for i, r in right.items()]
    frame = fill(visits).frame().set_index("id")
    assert frame["forgetting_events"].to_dict() == {1: 0, 2: 0, 3: 0, 4: 1, 5: 2, 6: 1}
    assert frame.index[frame["never_learned"]].tolist() == [1]
    assert frame.index[frame["unforgettable"]].tolist() == [2, 3]  # never learned is not unforgettable
    assert frame["first_correct"].dropna().to_dict() == {2: 1, 3: 2, 4: 1, 5: 1, 6: 2}
    assert frame["first_learned"].dropna().to_dict() == {2: 1, 3: 2, 4: 3}  # 5 and 6 have lost it again
    assert frame["learned_epoch"].dropna().to_dict() == {2: 0, 3: 1, 4: 2}


def test_variability_of_nearly_equal_confidences_is_not_lost() -> None:
    values = 0.999999 + 1e-9 * np.random.default_rng(0).random(1000)
    visits = [Visit(0, 0, float(p), True, 0, 0, 0) for p in values]
    found = fill(visits).frame()["variability"][0]
    shifted = (values - 0.999999).std()
    assert found == pytest.approx(shifted, rel=1e-6)


def test_an_id_twice_in_a_batch_is_two_presentations_in_order() -> None:
    ledger = Ledger()
    two: dict[str, Any] = {"p_gold": [0.25, 0.75], "margin": [1, 2], "loss": [3, 4], "el2n": [0.5, 0.125]}
    ledger.update([3, 3], correct=[True, False], epoch=0, **two)
    row = ledger.frame().iloc[0]
    assert (row["presentations"], row["forgetting_events"], row["el2n_last"]) == (2, 1, 0.125)
    ledger = Ledger(once_an_epoch=True)
    ledger.update([3, 3], correct=[True, False], epoch=0, **two)
    ledger.update([3, 3], correct=[True, False], epoch=1, **two)
    row = ledger.frame().iloc[0]
    assert (row["presentations"], row["forgetting_events"], ledger.repeated) == (2, 0, 2)


@pytest.mark.parametrize("examples", [50, 20_000])
def test_ids_of_any_kind_give_the_same_numbers(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = made(30_000, examples)
    dense = fill(visits, batch=512).frame()
    monkeypatch.setattr(index, "DENSE", 64)  # leaves the table after some batches, and bisects from then on
    late = fill(visits, batch=512).frame()
    far = [Visit(v.id * 2**48 - 2**62, *list(v.__dict__.values())[1:]) for v in visits]
    sparse = fill(far, batch=512).frame()
    assert dense.equals(late)
    assert dense.drop(columns="id").equals(sparse.drop(columns="id"))
    assert (sparse["id"] == dense["id"] * 2**48 - 2**62).all()


def test_the_order_of_the_examples_within_an_epoch_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    epochs = [
        [Visit(i, e, float(rng.random()), bool(rng.random() < 0.5), *map(float, rng.normal(size=3))) for i in range(40)]
        for e in range(6)
    ]
    in_order = fill([v for epoch in epochs for v in epoch], batch=7).frame()
    shuffled = fill([epoch[i] for epoch in epochs for i in rng.permutation(40)], batch=13).frame()
    assert in_order.equals(shuffled)


SCORES: dict[str, Any] = {
    "p_gold": [0.5, 0.5],
    "correct": [True, True],
    "margin": [0, 0],
    "loss": [1, 1],
    "el2n": [1, 1],
}


def test_ids_that_come_back_with_another_target_or_input_are_refused_and_nothing_is_changed() -> None:
    ledger = Ledger()
    ledger.update([0, 1], epoch=0, target=[3, 4], checksum=[1.0, 0.0], **SCORES)
    before = ledger.frame()
    for wrong in ({"target": [3, 5]}, {"checksum": [1.0, 0.1]}, {"checksum": [1 + 1e-9, 0.0]}):
        with pytest.raises(IdError, match=r"learnscope\.IndexedDataset"):
            ledger.update([0, 1], epoch=1, **wrong, **SCORES)
    with pytest.raises(IdError, match="another target"):
        ledger.update([8, 8], epoch=1, target=[1, 2], **SCORES)
    assert ledger.frame().equals(before)
    ledger.update([0, 1], epoch=1, target=[3, 4], checksum=[1.0, math.nan], **SCORES)  # not known
    assert ledger.frame()["presentations"].tolist() == [2, 2]
    lenient = Ledger(check_ids=False)
    lenient.update([0, 1], epoch=0, target=[3, 4], **SCORES)
    lenient.update([0, 1], epoch=0, target=[4, 4], **SCORES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p_gold": [0.5]}, "p_gold has shape"),
        ({"correct": [1, 0]}, "pass booleans"),
        ({"ids": [0.0, 1.0]}, "ids is float64"),
        ({"ids": [[0], [1]]}, "one whole number per example"),
        ({"ids": np.array([0, 2**63], dtype=np.uint64)}, "fit 64 bits"),
        ({"epoch": -1}, "epoch"),
        ({"target": ["a", "b"]}, "target is"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    ledger = Ledger()
    with pytest.raises(LedgerError, match=message):
        ledger.update(**{"ids": [0, 1], "epoch": 0, **SCORES, **change})
    assert len(ledger) == 0


def test_an_empty_batch_and_an_empty_ledger() -> None:
    ledger = Ledger()
    ledger.update([], p_gold=[], correct=np.zeros(0, bool), margin=[], loss=[], el2n=[], epoch=0)
    assert len(ledger.frame()) == 0
    assert ledger.summary() == ({"examples": 0, "presentations": 0}, {})


@pytest.mark.parametrize(("sample", "ids"), [("first", {0, 1, 2, 3}), ("even", {0, 25, 50, 75}), ("random", None)])
def test_a_limit_on_what_is_followed(sample: Any, ids: set[int] | None) -> None:
    visits = [Visit(i, e, 0.5, True, 0, 0, 0) for e in range(3) for i in range(100)]
    ledger = fill(visits, batch=32, track=4, sample=sample, examples=100, seed=5)
    found = set(ledger.frame()["id"])
    assert len(found) == 4
    assert ids is None or found == ids
    assert ledger.untracked == 3 * 96
    assert ledger.frame()["presentations"].tolist() == [3] * 4
    again = fill(visits, batch=32, track=4, sample=sample, examples=100, seed=5)
    assert set(again.frame()["id"]) == found


def test_impossible_limits_are_refused() -> None:
    for options in (
        {"track": 0},
        {"track": 5, "sample": "even"},
        {"sample": "random", "examples": 9},
        {"sample": "odd"},
    ):
        with pytest.raises(ValueError, match=r"track=|sample="):
            Ledger(**options)


def with_target(visits: list[Visit]) -> Ledger:
    ledger = fill(visits)
    seen = [visit.id for visit in visits][:1]
    ledger.update(seen, p_gold=[math.nan], correct=[False], margin=[0], loss=[0], el2n=[0], epoch=9, target=[7])
    return ledger


@pytest.mark.parametrize("name", ["examples.parquet", "ledger.pkl", "no suffix"])
@pytest.mark.parametrize("pyarrow", [True, False])
def test_a_saved_ledger_comes_back_to_the_bit_and_goes_on(
    name: str, pyarrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = [Visit(5, 0, math.nan, False, 0, 0, 0), *made(300, 40), Visit(-3, 4, 0.5, True, 1, 2, math.inf)]
    if not pyarrow:
        monkeypatch.setattr("learnscope.ledger.files.find_spec", lambda _: None)
    ledger = with_target(visits)
    ledger.save(tmp_path / name)
    again = Ledger.load(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(b"PAR1") is pyarrow
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert again.settings == ledger.settings
    later = {"p_gold": [0.1], "correct": [True], "margin": [0.3], "loss": [0.7], "el2n": [0.9], "grand": [2.0]}
    for _ in range(2):
        one, other = ledger.arrays(), again.arrays()
        assert set(one) == set(other)
        assert all(one[key].tobytes() == other[key].tobytes() for key in one)
        for each in (ledger, again):
            each.update([5], epoch=10, **later)  # type: ignore[arg-type]


def test_files_that_are_no_ledgers_are_refused_and_never_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and nothing else")
    fill(made(10, 3)).save(tmp_path / "whole")
    (tmp_path / "d").write_bytes((tmp_path / "whole").read_bytes()[:-20])
    for name in ("a.pkl", "b", "c.parquet", "d"):
        with pytest.raises(LedgerError, match=str(tmp_path / name)):
            Ledger.load(tmp_path / name)
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(FileNotFoundError):
        Ledger.load(tmp_path / "not there")


def test_a_parquet_of_something_else_is_refused(tmp_path: Path) -> None:
    fill(made(10, 3)).frame().to_parquet(tmp_path / "frame.parquet")
    with pytest.raises(LedgerError, match="not written by a ledger"):
        Ledger.load(tmp_path / "frame.parquet")


def test_the_arrays_take_a_bounded_number_of_bytes_an_example() -> None:
    ledger = Ledger()
    for start in range(0, 50_000, 1000):
        ids = np.arange(start, start + 1000)
        x = ids * 0.5
        ledger.update(ids, p_gold=x, correct=x > 3, margin=x, loss=x, el2n=x, grand=x, target=ids, checksum=x, epoch=0)
    assert ledger.nbytes / len(ledger) < 200
    ledger.trim()
    assert ledger.nbytes / len(ledger) < 150


def test_a_ledger_needs_no_torch(tmp_path: Path) -> None:
    fill(made(10, 3)).save(tmp_path / "l")
    program = f"""
import sys
import learnscope as ls
print(len(ls.Ledger.load({str(tmp_path / "l")!r}).frame()), "torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["3", "False"]


def test_the_summary() -> None:
    visits = [*made(500, 30), Visit(99, 4, math.nan, False, 0, 0, 0)]
    wanted, (found, quantiles) = expected(visits), fill(visits).summary()
    assert found["presentations"] == 501
    assert found["examples"] == 31
    assert found["forgetting_events"] == wanted["forgetting_events"].sum()
    assert found["learned"] == pytest.approx(wanted["first_learned"].notna().mean())
    assert found["never_learned"] == pytest.approx(wanted["never_learned"].mean())
    assert found["mean_confidence"] == pytest.approx(wanted["confidence"].mean())  # without the one never measured
    for name, values in quantiles.items():
        column = {"el2n": "el2n_mean"}.get(name, name)
        assert values == pytest.approx(wanted[column].quantile([0.1, 0.5, 0.9]).tolist())
    assert len(quantiles) == 5


def votes(*predictions: int) -> tuple[int | None, int]:
    """The kept class and its votes after these predictions in place of the label."""
    ledger = Ledger()
    for epoch, predicted in enumerate(predictions):
        one = {"p_gold": [0.5], "correct": [predicted < 0], "margin": [0.0], "loss": [1.0], "el2n": [1.0]}
        ledger.update([3], epoch=epoch, target=[0], predicted=[predicted], **one)
    row = ledger.frame().iloc[0]
    return (None if pd.isna(row["other_class"]) else int(row["other_class"])), int(row["other_votes"])


def test_the_class_that_was_predicted_instead_most_often_is_kept() -> None:
    assert votes(-1, -1) == (None, 0)
    assert votes(4, -1, 4) == (4, 2)
    assert votes(2, 4, 4, 4, -1) == (4, 2)
    assert votes(4, 2, 4, 1, 4) == (4, 1)
    assert votes(40_000) == (None, 0)  # beyond what two bytes hold
    assert votes(*[7] * 300) == (7, 255)


def test_votes_are_saved_and_older_ledgers_can_still_be_read(tmp_path: Path) -> None:
    scores = {name: [1.0, 2.0] for name in ("p_gold", "margin", "loss", "el2n")}
    ledger, older = Ledger(), Ledger()
    ledger.update([1, 2], correct=[False, True], epoch=0, target=[0, 1], predicted=[5, -1], **scores)
    older.update([1, 2], correct=[False, True], epoch=0, target=[0, 1], **scores)
    for each, name in ((ledger, "new"), (older, "old")):
        each.save(tmp_path / name)
    again = Ledger.load(tmp_path / "new")
    assert again.frame()["other_class"].tolist()[0] == 5
    again.update([1, 2], correct=[False, False], epoch=1, target=[0, 1], predicted=[5, 3], **scores)
    assert again.frame()["other_votes"].tolist() == [2, 1]
    old = Ledger.load(tmp_path / "old")
    assert "other_class" not in old.frame()
    old.update([1, 2], correct=[False, False], epoch=1, target=[0, 1], predicted=[5, 3], **scores)
    assert old.frame()["other_class"].tolist() == [5, 3]
    assert ledger.nbytes - older.nbytes == 3 * 1024  # bytes an example, of the 1,024 that there is room for
