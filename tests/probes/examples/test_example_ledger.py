"""Following examples in a real loop: the same numbers as a history kept whole, and nothing disturbed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import learnscope as ls
from ledger.histories import CLASSES, N, Visit, assert_same, data, expected, visits_of


def make(rate: float = 0.05) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))
    return model, torch.optim.Adam(model.parameters(), lr=rate)


def train(
    w: ls.Watch | None, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: range, *,
    shuffle: bool = True, micro: int = 1, ends: bool = True, position_ids: bool = False,
) -> list[Visit]:  # fmt: skip
    """Trains, hands examples over, and returns every visit."""
    visits: list[Visit] = []
    for epoch in epochs:
        order = torch.Generator().manual_seed(epoch)
        loader = DataLoader(ls.IndexedDataset(data()), batch_size=16, shuffle=shuffle, generator=order)
        for number, (x, y, ids) in enumerate(loader):
            optimizer.zero_grad()
            for part in torch.arange(len(y)).tensor_split(micro):
                logits = model(x[part])
                (cross_entropy(logits, y[part], reduction="sum") / len(y)).backward()
                visits += visits_of(ids[part], logits, y[part], epoch)
                if w is not None:
                    w.examples(part + 16 * number if position_ids else ids[part], logits, y[part])
            optimizer.step()
        if w is not None and ends:
            w.end_epoch()
    return visits


def kept(run: ls.Run) -> ls.Ledger:
    return run.ledger()


def number(run: ls.Run, name: str) -> list[float]:
    return list(run.frame("ExampleLedger", name, "model").sort_values("step")["value"])


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("batches", [1, 4, 32])
def test_a_run_is_as_its_whole_history(micro: int, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnscope.probes.examples.ledger_writer.BATCHES", batches)
    model, optimizer = make()
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        visits = train(w, model, optimizer, range(5), micro=micro)
    wanted, frame = expected(visits), kept(w.run).frame()
    names = [name for name in wanted if not str(name).startswith("grand")]
    assert wanted["forgetting_events"].sum() > 10  # there was something to be found
    assert 0 < wanted["first_learned"].isna().sum() < N
    assert_same(frame, wanted[names])
    assert (frame["target"] == data().tensors[1].numpy()).all()
    assert [r.epoch for r in w.run.records("ExampleLedger")][:5] == [0, 1, 2, 3, 4]
    assert number(w.run, "presentations") == [N, 2 * N, 3 * N, 4 * N, 5 * N]
    assert number(w.run, "forgetting_events")[-1] == wanted["forgetting_events"].sum()
    assert number(w.run, "learned")[-1] == pytest.approx(wanted["first_learned"].notna().mean())
    medians = w.run.frame("ExampleLedger", "confidence", "quantile").query("scope == '0.5'").sort_values("step")
    assert medians["value"].iloc[-1] == pytest.approx(wanted["confidence"].median())


def test_shuffled_or_not_the_same_visits_give_the_same_ledger() -> None:
    frames = []
    for shuffle in (True, False):
        model, optimizer = make(rate=0.0)
        model.eval()  # no dropout: what an example gets does not depend on when it comes
        with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
            train(w, model, optimizer, range(3), shuffle=shuffle)
        frames.append(kept(w.run).frame())
    one, other = frames
    whole = [name for name in one if one[name].dtype.kind in "iub" or str(one[name].dtype) == "Int64"]
    assert one[whole].equals(other[whole])
    np.testing.assert_allclose(one["confidence"], other["confidence"], rtol=1e-5)
    assert one["confidence"].nunique() == N


def test_positions_of_a_shuffled_loader_are_refused_as_ids(tmp_path: Path) -> None:
    model, optimizer = make()
    with pytest.raises(ls.IdError, match=r"learnscope\.IndexedDataset"):
        with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
            train(w, model, optimizer, range(2), position_ids=True)
    model, optimizer = make()
    with pytest.warns(ls.ProbeWarning, match="IndexedDataset"):
        with ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.ExampleLedger()]) as w:
            train(w, model, optimizer, range(3), position_ids=True)
    records = list(ls.open_run(tmp_path / "r").records("ExampleLedger"))
    assert not any(record.tables for record in records if record.epoch and record.epoch > 0)
    assert "IndexedDataset" in (records[-1].error or "")
    model, optimizer = make()
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        train(w, model, optimizer, range(3), position_ids=True, shuffle=False)  # there, positions are ids
    assert len(kept(w.run)) == N


def test_a_watched_run_is_bit_identical() -> None:
    states = []
    for watched in (False, True):
        model, optimizer = make()
        w = ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) if watched else None
        train(w, model, optimizer, range(2))
        if w is not None:
            w.close()
        states.append(([p.detach().clone() for p in model.parameters()], torch.get_rng_state()))
    assert all(torch.equal(a, b) for a, b in zip(states[0][0], states[1][0], strict=True))
    assert torch.equal(states[0][1], states[1][1])


def test_a_loop_without_epochs_is_measured_when_it_ends() -> None:
    model, optimizer = make()
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        visits = train(w, model, optimizer, range(2), ends=False)
    records = list(w.run.records("ExampleLedger"))
    assert [record.phase for record in records] == ["after_step"]
    assert number(w.run, "presentations") == [len(visits)]
    assert len(kept(w.run)) == N


def test_the_ledger_is_kept_every_so_many_epochs_and_once_at_the_end(tmp_path: Path) -> None:
    model, optimizer = make()
    shown = []
    with ls.watch(model, optimizer, run=tmp_path, probes=[ls.ExampleLedger(keep_every=2)], strict=True) as w:
        for epoch in range(5):
            train(w, model, optimizer, range(epoch, epoch + 1))
            there = (tmp_path / "examples.parquet").exists()
            shown.append(int(w.run.examples()["presentations"].sum()) if there else None)
    assert shown == [None, 2 * N, 2 * N, 4 * N, 4 * N]
    assert ls.open_run(tmp_path).examples()["presentations"].sum() == 5 * N
    assert len(number(w.run, "examples")) == 5
    assert pd.read_parquet(tmp_path / "examples.parquet")["correctness"].between(0, 1).all()


def test_a_run_without_a_ledger_says_so(tmp_path: Path) -> None:
    model, optimizer = make()
    for run in (None, tmp_path):
        with ls.watch(model, optimizer, run=run, probes=[ls.Loss()]) as w:
            w.log(loss=1.0)
        with pytest.raises(KeyError, match="ExampleLedger"):
            w.run.examples()


def test_groups_and_classes_are_summed_apart() -> None:
    model, optimizer = make()
    x, y = data().tensors
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        for groups in (None, ["odd" if i % 2 else "even" for i in range(N)], np.arange(N) % 3):
            logits = model(x)
            w.examples(torch.arange(N), logits, y, groups=groups)
            w.end_epoch()
            right = (logits.argmax(1) == y).numpy()
            wanted = pd.Series(right).groupby(y.numpy() if groups is None else np.asarray(groups)).mean()
            record = list(w.run.records("ExampleLedger"))[-1]
            table = next(t for t in record.tables if t.kind == "group")
            assert list(table.scopes) == [str(name) for name in wanted.index]
            assert table.columns[0].values == pytest.approx(wanted.to_numpy())
            loss = next(c for t in record.tables for c in t.columns if c.name == "mean_loss" and t.kind == "model")
            assert loss.values == pytest.approx([cross_entropy(logits.double(), y).item()], rel=1e-6)


def test_more_groups_than_can_be_told_apart_are_not() -> None:
    model, optimizer = make()
    x, y = data().tensors
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        for part in range(2):
            w.examples(torch.arange(N) + part * N, model(x), y, groups=np.arange(N) + part * N)
        w.end_epoch()
    rows = [row for row in next(iter(w.run.records("ExampleLedger"))).rows() if row.kind == "group"]
    assert [(row.value, row.status) for row in rows] == [(None, "there are more than 100 groups")]


def test_inputs_tell_reused_ids_where_targets_do_not() -> None:
    x = torch.randn(8, 6)
    same = torch.zeros(8, dtype=torch.int64)

    def twice(**options: bool) -> int:
        model, optimizer = make()
        with ls.watch(model, optimizer, probes=[ls.ExampleLedger(**options)], strict=True) as w:
            w.examples(torch.arange(8), model(x), same, inputs=x)
            w.examples(torch.arange(8).flip(0), model(x.flip(0)), same, inputs=x.flip(0))  # the same examples
            w.end_epoch()
            w.examples(torch.arange(8), model(x.flip(0)), same, inputs=x.flip(0))
        return int(w.run.examples()["presentations"].sum())

    with pytest.raises(ls.IdError, match=r"another input(.|\n)*IndexedDataset(.|\n)*check_inputs=False"):
        twice()
    assert twice(check_inputs=False) == twice(check_ids=False) == 24


def test_gradient_norms_come_with_the_inputs(tmp_path: Path) -> None:
    x, y = data().tensors
    model, optimizer = make()
    with ls.watch(model, optimizer, run=tmp_path, probes=[ls.ExampleLedger(grand_every=2)], strict=True) as w:
        for _ in range(3):
            for part in torch.arange(N).split(32):
                logits = model(x[part])
                cross_entropy(logits, y[part]).backward()
                optimizer.step()
                optimizer.zero_grad()
                w.examples(part, logits, y[part], inputs=x[part])
            w.end_epoch()
    frame = w.run.examples()
    model.eval()
    for i in range(N - 26, N):  # the last batch of the last epoch: weights are those after its step
        found = torch.autograd.grad(cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        norm = float(torch.cat([g.ravel() for g in found]).double().norm())
        assert frame["grand_last"][i] == pytest.approx(norm, rel=1e-4)
    arrays = w.run.ledger().arrays()
    assert set(arrays["grand_count"]) == {2}, "in the first and the third epoch"


def test_replayed_checkpoints_are_presentations_of_the_training_data() -> None:
    model, optimizer = make()
    weights, visits = {}, []
    loader = DataLoader(ls.IndexedDataset(data()), batch_size=16, shuffle=True)
    x, y = data().tensors
    for epoch in range(4):
        train(None, model, optimizer, range(epoch, epoch + 1))
        weights[10 * epoch] = copy.deepcopy(model.state_dict())
        model.eval()
        out = torch.cat([model(part) for part in x.split(16)])  # another batch, another last digit in float32
        visits += visits_of(torch.arange(N), out, y, 10 * epoch)
        model.train()
    run = ls.replay(weights, model=model, train=loader, probes=[ls.ExampleLedger()], strict=True, progress=False)
    wanted = expected(visits)
    assert wanted["forgetting_events"].sum() > 0
    assert_same(run.examples(), wanted[[name for name in wanted if not str(name).startswith("grand")]])
    with pytest.raises(ValueError, match="train="):
        ls.replay(weights, model=model, probes=[ls.ExampleLedger()])


def test_resumed_is_as_if_never_stopped(tmp_path: Path) -> None:
    model, optimizer = make()
    with ls.watch(model, optimizer, run=tmp_path / "whole", probes=[ls.ExampleLedger()], strict=True) as w:
        train(w, model, optimizer, range(4))

    model, optimizer = make()
    w = ls.watch(model, optimizer, run=tmp_path / "parts", probes=[ls.ExampleLedger()], strict=True)
    train(w, model, optimizer, range(2), ends=True)
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()))
    step = w.steps
    assert w.save_state() is not None
    train(w, model, optimizer, range(2, 3))  # lost: the checkpoint is older
    w.close("interrupted")

    model, optimizer = make()
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(checkpoint[1])
    again = ls.watch(
        model, optimizer, run=tmp_path / "parts", probes=[ls.ExampleLedger()], strict=True, resume=True, step=step
    )
    torch.set_rng_state(checkpoint[2])
    train(again, model, optimizer, range(2, 4))
    again.close()
    one, other = (kept(ls.open_run(tmp_path / name)).arrays() for name in ("whole", "parts"))
    assert set(one) == set(other)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    parts, whole = (ls.open_run(tmp_path / name) for name in ("parts", "whole"))
    assert number(parts, "forgetting_events") == number(whole, "forgetting_events")


def test_a_state_saved_within_an_epoch_has_the_batches_that_wait(tmp_path: Path) -> None:
    model, optimizer = make()
    with ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.ExampleLedger()], strict=True) as w:
        train(w, model, optimizer, range(1), ends=False)
        w.save_state()
    with ls.watch(
        model, optimizer, run=tmp_path / "r", probes=[ls.ExampleLedger()], strict=True, resume=True, step=6
    ) as w:
        train(w, model, optimizer, range(1), ends=False)
    assert kept(ls.open_run(tmp_path / "r")).summary()[0]["presentations"] == 2 * N


def test_sequences_and_what_has_no_target() -> None:
    model = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = torch.randint(5, (4, 7))
    targets[2] = -100
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        for _ in range(3):
            logits = model(torch.ones(4, 7, 3))
            cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
            optimizer.step()
            w.examples([10, 11, 12, 13], logits, targets)
        w.end_epoch()
    assert kept(w.run).frame()["id"].tolist() == [10, 11, 13]
    assert number(w.run, "unscored") == [3]


def test_a_limit_and_what_is_said_of_it() -> None:
    model, optimizer = make()
    probe = ls.ExampleLedger(track=9, sample="even", total=N)
    with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
        train(w, model, optimizer, range(2))
    assert kept(w.run).frame()["id"].tolist() == list(range(0, N, 10))
    assert number(w.run, "untracked")[-1] == 2 * (N - 9)


def test_what_is_refused() -> None:
    for options in ({"at": "after_step"}, {"keep_every": -1}, {"grand_every": True}, {"track": 5, "sample": "even"}):
        with pytest.raises(ValueError, match=r"ExampleLedger|sample="):
            ls.ExampleLedger(**options)
    model, optimizer = make()
    w = ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True)
    w.examples([1, 2], torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="one id an example"):
        w.close()


def test_a_loop_that_hands_nothing_over_is_told() -> None:
    model, optimizer = make()
    with pytest.warns(ls.ProbeWarning, match=r"w\.examples\(ids, logits, targets\)"):
        with ls.watch(model, optimizer, probes=[ls.ExampleLedger()]):
            train(None, model, optimizer, range(1))


def test_flipped_labels_are_found() -> None:
    """A tenth of the digits get another label; examples are ranked by how badly they go along with theirs."""
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(0)
    flipped = torch.zeros(len(y), dtype=torch.bool)
    flipped[torch.randperm(len(y), generator=generator)[: len(y) // 10]] = True
    shift = torch.randint(1, 10, (len(y),), generator=generator)
    labels = torch.where(flipped, (y + shift) % 10, y)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        for _ in range(10):
            for ids in torch.randperm(len(y), generator=generator).split(64):
                optimizer.zero_grad()
                logits = model(x[ids])
                cross_entropy(logits, labels[ids]).backward()
                optimizer.step()
                w.examples(ids, logits, labels[ids])
            w.end_epoch()
    frame = kept(w.run).frame()
    scores: dict[str, Any] = {
        "aum": -frame["aum"], "confidence": -frame["confidence"], "cumulative_loss": frame["cumulative_loss"],
        "el2n_mean": frame["el2n_mean"],
    }  # fmt: skip
    found = {name: roc_auc_score(flipped.numpy(), values) for name, values in scores.items()}
    assert min(found.values()) >= 0.95, found
    # the control: which label an example has says nothing about whether it was flipped
    assert 0.4 < roc_auc_score(flipped.numpy(), frame["target"].astype(int)) < 0.6
