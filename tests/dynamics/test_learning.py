"""Following examples by calls of one's own: the numbers of a history kept whole, and a model left alone."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import learnscope as ls
from learnscope.dynamics import LearningDynamicsAnalyzer
from ledger.histories import CLASSES, N, Visit, assert_same, data, expected, visits_of
from seeds import tiny


def make(rate: float = 0.05) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    layers = [nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, CLASSES)]
    model = nn.Sequential(*layers)
    model[3].eval()  # frozen on purpose
    return model, torch.optim.Adam(model.parameters(), lr=rate)


def loader(epoch: int, shuffle: bool = True) -> DataLoader[Any]:
    order = torch.Generator().manual_seed(epoch)
    return DataLoader(ls.IndexedDataset(data()), batch_size=16, shuffle=shuffle, generator=order)


def train(
    analyzer: LearningDynamicsAnalyzer | None, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: range, *,
    logits: bool = True, shuffle: bool = True,
) -> list[Visit]:  # fmt: skip
    visits: list[Visit] = []
    for epoch in epochs:
        batches = loader(epoch, shuffle)
        for x, y, ids in batches:
            out = model(x)
            loss = cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if analyzer is None:
                continue
            if not logits:
                shadow = copy.deepcopy(model).eval()
                out = shadow(x)
            analyzer.track_batch(model, x, y, ids, epoch, logits=out if logits else None)
            visits += visits_of(ids, out, y, epoch)
        if analyzer is not None:
            analyzer.compute_epoch_statistics(batches, model, epoch)
    return visits


def columns(frame: Any) -> list[str]:
    return [name for name in frame if not str(name).startswith("grand")]


@pytest.mark.parametrize("logits", [True, False])
def test_a_history_is_as_if_kept_whole(logits: bool) -> None:
    model, optimizer = make()
    analyzer = LearningDynamicsAnalyzer(num_classes=CLASSES)
    visits = train(analyzer, model, optimizer, range(5), logits=logits)
    wanted = expected(visits)
    assert wanted["forgetting_events"].sum() > 5
    assert_same(analyzer.frame(), wanted[columns(wanted)])
    for epoch, told in enumerate(analyzer.epoch_statistics):
        here = [visit for visit in visits if visit.epoch == epoch]
        assert told["epoch"] == epoch
        assert told["accuracy"] == pytest.approx(np.mean([v.correct for v in here]))
        assert told["loss"] == pytest.approx(np.mean([v.loss for v in here]))
        assert told["confidence"] == pytest.approx(np.mean([v.p_gold for v in here]))
        assert told["presentations"] == N * (epoch + 1)
        targets = data().tensors[1].numpy()
        for name, accuracy in told["accuracy_by_group"].items():
            assert accuracy == pytest.approx(np.mean([v.correct for v in here if targets[v.id] == int(name)]))
    assert analyzer.analyze_learning_patterns()["epochs"] == analyzer.epoch_statistics


def test_shuffled_and_unshuffled_loaders_give_the_same_ledger_for_the_same_visits() -> None:
    frames = []
    for shuffle in (True, False):
        model, optimizer = make(rate=0.0)
        model.eval()
        analyzer = LearningDynamicsAnalyzer()
        train(analyzer, model, optimizer, range(3), shuffle=shuffle)
        frames.append(analyzer.frame())
    one, other = frames
    whole = [name for name in one if one[name].dtype.kind in "iub" or str(one[name].dtype) == "Int64"]
    assert one[whole].equals(other[whole])
    np.testing.assert_allclose(one["confidence"], other["confidence"], rtol=1e-5)


def state_of(model: nn.Module) -> tuple[Any, ...]:
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        [module.training for module in model.modules()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()],
        torch.get_rng_state(), np.random.get_state()[1].tolist(),
    )  # fmt: skip


def assert_untouched(before: tuple[Any, ...], model: nn.Module) -> None:
    after = state_of(model)
    assert before[0].keys() == after[0].keys()
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert before[1] == after[1]
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(before[2], after[2], strict=True))
    assert before[3] == after[3]
    assert torch.equal(before[4], after[4])
    assert before[5] == after[5]


def test_no_call_leaves_a_trace_on_the_model(tmp_path: Path) -> None:
    model, _ = make()
    x, y = data().tensors
    cross_entropy(model(x), y).backward()
    analyzer = LearningDynamicsAnalyzer(grand_every=1)
    batches = loader(0)
    before = state_of(model)
    analyzer.track_batch(model, x, y, torch.arange(N), 0)
    assert_untouched(before, model)
    analyzer.compute_epoch_statistics(batches, model, 0)
    analyzer.compute_epoch_statistics(batches, model, 1)  # nothing was tracked: it reads the data itself
    assert_untouched(before, model)
    analyzer.analyze_learning_patterns()
    analyzer.plot_learning_dynamics(tmp_path)
    analyzer.save(tmp_path / "a.pkl")
    assert_untouched(before, model)
    assert analyzer.frame()["presentations"].eq(2).all()


@pytest.mark.parametrize("logits", [True, False])
def test_a_followed_loop_is_bit_identical(logits: bool) -> None:
    weights = []
    for analyzer in (None, LearningDynamicsAnalyzer()):
        model, optimizer = make()
        train(analyzer, model, optimizer, range(3), logits=logits)
        weights.append([t.clone() for t in model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_positions_of_a_shuffled_loader_are_refused() -> None:
    model, _ = make()
    analyzer = LearningDynamicsAnalyzer(strict=True)
    with pytest.raises(ls.IdError, match=r"another target(.|\n)*learnscope\.IndexedDataset"):
        for epoch in range(2):
            for number, (x, y, _) in enumerate(loader(epoch)):
                analyzer.track_batch(model, x, y, torch.arange(len(y)) + 16 * number, epoch, logits=model(x))
            analyzer.compute_epoch_statistics(epoch=epoch)


def test_an_id_with_another_input_is_refused_unless_inputs_are_augmented() -> None:
    y = torch.zeros(3, dtype=torch.int64)
    x = torch.zeros(3, 200)
    other = x.clone()
    other[1] = 1e-3
    wide = nn.Linear(200, 2)
    for check in (True, False):
        analyzer = LearningDynamicsAnalyzer(check_inputs=check, strict=True)
        analyzer.track_batch(wide, x, y, torch.arange(3), 0)
        analyzer.track_batch(wide, x[1:], y[1:], torch.arange(1, 3), 0)
        analyzer.track_batch(wide, other, y, torch.arange(3), 1)
        if not check:
            assert analyzer.compute_epoch_statistics(epoch=1)["presentations"] == 8
            continue
        with pytest.raises(ls.IdError, match=r"1 of the batch's ids came with another input(.|\n)*ids 1"):
            analyzer.compute_epoch_statistics(epoch=1)


def test_statistics_do_not_iterate_the_loader() -> None:
    class Untouchable(DataLoader):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError("the user's loader was iterated")

    model, _ = make()
    analyzer = LearningDynamicsAnalyzer()
    batches = Untouchable(ls.IndexedDataset(data()), batch_size=16, shuffle=True)
    x, y = data().tensors
    analyzer.track_batch(model, x, y, torch.arange(N), 0)
    first = analyzer.compute_epoch_statistics(batches, model, 0)
    assert analyzer.compute_epoch_statistics(batches, model, 0) == first, "asked again, it is not looked at again"
    assert first["presentations"] == N
    second = analyzer.compute_epoch_statistics(batches, model, 1)
    assert second["presentations"] == 2 * N
    plain = copy.deepcopy(model).eval()
    assert second["accuracy"] == pytest.approx(float((plain(x).argmax(1) == y).double().mean()))
    with pytest.raises(ValueError, match="no batch was tracked"):
        analyzer.compute_epoch_statistics(epoch=2)


def test_a_data_set_without_ids_is_followed_by_its_places() -> None:
    model, _ = make()
    analyzer = LearningDynamicsAnalyzer()
    analyzer.compute_epoch_statistics(DataLoader(data(), batch_size=7, shuffle=True), model, 0)
    frame = analyzer.frame()
    assert frame["id"].tolist() == list(range(N))
    assert frame["target"].tolist() == data().tensors[1].tolist()


@pytest.mark.parametrize("given", ["dictionary", "tokens alone"])
@pytest.mark.parametrize("logits", [True, False])
def test_sequences_of_a_causal_language_model_are_examples(given: str, logits: bool) -> None:
    model = tiny.language_model().eval()
    torch.manual_seed(0)
    tokens = torch.randint(3, model.config.vocab_size, (5, 9))
    mask = torch.ones_like(tokens)
    if given == "dictionary":
        mask[1, 6:], mask[3, 2:] = 0, 0
    labels = torch.where(mask.bool(), tokens, -100)
    inputs = {"input_ids": tokens, "attention_mask": mask} if given == "dictionary" else tokens
    analyzer = LearningDynamicsAnalyzer(strict=True)
    output = model(input_ids=tokens, attention_mask=mask)
    analyzer.track_batch(model, inputs, labels, torch.arange(5), 0, logits=output if logits else None)
    frame = analyzer.frame()
    for i in range(5):
        length = int(mask[i].sum())
        z = output.logits[i, : length - 1].detach().double().log_softmax(1)
        gold = z[torch.arange(length - 1), tokens[i, 1:length]]
        assert frame["cumulative_loss"][i] == pytest.approx(-float(gold.mean()), rel=1e-5)
        assert frame["confidence"][i] == pytest.approx(float(gold.exp().mean()), rel=1e-5)
        right = (z.argmax(1) == tokens[i, 1:length]).double().mean()
        assert frame["correctness"][i] == float(right > 0.5)
    assert analyzer.compute_epoch_statistics(epoch=0)["accuracy_by_group"] == {}
    # the same sequences, padded differently, are the same examples; others are not
    both = {"input_ids": tokens, "attention_mask": mask}
    wider = {key: nn.functional.pad(value, (0, 3)) for key, value in both.items()}
    if given == "dictionary":
        analyzer.track_batch(model, wider, nn.functional.pad(labels, (0, 3), value=-100), torch.arange(5), 1)
        assert analyzer.compute_epoch_statistics(epoch=1)["presentations"] == 10
    analyzer.track_batch(model, inputs, labels, torch.arange(5).flip(0), 2)
    with pytest.raises(ls.IdError):
        analyzer.compute_epoch_statistics(epoch=2)


def test_so_many_examples_are_followed_the_first_or_a_spread() -> None:
    model, _ = make()
    x, y = data().tensors
    ids = torch.arange(N)
    found = {}
    for sample in ("first", "even"):
        analyzer = LearningDynamicsAnalyzer(CLASSES, 9, sample=sample, examples=N)  # type: ignore[arg-type]
        analyzer.track_batch(model, x, y, ids, 0, logits=model(x))
        found[sample] = analyzer.frame()["id"].tolist()
        assert analyzer.compute_epoch_statistics(epoch=0)["examples"] == 9
    assert found == {"first": list(range(9)), "even": list(range(0, N, 10))}


def test_saved_under_the_documented_name_it_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    model, optimizer = make()
    whole = LearningDynamicsAnalyzer(num_classes=CLASSES, track_examples=70)
    train(whole, model, optimizer, range(4))
    model, optimizer = make()
    first = LearningDynamicsAnalyzer(num_classes=CLASSES, track_examples=70)
    train(first, model, optimizer, range(2))
    x, y, ids = next(iter(loader(2)))
    path = tmp_path / "analyzer_epoch_50.pkl"
    first.save(path)
    again = LearningDynamicsAnalyzer.load(path)
    assert again.analyze_learning_patterns() == first.analyze_learning_patterns()
    train(again, model, optimizer, range(2, 4))
    one, other = whole.ledger.arrays(), again.ledger.arrays()
    assert set(one) == set(other)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert again.epoch_statistics == whole.epoch_statistics
    assert again.ledger.untracked == whole.ledger.untracked == 20 * 4
    # in the middle of an epoch, with batches that wait
    again.track_batch(model, x, y, ids, 4)
    again.save(path)
    assert LearningDynamicsAnalyzer.load(path).frame().equals(again.frame())


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    path = tmp_path / "analyzer.pkl"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="never opened"):
        LearningDynamicsAnalyzer.load(path)
    assert not (tmp_path / "ran").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "ran").exists(), "the trap works"


def test_a_run_folder_keeps_records_and_examples(tmp_path: Path) -> None:
    model, optimizer = make()
    analyzer = LearningDynamicsAnalyzer(run=tmp_path / "r")
    train(analyzer, model, optimizer, range(3))
    analyzer.close()
    run = ls.open_run(tmp_path / "r")
    assert run.examples().equals(analyzer.frame())
    assert run.frame("ExampleLedger", "accuracy", "model")["epoch"].tolist() == [0, 1, 2]
    assert run.report().exists()


def test_figures_are_drawn_also_of_little(tmp_path: Path) -> None:
    model, optimizer = make()
    analyzer = LearningDynamicsAnalyzer()
    assert analyzer.plot_learning_dynamics(tmp_path / "none") == []
    analyzer.track_batch(model, *data()[:1], [5], 0)
    paths = analyzer.plot_learning_dynamics(tmp_path / "one")
    assert [path.name for path in paths] == ["data_map.png", "hardest_examples.png"]
    train(analyzer := LearningDynamicsAnalyzer(), model, optimizer, range(2))
    paths = analyzer.plot_learning_dynamics(str(tmp_path / "some"))
    assert [path.name for path in paths] == ["learning_curves.png", "data_map.png", "hardest_examples.png"]
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    model, _ = make()
    x, y = data().tensors
    ids = torch.arange(N)
    with pytest.raises(ValueError, match="num_classes=3, but there is class 3"):
        LearningDynamicsAnalyzer(num_classes=3).track_batch(model, x, y, ids, 0)
    with pytest.raises(ValueError, match="num_classes=9, but there are 4 logits"):
        LearningDynamicsAnalyzer(num_classes=9).track_batch(model, x, y, ids, 0)
    with pytest.raises(ValueError, match="device='meta', but the model is on cpu"):
        LearningDynamicsAnalyzer(device="meta").track_batch(model, x, y, ids, 0)
    with pytest.raises(TypeError, match="Did you mean"):
        LearningDynamicsAnalyzer(track_example=5)  # type: ignore[call-arg]
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(model, x, y, ids, 0)
    before = analyzer.frame()
    for wrong in (ids[:5], ids.float(), ids[None]):
        with pytest.raises(ValueError, match=r"ids|whole numbers"):
            analyzer.track_batch(model, x, y, wrong, 1)
            analyzer.frame()
        assert analyzer.frame().equals(before)
    with pytest.raises(TypeError, match="regression"):
        analyzer.track_batch(model, x, x[:, :4], ids, 1)
        analyzer.frame()
    assert analyzer.frame().equals(before)
