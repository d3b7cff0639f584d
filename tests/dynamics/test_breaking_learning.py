"""Loops, loaders, logits and files as awkward as they come, against histories kept whole in plain Python."""

from __future__ import annotations

import copy
import itertools
import pickle
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip

import learnscope as ls
from learnscope.dynamics import GradientFlowAnalyzer, LearningDynamicsAnalyzer, MemorizationDetector
from ledger.histories import Visit, assert_same, expected

N, CLASSES = 53, 3
WRITTEN = [name for name in expected([Visit(0, 0, 0.5, True, 1.0, 0.1, 0.2)]) if not name.startswith("grand")]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(N, 4, generator=generator), torch.randint(CLASSES, (N,), generator=generator))


def net(classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, classes))


def row_scores(z: Any, y: int) -> tuple[float, float, bool, float, float]:
    """p(gold), margin, correct, loss and EL2N of one row of logits, in NumPy's float64."""
    z = np.asarray(z, dtype=np.float64)
    if z.ndim == 0:
        z = np.array([0.0, float(z)])
    with np.errstate(all="ignore"):
        shifted = z - z.max()
        log_sum = np.log(np.exp(shifted).sum())
        p = np.exp(shifted - log_sum)
        margin = z[y] - np.delete(z, y).max()
        right = not np.isnan(z).any() and int(z.argmax()) == y
        onehot = np.eye(len(z))[y]
        return float(p[y]), float(margin), right, float(log_sum - shifted[y]), float(np.linalg.norm(p - onehot))


def visits(ids: Any, logits: Tensor, targets: Any, epoch: int) -> list[Visit]:
    rows = logits.detach().double().numpy()
    made = []
    for i, z, y in zip(np.asarray(ids).tolist(), rows, np.asarray(targets).tolist(), strict=True):
        p, margin, right, loss, el2n = row_scores(z, y)
        made.append(Visit(i, epoch, p, right, margin, loss, el2n))
    return made


def loaders() -> dict[str, Callable[[int], DataLoader[Any]]]:
    source = ls.IndexedDataset(data())
    weights = torch.arange(1, N + 1, dtype=torch.float64)

    def seeded(epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed(epoch)

    def distributed(epoch: int) -> DataLoader[Any]:
        sampler: Any = DistributedSampler(source, num_replicas=4, rank=3, shuffle=True)  # 53 is padded to 56
        sampler.set_epoch(epoch)
        return DataLoader(source, batch_size=4, sampler=sampler)

    def padded(epoch: int) -> DataLoader[Any]:
        sampler: Any = DistributedSampler(source, num_replicas=1, rank=0, shuffle=True)
        sampler.set_epoch(epoch)
        order = [*sampler, *list(sampler)[:3]]  # what padding does: the first ones come again
        return DataLoader(source, batch_size=8, sampler=order)

    def mixed(epoch: int) -> DataLoader[Any]:
        order = torch.randperm(N, generator=seeded(epoch)).tolist()
        sizes = itertools.cycle([1, 5, 2, 11])
        batches, start = [], 0
        while start < N:
            size = next(sizes)
            batches.append(order[start : start + size])
            start += size
        return DataLoader(source, batch_sampler=batches)

    return {
        "workers": lambda epoch: DataLoader(source, batch_size=8, shuffle=True, num_workers=2, generator=seeded(epoch)),
        "with replacement": lambda epoch: DataLoader(
            source, batch_size=8, sampler=WeightedRandomSampler(weights, 90, generator=seeded(epoch))
        ),
        "one rank of four": distributed,
        "padded": padded,
        "drop_last": lambda epoch: DataLoader(
            source, batch_size=8, shuffle=True, drop_last=True, generator=seeded(epoch)
        ),
        "last batch of one": lambda epoch: DataLoader(source, batch_size=13, shuffle=True, generator=seeded(epoch)),
        "mixed sizes": mixed,
        "batch sampler": lambda epoch: DataLoader(
            source, batch_sampler=BatchSampler(RandomSampler(range(N), generator=seeded(epoch)), 7, False)
        ),
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(loaders()))
def test_whatever_the_loader_does_an_example_is_its_presentations(kind: str) -> None:
    model, seen = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    analyzer = LearningDynamicsAnalyzer(num_classes=CLASSES)
    make = loaders()[kind]
    for epoch in range(4):
        before = len(seen)
        for number, (x, y, ids) in enumerate(make(epoch)):
            out = model(x)
            nn.functional.cross_entropy(out, y).backward()
            if number % 2:  # gradients of two batches at a time
                optimizer.step()
                optimizer.zero_grad()
            analyzer.track_batch(model, x, y, ids, epoch, logits=out)
            seen += visits(ids, out, y, epoch)
        told = analyzer.compute_epoch_statistics(make(epoch), model, epoch)
        here = seen[before:]
        assert told["presentations"] == len(seen)
        assert told["accuracy"] == pytest.approx(np.mean([v.correct for v in here]), rel=1e-12)
        assert told["loss"] == pytest.approx(np.mean([v.loss for v in here]), rel=1e-12)
    wanted = expected(seen)
    assert wanted["forgetting_events"].sum() > 0
    assert_same(analyzer.frame(), wanted[WRITTEN])


def of_shape(kind: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(11)
    yes, classes = torch.randint(2, (9,)), torch.randint(3, (9,))
    return {
        "[N]": lambda: (torch.randn(9) * 3, yes),
        "[N, 1]": lambda: (torch.randn(9, 1) * 3, yes),
        "[N, 1] against [N, 1]": lambda: (torch.randn(9, 1) * 3, yes[:, None]),
        "yes or no as booleans": lambda: (torch.randn(9) * 3, yes.bool()),
        "1000 classes": lambda: (torch.randn(9, 1000) * 3, torch.randint(1000, (9,))),
        "two classes far apart": lambda: (torch.randn(9, 2) * 300, yes),
        "bfloat16": lambda: (torch.randn(9, 3).bfloat16(), classes),
        "float16": lambda: (torch.randn(9, 3).half(), classes),
        "float64": lambda: (torch.randn(9, 3).double(), classes),
        "ties": lambda: (torch.zeros(9, 3), classes),
        "not contiguous": lambda: (torch.randn(3, 9).t(), classes),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    ["[N]", "[N, 1]", "[N, 1] against [N, 1]", "yes or no as booleans", "1000 classes", "two classes far apart",
     "bfloat16", "float16", "float64", "ties", "not contiguous"],
)  # fmt: skip
def test_logits_of_every_kind(kind: str) -> None:
    logits, targets = of_shape(kind)
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(net(), torch.randn(9, 4), targets, range(9), 0, logits=logits)
    flat = logits.reshape(9, -1).squeeze(1) if logits.numel() == 9 else logits
    assert_same(analyzer.frame(), expected(visits(range(9), flat, targets.long().reshape(-1), 0))[WRITTEN])


@pytest.mark.parametrize("num_classes", [None, 21])
def test_pixels_of_an_image_are_the_positions_of_one_example(num_classes: int | None) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(3, 21, 5, 4) * 4, torch.randint(21, (3, 5, 4))
    easy = logits.argmax(1)
    targets[0] = torch.where(torch.rand(5, 4) < 0.9, easy[0], targets[0])  # more than half of them right
    targets[1, :, :2] = -100
    analyzer = LearningDynamicsAnalyzer(num_classes=num_classes)
    analyzer.track_batch(net(), torch.randn(3, 3, 5, 4), targets, [7, 8, 9], 0, logits=logits)
    frame = analyzer.frame()
    for row, (z, y) in enumerate(zip(logits.double().numpy(), targets.numpy(), strict=True)):
        of = [row_scores(z[:, i, j], y[i, j]) for i in range(5) for j in range(4) if y[i, j] != -100]
        assert len(of) == (10 if row == 1 else 20)
        p, margin, right, loss, el2n = (np.mean([one[k] for one in of]) for k in range(5))
        found = frame.iloc[row]
        np.testing.assert_allclose(
            [found.confidence, found.aum, found.cumulative_loss, found.el2n_mean], [p, margin, loss, el2n], rtol=1e-12
        )
        assert found.correctness == float(right > 0.5)
    assert frame["correctness"].tolist() == [1.0, 0.0, 0.0]


def test_the_classes_announced_are_those_of_images_and_of_every_batch() -> None:
    images, pixels = torch.randn(2, 21, 5, 7), torch.full((2, 5, 7), 20)
    with pytest.raises(ValueError, match="num_classes=30, but there are 21 logits"):
        LearningDynamicsAnalyzer(30).track_batch(net(), torch.randn(2, 3, 5, 7), pixels, [0, 1], 0, logits=images)
    model, (x, y) = net(5), data().tensors
    analyzer = LearningDynamicsAnalyzer(num_classes=CLASSES)
    analyzer.track_batch(model, x[:20], y[:20], range(20), 0, logits=model(x[:20]))
    kept = analyzer.frame()
    with pytest.raises(ValueError, match="num_classes=3, but there is class 4 among the targets: say how many"):
        analyzer.track_batch(model, x[20:22], torch.tensor([1, 4]), [20, 21], 0, logits=model(x[20:22]))
        analyzer.frame()
    assert analyzer.frame().equals(kept)
    with pytest.raises(ValueError, match="num_classes=2, but there is class 2"):
        LearningDynamicsAnalyzer(2).compute_epoch_statistics(DataLoader(data(), batch_size=9), model, 0)
    with pytest.raises(ValueError, match="device='meta', but the model is on cpu"):
        LearningDynamicsAnalyzer(device="meta").compute_epoch_statistics(DataLoader(data()), model, 0)


def test_logits_that_are_not_finite_are_counted_and_left_out_of_means() -> None:
    torch.manual_seed(3)
    targets, seen = torch.tensor([0, 1, 2, 0, 1]), []
    analyzer = LearningDynamicsAnalyzer()
    for epoch in range(4):
        z = torch.randn(5, 3)
        if epoch == 1:
            z[0] = torch.nan
            z[1, 0] = torch.nan  # not of its own class
            z[2, 2] = torch.inf  # sure, and right
            z[3] = -torch.inf
        z[4] = torch.nan  # never finite
        analyzer.track_batch(net(), torch.zeros(5, 4), targets, range(5), epoch, logits=z)
        seen += visits(range(5), z, targets, epoch)
        here = [v for v in seen if v.epoch == epoch]
        told = analyzer.compute_epoch_statistics(epoch=epoch)
        assert told["accuracy"] == pytest.approx(np.mean([v.correct for v in here]))
        finite = [v for v in here if np.isfinite(v.p_gold) and np.isfinite(v.loss)]
        if finite:
            assert told["loss"] == pytest.approx(np.mean([v.loss for v in finite]), rel=1e-12)
        else:
            assert (told["loss"], told["confidence"]) == (None, None)
    wanted = expected(seen)
    assert wanted["nonfinite"].tolist() == [1, 1, 1, 1, 4]
    assert_same(analyzer.frame(), wanted[WRITTEN])
    kinds = analyzer.analyze_learning_patterns()
    assert 4 in kinds["hard_examples"]  # never correct, though it has no difficulty


# --- what the loop does with its tensors afterwards ---------------------------------------------------------


@pytest.mark.parametrize("width", [4, 4000], ids=["small inputs", "large inputs"])
@pytest.mark.parametrize("how", ["torch", "numpy", "data"])
def test_a_loop_that_fills_its_buffers_anew_is_followed_as_one_that_does_not(how: str, width: int) -> None:
    torch.manual_seed(0)
    x, y, z = torch.randn(80, width), torch.randint(3, (80,)), torch.randn(3, 80, 3)
    arrays = np.zeros((8, width), np.float32)
    inputs = torch.from_numpy(arrays) if how == "numpy" else torch.zeros(8, width)
    logits, targets, ids = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64), np.zeros(8, np.int64)
    reusing, plain = LearningDynamicsAnalyzer(strict=True), LearningDynamicsAnalyzer()
    for epoch in range(3):
        for part in torch.randperm(80).split(8):
            if how == "numpy":
                arrays[:] = x[part].numpy()
            else:
                (inputs.data if how == "data" else inputs).copy_(x[part])
            logits.copy_(z[epoch, part])
            targets.copy_(y[part])
            ids[:] = part.numpy()
            groups = np.where(part.numpy() % 2, "odd", "even")
            reusing.track_batch(net(), inputs, targets, ids, epoch, logits=logits, groups=groups)
            plain.track_batch(
                net(), x[part], y[part], part, epoch, logits=z[epoch, part], groups=groups.tolist()
            )  # fmt: skip
            groups[:] = "none"
        assert reusing.compute_epoch_statistics(epoch=epoch) == plain.compute_epoch_statistics(epoch=epoch)
    assert reusing.frame().equals(plain.frame())
    with pytest.raises(ls.IdError, match="another input"):
        for part in torch.arange(80).split(8):
            inputs.copy_(x[part].flip(0))
            reusing.track_batch(net(), inputs, y[part], part, 3, logits=z[0, part])
        reusing.frame()


# --- ids and targets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, lambda v: np.array(v, np.int32), lambda v: np.array(v, np.uint64), torch.tensor,
             lambda v: torch.tensor(v, dtype=torch.int32), lambda v: [torch.tensor(i) for i in v]],
)  # fmt: skip
def test_ids_of_any_integer_kind_are_the_same_ids(kind: Callable[[list[int]], Any]) -> None:
    (x, y), model = data().tensors, net()
    one, other = LearningDynamicsAnalyzer(), LearningDynamicsAnalyzer()
    order = torch.randperm(N)
    for part in order.split(10):
        one.track_batch(model, x[part], y[part], part, 0, logits=model(x[part]))
        other.track_batch(model, x[part], y[part], kind(part.tolist()), 0, logits=model(x[part]))
    assert other.frame().equals(one.frame())


def test_ids_may_be_negative_and_huge_and_change_their_type() -> None:
    (x, y), model = data().tensors, net()
    numbers = np.array([-(2**63), 2**63 - 1, -1, 0, 2**40], np.int64)
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(model, x[:5], y[:5], numbers, 0, logits=model(x[:5]))
    analyzer.track_batch(model, x[2:4], y[2:4], np.array([-1, 0], np.int8), 0, logits=model(x[2:4]))
    analyzer.track_batch(model, x[3:4], y[3:4], np.array([0], np.uint64), 0, logits=model(x[3:4]))
    frame = analyzer.frame()
    assert frame["id"].tolist() == sorted(numbers.tolist())
    assert frame["presentations"].tolist() == [1, 2, 3, 1, 1]
    assert analyzer.analyze_learning_patterns()["total_examples"] == 5


@pytest.mark.parametrize(
    "ids",
    [list("abcde"), np.array(list("abcde")), torch.arange(5.0), torch.ones(5, dtype=torch.bool), [2**64, 1, 2, 3, 4],
     [None] * 5, np.array([2**63, 1, 2, 3, 4], np.uint64)],
    ids=["text", "text array", "floats", "booleans", "beyond 64 bits", "nothing", "unsigned beyond"],
)  # fmt: skip
def test_ids_that_are_no_whole_numbers_are_refused_with_the_cure(ids: Any) -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(model, x[:9], y[:9], range(9), 0, logits=model(x[:9]))
    kept = analyzer.frame()
    with pytest.raises(ValueError, match=r"whole numbers that fit 64 bits.*[Nn]umber the examples"):
        analyzer.track_batch(model, x[:5], y[:5], ids, 1, logits=model(x[:5]))
        analyzer.frame()
    assert analyzer.frame().equals(kept)


@pytest.mark.parametrize(
    "kind", [lambda y: y.to(torch.uint8), lambda y: y.int(), lambda y: y.tolist(), lambda y: y.numpy()]
)
def test_targets_of_any_integer_kind_are_the_same_classes(kind: Callable[[Tensor], Any]) -> None:
    (x, y), model = data().tensors, net()
    one, other = LearningDynamicsAnalyzer(CLASSES), LearningDynamicsAnalyzer(CLASSES)
    for part in torch.arange(N).split(10):
        one.track_batch(model, x[part], y[part], part, 0, logits=model(x[part]))
        other.track_batch(model, x[part], kind(y[part]), part, 0, logits=model(x[part]))
        other.track_batch(model, x[part], kind(y[part]), part + 100, 0)  # by a forward of its own
    frame = other.frame()
    assert frame[frame["id"] < 100].equals(one.frame())
    assert frame[frame["id"] >= 100]["confidence"].to_numpy() == pytest.approx(one.frame()["confidence"].to_numpy())


@pytest.mark.parametrize("announced", [None, CLASSES])
@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda y: y.float(), TypeError, r"regression.*targets\.long\(\)"),
        (lambda y: torch.eye(3)[y], TypeError, r"targets\.argmax\(-1\) of one-hot"),
        (lambda y: torch.eye(3, dtype=torch.int64)[y], ValueError, r"look one-hot: pass the classes, targets\.argmax"),
        (lambda y: y - 1, ValueError, "classes are counted from 0"),
        (lambda y: y[:4], ValueError, r"targets of (shape \[4\] do not fit|4 examples were given for)"),
    ],
)
def test_targets_that_are_no_classes_are_refused_with_the_cure(
    change: Callable[[Tensor], Tensor], error: type[Exception], said: str, announced: int | None
) -> None:
    (x, _), model = data().tensors, net()
    y = torch.tensor([0, 1, 2, 0, 1])
    for logits in (model(x[:5]), None):
        analyzer = LearningDynamicsAnalyzer(announced)
        with pytest.raises(error, match=said):
            analyzer.track_batch(model, x[:5], change(y), range(5), 0, logits=logits)
            analyzer.frame()
        assert len(analyzer.frame()) == 0


def test_answers_of_yes_or_no_at_every_position_are_no_one_hot_classes() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(4, 3), torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]])
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(net(), torch.randn(4, 4), y, range(4), 0, logits=z)
    one_hot = torch.tensor([[1, 0, 0]]).expand(4, 3)
    analyzer.track_batch(net(), torch.randn(4, 4), one_hot, range(4, 8), 0, logits=z[..., None])
    frame = analyzer.frame()
    for row in range(8):
        gold = (y if row < 4 else one_hot)[row % 4].tolist()
        wanted = np.mean([row_scores(z[row % 4, t], gold[t])[0] for t in range(3)])
        assert frame["confidence"][row] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"num_classes": "3"}, TypeError, "num_classes='3': a whole number"),
        ({"num_classes": 1.5}, TypeError, "num_classes=1.5"),
        ({"num_classes": 0}, ValueError, "num_classes=0"),
        ({"track_examples": 0}, ValueError, "track_examples=0: a whole number from 1"),
        ({"track_examples": "5"}, TypeError, "track_examples='5'"),
        ({"track_examples": 5, "sample": "evne", "examples": 9}, ValueError, "'evne': one of first, even, random"),
        ({"track_examples": 5, "sample": "even"}, ValueError, "say track_examples= and examples="),
        ({"examples": 5, "sample": "random"}, ValueError, "say track_examples= and examples="),
        ({"track_examples": 5, "sample": "even", "examples": "9"}, TypeError, "examples='9'"),
        ({"track_examples": 5, "sample": "random", "examples": 9, "seed": -1}, ValueError, "seed=-1"),
        ({"grand_every": -1}, ValueError, "grand_every=-1"),
    ],
)
def test_options_are_refused_under_the_names_they_were_given(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        LearningDynamicsAnalyzer(**options)


@pytest.mark.parametrize("epoch", [-1, 1.5, "a", None, True])
def test_an_epoch_that_is_none_is_refused_at_once(epoch: Any) -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer()
    with pytest.raises((TypeError, ValueError), match=f"epoch={epoch!r}: a whole number"):
        analyzer.track_batch(model, x, y, range(N), epoch, logits=model(x))
    assert len(analyzer.frame()) == 0


def test_a_refused_batch_takes_none_of_the_others_with_it() -> None:
    (x, y), model = data().tensors, net()
    good, mixed = LearningDynamicsAnalyzer(), LearningDynamicsAnalyzer(strict=True)
    errors = []

    def trying(action: Callable[[], Any]) -> None:
        try:
            action()
        except ValueError as error:
            errors.append(type(error))

    for epoch in range(2):
        for number, part in enumerate(torch.arange(N).split(5)):
            out = model(x[part])
            good.track_batch(model, x[part], y[part], part, epoch, logits=out)
            trying(lambda p=part, o=out, e=epoch: mixed.track_batch(model, x[p], y[p], p, e, logits=o))
            if number == 3:  # an id of its own, and a class that is none
                trying(lambda e=epoch: mixed.track_batch(model, x[:1], y[:1] * 0 + 9, [999], e, logits=model(x[:1])))
            if number == 6:  # ids that stood for others before
                flipped = y.flip(0)[:5] if not torch.equal(y.flip(0)[:5], y[:5]) else y[:5]
                trying(
                    lambda e=epoch, f=flipped: mixed.track_batch(model, x[:5], f, range(5), e, logits=model(x[:5]))
                )  # fmt: skip
        trying(lambda e=epoch: mixed.compute_epoch_statistics(epoch=e))
        for _ in range(2):  # what waited behind a refused batch
            trying(mixed.frame)
        assert good.compute_epoch_statistics(epoch=epoch) == mixed.compute_epoch_statistics(epoch=epoch)
    assert errors.count(ls.IdError) == 2
    assert len(errors) == 4
    assert mixed.frame().equals(good.frame())


def test_a_first_batch_that_is_refused_leaves_nothing_to_compute() -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer()
    with pytest.raises(ValueError, match=r"ids of shape \[2\] were given for logits of shape \[3, 3\]: one id"):
        analyzer.track_batch(model, x[:3], y[:3], [0, 1], 0, logits=model(x[:3]))
    with pytest.raises(ValueError, match="no batch was tracked since the last call: call track_batch"):
        analyzer.compute_epoch_statistics(epoch=0)


def test_batches_without_examples_or_without_targets_are_no_presentations() -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(model, x[:0], y[:0], [], 0, logits=model(x[:0]))
    analyzer.track_batch(model, x[:3], y[:3] * 0 - 100, [0, 1, 2], 0, logits=model(x[:3]))
    told = analyzer.compute_epoch_statistics(epoch=0)
    assert (told["examples"], told["accuracy"], told["loss"]) == (0, None, None)
    assert analyzer.analyze_learning_patterns()["hard_examples"] == []


# --- saved in the middle ------------------------------------------------------------------------------------


def followed(stop: Callable[[int, int, Any], Any], **options: Any) -> tuple[list[Any], pd.DataFrame, Tensor]:
    """Three epochs of a real training; before every batch the analyzer is what `stop` makes of it."""
    (x, y), model = data().tensors, net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    analyzer, told = LearningDynamicsAnalyzer(**options), []
    for epoch in range(3):
        for number, part in enumerate(torch.randperm(N).split(4)):
            analyzer = stop(epoch, number, analyzer)
            out = nn.functional.dropout(model(x[part]), 0.2)  # draws: a disturbed random state shows
            optimizer.zero_grad()
            nn.functional.cross_entropy(out, y[part]).backward()
            optimizer.step()
            analyzer.track_batch(model, x[part], y[part], part, epoch, logits=out)
        told.append(analyzer.compute_epoch_statistics(epoch=epoch))
    return told, analyzer.frame(), torch.get_rng_state()


@pytest.mark.parametrize("options", [{}, {"grand_every": 2}, {"track_examples": 20}, {"check_inputs": False}])
@pytest.mark.parametrize("stops", [{(0, 0)}, {(0, 5)}, {(1, 3)}, {(0, 2), (0, 9), (2, 13)}, {(2, 0)}])
def test_saved_anywhere_and_loaded_is_as_never_stopped(
    tmp_path: Path, stops: set[tuple[int, int]], options: dict[str, Any]
) -> None:
    def save_and_load(epoch: int, number: int, analyzer: LearningDynamicsAnalyzer) -> LearningDynamicsAnalyzer:
        if (epoch, number) not in stops:
            return analyzer
        analyzer.save(tmp_path / "a.pkl")
        return LearningDynamicsAnalyzer.load(tmp_path / "a.pkl")

    torch.manual_seed(7)
    told, frame, state = followed(lambda _e, _n, analyzer: analyzer, **options)
    torch.manual_seed(7)
    again, other, other_state = followed(save_and_load, **options)
    assert again == told
    assert other.equals(frame)
    assert torch.equal(state, other_state)


def test_looking_saving_and_copying_in_between_changes_no_digit(tmp_path: Path) -> None:
    def meddle(_epoch: int, number: int, analyzer: LearningDynamicsAnalyzer) -> LearningDynamicsAnalyzer:
        if number % 3 == 1:
            analyzer.frame()
        if number % 5 == 2:
            analyzer.save(tmp_path / "aside")
        copy.deepcopy(analyzer)
        return copy.deepcopy(analyzer) if number == 7 else analyzer

    torch.manual_seed(7)
    told, frame, state = followed(lambda _e, _n, analyzer: analyzer)
    torch.manual_seed(7)
    again, other, other_state = followed(meddle)
    assert again == told
    assert other.equals(frame)
    assert torch.equal(state, other_state)


def test_loaded_looked_at_and_saved_again_nothing_is_lost(tmp_path: Path) -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(model, x, y, range(N), 4, logits=model(x))
    wanted = copy.deepcopy(analyzer).frame()
    for _ in range(3):
        analyzer.save(tmp_path / "a")
        analyzer = LearningDynamicsAnalyzer.load(tmp_path / "a")
        assert analyzer.frame().equals(wanted)
    told = analyzer.compute_epoch_statistics(model=model)
    assert (told["epoch"], told["examples"]) == (4, N)


def test_a_copy_goes_its_own_way() -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(model, x, y, range(N), 0, logits=model(x))
    analyzer.compute_epoch_statistics(epoch=0)
    other = copy.deepcopy(analyzer)
    other.track_batch(model, x, y, range(N), 1, logits=model(x))
    other.compute_epoch_statistics(epoch=1)
    assert [len(one.epoch_statistics) for one in (analyzer, other)] == [1, 2]
    assert set(analyzer.frame()["presentations"]) == {1}
    assert set(other.frame()["presentations"]) == {2}


def test_files_that_are_torn_or_of_another_analyzer_are_refused(tmp_path: Path) -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(model, x, y, range(N), 0, logits=model(x))
    analyzer.save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        (tmp_path / "torn").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"only a part of one.*: save the analyzer anew"):
            LearningDynamicsAnalyzer.load(tmp_path / "torn")
    for place in range(8, 400, 23):  # of the header, where names and sizes are
        (tmp_path / "bent").write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="bent"):
            LearningDynamicsAnalyzer.load(tmp_path / "bent")
    MemorizationDetector().save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"was saved by MemorizationDetector, not by LearningDynamicsAnalyzer: use"):
        LearningDynamicsAnalyzer.load(tmp_path / "other")
    with pytest.raises(ValueError, match=r"was saved by LearningDynamicsAnalyzer.*: use LearningDynamicsAnalyzer.load"):
        GradientFlowAnalyzer.load(tmp_path / "whole", model)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        LearningDynamicsAnalyzer.load(tmp_path / "nowhere")


def test_a_disk_that_is_full_leaves_the_earlier_file(tmp_path: Path) -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer()
    analyzer.track_batch(model, x[:9], y[:9], range(9), 0, logits=model(x[:9]))
    analyzer.save(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    analyzer.track_batch(model, x, y, range(N), 1, logits=model(x))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))  # files may not become larger than that
    try:
        with pytest.raises(Exception, match=r"(?i)too large|I/O|error"):
            analyzer.save(tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    analyzer.save(tmp_path / "a")
    assert LearningDynamicsAnalyzer.load(tmp_path / "a").frame().equals(analyzer.frame())


# --- the statistics of an epoch -----------------------------------------------------------------------------


class Augmented(Dataset[Any]):
    """Draws at every access, from all three generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        import random

        return data()[index][0] + torch.rand(4) + np.random.rand() + random.random(), int(data()[index][1]), index


def test_a_pass_over_data_that_draw_at_random_moves_no_generator() -> None:
    import random

    model = net()
    analyzer = LearningDynamicsAnalyzer(check_inputs=False)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    for epoch in range(2):
        analyzer.compute_epoch_statistics(DataLoader(Augmented(), batch_size=5, shuffle=True), model, epoch)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    assert random.getstate() == before[2]
    assert analyzer.frame()["presentations"].tolist() == [2] * 12


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(data())


def test_what_cannot_be_read_is_refused_with_the_cure() -> None:
    model = net()
    analyzer = LearningDynamicsAnalyzer()
    for loader, said in [
        (DataLoader(Stream(), batch_size=4), "IterableDataset cannot be read without advancing it.*pass a list of"),
        (iter(DataLoader(data())), "an iterator would be used up by looking at it: pass a list of batches"),
        (DataLoader(TensorDataset(*(t[:0] for t in data().tensors))), "empty"),
        (DataLoader(TensorDataset(data().tensors[0])), "the data have no targets"),
    ]:
        with pytest.raises((TypeError, ValueError), match=said):
            analyzer.compute_epoch_statistics(loader, model, 0)
    with pytest.raises(ValueError, match="pass the loader and the model"):
        analyzer.compute_epoch_statistics(epoch=0)
    assert len(analyzer.frame()) == 0


def test_batches_that_are_dictionaries_carry_their_ids_and_groups() -> None:
    x, y = data().tensors
    items = [{"x": x[i], "y": y[i], "index": 1000 - i, "group": "ab"[i % 2]} for i in range(N)]
    model, analyzer = net(), LearningDynamicsAnalyzer()
    told = analyzer.compute_epoch_statistics(DataLoader(items, batch_size=9, shuffle=True), model, 0)  # type: ignore[arg-type]
    seen = visits([1000 - i for i in range(N)], model(x), y, 0)
    assert_same(analyzer.frame()[WRITTEN], expected(seen)[[n for n in WRITTEN if n in ("id", "correctness")]])
    for group, place in (("a", 0), ("b", 1)):
        wanted = np.mean([v.correct for v in seen[place::2]])
        assert told["accuracy_by_group"][group] == pytest.approx(wanted)


def test_an_epoch_twice_and_epochs_out_of_order() -> None:
    (x, y), model = data().tensors, net()
    analyzer, seen = LearningDynamicsAnalyzer(), []
    for number, epoch in enumerate([5, 2, 2, 7]):
        z = torch.randn(N, 3, generator=torch.Generator().manual_seed(number))
        analyzer.track_batch(model, x, y, range(N), epoch, logits=z)
        seen += visits(range(N), z, y, epoch)
        told = analyzer.compute_epoch_statistics(epoch=epoch)
        assert told["loss"] == pytest.approx(np.mean([v.loss for v in seen[-N:]]), rel=1e-12)
        assert analyzer.compute_epoch_statistics(epoch=epoch) == told  # asked again: the same, nothing is added
    assert [told["epoch"] for told in analyzer.epoch_statistics] == [5, 2, 2, 7]
    assert_same(analyzer.frame(), expected(seen)[WRITTEN])


def test_after_closing_everything_can_still_be_read(tmp_path: Path) -> None:
    (x, y), model = data().tensors, net()
    analyzer = LearningDynamicsAnalyzer(run=tmp_path / "run")
    for epoch in range(2):
        analyzer.track_batch(model, x, y, range(N), epoch, logits=model(x) * (epoch - 0.5))
        analyzer.compute_epoch_statistics(epoch=epoch)
    told = analyzer.epoch_statistics
    analyzer.close()
    assert analyzer.epoch_statistics == told
    assert analyzer.analyze_learning_patterns()["epochs"] == told
    run = ls.open_run(tmp_path / "run")
    assert run.examples().equals(analyzer.frame())
    written = pd.read_parquet(tmp_path / "run" / "examples.parquet")
    for name in ("id", "presentations", "confidence", "variability", "forgetting_events", "aum", "never_learned"):
        assert written[name].tolist() == analyzer.frame()[name].tolist(), name


# --- hard, easy and between ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_kinds_are_as_they_are_documented(seed: int) -> None:
    rng = np.random.default_rng(seed)
    histories: dict[int, list[tuple[float, bool]]] = {}
    analyzer = LearningDynamicsAnalyzer()
    skill = rng.normal(2, 2, 60)
    skill[:3] = -9  # never right
    for epoch in range(9):
        shown = np.flatnonzero(rng.random(60) < 0.8)
        z = rng.normal(size=(len(shown), 2)) * 2
        z[:, 0] += skill[shown]
        analyzer.track_batch(
            net(2), None, torch.zeros(len(shown), dtype=torch.int64), shown, epoch, logits=torch.from_numpy(z)
        )  # fmt: skip
        for place, (a, b) in zip(shown.tolist(), z.tolist(), strict=True):
            histories.setdefault(place, []).append((1 / (1 + np.exp(b - a)), a > b))
    difficulty = {i: 1 - float(np.mean([p for p, _ in of])) for i, of in histories.items()}
    low, high = np.percentile(list(difficulty.values()), [25, 75])
    cut = high + 1.5 * (high - low)
    hard, easy = set(), set()
    for i, of in histories.items():
        right = [r for _, r in of]
        forgotten = any(one and not other for one, other in itertools.pairwise(right))
        if difficulty[i] > cut or not any(right):
            hard.add(i)
        elif not forgotten and any(right[: max(1, len(right) // 4)]):
            easy.add(i)
    found = analyzer.analyze_learning_patterns()
    assert set(found["hard_examples"]) == hard
    assert set(found["easy_examples"]) == easy
    assert set(found["medium_examples"]) == histories.keys() - hard - easy
    assert found["hard_cut"] == pytest.approx(cut)
    assert {0, 1, 2} & histories.keys() <= set(found["never_learned_examples"]) <= hard
    for kind, sign in (("hard_examples", -1), ("easy_examples", 1)):
        order = [sign * difficulty[i] for i in found[kind]]
        assert order == sorted(order)
    events = [
        sum(a and not b for a, b in itertools.pairwise(r for _, r in of)) for of in histories.values()
    ]  # fmt: skip
    told = found["forgetting_statistics"]
    assert told["examples_with_forgetting"] == sum(e > 0 for e in events) > 0
    assert told["total_forgetting_events"] == sum(events)
    assert told["max_forgetting_events"] == max(events)
    assert told["never_learned"] == sum(not any(r for _, r in of) for of in histories.values())
    assert found["mean_difficulty"] == pytest.approx(np.mean(list(difficulty.values())))
    assert found["total_examples"] == len(histories)


@pytest.mark.parametrize("sample", ["first", "even", "random"])
def test_as_many_are_followed_as_asked_and_the_rest_is_said(sample: Any) -> None:
    (x, y), model = data().tensors, net()
    size = None if sample == "first" else N
    analyzer = LearningDynamicsAnalyzer(track_examples=np.int64(7), sample=sample, examples=size, seed=3)  # type: ignore[arg-type]
    order = torch.randperm(N)
    for epoch in range(2):
        for part in order.split(6):
            analyzer.track_batch(model, x[part], y[part], part, epoch, logits=model(x[part]))
    told = analyzer.compute_epoch_statistics(epoch=1)
    ids = analyzer.frame()["id"].tolist()
    if sample == "first":
        assert ids == sorted(order[:7].tolist())
    else:
        assert len(set(ids)) == 7
        assert 0 <= min(ids) <= max(ids) < N
    if sample == "even":
        assert {b - a for a, b in itertools.pairwise(ids)} <= {N // 7, N // 7 + 1}
    assert (told["examples"], told["presentations"]) == (7, 14)
    accuracy = float((model(x).argmax(1) == y).float().mean())
    assert told["accuracy"] == pytest.approx(accuracy)  # of all that were presented


# --- loops and models of other kinds ------------------------------------------------------------------------


class Wrapped(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


@pytest.mark.parametrize("kind", ["inference_mode", "no_grad", "autocast", "compiled", "wrapped", "DataParallel"])
def test_loops_and_wrappers_change_neither_numbers_nor_model(kind: str) -> None:
    x, y = data().tensors
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    model[1].eval()  # frozen on purpose, within a model that trains
    plain = LearningDynamicsAnalyzer(grand_every=1)
    plain.track_batch(model, x, y, range(N), 0)
    used: Any = {
        "compiled": lambda m: torch.compile(m, backend="eager"), "wrapped": Wrapped, "DataParallel": nn.DataParallel,
    }.get(kind, lambda m: m)(model)  # fmt: skip
    context: Any = {
        "inference_mode": torch.inference_mode, "no_grad": torch.no_grad,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }.get(kind, torch.enable_grad)  # fmt: skip
    flags = [module.training for module in model.modules()]
    buffers = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    analyzer = LearningDynamicsAnalyzer(grand_every=1)
    with context():
        analyzer.track_batch(used, x, y, range(N), 0)
        analyzer.compute_epoch_statistics(epoch=0)
    tolerance = 2e-2 if kind == "autocast" else 1e-5  # its own forward is the loop's, in bfloat16
    assert analyzer.frame()["confidence"].to_numpy() == pytest.approx(
        plain.frame()["confidence"].to_numpy(), abs=tolerance
    )
    assert analyzer.frame()["grand_mean"].to_numpy() == pytest.approx(plain.frame()["grand_mean"].to_numpy(), rel=1e-5)
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(value, buffers[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


class FromBytes(nn.Module):
    """Images as they are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x.float() / 255)


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> Any:
        return self.layer(left * right)


def of_kind(kind: str) -> tuple[nn.Module, Any, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    if kind == "bytes":
        model: nn.Module = FromBytes()
        inputs: Any = torch.randint(256, (6, 3, 2, 2), dtype=torch.uint8)
        return model, inputs, model(inputs)
    if kind == "booleans":
        model, inputs = FromBytes(), torch.rand(6, 12) > 0.5
        return model, inputs, model(inputs)
    model, inputs = OfTwo(), {"left": x, "right": x.flip(0)}
    return model, inputs, model(**inputs)


@pytest.mark.parametrize("kind", ["bytes", "booleans", "dictionary"])
def test_inputs_of_other_kinds(kind: str) -> None:
    model, inputs, out = of_kind(kind)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    analyzer, own = LearningDynamicsAnalyzer(strict=True), LearningDynamicsAnalyzer()
    analyzer.track_batch(model, inputs, y, range(6), 0, logits=out)
    own.track_batch(model, inputs, y, range(6), 0)
    assert_same(analyzer.frame(), expected(visits(range(6), out, y, 0))[WRITTEN])
    assert own.frame()["confidence"].to_numpy() == pytest.approx(analyzer.frame()["confidence"].to_numpy(), rel=1e-6)
    moved = {k: v.roll(1, 0) for k, v in inputs.items()} if isinstance(inputs, dict) else inputs.roll(1, 0)
    with pytest.raises(ls.IdError, match=r"another input.*learnscope\.IndexedDataset.*check_inputs=False"):
        analyzer.track_batch(model, moved, y, range(6), 1, logits=out)
        analyzer.frame()


def test_several_inputs_or_none_where_the_loop_has_the_logits() -> None:
    model, inputs, out = of_kind("dictionary")
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    wanted = expected(visits(range(6), out, y, 0))[WRITTEN]
    for given in (tuple(inputs.values()), None, ["six", "sentences", "that", "no", "model", "reads"]):
        analyzer = LearningDynamicsAnalyzer()
        analyzer.track_batch(model, given, y, range(6), 0, logits=out)
        assert_same(analyzer.frame(), wanted)


class Reversed(ls.Task):
    """Whose classes are counted from the other end."""

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return torch.as_tensor(model(batch[0]))

    def targets(self, batch: Any) -> Tensor:
        return 2 - torch.as_tensor(batch[1])


def test_a_task_of_ones_own_reads_the_batch_with_logits_and_without() -> None:
    (x, y), model = data().tensors, net()
    wanted = expected(visits(range(N), model(x), 2 - y, 0))
    for logits in (model(x), None):
        analyzer = LearningDynamicsAnalyzer(task=Reversed())
        analyzer.track_batch(model, x, y, range(N), 0, logits=logits)
        assert analyzer.frame()["confidence"].to_numpy() == pytest.approx(wanted["confidence"].to_numpy(), rel=1e-6)


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_sentence_is_the_same_example_whatever_padding_it_has(side: str, logits: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = {"vocab_size": 19, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    sentences = {100: [5, 6, 7, 8], 200: [9, 10], 300: [11, 12, 13]}
    analyzer = LearningDynamicsAnalyzer(num_classes=19)
    wanted: dict[int, list[float]] = {i: [] for i in sentences}
    for epoch in range(3):
        width = 4 + epoch
        tokens, mask = (torch.zeros(3, width, dtype=torch.int64) for _ in range(2))
        for row, sentence in enumerate(sentences.values()):
            place = slice(width - len(sentence), width) if side == "left" else slice(0, len(sentence))
            tokens[row, place], mask[row, place] = torch.tensor(sentence), 1
        labels = tokens.masked_fill(mask == 0, -100)
        labels[0] = labels[0].masked_fill(tokens[0] == 6, -100)  # a prompt, which is not predicted
        out = model(input_ids=tokens, attention_mask=mask).logits
        inputs = {"input_ids": tokens, "attention_mask": mask}
        analyzer.track_batch(model, inputs, labels, list(sentences), epoch, logits=out if logits else None)
        for row, (i, sentence) in enumerate(sentences.items()):
            start = width - len(sentence) if side == "left" else 0
            gold = [(start + t, sentence[t + 1]) for t in range(len(sentence) - 1) if sentence[t + 1] != 6]
            wanted[i].append(float(np.mean([row_scores(out[row, t].detach(), y)[3] for t, y in gold])))
    frame = analyzer.frame()
    assert frame["id"].tolist() == list(sentences)
    assert frame["cumulative_loss"].tolist() == pytest.approx([sum(of) for of in wanted.values()], rel=1e-6)


def test_a_watched_loop_hands_over_inputs_and_groups_and_is_replayed_alike(tmp_path: Path) -> None:
    (x, y), model = data().tensors, net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    seen, checkpoints = [], {}
    with ls.watch(model, optimizer, run=tmp_path / "w", probes=[ls.ExampleLedger(grand_every=2)]) as w:
        for epoch in range(3):
            for part in torch.randperm(N).split(10):
                out = model(x[part])
                optimizer.zero_grad()
                nn.functional.cross_entropy(out, y[part]).backward()
                optimizer.step()
                groups = ["even" if i % 2 == 0 else "odd" for i in part.tolist()]
                w.examples(part, out, y[part], inputs=x[part], groups=groups)
                seen += visits(part, out, y[part], epoch)
            w.end_epoch()
            checkpoints[epoch] = {name: value.clone() for name, value in model.state_dict().items()}
    assert_same(w.run.examples(), expected(seen)[WRITTEN])
    groups = w.run.frame("ExampleLedger", "accuracy")
    last = groups[groups["kind"] == "group"].groupby("scope")["value"].last()
    for name, odd in (("even", 0), ("odd", 1)):
        assert last[name] == pytest.approx(np.mean([v.correct for v in seen[-N:] if v.id % 2 == odd]))

    replayed = ls.replay(checkpoints, model=model, run=tmp_path / "r", probes=[ls.ExampleLedger()], train=data(),
                         progress=False)  # fmt: skip
    passes = []
    for epoch, weights in checkpoints.items():
        model.load_state_dict(weights)
        passes += visits(range(N), model(x), y, epoch)
    found, wanted = replayed.examples(), expected(passes)
    for name in ("presentations", "forgetting_events", "never_learned", "first_epoch", "last_epoch"):
        assert found[name].tolist() == wanted[name].tolist(), name
    assert found["cumulative_loss"].to_numpy() == pytest.approx(wanted["cumulative_loss"].to_numpy(), rel=1e-5)
    assert replayed.ledger().frame().equals(found)


def test_a_torn_file_whose_header_begins_as_pickles_do_is_not_taken_for_one(tmp_path: Path) -> None:
    """The first byte of the file is that of its header's length, a multiple of 8."""
    path = tmp_path / "torn"
    for length in (0x80, 0x280, 0x480, 0x20480):
        whole = length.to_bytes(8, "little") + b"{" + b" " * 100
        for end in (9, 40, len(whole)) if length > 0xFFFF else (3, 8, 9, len(whole)):
            path.write_bytes(whole[:end])
            with pytest.raises(ValueError, match="only a part of one"):
                LearningDynamicsAnalyzer.load(path)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps({"epochs": list(range(9))}, protocol))
        with pytest.raises(ValueError, match="is a pickle"):
            LearningDynamicsAnalyzer.load(path)
